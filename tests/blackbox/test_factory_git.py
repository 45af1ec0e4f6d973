"""Branches, commits, pushes, and everything about a repository that is not ours to change."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from loopback import Answer

from blackbox.harness import (
    AS_USER,
    GOOD,
    ULID,
    Desk,
    a_proposal,
    a_task,
    a_write,
    differences,
    exists,
    factory,
    fails,
    passes,
    put,
    sha,
    snapshot,
    untouched,
)

UNCHANGED = json.dumps(a_proposal(a_write("a.txt", "other\n", sha("content\n"))))
PLANNER_RUN = "01HZY3VJ8Q4N5R6S7T8V9W0X1Y"


def head(desk: Desk, repo: Path) -> str:
    return desk.git(repo, "symbolic-ref", "--short", "HEAD")


def with_remote(desk: Desk, repo: Path, name: str = "origin") -> Path:
    remote = desk.root / f"{name}.git"
    desk.git(desk.root, "init", "-q", "--bare", remote.name)
    desk.git(repo, "remote", "add", name, str(remote))
    return remote


# --- branches ----------------------------------------------------------------------------


@pytest.mark.rows("FB02", "FM10")
def test_provenance_names_the_branch(desk):
    repo = desk.repo()
    task = a_task(
        provenance={
            "planner_run_id": PLANNER_RUN,
            "bootstrap": False,
            "compile_hash": "0" * 16,
            "manifest_sha256": "0" * 64,
            "surprise": 1,
        },
        extra_key=[1],
    )
    passes(factory(desk, repo, task, [Answer(GOOD)]))
    assert re.fullmatch(f"factory/{PLANNER_RUN}/{ULID.pattern}", head(desk, repo))


@pytest.mark.rows("FB02", "FC11")
@pytest.mark.parametrize("run_id", ["../../heads/main", "-f", "a b", "x..y", "", "ü/ä", "a" * 300])
def test_provenance_of_any_text_cannot_misname_a_branch(desk, run_id):
    repo = desk.repo()
    baseline = desk.git(repo, "rev-parse", "main")
    run = factory(
        desk, repo, a_task(provenance={"planner_run_id": run_id, "bootstrap": False}), [Answer(GOOD)]
    )
    assert run.outcome.exit_code in (0, 1), run.outcome
    assert "Traceback" not in run.outcome.said
    if run.outcome.exit_code == 0:
        assert head(desk, repo).startswith("factory/")
    assert desk.git(repo, "rev-parse", "main") == baseline


@pytest.mark.rows("FB03", "FB04", "FB05", "FB08", "FB19")
def test_a_named_branch_is_made_then_reused_and_its_head_is_the_baseline(desk):
    repo = desk.repo()
    first = desk.git(repo, "rev-parse", "main")
    passes(factory(desk, repo, a_task(), [Answer(GOOD)], "--branch", "work/one", "--create-branch"))
    assert head(desk, repo) == "work/one"
    made = desk.git(repo, "rev-parse", "HEAD")
    assert desk.git(repo, "rev-parse", "HEAD^") == first

    desk.git(repo, "checkout", "-q", "main")
    second = a_task(
        allowed_files=["b.txt"],
        postconditions=[exists("b.txt")],
        preconditions=[exists("a.txt")],
        acceptance_commands=["test -f a.txt"],
    )
    answer = Answer(json.dumps(a_proposal(a_write("b.txt"))))
    run = passes(factory(desk, repo, second, [answer], "--branch", "work/one", "--reuse-branch"))
    assert run.summary["baseline_commit"] == made
    assert desk.git(repo, "rev-parse", "work/one^") == made
    assert head(desk, repo) == "work/one"
    assert (repo / "a.txt").exists()
    assert desk.git(repo, "rev-parse", "main") == first
    assert desk.git(repo, "status", "--porcelain") == ""

    third = a_task(allowed_files=["c.txt"], postconditions=[exists("c.txt")], acceptance_commands=["true"])
    answer = Answer(json.dumps(a_proposal(a_write("c.txt"))))
    passes(factory(desk, repo, third, [answer], "--branch", "work/one"))
    assert desk.git(repo, "rev-list", "--count", "work/one") == "4"


@pytest.mark.rows("FB06", "FB03")
def test_a_new_branch_may_start_at_another_commit(desk):
    repo = desk.repo()
    old = desk.git(repo, "rev-parse", "HEAD")
    put(repo / "later.txt", "later\n")
    later = desk.commit_all(repo)
    task = a_task(preconditions=[{"kind": "file_absent", "path": "later.txt"}])
    run = passes(factory(desk, repo, task, [Answer(GOOD)], "--branch", "old", "--commit-hash", old))
    assert run.summary["baseline_commit"] == old
    assert desk.git(repo, "rev-parse", "old^") == old
    assert head(desk, repo) == "old"
    assert not (repo / "later.txt").exists()
    assert desk.git(repo, "rev-parse", "main") == later
    assert desk.git(repo, "status", "--porcelain") == ""


@pytest.mark.rows("FB06")
def test_a_commit_hash_that_contradicts_an_existing_branch_moves_nothing(desk):
    repo = desk.repo()
    old = desk.git(repo, "rev-parse", "HEAD")
    put(repo / "later.txt", "later\n")
    later = desk.commit_all(repo)
    desk.git(repo, "branch", "taken")
    run = factory(desk, repo, a_task(), [Answer(GOOD)], "--branch", "taken", "--commit-hash", old)
    if run.outcome.exit_code == 0:
        assert "warning" in run.outcome.stderr
        assert desk.git(repo, "rev-parse", "taken^") == later
    else:
        assert run.outcome.exit_code == 1, run.outcome
        assert desk.git(repo, "rev-parse", "taken") == later


@pytest.mark.rows("FB07", "FB08")
def test_a_run_that_starts_on_a_side_branch_leaves_it_where_it_is(desk):
    repo = desk.repo(branch="topic")
    topic = desk.git(repo, "rev-parse", "topic")
    passes(factory(desk, repo, a_task(), [Answer(GOOD)]))
    assert desk.git(repo, "rev-parse", "topic") == topic
    assert head(desk, repo).startswith("factory/adhoc/")


@pytest.mark.rows("FB18")
def test_a_write_that_changes_nothing_does_not_crash(desk):
    repo = desk.repo({"a.txt": "content\n"})
    answer = Answer(json.dumps(a_proposal(a_write("a.txt", "content\n", sha("content\n")))))
    run = factory(desk, repo, a_task(), [answer], repeat_last=True)
    assert run.outcome.exit_code in (0, 1), run.outcome
    assert run.summary["verdict"] == ("PASS" if run.outcome.exit_code == 0 else "FAIL")
    assert desk.git(repo, "status", "--porcelain") == ""


# --- push --------------------------------------------------------------------------------


@pytest.mark.rows("FB12", "FB16", "FW09")
@pytest.mark.parametrize("names", [["origin"], ["zebra", "ant"]], ids=["origin", "first of two"])
def test_a_pass_is_pushed_with_its_upstream(desk, names):
    repo = desk.repo()
    remote, *others = [with_remote(desk, repo, name) for name in names]
    passes(factory(desk, repo, a_task(), [Answer(GOOD)], "--branch", "work/x"))
    assert desk.git(remote, "rev-parse", "work/x") == desk.git(repo, "rev-parse", "HEAD")
    assert desk.git(repo, "rev-parse", "--abbrev-ref", "work/x@{upstream}") == f"{names[0]}/work/x"
    assert [desk.git(other, "branch", "--list") for other in others] == [""] * len(others)
    assert desk.git(remote, "branch", "--list", "main") == ""


@pytest.mark.rows("FB13")
def test_no_push_means_no_push(desk):
    repo = desk.repo()
    remote = with_remote(desk, repo)
    with untouched(remote):
        passes(factory(desk, repo, a_task(), [Answer(GOOD)], "--no-push"))


@pytest.mark.rows("FB14")
@pytest.mark.parametrize("kind", ["gone", "refuses", "diverged"])
def test_a_push_that_fails_changes_neither_verdict_nor_exit_code(desk, kind):
    repo = desk.repo()
    remote = with_remote(desk, repo)
    foreign = None
    if kind == "gone":
        desk.git(repo, "remote", "set-url", "origin", str(desk.root / "nowhere.git"))
    elif kind == "refuses":
        put(remote / "hooks/pre-receive", "#!/bin/sh\nexit 1\n")
        (remote / "hooks/pre-receive").chmod(0o755)
    else:
        tree = desk.git(repo, "rev-parse", "HEAD^{tree}")
        foreign = desk.git(repo, *AS_USER, "commit-tree", tree, "-m", "foreign")
        desk.git(repo, "push", "-q", "origin", f"{foreign}:refs/heads/work")
    run = passes(factory(desk, repo, a_task(), [Answer(GOOD)], "--branch", "work"))
    assert head(desk, repo) == "work"
    assert re.search(r"warning.*push|push.*(fail|refus|reject|not)", run.outcome.stderr, re.IGNORECASE), (
        run.outcome
    )
    assert "push" in json.dumps(run.run_json)
    if foreign:
        assert desk.git(remote, "rev-parse", "work") == foreign, "never forced"


@pytest.mark.rows("FB15")
def test_no_remote_is_no_problem(desk):
    repo = desk.repo()
    run = passes(factory(desk, repo, a_task(), [Answer(GOOD)]))
    assert "warning" not in run.outcome.stderr.lower()


# --- what is the user's ------------------------------------------------------------------


@pytest.mark.rows("FC16", "FW08")
@pytest.mark.parametrize("where", ["nowhere", "repository", "home"])
def test_the_users_identity_is_used_where_there_is_one_and_no_config_changes(desk, where):
    repo = desk.repo()
    if where == "repository":
        desk.git(repo, "config", "user.name", "Rita Repo")
        desk.git(repo, "config", "user.email", "rita@example.org")
    elif where == "home":
        put(desk.root / "home/.gitconfig", "[user]\n\tname = Hanna Home\n\temail = hanna@example.org\n")
    config = (repo / ".git/config").read_bytes()
    home = snapshot(desk.root / "home")
    passes(factory(desk, repo, a_task(), [Answer(GOOD)]))
    author = desk.git(repo, "log", "-1", "--format=%an <%ae> %cn <%ce>")
    wanted = {"repository": "Rita Repo <rita@example.org>", "home": "Hanna Home <hanna@example.org>"}
    if where == "nowhere":
        assert "<" in author
    else:
        assert author == f"{wanted[where]} {wanted[where]}"
    assert (repo / ".git/config").read_bytes() == config
    assert [line for line in differences(home, snapshot(desk.root / "home")) if ".gitconfig" in line] == []


@pytest.mark.rows("FB10")
def test_no_hook_and_no_configured_program_runs(desk):
    repo = desk.repo()
    trap = desk.write("trap.sh", f'#!/bin/sh\necho "$0" >> {desk.root}/sprung\nexit 1\n')
    trap.chmod(0o755)
    for hook in (
        "pre-commit",
        "commit-msg",
        "post-commit",
        "post-checkout",
        "pre-push",
        "reference-transaction",
        "post-index-change",
        "prepare-commit-msg",
        "post-rewrite",
        "post-merge",
    ):
        (repo / ".git/hooks").mkdir(exist_ok=True)
        (repo / ".git/hooks" / hook).write_bytes(trap.read_bytes())
        (repo / ".git/hooks" / hook).chmod(0o755)
    for key, value in (
        ("core.fsmonitor", str(trap)),
        ("commit.gpgSign", "true"),
        ("gpg.program", str(trap)),
        ("core.editor", str(trap)),
        ("core.pager", str(trap)),
        ("diff.external", str(trap)),
    ):
        desk.git(repo, "config", key, value)
    config = (repo / ".git/config").read_bytes()
    passes(factory(desk, repo, a_task(), [Answer(GOOD)]))
    with_remote(desk, repo)
    passes(factory(desk, repo, a_task(title="again"), [Answer(UNCHANGED)]))
    assert not (desk.root / "sprung").exists(), (desk.root / "sprung").read_text()
    assert (repo / ".git/config").read_bytes().startswith(config)


@pytest.mark.rows("FC34")
def test_a_file_that_git_ignores_is_never_overwritten(desk):
    repo = desk.repo({".gitignore": "a.txt\n"})
    put(repo / "a.txt", "mine and ignored\n")
    with untouched(repo):
        run = fails(factory(desk, repo, a_task(), [Answer(GOOD)], repeat_last=True))
    assert "a.txt" in run.outcome.said


@pytest.mark.rows("FC34")
def test_a_new_file_that_git_ignores_is_committed_all_the_same(desk):
    repo = desk.repo({".gitignore": "build/\n"})
    put(repo / "build/kept.bin", "kept\n")
    task = a_task(
        allowed_files=["build/a.txt"], postconditions=[exists("build/a.txt")], acceptance_commands=["true"]
    )
    run = factory(
        desk, repo, task, [Answer(json.dumps(a_proposal(a_write("build/a.txt"))))], repeat_last=True
    )
    assert run.outcome.exit_code in (0, 1), run.outcome
    assert (repo / "build/kept.bin").read_text() == "kept\n"
    if run.outcome.exit_code == 0:
        assert desk.git(repo, "show", "HEAD:build/a.txt") == "content"
        assert (repo / "build/a.txt").read_text() == "content\n"


@pytest.mark.rows("FB11", "FT13")
def test_line_ending_rules_of_the_repository_hold_and_the_tree_is_clean(desk):
    repo = desk.repo({".gitattributes": "*.txt text eol=lf\n*.bat text eol=crlf\n"})
    task = a_task(allowed_files=["a.txt", "run.bat"], postconditions=[exists("a.txt")])
    answer = Answer(json.dumps(a_proposal(a_write("a.txt", "one\r\ntwo\r\n"), a_write("run.bat", "x\ny\n"))))
    run = passes(factory(desk, repo, task, [answer]))
    assert desk.git(repo, "status", "--porcelain") == ""
    blob = subprocess.run(
        ["git", "cat-file", "blob", "HEAD:a.txt"], cwd=repo, env=desk.env, capture_output=True, check=True
    ).stdout
    assert blob == b"one\ntwo\n"
    assert run.summary["repo_tree_hash_after"] == desk.git(repo, "rev-parse", "HEAD^{tree}")


@pytest.mark.rows("FB09")
def test_modes_survive_and_new_files_follow_the_umask(desk):
    repo = desk.repo({"run.sh": "#!/bin/sh\n", "note.txt": "x\n"})
    (repo / "run.sh").chmod(0o755)
    desk.commit_all(repo)
    (repo / "note.txt").chmod(0o600)
    task = a_task(
        allowed_files=["run.sh", "a.txt", "note.txt"],
        postconditions=[exists("a.txt")],
        acceptance_commands=["test -x run.sh"],
    )
    answer = a_proposal(
        a_write("run.sh", "#!/bin/sh\nexit 0\n", sha("#!/bin/sh\n")),
        a_write("a.txt"),
        a_write("note.txt", "y\n", sha("x\n")),
    )
    passes(factory(desk, repo, task, [Answer(json.dumps(answer))]))
    listed = desk.git(repo, "ls-tree", "HEAD", "run.sh", "a.txt", "note.txt").splitlines()
    assert [line.split()[0] for line in listed] == ["100644", "100644", "100755"]
    assert (repo / "run.sh").stat().st_mode & 0o111 == 0o111
    assert (repo / "note.txt").stat().st_mode & 0o777 == 0o600
    assert (repo / "a.txt").stat().st_mode & 0o777 == 0o644


def test_a_linked_worktree_is_a_checkout_like_any_other(desk):
    main = desk.repo()
    desk.git(main, "worktree", "add", "-q", "-b", "side", str(desk.root / "linked"))
    linked = desk.root / "linked"
    names = {name: what for name, what in snapshot(main).items() if not name.startswith(".git")}
    passes(factory(desk, linked, a_task(), [Answer(GOOD)]))
    assert (linked / "a.txt").exists()
    assert head(desk, linked).startswith("factory/adhoc/")
    assert head(desk, main) == "main"
    assert {name: what for name, what in snapshot(main).items() if not name.startswith(".git")} == names
    assert desk.git(linked, "status", "--porcelain") == ""
    assert desk.git(main, "status", "--porcelain") == ""


def sparse(desk: Desk, repo: Path) -> None:
    desk.git(repo, "sparse-checkout", "set", "scripts")


def split_index(desk: Desk, repo: Path) -> None:
    desk.git(repo, "config", "core.splitIndex", "true")
    desk.git(repo, "config", "core.untrackedCache", "true")
    desk.git(repo, "update-index", "--split-index")


def with_submodule(desk: Desk, repo: Path) -> None:
    other = desk.repo(name="other")
    desk.git(repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "module")
    desk.commit_all(repo)


def with_ignored_repository(desk: Desk, repo: Path) -> None:
    put(repo / ".gitignore", "repo2/\n")
    desk.commit_all(repo)
    desk.repo(name="repo/repo2")


def with_bytes_in_a_name(desk: Desk, repo: Path) -> None:
    put(repo / os.fsdecode(b"bad-\xff.txt"), "x\n")
    desk.commit_all(repo)


def packed(desk: Desk, repo: Path) -> None:
    desk.git(repo, "gc", "-q")


def quoting(desk: Desk, repo: Path) -> None:
    for key, value in (
        ("core.quotePath", "true"),
        ("status.short", "true"),
        ("color.ui", "always"),
        ("status.branch", "true"),
        ("core.abbrev", "4"),
        ("diff.noprefix", "true"),
        ("user.useConfigOnly", "true"),
        ("core.logAllRefUpdates", "false"),
        ("commit.template", "/nonexistent"),
        ("core.safecrlf", "true"),
    ):
        desk.git(repo, "config", key, value)


@pytest.mark.rows("FB11", "FF05", "FC16")
@pytest.mark.parametrize(
    "make",
    [sparse, split_index, with_submodule, with_ignored_repository, with_bytes_in_a_name, packed, quoting],
)
def test_repositories_of_many_kinds_stay_what_they_are(desk, make):
    repo = desk.repo({"deep/er/file.txt": "x\n", "ü.txt": "x\n"})
    make(desk, repo)
    before = {name: what for name, what in snapshot(repo).items() if not name.startswith(".git/")}
    tracked = desk.git(repo, "ls-files").splitlines()
    run = passes(factory(desk, repo, a_task(), [Answer(GOOD)]))
    assert desk.git(repo, "status", "--porcelain") == ""
    after = {name: what for name, what in snapshot(repo).items() if not name.startswith(".git/")}
    assert [line.split(":")[0] for line in differences(before, after)] == ["a.txt"]
    assert sorted(desk.git(repo, "ls-files").splitlines()) == sorted([*tracked, "a.txt"])
    assert desk.git(repo, "diff", "--name-only", "HEAD^", "HEAD") == "a.txt"
    assert run.summary["attempts"][0]["repo_drift"] == []


@pytest.mark.rows("FB09", "FF06")
def test_a_repository_of_longer_hashes_is_a_repository(desk):
    repo = desk.root / "repo"
    repo.mkdir()
    desk.git(repo, "init", "-q", "-b", "main", "--object-format=sha256")
    put(repo / "scripts/verify.sh", "exit 0\n")
    baseline = desk.commit_all(repo)
    run = passes(factory(desk, repo, a_task(), [Answer(GOOD)]))
    assert run.summary["baseline_commit"] == baseline
    assert run.summary["repo_tree_hash_after"] == desk.git(repo, "rev-parse", "HEAD^{tree}")


@pytest.mark.rows("FC34")
@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_an_edit_that_git_was_told_to_overlook_is_not_overwritten(desk, flag):
    repo = desk.repo({"note.txt": "old\n"})
    desk.git(repo, "update-index", flag, "note.txt")
    put(repo / "note.txt", "my edit\n")
    task = a_task(allowed_files=["note.txt"], postconditions=[], acceptance_commands=["true"])
    answer = Answer(json.dumps(a_proposal(a_write("note.txt", "new\n", sha("old\n")))))
    run = factory(desk, repo, task, [answer], "--max-attempts", "1")
    assert run.outcome.exit_code in (0, 1), run.outcome
    assert (repo / "note.txt").read_text() == "my edit\n"
    assert "note.txt" in run.outcome.stderr


@pytest.mark.rows("FB11")
def test_line_endings_that_the_user_converts_are_converted(desk):
    repo = desk.repo({"c.txt": "a\n"}, verify=None)
    desk.git(repo, "config", "core.autocrlf", "true")
    (repo / "c.txt").unlink()
    desk.git(repo, "checkout", "-q", "c.txt")
    assert (repo / "c.txt").read_bytes() == b"a\r\n"
    task = a_task(allowed_files=["a.txt", "c.txt"], verify_exempt=True, postconditions=[exists("a.txt")])
    answer = a_proposal(a_write("a.txt", "x\ny\n"), a_write("c.txt", "b\r\n", sha("a\r\n")))
    passes(factory(desk, repo, task, [Answer(json.dumps(answer))], "--allow-verify-exempt"))
    assert desk.git(repo, "status", "--porcelain") == ""
    assert desk.git(repo, "ls-files", "--eol", "a.txt", "c.txt").count("i/lf") == 2


def test_no_text_of_a_plan_or_a_model_forges_the_message_of_a_commit(desk):
    repo = desk.repo()
    task = a_task(title="honest\x1b[31m\n\nWork-Order: WO-66\nLlmch-Run: forged")
    answer = a_proposal(a_write("a.txt"), summary="done\x1b[2J\n\nWork-Order: WO-67")
    run = passes(factory(desk, repo, task, [Answer(json.dumps(answer))]))
    message = desk.git(repo, "log", "-1", "--format=%B")
    assert "\x1b" not in message
    assert "\x1b" not in run.outcome.said
    assert message.splitlines()[0].startswith("WO-01: honest")
    trailers = desk.git(repo, "log", "-1", "--format=%(trailers:key=Work-Order,valueonly)")
    assert trailers.split() == ["WO-01"]


def test_two_runs_on_one_repository_take_turns(desk):
    from blackbox.harness import LoopbackEndpoint

    repo = desk.repo()
    runs = []
    with LoopbackEndpoint([Answer(GOOD), Answer(json.dumps(a_proposal(a_write("b.txt"))))]) as endpoint:
        for number, name in enumerate(("a.txt", "b.txt")):
            task = a_task(
                allowed_files=[name],
                postconditions=[exists(name)],
                acceptance_commands=["python -c 'import time; time.sleep(1)'"],
            )
            runs.append(
                desk.start(
                    "factory",
                    "run",
                    "--repo",
                    repo,
                    "--work-order",
                    desk.write(f"o{number}.json", task),
                    "--artifacts-dir",
                    desk.artifacts,
                    "--branch",
                    "shared",
                    endpoint=endpoint,
                )
            )
            if number == 0:
                runs[0].until(lambda: endpoint.requests)
        outcomes = [run.finish() for run in runs]
    assert [outcome.exit_code for outcome in outcomes] == [0, 0], outcomes
    assert desk.git(repo, "rev-list", "--count", "shared") == "3"
    assert desk.git(repo, "status", "--porcelain") == ""


# --- the functions that tools call -------------------------------------------------------


@pytest.mark.rows("FW01", "FW02", "FW03", "FW04", "FW05")
def test_the_questions_about_a_repository(desk):
    from factory import workspace as ws

    repo = desk.repo({"a.txt": "1\n", ".gitignore": "*.log\n"})
    (desk.root / "plain").mkdir()
    assert ws.is_git_repo(repo)
    assert not ws.is_git_repo(desk.root / "plain")
    assert ws.has_commits(repo)
    baseline = ws.get_baseline_commit(repo)
    assert baseline == desk.git(repo, "rev-parse", "HEAD")
    assert ws.is_clean(repo)
    put(repo / "new dir/ü.txt", "x\n")
    assert not ws.is_clean(repo)
    put(repo / "a.txt", "2\n")
    put(repo / "x.log", "x\n")
    assert set(ws.detect_repo_drift(repo, ["a.txt"])) == {"new dir/ü.txt"}
    tree = ws.get_tree_hash(repo, touched_files=["a.txt"])
    desk.git(repo, "add", "a.txt")
    assert tree == desk.git(repo, "write-tree")
    ws.rollback(repo, baseline)
    assert ws.is_clean(repo)
    assert (repo / "a.txt").read_text() == "1\n"
    assert not (repo / "new dir").exists()
    assert not (repo / "x.log").exists()


@pytest.mark.rows("FU02")
def test_the_fingerprint_of_an_order_and_a_baseline():
    import hashlib

    from factory.records import compute_run_id
    from shared.files import canonical_json_bytes

    order = a_task()
    wanted = hashlib.sha256(canonical_json_bytes(order) + b"\n" + b"0" * 40).hexdigest()[:16]
    assert compute_run_id(order, "0" * 40) == wanted
