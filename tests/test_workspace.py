"""The user's repository: what is refused, what a commit is made of, what is never touched."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import as_nobody, make_repo, run_git

from factory import workspace as ws
from factory.git import Git, GitError
from factory.ledger import Origin
from factory.scratch import scratch_tree
from factory.workspace import BranchPlan, Refused, Repository

ORIGIN = Origin("01RUN", "/artifacts/factory/01RUN", "WO-01", "0" * 64)
ODD_NAMES = [
    "a b.txt", "tab\there.txt", "new\nline.txt", 'quote"d.txt', "back\\slash.txt", "ü/ä.txt", "-option.txt",
    "*.txt", "[a]/b.txt", ":(top)magic", "#hash", "!bang", "trailing ", "caf\udce9.txt",
]  # fmt: skip


def opened(repo: Path) -> Repository:
    repository = Repository.open(repo)
    repository.look()
    return repository


def planned(repo: Path, name: str | None = "work", **options) -> tuple[Repository, BranchPlan]:
    repository = opened(repo)
    return repository, repository.plan_branch(name, "factory/adhoc/01AUTO", **options)


def publish(
    repo: Path, writes: dict[str, bytes], name: str | None = "work", message: str = "do it\n", **options
):
    repository, plan = planned(repo, name, **options)
    published = repository.publish(plan, writes.items(), message, ORIGIN)
    repository.settle()
    return published


def write(path: Path, data: bytes | str = b"x\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def commit_all(repo: Path, message: str = "more") -> str:
    run_git(repo, "add", "-A")
    run_git(repo, "commit", "-q", "-m", message)
    return run_git(repo, "rev-parse", "HEAD")


def everything(root: Path) -> dict[str, tuple]:
    """Every byte, mode and time below a directory, but for access times."""
    seen = {}
    for place, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(place, name)
            found = path.lstat()
            content = (
                os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            )
            times = (found.st_mtime_ns, found.st_ctime_ns) if path.is_file() else ()
            seen[os.path.relpath(path, root)] = (found.st_mode, times, content)
    return seen


# --- what is refused before anything happens -----------------------------------------------


def unborn(repo):
    run_git(repo, "checkout", "-q", "--orphan", "fresh")
    run_git(repo, "rm", "-q", "-f", "README.md")


def merging(repo):
    run_git(repo, "switch", "-q", "-c", "other")
    write(repo / "README.md", "theirs\n")
    commit_all(repo)
    run_git(repo, "switch", "-q", "main")
    write(repo / "README.md", "ours\n")
    commit_all(repo)
    Git.at(repo).ask("-c", "user.name=a", "-c", "user.email=b", "merge", "other")


def rebasing(repo):
    merging(repo)
    run_git(repo, "merge", "--abort")
    Git.at(repo).ask("rebase", "other")


def staged(repo):
    write(repo / "new.txt")
    run_git(repo, "add", "new.txt")


NOT_READY = {
    "not changed": (lambda _repo: None, None),
    "untracked": (lambda repo: write(repo / "src/new.txt"), "changes in src/new.txt: commit or stash"),
    "unstaged": (lambda repo: write(repo / "README.md", "else\n"), "uncommitted changes in README.md"),
    "staged": (staged, "uncommitted changes in new.txt"),
    "deleted": (lambda repo: (repo / "README.md").unlink(), "uncommitted changes in README.md"),
    "renamed": (lambda repo: run_git(repo, "mv", "README.md", "R"), "uncommitted changes in (R|README.md)"),
    "made executable": (lambda repo: (repo / "README.md").chmod(0o755), "uncommitted changes in README.md"),
    "detached": (lambda repo: run_git(repo, "checkout", "-q", "--detach"), "detached at [0-9a-f]{12}: `gi"),
    "unborn": (unborn, "has no commit yet: make a first one"),
    "merging": (merging, "a merge is in progress: `git merge --continue` or `--abort` it first"),
    "rebasing": (rebasing, "a rebase is in progress"),
    "locked": (lambda repo: write(repo / ".git/index.lock"), r"index\.lock exists: wait for the git command"),
    "many": (lambda repo: [write(repo / f"{n}.txt") for n in range(9)], "0.txt, .*4.txt and 4 more: c"),
    "odd": (lambda repo: write(repo / "new\nline"), r"uncommitted changes in new\\nline: "),
    "elsewhere": (lambda repo: run_git(repo, "config", "core.worktree", "/tmp"), "tree of .* is /tmp: run"),
}  # fmt: skip


@pytest.mark.parametrize(("disturb", "says"), NOT_READY.values(), ids=NOT_READY.keys())
def test_a_repository_that_is_not_ready_is_refused_and_not_touched(disturb, says, repo):
    disturb(repo)
    before = everything(repo)
    repository = Repository.open(repo)
    if says is None:
        assert repository.look().ref == "refs/heads/main"
    else:
        with pytest.raises(Refused, match=says) as refused:
            repository.look()
        assert "\n" not in str(refused.value)
    assert everything(repo) == before


def test_ignored_files_are_no_change(repo):
    write(repo / ".gitignore", "*.log\nbuild/\n")
    commit_all(repo)
    write(repo / "x.log")
    write(repo / "build/out")
    assert Repository.open(repo).look()


def bare(tmp_path):
    run_git(tmp_path, "init", "-q", "--bare", "bare.git")
    return tmp_path / "bare.git"


def plain(tmp_path):
    (tmp_path / "plain").mkdir()
    return tmp_path / "plain"


def below(tmp_path):
    return write(make_repo(tmp_path / "outer") / "a/b.txt").parent


def damaged(tmp_path):
    make_repo(tmp_path / "outer")
    (tmp_path / "outer/inner/.git").mkdir(parents=True)
    return tmp_path / "outer/inner"


NO_REPOSITORY = {
    "plain": (plain, r"plain is not a git repository: `git init` it"),
    "missing": (lambda tmp_path: tmp_path / "gone", "gone is no directory: --repo names a git repository"),
    "a file": (lambda tmp_path: write(tmp_path / "f"), "f is no directory"),
    "bare": (bare, "bare.git is a bare repository"),
    "below": (below, "outer/a lies inside a repository, not at its top: use .*/outer$"),
    "damaged inside another": (damaged, "outer/inner lies inside a repository, not at its top"),
    "git file of nothing": (
        lambda tmp_path: write(tmp_path / "odd/.git", "gitdir: /nowhere\n").parent, "odd is not a git"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "says"), NO_REPOSITORY.values(), ids=NO_REPOSITORY.keys())
def test_what_is_no_repository_at_its_top_level_is_refused(make, says, tmp_path):
    path = make(tmp_path)
    with pytest.raises(Refused, match=says) as refused:
        Repository.open(path)
    assert "\n" not in str(refused.value)
    assert not ws.is_git_repo(path)


def test_a_repository_of_somebody_else_is_refused_in_gits_own_words(repo):
    repository = Repository.open(repo)
    repository.git = repository.git.with_env(GIT_TEST_ASSUME_DIFFERENT_OWNER="1")
    with pytest.raises(Refused, match="detected dubious ownership"):
        repository.look()


def test_objects_that_cannot_be_written_are_refused_before_a_run(common_ground):
    repo = make_repo(common_ground / "project")
    (repo / ".git/objects").chmod(0o555)

    def look():
        with pytest.raises(Refused, match=r"cannot write to .*objects: check its permissions"):
            Repository.open(repo).look()

    assert as_nobody(repo, look) == 0


def test_a_git_directory_that_cannot_be_written_is_refused_by_the_lock(common_ground):
    repo = make_repo(common_ground / "project")
    (repo / ".git").chmod(0o555)

    def lock():
        with pytest.raises(Refused, match="cannot lock the repository"), Repository.open(repo).lock():
            pass

    assert as_nobody(repo, lock) == 0


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (".", "lies inside the repository"),
        ("artifacts", "lies inside the repository: name a directory outside of it, or one that git ignores"),
        ("sub/ignored-not", "lies inside the repository"),
        (".git/artifacts", "lies inside the repository's git directory"),
        ("through/x", "lies inside the repository"),
        ("ignored", None),
        ("ignored/deep/er", None),
        ("..", None),
        ("../elsewhere", None),
    ],
)
def test_our_own_files_lie_inside_the_repository_only_where_git_ignores_them(path, says, repo):
    write(repo / ".gitignore", "ignored/\nthrough\n")
    (repo / "through").symlink_to(repo / "src")
    (repo / "src").mkdir()
    commit_all(repo)
    repository = Repository.open(repo)
    if says is None:
        repository.refuse_inside(repo / path, "--out")
    else:
        with pytest.raises(Refused, match=says):
            repository.refuse_inside(repo / path, "--out")


def test_runs_are_kept_in_a_directory_that_may_be_the_repository_itself(tmp_path):
    repo = make_repo(tmp_path / "factory")
    with pytest.raises(Refused, match=r"--artifacts-dir"):
        Repository.open(repo).refuse_inside(tmp_path, "--artifacts-dir")


# --- the working branch --------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["main", "master", "refs/heads/main", "heads/master", "MAIN", "Refs/Heads/Master"]
)
def test_a_protected_branch_is_refused_in_any_spelling(name, repo):
    with pytest.raises(Refused, match="is protected: --branch names another"):
        planned(repo, name)


BAD_NAMES = ["-f", "--upload-pack=x", "a..b", "a b", "a~1", "a^", "a:b", "a?", "a*", "a[", "a\\b", "/a", "a/",
             "a//b", ".a", "a/.b", "a.lock", "a.lock/b", "a.", "a@{b", "@", "HEAD",
             "a\x07", "a\nb", "x" * 300]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_git_would_refuse_or_misread_is_refused(name, repo):
    with pytest.raises(Refused, match="cannot be a branch name"):
        planned(repo, name)
    if not name.startswith("-") and name != "HEAD":
        valid = Git.at(repo).ask("check-ref-format", f"refs/heads/{name}").exit_code == 0
        assert not valid or len(name) == 300 or name == "@"


@pytest.mark.parametrize("name", ["a", "a/b", "feature/ü", "x-1", "wip.2", "a@b", "(detached)", "caf\udce9"])
def test_a_name_that_git_takes_is_taken(name, repo):
    assert publish(repo, {"n.txt": b"n\n"}, name).commit == run_git(repo, "rev-parse", f"refs/heads/{name}")


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("new", {}, None),
        ("old", {}, None),
        ("new", {"create": True}, None),
        ("old", {"reuse": True}, None),
        ("old", {"create": True}, "branch old exists: drop --create-branch"),
        ("new", {"reuse": True}, "branch new does not exist: drop --reuse-branch"),
        ("old/below", {}, "cannot be made beside branch old: choose another name"),
        ("deep", {}, "cannot be made beside branch deep/er: choose another name"),
        ("linked", {}, "is checked out in .*elsewhere: run there"),
        ("alias", {}, "is another name of refs/heads/old"),
        ("refs/heads/x", {}, "give the branch name alone"),
        ("new", {"commit_hash": "nonsense"}, "--commit-hash nonsense names no commit"),
        ("new", {"commit_hash": "--all"}, "--commit-hash --all names no commit"),
        ("new", {"commit_hash": ""}, "names no commit"),
        ("new", {"commit_hash": "HEAD:README.md"}, "names no commit"),
        ("new", {"commit_hash": "0" * 40}, "names no commit"),
        ("new", {"commit_hash": "main~1"}, None),
        ("old", {"commit_hash": "main"}, "is at [0-9a-f]{12}, not at --commit-hash main"),
        ("old", {"commit_hash": "old"}, None),
        (None, {}, None),
    ],
)
def test_where_a_commit_would_go(name, options, says, repo, tmp_path):
    first = run_git(repo, "rev-parse", "HEAD")
    run_git(repo, "branch", "old")
    run_git(repo, "branch", "deep/er")
    run_git(repo, "symbolic-ref", "refs/heads/alias", "refs/heads/old")
    run_git(repo, "worktree", "add", "-q", "-b", "linked", str(tmp_path / "elsewhere"))
    write(repo / "second.txt")
    second = commit_all(repo)
    before = everything(repo)
    if says is not None:
        with pytest.raises(Refused, match=says):
            planned(repo, name, **options)
    else:
        _, plan = planned(repo, name, **options)
        assert plan.name == (name or "factory/adhoc/01AUTO")
        assert plan.exists == (name == "old")
        assert plan.baseline == (first if name == "old" or options.get("commit_hash") else second)
    assert everything(repo) == before


def test_the_branch_that_is_checked_out_is_planned_without_asking_git_again(repo):
    run_git(repo, "switch", "-q", "-c", "here")
    _, plan = planned(repo, "here", reuse=True)
    assert plan.baseline == plan.old == run_git(repo, "rev-parse", "HEAD")


def test_a_name_that_differs_only_in_case_from_the_checked_out_branch_is_refused(repo):
    run_git(repo, "switch", "-q", "-c", "Work")
    with pytest.raises(Refused, match="differs only in case"):
        planned(repo, "work")


# --- what stands in the way ------------------------------------------------------------------

IN_THE_WAY = {
    "an ignored file": (lambda repo: write(repo / "secret"), "secret", ["secret"]),
    "an ignored file where a directory is needed": (
        lambda repo: write(repo / "secret"),
        "secret/new",
        ["secret"],
    ),
    "a directory where a file is needed": (lambda repo: write(repo / "cache/x"), "cache", ["cache/x"]),
    "an empty directory where a file is needed": (lambda repo: (repo / "new").mkdir(), "new", ["new"]),
    "a link where a directory is needed": (
        lambda repo: (repo / "secret").symlink_to("."),
        "secret/new",
        ["secret"],
    ),
    "a dangling link": (lambda repo: (repo / "secret").symlink_to("nowhere"), "secret", ["secret"]),
    "a file git has": (lambda _repo: None, "README.md", []),
    "nothing": (lambda _repo: None, "src/new", []),
    "an ignored neighbour": (lambda repo: write(repo / "cache/x"), "cache/y", []),
    "a directory of files git has, which is for TR to judge": (lambda _repo: None, "lib", []),
    "a directory of files git has and one it ignores": (
        lambda repo: write(repo / "lib/secret"),
        "lib",
        ["lib/secret"],
    ),
}


@pytest.mark.parametrize(("prepare", "path", "names"), IN_THE_WAY.values(), ids=IN_THE_WAY.keys())
def test_what_a_commit_would_overwrite_is_named_before_the_run(prepare, path, names, repo):
    write(repo / ".gitignore", "secret\ncache/\n")
    write(repo / "lib/a")
    commit_all(repo)
    prepare(repo)
    repository, plan = planned(repo)
    assert repository.blocking_paths([path, "elsewhere/entirely"], plan) == names
    if names:
        with pytest.raises(Refused, match="is in the way of what is to be written: move it away"):
            repository.refuse_blocked([path], plan)


def test_what_another_branch_would_bring_counts_as_well(repo):
    run_git(repo, "switch", "-q", "-c", "other")
    write(repo / "secret", "tracked over there\n")
    write(repo / "swap/x")
    run_git(repo, "add", "-A")
    commit_all(repo)
    run_git(repo, "switch", "-q", "main")
    write(repo / ".gitignore", "secret\n")
    write(repo / "swap", "a file here\n")
    commit_all(repo)
    write(repo / "secret", "mine\n")
    repository, plan = planned(repo, "other")
    assert repository.blocking_paths(["swap/x", "swap/y", "README.md"], plan) == ["secret"]


def test_a_path_in_a_submodule_is_refused(repo, tmp_path):
    inner = make_repo(tmp_path / "inner")
    run_git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    commit_all(repo)
    repository, plan = planned(repo)
    with pytest.raises(Refused, match="sub/x belongs to a submodule"):
        repository.refuse_blocked(["sub/x"], plan)


# --- what a commit is made of ----------------------------------------------------------------


def blob(repo: Path, name: str) -> bytes:
    return Git.at(repo)("cat-file", "blob", name).stdout


def listing(repo: Path, commit: str) -> dict[str, str]:
    entries = (
        Git.at(repo)("ls-tree", "-r", "-z", commit).stdout.decode("utf-8", "surrogateescape").split("\0")
    )
    return {entry.partition("\t")[2]: entry[:6] for entry in entries if entry}


def test_a_commit_holds_exactly_the_proposal_on_top_of_the_baseline(repo):
    write(repo / "kept.txt")
    baseline = commit_all(repo)
    writes = {"README.md": b"# new\n", "src/a/b.py": b"", "bin.dat": bytes(range(256))}
    published = publish(repo, writes, message="WO-01: title\n\nsummary\n")
    assert published.checkout_problem is None
    assert run_git(repo, "rev-parse", "work", "work^", "work^{tree}").split() == [
        published.commit, baseline, published.tree,
    ]  # fmt: skip
    assert run_git(repo, "diff", "--name-only", baseline, "work").split() == sorted(writes)
    assert {path: blob(repo, f"work:{path}") for path in writes} == writes
    assert run_git(repo, "log", "-1", "--format=%B", "work") == "WO-01: title\n\nsummary"
    assert run_git(repo, "symbolic-ref", "HEAD") == "refs/heads/work"
    assert run_git(repo, "rev-parse", "main") == baseline
    assert run_git(repo, "status", "--porcelain") == ""
    assert {path: (repo / path).read_bytes() for path in writes} == writes


@pytest.mark.parametrize("branch", ["work", "here"])
def test_the_branch_may_be_new_or_the_one_that_is_checked_out(branch, repo):
    run_git(repo, "switch", "-q", "-c", "here")
    for number in range(3):
        assert publish(repo, {f"{number}.txt": b"x\n", "README.md": b"%d\n" % number}, branch).commit
    assert run_git(repo, "rev-list", "--count", branch) == "4"
    assert run_git(repo, "symbolic-ref", "--short", "HEAD") == branch
    assert run_git(repo, "status", "--porcelain") == ""


def test_nothing_but_loose_ends_is_there_before_the_branch_moves(repo):
    repository, plan = planned(repo)
    before = everything(repo)
    built = repository.build_commit(plan, [("new.txt", b"new\n")], "message\n")
    added = {name for name in everything(repo) if name not in before}
    assert all(name.startswith(".git/objects/") for name in added)
    assert {name: what for name, what in everything(repo).items() if name in before} == before
    assert run_git(repo, "cat-file", "-t", built.commit) == "commit"


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_committed_and_checked_out_as_they_are(name, repo):
    published = publish(repo, {name: b"odd\n", "README.md": b"# new\n"})
    assert set(listing(repo, published.commit)) == {name, "README.md"}
    assert (repo / name).read_bytes() == b"odd\n"
    assert run_git(repo, "status", "--porcelain") == ""


def crlf(repo):
    run_git(repo, "config", "core.autocrlf", "true")


def attributes(repo):
    write(repo / ".gitattributes", "*.txt text eol=lf\n*.bat text eol=crlf\n*.raw -text\n")
    commit_all(repo)


def info_attributes(repo):
    write(repo / ".git/info/attributes", "*.txt text eol=crlf\n")


@pytest.mark.parametrize(
    ("prepare", "path", "sent", "kept", "stands"),
    [
        (crlf, "a.txt", b"1\r\n2\n", b"1\n2\n", b"1\r\n2\r\n"),
        (crlf, "a.bin", b"\0\r\n", b"\0\r\n", b"\0\r\n"),
        (attributes, "a.txt", b"1\r\n2\r\n", b"1\n2\n", b"1\n2\n"),
        (attributes, "a.bat", b"1\n2\n", b"1\n2\n", b"1\r\n2\r\n"),
        (attributes, "a.raw", b"1\r\n2\n", b"1\r\n2\n", b"1\r\n2\n"),
        (info_attributes, "a.txt", b"1\n", b"1\n", b"1\r\n"),
    ],
)
def test_the_bytes_go_through_the_line_ending_rules_of_the_repository(
    prepare, path, sent, kept, stands, repo
):
    prepare(repo)
    commit = publish(repo, {path: sent}).commit
    assert blob(repo, f"{commit}:{path}") == kept
    assert (repo / path).read_bytes() == stands
    assert run_git(repo, "status", "--porcelain") == ""


def test_attributes_of_the_proposal_itself_count(repo):
    commit = publish(repo, {".gitattributes": b"*.txt text\n", "sub/a.txt": b"1\r\n"}).commit
    assert blob(repo, f"{commit}:sub/a.txt") == b"1\n"


def test_attributes_of_the_baseline_count_and_not_those_of_the_checkout(repo):
    run_git(repo, "branch", "other")
    attributes(repo)
    commit = publish(repo, {"a.txt": b"1\r\n"}, "other").commit
    assert blob(repo, f"{commit}:a.txt") == b"1\r\n"


def test_a_file_whose_old_content_breaks_the_rules_is_treated_as_git_add_would(repo):
    write(repo / "old.txt", b"1\r\n2\r\n")
    write(repo / "twin.txt", b"1\r\n2\r\n")
    commit_all(repo)
    crlf(repo)
    commit = publish(repo, {"old.txt": b"1\r\n3\r\n"}).commit
    write(repo / "twin.txt", b"1\r\n3\r\n")
    run_git(repo, "add", "twin.txt")
    assert blob(repo, f"{commit}:old.txt") == blob(repo, ":twin.txt")


def test_a_clean_filter_sees_the_bytes_and_a_smudge_filter_gives_them_back(repo):
    run_git(repo, "config", "filter.turn.clean", "tr a-z b-za")
    run_git(repo, "config", "filter.turn.smudge", "tr b-za a-z")
    write(repo / ".gitattributes", "*.turned filter=turn\n")
    commit_all(repo)
    commit = publish(repo, {"x.turned": b"hal\n"}).commit
    assert blob(repo, f"{commit}:x.turned") == b"ibm\n"
    assert (repo / "x.turned").read_bytes() == b"hal\n"


def test_a_required_filter_that_fails_is_an_error_and_nothing_moves(repo):
    run_git(repo, "config", "filter.bad.clean", "false")
    run_git(repo, "config", "filter.bad.required", "true")
    write(repo / ".git/info/attributes", "*.bad filter=bad\n")
    refs = run_git(repo, "for-each-ref")
    with pytest.raises(GitError, match="clean filter 'bad' failed"):
        publish(repo, {"x.bad": b"x\n"})
    assert run_git(repo, "for-each-ref") == refs
    assert not (repo / ".git/llmch").exists()


def test_safecrlf_guards_what_a_person_typed_and_no_proposal(repo):
    crlf(repo)
    run_git(repo, "config", "core.safecrlf", "true")
    assert publish(repo, {"a.txt": b"1\n"}).commit


@pytest.mark.parametrize("file_mode", ["true", "false"])
def test_an_existing_file_keeps_its_mode_and_a_new_one_is_no_executable(file_mode, repo):
    write(repo / "run.sh").chmod(0o755)
    write(repo / "note.txt").chmod(0o600)
    commit_all(repo)
    (repo / "note.txt").chmod(0o600)
    run_git(repo, "config", "core.fileMode", file_mode)
    umask = os.umask(0o027)
    try:
        commit = publish(repo, {"run.sh": b"2\n", "note.txt": b"2\n", "new.sh": b"#!/bin/sh\n"}).commit
    finally:
        os.umask(umask)
    modes = listing(repo, commit)
    assert (modes["run.sh"], modes["note.txt"], modes["new.sh"]) == ("100755", "100644", "100644")
    modes = {name: stat.S_IMODE((repo / name).stat().st_mode) for name in ("run.sh", "note.txt", "new.sh")}
    assert modes == {"run.sh": 0o755, "note.txt": 0o600, "new.sh": 0o640}
    assert run_git(repo, "diff-files") == "", "the index knows the files as they are"


@pytest.mark.parametrize("symlinks", ["true", "false"])
def test_a_file_in_the_place_of_a_link_is_a_file(symlinks, repo):
    (repo / "link").symlink_to("README.md")
    commit_all(repo)
    _, plan = planned(repo)
    run_git(repo, "config", "core.symlinks", symlinks)
    built = Repository.open(repo).build_commit(plan, [("link", b"text\n")], "m")
    assert listing(repo, built.commit)["link"] == "100644"


def test_what_is_not_checked_out_in_a_sparse_checkout_is_committed_all_the_same(repo):
    write(repo / "in/a.txt")
    write(repo / "out/b.txt")
    commit_all(repo)
    run_git(repo, "sparse-checkout", "set", "in")
    commit = publish(repo, {"in/a.txt": b"2\n", "out/b.txt": b"2\n", "out/c.txt": b"3\n"}).commit
    assert blob(repo, f"{commit}:out/b.txt") == b"2\n"
    assert blob(repo, f"{commit}:out/c.txt") == b"3\n"
    assert run_git(repo, "status", "--porcelain") == ""
    assert not (repo / "out").exists()
    assert (repo / "in/a.txt").read_bytes() == b"2\n"


@pytest.mark.parametrize(
    "setting", ["core.splitIndex", "feature.manyFiles", "index.sparse", "core.untrackedCache"]
)
def test_the_index_may_be_of_any_kind(setting, repo):
    run_git(repo, "config", setting, "true")
    write(repo / "in/a.txt")
    write(repo / "out/b.txt")
    commit_all(repo)
    if setting == "index.sparse":
        run_git(repo, "sparse-checkout", "set", "--cone", "in")
    for number in (b"1", b"2"):
        assert publish(repo, {"in/a.txt": number, "new/" + number.decode(): number}).checkout_problem is None
        assert run_git(repo, "status", "--porcelain") == ""
    assert run_git(repo, "fsck", "--strict") == ""


def test_a_repository_with_sha256_names_works_alike(tmp_path):
    repo = make_repo(tmp_path / "long", "--object-format=sha256")
    published = publish(repo, {"a.txt": b"1\n"})
    assert len(published.commit) == 64
    assert run_git(repo, "status", "--porcelain") == ""


def test_a_shallow_clone_works_alike(repo, tmp_path):
    write(repo / "b.txt")
    commit_all(repo)
    run_git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repo}", "shallow")
    published = publish(tmp_path / "shallow", {"a.txt": b"1\n"})
    assert run_git(tmp_path / "shallow", "rev-list", "--count", "work") == "2"
    assert published.checkout_problem is None


def test_a_linked_work_tree_is_a_checkout_like_any_other(repo, tmp_path):
    linked = tmp_path / "linked"
    run_git(repo, "worktree", "add", "-q", "-b", "side", str(linked))
    before = {name: what for name, what in everything(repo).items() if not name.startswith(".git")}
    publish(linked, {"a.txt": b"1\n"})
    assert run_git(linked, "symbolic-ref", "--short", "HEAD") == "work"
    assert run_git(repo, "symbolic-ref", "--short", "HEAD") == "main"
    assert {name: what for name, what in everything(repo).items() if not name.startswith(".git")} == before


def test_a_submodule_is_left_alone(repo, tmp_path):
    inner = make_repo(tmp_path / "inner")
    run_git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "sub")
    commit_all(repo)
    write(repo / "sub/README.md", "# a project\n")
    before = everything(repo / "sub")
    publish(repo, {"a.txt": b"1\n"})
    assert everything(repo / "sub") == before
    assert run_git(repo, "status", "--porcelain") == ""


@pytest.mark.parametrize("name", ["work", "here", "main-copy"])
def test_a_proposal_that_changes_nothing_makes_no_commit(name, repo):
    run_git(repo, "switch", "-q", "-c", "here")
    run_git(repo, "branch", "main-copy")
    baseline = run_git(repo, "rev-parse", "HEAD")
    published = publish(repo, {"README.md": b"# a project\n"}, name)
    assert published.commit is None
    assert published.tree == run_git(repo, "rev-parse", "HEAD^{tree}")
    assert run_git(repo, "rev-parse", name) == baseline
    assert run_git(repo, "symbolic-ref", "--short", "HEAD") == name


def test_a_path_that_git_passes_over_is_an_error_and_no_smaller_commit(repo):
    with pytest.raises((GitError, OSError)):
        publish(repo, {".git/config": b"[core]\n", "a.txt": b"1\n"})
    with pytest.raises((GitError, OSError)):
        publish(repo, {"README.md/below": b"1\n"})
    assert not (repo / ".git/llmch").exists()


def test_any_text_can_be_a_message(repo):
    publish(repo, {"a.txt": b"1\n"}, message="ünï\0cöde \udcff\n\n# not a comment\n")
    assert run_git(repo, "log", "-1", "--format=%B") == "ünïcöde \\udcff\n\n# not a comment"


def test_the_index_of_a_scratch_tree_serves_as_well(repo):
    repository, plan = planned(repo)
    with scratch_tree(repository, plan.baseline) as tree:
        before = everything(tree.index.parent)
        with_index = repository.build_commit(plan, [("a.txt", b"1\n")], "m", index=tree.index)
        assert everything(tree.index.parent) == before
    assert with_index.tree == repository.build_commit(plan, [("a.txt", b"1\n")], "m").tree


# --- who it is by ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "environment", "author", "committer"),
    [
        ({}, {}, "llmch <llmch@localhost>", "llmch <llmch@localhost>"),
        ({"user.name": "A", "user.email": "a@x"}, {}, "A <a@x>", "A <a@x>"),
        ({"user.name": "A"}, {}, "A <llmch@localhost>", "A <llmch@localhost>"),
        ({"user.name": "A", "user.email": "a@x", "author.name": "B"}, {}, "B <a@x>", "A <a@x>"),
        ({"user.name": "A", "user.email": "a@x"}, {"GIT_AUTHOR_NAME": "C", "GIT_COMMITTER_EMAIL": "c@x"},
         "C <a@x>", "A <c@x>"),
        ({"user.name": "<>\n"}, {"EMAIL": "e@x"}, "llmch <e@x>", "llmch <e@x>"),
        ({"user.useConfigOnly": "true"}, {}, "llmch <llmch@localhost>", "llmch <llmch@localhost>"),
    ],
)  # fmt: skip
def test_a_commit_is_by_the_user_where_he_has_a_name(
    config, environment, author, committer, repo, monkeypatch
):
    run_git(repo, "config", "--remove-section", "user")
    for key, value in config.items():
        run_git(repo, "config", key, value)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    before = (repo / ".git/config").read_bytes()
    publish(repo, {"a.txt": b"1\n"})
    assert run_git(repo, "log", "-1", "--format=%an <%ae>|%cn <%ce>") == f"{author}|{committer}"
    assert (repo / ".git/config").read_bytes() == before


def test_the_users_global_identity_and_dates_are_used(repo, tmp_path, monkeypatch):
    run_git(repo, "config", "--remove-section", "user")
    monkeypatch.delenv("GIT_CONFIG_GLOBAL")
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / ".gitconfig", "[user]\n\tname = Home\n\temail = home@x\n")
    monkeypatch.setenv("GIT_AUTHOR_DATE", "1700000000 +0100")
    publish(repo, {"a.txt": b"1\n"})
    assert run_git(repo, "log", "-1", "--format=%an %ae %ad", "--date=raw") == "Home home@x 1700000000 +0100"


# --- the checkout -------------------------------------------------------------------------------


def test_ignored_and_unrelated_bytes_stay_as_they_are(repo):
    write(repo / ".gitignore", "secret\n.venv/\n")
    write(repo / "other.txt")
    commit_all(repo)
    write(repo / "secret", b"\0\xff")
    write(repo / ".venv/bin/python").chmod(0o755)
    (repo / "empty").mkdir()
    before = {name: what for name, what in everything(repo).items() if not name.startswith(".git/")}
    publish(repo, {"README.md": b"2\n", "new.txt": b"1\n"})
    after = {name: what for name, what in everything(repo).items() if not name.startswith(".git/")}
    assert {name: what for name, what in after.items() if name not in ("README.md", "new.txt")} == {
        name: what for name, what in before.items() if name != "README.md"
    }


def test_a_reused_branch_that_is_elsewhere_is_checked_out(repo):
    write(repo / "main-only.txt")
    commit_all(repo)
    run_git(repo, "branch", "old", "HEAD~1")
    publish(repo, {"a.txt": b"1\n"}, "old")
    assert run_git(repo, "symbolic-ref", "--short", "HEAD") == "old"
    assert sorted(path.name for path in repo.iterdir()) == [".git", "README.md", "a.txt"]
    assert run_git(repo, "status", "--porcelain") == ""


MEANWHILE = {
    "changed the file": lambda repo: write(repo / "README.md", "mine\n"),
    "staged the file": lambda repo: (write(repo / "README.md", "mine\n"), run_git(repo, "add", "README.md")),
    "put an ignored file in the way": lambda repo: write(repo / "secret", "mine\n"),
    "put an untracked file in the way": lambda repo: write(repo / "new.txt", "mine\n"),
    "put a directory in the way": lambda repo: write(repo / "new.txt/x", "mine\n"),
    "put a file where a directory is needed": lambda repo: write(repo / "deep", "mine\n"),
    "hid a change from git": lambda repo: (
        run_git(repo, "update-index", "--assume-unchanged", "README.md"), write(repo / "README.md", "mine\n")
    ),
    "switched": lambda repo: run_git(repo, "switch", "-q", "-c", "mine"),
    "committed": lambda repo: (write(repo / "c.txt"), commit_all(repo)),
}  # fmt: skip
WRITES = {"README.md": b"2\n", "new.txt": b"1\n", "secret": b"s\n", "deep/er.txt": b"d\n"}


@pytest.mark.parametrize("in_place", [False, True], ids=["another branch", "the branch that is checked out"])
@pytest.mark.parametrize("meddle", MEANWHILE.values(), ids=MEANWHILE.keys())
def test_what_the_user_did_during_the_run_is_kept(meddle, in_place, repo):
    write(repo / ".gitignore", "secret\n")
    commit_all(repo)
    if in_place:
        run_git(repo, "switch", "-q", "-c", "work")
    repository, plan = planned(repo)
    meddle(repo)
    files = {name: what for name, what in everything(repo).items() if not name.startswith(".git/")}
    index, head = run_git(repo, "ls-files", "-s"), run_git(repo, "symbolic-ref", "HEAD")
    commit = run_git(repo, "rev-parse", "HEAD")
    if in_place:
        with pytest.raises(Refused, match=r"branch work .*was left as it is") as refused:
            repository.publish(plan, WRITES.items(), "m", ORIGIN)
        finished = str(refused.value).partition("the finished commit is ")[2][:40]
        assert run_git(repo, "cat-file", "-t", finished) == "commit"
        assert run_git(repo, "rev-parse", "HEAD") == commit
    else:
        published = repository.publish(plan, WRITES.items(), "m", ORIGIN)
        assert run_git(repo, "rev-parse", "work") == published.commit
        assert "the commit is on work, but the checkout stayed as it was: " in published.checkout_problem
        assert "`git switch work` brings you there" in published.checkout_problem
        repository.settle()
    assert {name: what for name, what in everything(repo).items() if not name.startswith(".git/")} == files
    assert (run_git(repo, "ls-files", "-s"), run_git(repo, "symbolic-ref", "HEAD")) == (index, head)
    assert [
        path.name for path in (repo / ".git").rglob("*") if "llmch" in path.name or path.suffix == ".lock"
    ] == []


def test_unrelated_changes_of_the_user_are_carried_along(repo):
    write(repo / "other.txt", "1\n")
    commit_all(repo)
    repository, plan = planned(repo)
    write(repo / "other.txt", "mine\n")
    write(repo / "untracked.txt", "mine\n")
    assert repository.publish(plan, WRITES.items(), "m", ORIGIN).checkout_problem is None
    assert run_git(repo, "status", "--porcelain").splitlines() == [" M other.txt", "?? untracked.txt"]


def test_a_file_that_was_only_touched_does_not_count_as_changed(repo):
    repository, plan = planned(repo)
    os.utime(repo / "README.md", (1, 1))
    assert repository.publish(plan, WRITES.items(), "m", ORIGIN).checkout_problem is None
    assert (repo / "README.md").read_bytes() == b"2\n"


def test_a_change_as_young_as_the_index_is_seen(repo):
    """Git looks into a file only if its times do not prove it older than the index."""
    run_git(repo, "config", "core.trustctime", "false")
    os.utime(repo / "README.md", (1_700_000_000, 1_700_000_000))
    run_git(repo, "update-index", "--refresh")
    repository, plan = planned(repo)
    seen = (repo / "README.md").stat()
    with open(repo / "README.md", "r+b") as file:
        file.write(b"# mine too!")
    for path in ("README.md", ".git/index"):
        os.utime(repo / path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert (repo / "README.md").stat().st_size == seen.st_size
    published = repository.publish(plan, WRITES.items(), "m", ORIGIN)
    assert "README.md" in published.checkout_problem
    assert (repo / "README.md").read_bytes().startswith(b"# mine too!")


def test_a_checkout_that_fails_half_way_is_taken_back(repo):
    write(repo / "a.txt", "1\n")
    write(repo / "z.txt", "1\n")
    commit_all(repo)
    run_git(repo, "config", "filter.bad.clean", "cat")
    run_git(repo, "config", "filter.bad.smudge", "grep -v wrong")
    run_git(repo, "config", "filter.bad.required", "true")
    write(repo / ".git/info/attributes", "z.txt filter=bad\n")
    repository, plan = planned(repo)
    published = repository.publish(
        plan, {"a.txt": b"2\n", "b/c.txt": b"2\n", "z.txt": b"wrong\n"}.items(), "m", ORIGIN
    )
    assert "smudge filter bad failed" in published.checkout_problem
    assert (repo / "a.txt").read_bytes() == b"1\n"
    assert not (repo / "b").exists()
    assert run_git(repo, "status", "--porcelain") == ""
    assert run_git(repo, "symbolic-ref", "--short", "HEAD") == "main"


def test_a_branch_that_moved_during_the_run_is_left_where_it_went(repo):
    run_git(repo, "branch", "work")
    repository, plan = planned(repo)
    write(repo / "c.txt")
    theirs = commit_all(repo)
    run_git(repo, "branch", "-f", "work", theirs)
    run_git(repo, "reset", "-q", "--hard", "HEAD~1")
    before = {name: what for name, what in everything(repo).items() if not name.startswith(".git")}
    with pytest.raises(
        Refused, match=r"branch work was left as it is: .*the finished commit is [0-9a-f]{40}"
    ):
        repository.publish(plan, {"README.md": b"2\n", "n/new.txt": b"1\n"}.items(), "m", ORIGIN)
    assert run_git(repo, "rev-parse", "work") == theirs
    after = {name: what for name, what in everything(repo).items() if not name.startswith(".git")}
    assert {name: what[2] for name, what in after.items()} == {name: what[2] for name, what in before.items()}
    assert run_git(repo, "status", "--porcelain") == ""
    assert not (repo / ".git/llmch").exists()


def test_an_index_lock_of_a_living_git_is_waited_for_and_never_removed(repo, monkeypatch):
    monkeypatch.setattr("factory.checkout._LOCK_SECONDS", 0.2)
    repository, plan = planned(repo)
    write(repo / ".git/index.lock")
    published = repository.publish(plan, WRITES.items(), "m", ORIGIN)
    assert "another git process holds" in published.checkout_problem
    assert (repo / ".git/index.lock").exists()


def test_the_reflogs_say_who_it_was(repo):
    publish(repo, {"a.txt": b"1\n"})
    assert run_git(repo, "reflog", "-1", "--format=%gs", "work") == "llmch: commit on work"
    assert run_git(repo, "reflog", "-1", "--format=%gs", "HEAD") == "llmch: from main"


# --- programs that must not run ---------------------------------------------------------------


def test_no_hook_and_no_program_of_the_configuration_runs(repo, tmp_path):
    sprung = tmp_path / "sprung"
    trap = write(tmp_path / "trap", f"#!/bin/sh\necho $0 $@ >> {sprung}\nexit 1\n")
    trap.chmod(0o755)
    hooks = repo / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("pre-commit", "commit-msg", "post-commit", "post-checkout", "pre-push",
                 "reference-transaction", "post-index-change", "prepare-commit-msg", "post-merge",
                 "pre-auto-gc"):  # fmt: skip
        (hooks / hook).symlink_to(trap)
    for key in (
        "core.fsmonitor",
        "gpg.program",
        "core.editor",
        "core.pager",
        "diff.external",
        "core.askPass",
    ):
        run_git(repo, "config", key, str(trap))
    run_git(repo, "config", "commit.gpgSign", "true")
    run_git(repo, "config", "core.hooksPath", str(hooks))
    run_git(tmp_path, "init", "-q", "--bare", "remote.git")
    run_git(repo, "config", "remote.origin.url", str(tmp_path / "remote.git"))
    sprung.unlink(missing_ok=True)
    repository, plan = planned(repo)
    with repository.lock():
        repository.recover()
        with scratch_tree(repository, plan.baseline) as tree:
            write(tree.path / "a.txt")
            tree.drift([])
            tree.reset()
        repository.publish(plan, {"a.txt": b"1\n"}.items(), "m", ORIGIN)
        assert repository.push("work", "origin", timeout=60) is None
    assert not sprung.exists(), sprung.read_text()


def test_git_inherits_no_setting_and_no_key(repo, tmp_path, monkeypatch):
    seen = tmp_path / "seen"
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'user.name'='Else'")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(write(tmp_path / "config", "[user]\n\temail = g@x\n")))
    Git.at(repo)("-c", f"alias.show-env=!env -0 > {seen}", "show-env")
    environment = dict(line.split("=", 1) for line in seen.read_text().split("\0") if line)
    assert not {"OPENAI_API_KEY", "GIT_INDEX_FILE"} & environment.keys()
    assert environment["GIT_CONFIG_GLOBAL"] == str(tmp_path / "config")
    assert environment["GIT_TERMINAL_PROMPT"] == "0"
    assert Repository.open(repo).settings["user.email"] == "ada@example.org"
    assert Repository.open(repo).look()


def test_a_repository_cannot_bring_its_own_git(repo, tmp_path, monkeypatch):
    write(repo / "git", f"#!/bin/sh\ntouch {tmp_path}/sprung\n").chmod(0o755)
    commit_all(repo)
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    monkeypatch.chdir(repo)
    assert Repository.open(repo).look()
    assert not (tmp_path / "sprung").exists()


def test_an_error_of_git_is_one_line_without_a_password(repo):
    with pytest.raises(GitError) as error:
        Git.at(repo)("fetch", "https://user:hunter2@localhost:1/x")
    assert "hunter2" not in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"git fetch failed in {repo}: ")


def test_git_that_is_not_there_is_an_error_of_one_line(repo):
    with pytest.raises(GitError, match="cannot start git"):
        replace(Git.at(repo), env={"PATH": "/nowhere"})("status")


# --- push ----------------------------------------------------------------------------------------


@pytest.fixture
def remote(repo, tmp_path):
    run_git(tmp_path, "init", "-q", "--bare", "remote.git")
    run_git(repo, "remote", "add", "elsewhere", str(tmp_path / "remote.git"))
    run_git(repo, "remote", "add", "origin", str(tmp_path / "nowhere.git"))
    return tmp_path / "remote.git"


def test_the_first_configured_remote_gets_the_branch_and_is_its_upstream(repo, remote):
    repository = opened(repo)
    assert repository.first_remote() == "elsewhere"
    publish(repo, {"a.txt": b"1\n"})
    assert repository.push("work", "elsewhere", timeout=60) is None
    assert run_git(remote, "rev-parse", "work") == run_git(repo, "rev-parse", "work")
    assert run_git(repo, "rev-parse", "--abbrev-ref", "work@{upstream}") == "elsewhere/work"
    assert run_git(remote, "for-each-ref", "--format=%(refname)") == "refs/heads/work"


def test_a_remote_that_has_only_settings_is_none(repo):
    run_git(repo, "config", "remote.origin.prune", "true")
    assert opened(repo).first_remote() is None
    run_git(repo, "config", "remote.dotted.name.url", "/x")
    assert opened(repo).first_remote() == "dotted.name"


def diverged(repo, remote):
    other = run_git(repo, "commit-tree", "-m", "other", run_git(repo, "rev-parse", "HEAD^{tree}"))
    run_git(repo, "push", "-q", str(remote), f"{other}:refs/heads/work")
    run_git(repo, "config", "remote.elsewhere.push", "+refs/heads/*:refs/heads/*")


def refusing(_repo, remote):
    write(remote / "hooks/pre-receive", "#!/bin/sh\nexit 1\n").chmod(0o755)


def gone(_repo, remote):
    remote.rename(remote.with_name("moved"))


@pytest.mark.parametrize("spoil", [diverged, refusing, gone])
def test_a_push_that_fails_is_a_value_and_never_forced(spoil, repo, remote):
    publish(repo, {"a.txt": b"1\n"})
    spoil(repo, remote)
    before = everything(remote) if remote.exists() else None
    said = Repository.open(repo).push("work", "elsewhere", timeout=60)
    assert said.startswith("git push failed")
    assert "\n" not in said
    if before is not None:
        assert {name: what[2] for name, what in everything(remote).items() if "refs" in name} == {
            name: what[2] for name, what in before.items() if "refs" in name
        }


def test_a_push_ends_in_bounded_time_and_asks_for_nothing(repo, tmp_path):
    publish(repo, {"a.txt": b"1\n"})
    slow = write(tmp_path / "slow", "#!/bin/sh\nsleep 600\n")
    slow.chmod(0o755)
    run_git(repo, "config", "core.sshCommand", str(slow))
    run_git(repo, "remote", "add", "origin", "ssh://user@host/x")
    assert "took longer than 0.5 s" in Repository.open(repo).push("work", "origin", timeout=0.5)


# --- questions and deeds on any tree ---------------------------------------------------------------


def test_the_questions_about_a_repository(repo, tmp_path):
    assert ws.is_git_repo(repo)
    assert ws.is_clean(repo)
    assert ws.has_commits(repo)
    assert ws.get_baseline_commit(repo) == run_git(repo, "rev-parse", "HEAD")
    run_git(tmp_path, "init", "-q", "empty")
    assert ws.is_git_repo(tmp_path / "empty")
    assert not ws.has_commits(tmp_path / "empty")
    with pytest.raises(GitError):
        ws.get_baseline_commit(tmp_path / "empty")
    write(repo / "x")
    assert not ws.is_clean(repo)


def test_drift_is_what_was_changed_beside_the_touched_files(repo):
    write(repo / ".gitignore", "*.log\n")
    write(repo / "del.txt")
    write(repo / "mode.txt")
    commit_all(repo)
    for name in ("README.md", "touched.txt", "x.log", *ODD_NAMES):
        write(repo / name, "drift\n")
    (repo / "del.txt").unlink()
    (repo / "mode.txt").chmod(0o755)
    run_git(repo, "add", "README.md")
    (repo / "empty").mkdir()
    assert ws.detect_repo_drift(repo, ["touched.txt"]) == sorted(
        ["README.md", "del.txt", "mode.txt", *ODD_NAMES]
    )


def test_the_tree_hash_is_that_of_the_touched_files_on_head_and_the_index_stays(repo):
    write(repo / "gone.txt")
    write(repo / "turned/x.txt")
    write(repo / "flat.txt")
    commit_all(repo)
    touched = [
        "README.md",
        "gone.txt",
        "turned",
        "turned/x.txt",
        "flat.txt",
        "new/ü.txt",
        "never.txt",
        *ODD_NAMES,
    ]
    write(repo / "staged.txt")
    run_git(repo, "add", "staged.txt")
    write(repo / "README.md", "2\n")
    write(repo / "new/ü.txt")
    (repo / "gone.txt").unlink()
    (repo / "turned/x.txt").unlink()
    (repo / "turned").rmdir()
    write(repo / "turned", "now a file\n")
    (repo / "flat.txt").unlink()
    (repo / "flat.txt").mkdir()
    for name in ODD_NAMES:
        write(repo / name)
    index = (repo / ".git/index").read_bytes()
    tree = ws.get_tree_hash(repo, touched_files=touched)
    assert (repo / ".git/index").read_bytes() == index
    assert set(listing(repo, tree)) == {"README.md", "new/ü.txt", "turned", *ODD_NAMES}
    assert blob(repo, f"{tree}:README.md") == b"2\n"


def test_a_rollback_leaves_nothing_but_the_baseline(repo):
    write(repo / ".gitignore", "*.log\n")
    baseline = commit_all(repo)
    before = run_git(repo, "ls-files", "-s")
    write(repo / "README.md", "changed\n")
    write(repo / "sub/dir/x.log")
    (repo / "empty").mkdir()
    make_repo(repo / "nested/repository")
    write(repo / "staged.txt")
    run_git(repo, "add", "staged.txt")
    run_git(repo, "commit", "-q", "-m", "by a command")
    write(repo / ".git/index.lock")
    ws.rollback(repo, baseline)
    assert sorted(path.name for path in repo.iterdir()) == [".git", ".gitignore", "README.md"]
    assert run_git(repo, "ls-files", "-s") == before
    assert run_git(repo, "rev-parse", "HEAD") == baseline


def test_a_rollback_gets_into_directories_that_were_closed_to_it(common_ground):
    repo = make_repo(common_ground / "project")
    write(repo / "src/kept.txt", "1\n")
    baseline = commit_all(repo)

    def work():
        write(repo / "src/kept.txt", "2\n")
        write(repo / "out/deep/file.txt")
        for name in ("src", "out/deep", "out"):
            (repo / name).chmod(0o555)
        ws.rollback(repo, baseline)
        assert (repo / "src/kept.txt").read_text() == "1\n"
        assert not (repo / "out").exists()

    assert as_nobody(repo, work) == 0
