"""The factory's command line: what it refuses, and that a refusal leaves no trace."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from loopback import Answer, LoopbackEndpoint, Status

from blackbox.harness import (
    AS_USER,
    GOOD,
    KEY,
    Desk,
    Outcome,
    a_plan,
    a_proposal,
    a_task,
    a_write,
    absent,
    an_order,
    compile_spec,
    exists,
    factory,
    fails,
    files_below,
    passes,
    put,
    snapshot,
    untouched,
)

# --- broken repositories -----------------------------------------------------------------


def detached(desk: Desk, repo: Path) -> None:
    desk.git(repo, "checkout", "-q", "--detach")


def unstaged(_desk: Desk, repo: Path) -> None:
    put(repo / "README.md", "changed\n")


def staged(desk: Desk, repo: Path) -> None:
    put(repo / "README.md", "changed\n")
    desk.git(repo, "add", "README.md")


def staged_new(desk: Desk, repo: Path) -> None:
    put(repo / "new.txt", "new\n")
    desk.git(repo, "add", "new.txt")


def untracked(_desk: Desk, repo: Path) -> None:
    put(repo / "deep/new.txt", "new\n")


def hidden_untracked(desk: Desk, repo: Path) -> None:
    desk.git(repo, "config", "status.showUntrackedFiles", "no")
    put(repo / "new.txt", "new\n")


def deleted(_desk: Desk, repo: Path) -> None:
    (repo / "README.md").unlink()


def mode_only(_desk: Desk, repo: Path) -> None:
    (repo / "README.md").chmod(0o755)


def conflicted(desk: Desk, repo: Path) -> None:
    put(repo / "README.md", "ours\n")
    desk.commit_all(repo)
    desk.git(repo, "checkout", "-q", "-b", "theirs", "HEAD^")
    put(repo / "README.md", "theirs\n")
    desk.commit_all(repo)
    desk.git(repo, "-c", "user.name=x", "-c", "user.email=x", "merge", "main", check=False)


def merging(desk: Desk, repo: Path) -> None:
    desk.git(repo, "checkout", "-q", "-b", "side")
    put(repo / "side.txt", "x\n")
    desk.commit_all(repo)
    desk.git(repo, "checkout", "-q", "main")
    put(repo / "main.txt", "x\n")
    desk.commit_all(repo)
    desk.git(repo, *AS_USER, "merge", "-q", "-s", "ours", "--no-commit", "side")
    assert desk.git(repo, "status", "--porcelain") == ""


def locked(_desk: Desk, repo: Path) -> None:
    (repo / ".git/index.lock").touch()


def foreign(_desk: Desk, repo: Path) -> None:
    for path in (repo, *repo.rglob("*")):
        os.lchown(path, 12345, 12345)


@dataclass(frozen=True)
class Refusal:
    """How to break something, what the message must name, and the exit codes that are right."""

    break_it: Callable[[Desk, Path], Any] = lambda _desk, _repo: None
    args: tuple[str, ...] = ()
    needle: str = ""
    codes: tuple[int, ...] = (1,)
    order: Any = field(default_factory=a_task)
    env: dict[str, str | None] = field(default_factory=dict)
    repo: str = "{repo}"
    cwd: str | None = None


USAGE = (1, 64)
REPOSITORIES = {
    "missing": Refusal(repo="{root}/none", needle="none", codes=USAGE),
    "a file": Refusal(repo="{order}", needle="order.json", codes=USAGE),
    "not a repository": Refusal(repo="{root}/home", needle="home"),
    "below the top level": Refusal(repo="{repo}/scripts", needle="scripts"),
    "the .git directory": Refusal(repo="{repo}/.git", needle=".git"),
    "detached": Refusal(detached, needle="detached"),
    "unstaged change": Refusal(unstaged, needle="README.md"),
    "staged change": Refusal(staged, needle="README.md"),
    "staged new file": Refusal(staged_new, needle="new.txt"),
    "untracked file": Refusal(untracked, needle="deep"),
    "untracked file that status hides": Refusal(hidden_untracked, needle="new.txt"),
    "deleted file": Refusal(deleted, needle="README.md"),
    "changed mode": Refusal(mode_only, needle="README.md"),
    "merge conflict": Refusal(conflicted, needle=""),
    "merge that waits for its commit": Refusal(merging, needle="merge"),
    "index that somebody holds": Refusal(locked, needle="index.lock"),
    "branch where ours would have its directory": Refusal(
        lambda desk, repo: desk.git(repo, "branch", "factory"), needle="branch factory"
    ),
}
FLAGS = {
    "main": Refusal(args=("--branch", "main"), needle="main"),
    "master": Refusal(args=("--branch", "master"), needle="master"),
    "main reused": Refusal(args=("--branch", "main", "--reuse-branch"), needle="main"),
    "main in full": Refusal(args=("--branch", "refs/heads/main"), needle="main", codes=USAGE),
    "reuse without branch": Refusal(args=("--branch", "none", "--reuse-branch"), needle="none"),
    "create over branch": Refusal(
        lambda desk, repo: desk.git(repo, "branch", "taken"),
        args=("--branch", "taken", "--create-branch"),
        needle="taken",
    ),
    "create and reuse": Refusal(args=("--branch", "x", "--create-branch", "--reuse-branch"), codes=USAGE),
    "a branch below a branch": Refusal(
        lambda desk, repo: desk.git(repo, "branch", "taken"), args=("--branch", "taken/below"), needle="taken"
    ),
    **{
        f"branch {name!r}": Refusal(args=(f"--branch={name}",), codes=USAGE)
        for name in (
            "-f",
            "--force",
            "a..b",
            "a b",
            "x.lock",
            "",
            "@{-1}",
            "HEAD",
            "a~1",
            "x\ny",
            "ü\x1b[31m",
            "@",
        )
    },
    "unknown commit": Refusal(args=("--branch", "x", "--commit-hash", "0" * 40), needle="0000000"),
    "commit that is an option": Refusal(args=("--branch", "x", "--commit-hash=--all"), codes=USAGE),
    "commit that is a tree": Refusal(args=("--branch", "x", "--commit-hash", "HEAD^{tree}"), codes=USAGE),
    "out is the repository": Refusal(args=("--out", "{repo}"), needle="{repo}"),
    "out in the repository": Refusal(args=("--out", "{repo}/deep/out"), needle="{repo}"),
    "out in the repository by a link": Refusal(
        lambda desk, repo: (desk.root / "link").symlink_to(repo), args=("--out", "{root}/link/out")
    ),
    "out in the repository by dots": Refusal(args=("--out", "{root}/home/../repo/out")),
    "transcript in the repository": Refusal(args=("--record", "{repo}/rec"), needle="--record"),
    "transcript that is not there": Refusal(args=("--llm", "replay:{root}/none"), needle="none"),
    "transcript of nothing": Refusal(args=("--llm", "replay:"), codes=USAGE),
    "out in .git": Refusal(args=("--out", "{repo}/.git/out")),
    "out is a file": Refusal(args=("--out", "{order}"), needle="order.json"),
    "artifacts in the repository": Refusal(args=("--artifacts-dir", "{repo}/artifacts"), needle="artifacts"),
    "artifacts in .git": Refusal(args=("--artifacts-dir", "{repo}/.git/artifacts")),
    "artifacts of the environment": Refusal(
        args=("--artifacts-dir", ""), env={"ARTIFACTS_DIR": "{repo}/art"}, needle="art"
    ),
    "temporary files in the repository": Refusal(env={"TMPDIR": "{repo}/scripts"}, needle=""),
    "artifacts here": Refusal(args=("--artifacts-dir", ""), cwd="{repo}", needle="artifacts"),
    "artifacts directory is a file": Refusal(args=("--artifacts-dir", "{order}"), needle="order.json"),
    "artifacts directory cannot be made": Refusal(
        args=("--artifacts-dir", "/proc/none"), needle="/proc/none"
    ),
    "no key": Refusal(env={"OPENAI_API_KEY": None}, needle="OPENAI_API_KEY"),
    "empty key": Refusal(env={"OPENAI_API_KEY": ""}, needle="OPENAI_API_KEY"),
    "no attempts": Refusal(args=("--max-attempts", "0"), needle="max-attempts", codes=USAGE),
    "negative attempts": Refusal(args=("--max-attempts", "-1"), needle="max-attempts", codes=USAGE),
    "attempts in words": Refusal(args=("--max-attempts", "many"), needle="max-attempts", codes=(64,)),
    "no time": Refusal(args=("--timeout-seconds", "0"), needle="timeout-seconds", codes=USAGE),
    "negative time": Refusal(args=("--timeout-seconds", "-5"), needle="timeout-seconds", codes=USAGE),
    "time is not a number": Refusal(args=("--timeout-seconds", "nan"), needle="timeout-seconds", codes=USAGE),
    "temperature in words": Refusal(args=("--llm-temperature", "hot"), needle="llm-temperature", codes=(64,)),
    "temperature is not a number": Refusal(
        args=("--llm-temperature", "nan"), needle="llm-temperature", codes=USAGE
    ),
    "unknown flag": Refusal(args=("--frobnicate",), needle="--frobnicate", codes=(64,)),
    "stray argument": Refusal(args=("stray",), needle="stray", codes=(64,)),
    "flag without value": Refusal(args=("--branch",), needle="--branch", codes=(64,)),
}
DEEP = "[" * 100_000 + "]" * 100_000
ORDERS = {
    "missing": Refusal(order="{root}/none.json", needle="none.json", codes=USAGE),
    "a directory": Refusal(order="{root}/home", needle="home", codes=USAGE),
    "a pipe": Refusal(order="{root}/fifo", needle="fifo"),
    "empty": Refusal(order=b"", needle="order.json"),
    "no JSON": Refusal(order=b"{not json", needle="order.json"),
    "not UTF-8": Refusal(order=b'{"id": "\xff"}', needle="order.json"),
    "two values": Refusal(order=json.dumps(a_task()).encode() + b"{}", needle="order.json"),
    "duplicate keys": Refusal(
        order=json.dumps(a_task()).replace('"id"', '"id": "WO-09", "id"').encode(), needle="duplicate"
    ),
    "NaN": Refusal(order=json.dumps(a_task()).replace('""', "NaN").encode(), needle="NaN"),
    "a lone surrogate": Refusal(
        order=json.dumps(a_task()).replace('""', '"\\ud800"').encode(), needle="order.json"
    ),
    "deeply nested": Refusal(order=DEEP.encode(), needle="order.json"),
    "huge": Refusal(order=b'{"id": "' + b"x" * (12 * 1024 * 1024) + b'"}', needle="order.json"),
    "a list": Refusal(order=[a_task()], needle="order.json"),
    "a number": Refusal(order=b"7", needle="order.json"),
    **{
        f"{name} missing": Refusal(order=a_task(**{name: ...}), needle=name)
        for name in ("id", "title", "intent", "allowed_files", "acceptance_commands")
    },
    "title is a number": Refusal(order=a_task(title=7), needle="title"),
    "allowed_files is text": Refusal(order=a_task(allowed_files="a.txt"), needle="allowed_files"),
    "verify_exempt is text": Refusal(order=a_task(verify_exempt="false"), needle="verify_exempt"),
    "no acceptance command": Refusal(order=a_task(acceptance_commands=[]), needle="acceptance_commands"),
    "11 context files": Refusal(
        order=a_task(context_files=[f"c{n}" for n in range(11)]), needle="context_files"
    ),
    "a promise of absence": Refusal(order=a_task(postconditions=[absent("a.txt")]), needle="postconditions"),
    "an unknown condition": Refusal(
        order=a_task(preconditions=[{"kind": "dir", "path": "a"}]), needle="preconditions"
    ),
    **{
        f"path {path!r}"[:40]: Refusal(
            order=a_task(allowed_files=[path], postconditions=[]), needle="allowed_files"
        )
        for path in (
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a\\b",
            "a\x00b",
            "a\nb",
            ".",
            "C:/x",
            "a*",
            ".git/config",
            "x/.GIT/config",
            ":(top)x",
            "n" * 300,
            "",
        )
    },
}
EXEMPT = {
    "exempt without provenance": Refusal(order=a_task(verify_exempt=True), needle="--allow-verify-exempt"),
    "exempt, bootstrap without a run": Refusal(
        order=a_task(verify_exempt=True, provenance={"bootstrap": True}), needle="--allow-verify-exempt"
    ),
    "exempt, bootstrap with an empty run": Refusal(
        order=a_task(verify_exempt=True, provenance={"bootstrap": True, "planner_run_id": ""}),
        needle="--allow-verify-exempt",
    ),
    "exempt, a run without bootstrap": Refusal(
        order=a_task(verify_exempt=True, provenance={"bootstrap": False, "planner_run_id": "01H"}),
        needle="--allow-verify-exempt",
    ),
    "exempt, provenance is text": Refusal(order=a_task(verify_exempt=True, provenance="trust me"), needle=""),
}
TABLES = {"repository": REPOSITORIES, "flags": FLAGS, "order": ORDERS, "exempt": EXEMPT}
ALL = {f"{table}: {name}": refusal for table, rows in TABLES.items() for name, refusal in rows.items()}


def refused(desk: Desk, case: Refusal) -> tuple[Path, Outcome]:
    repo = desk.repo()
    os.mkfifo(desk.root / "fifo")
    case.break_it(desk, repo)
    places = {"repo": str(repo), "root": str(desk.root), "order": str(desk.root / "files/order.json")}

    def fill(text: str) -> str:
        for name, place in places.items():
            text = text.replace("{" + name + "}", place)
        return text

    order = fill(case.order) if isinstance(case.order, str) else desk.write("order.json", case.order)
    if isinstance(case.order, str):
        desk.write("order.json", a_task())
    args = [fill(arg) for arg in case.args]
    if args[:2] == ["--artifacts-dir", ""]:
        args = args[2:]
    elif "--artifacts-dir" not in args:
        args = ["--artifacts-dir", str(desk.artifacts), *args]
    env = {name: None if value is None else fill(value) for name, value in case.env.items()}
    with LoopbackEndpoint([Answer(GOOD)]) as endpoint, untouched(repo):
        outcome = desk.run(
            "factory",
            "run",
            "--repo",
            fill(case.repo),
            "--work-order",
            order,
            *args,
            endpoint=endpoint,
            env=env,
            cwd=Path(fill(case.cwd)) if case.cwd else None,
        )
    assert endpoint.requests == [], outcome
    assert fill(case.needle) in outcome.stderr, outcome
    return repo, outcome


@pytest.mark.rows(
    "FC05",
    "FC07",
    "FC08",
    "FC09",
    "FC10",
    "FC11",
    "FC12",
    "FC13",
    "FC14",
    "FC15",
    "FC17",
    "FC28",
    "FC30",
    "FC31",
    "FB04",
    "FB05",
    "FB06",
    "FM03",
    "FM04",
)
@pytest.mark.parametrize("name", ALL)
def test_a_refusal_is_one_clear_line_and_leaves_no_trace(desk, name):
    case = ALL[name]
    _, outcome = refused(desk, case)
    assert outcome.exit_code in case.codes, outcome
    assert "Traceback" not in outcome.said, outcome
    assert "\x1b" not in outcome.said, outcome
    assert len(outcome.stderr.strip().splitlines()) <= 12, outcome
    assert outcome.stderr.strip(), outcome


@pytest.mark.rows("FC01")
@pytest.mark.parametrize(
    "argv",
    [[], ["run"], ["run", "--repo", "x"], ["run", "--work-order", "x"], ["juggle"]],
    ids=lambda argv: " ".join(argv) or "nothing",
)
def test_a_call_without_what_it_needs_is_a_usage_error(desk, argv):
    outcome = desk.run("factory", *argv)
    assert outcome.exit_code == 64 or (not argv and outcome.exit_code == 0), outcome
    assert "Traceback" not in outcome.said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a repository away")
@pytest.mark.rows("FC05")
def test_a_repository_of_somebody_else_is_refused_as_git_refuses_it(desk):
    repo = desk.repo()
    foreign(desk, repo)
    with untouched(repo):
        run = fails(factory(desk, repo, a_task(), [Answer(GOOD)]))
    assert run.requests == []
    assert "safe.directory" in run.outcome.stderr


@pytest.mark.rows("FC06")
def test_a_branch_without_a_commit_is_refused(desk):
    repo = desk.root / "unborn"
    repo.mkdir()
    desk.git(repo, "init", "-q", "-b", "main")
    with untouched(repo):
        run = fails(factory(desk, repo, a_task(), [Answer(GOOD)]))
    assert run.requests == []
    assert "commit" in run.outcome.stderr


@pytest.mark.rows("FC05")
def test_a_bare_repository_is_refused(desk):
    desk.git(desk.root, "init", "-q", "--bare", "bare.git")
    with untouched(desk.root / "bare.git"):
        run = fails(factory(desk, desk.root / "bare.git", a_task(), [Answer(GOOD)]))
    assert run.requests == []


@pytest.mark.rows("FC13")
def test_artifacts_may_lie_where_git_ignores_them(desk):
    repo = desk.repo({".gitignore": "artifacts/\n"})
    with LoopbackEndpoint([Answer(GOOD)]) as endpoint:
        outcome = desk.run(
            "factory",
            "run",
            "--repo",
            repo,
            "--work-order",
            desk.write("order.json", a_task()),
            endpoint=endpoint,
            cwd=repo,
        )
    assert outcome.exit_code == 0, outcome
    assert len(list((repo / "artifacts/factory").glob("*/run_summary.json"))) == 1
    assert desk.git(repo, "status", "--porcelain") == ""


@pytest.mark.rows("S09", "FC03", "FC04", "FC22")
def test_every_documented_flag_is_taken_and_recorded(desk):
    repo = desk.repo()
    out = desk.root / "out"
    with LoopbackEndpoint([Answer(GOOD)]) as endpoint:
        outcome = desk.run(
            "factory",
            "run",
            "--repo",
            repo,
            "--work-order",
            desk.write("order.json", a_task()),
            "--llm-model",
            "other-model",
            "--max-attempts",
            "2",
            "--llm-temperature",
            "0.5",
            "--timeout-seconds",
            "33",
            "--branch",
            "work/y",
            "--create-branch",
            "--commit-hash",
            desk.git(repo, "rev-parse", "HEAD"),
            "--no-push",
            "--allow-verify-exempt",
            "--out",
            out,
            "--verbose",
            "--no-color",
            endpoint=endpoint,
            env={"ARTIFACTS_DIR": str(desk.root / "env-root"), "FORCE_COLOR": "1"},
        )
    assert outcome.exit_code == 0, outcome
    assert "\x1b" not in outcome.said
    body = endpoint.requests[0].body
    assert (body["model"], body["temperature"]) == ("other-model", 0.5)
    (run_dir,) = (desk.root / "env-root/factory").iterdir()
    summary = json.loads((run_dir / "run_summary.json").read_bytes())
    wanted = {"llm_model": "other-model", "llm_temperature": 0.5, "max_attempts": 2, "timeout_seconds": 33}
    assert {key: summary[key] for key in wanted} == wanted
    assert (out / run_dir.name / "run_summary.json").exists()


@pytest.mark.rows("PC12", "S16")
def test_quiet_says_the_verdict_and_verbose_no_less_than_normal(desk):
    said = {}
    for flag in ("--quiet", "--no-color", "--verbose"):
        run = fails(
            factory(
                desk,
                desk.repo(name=flag.strip("-")),
                a_task(acceptance_commands=["false"]),
                [Answer(GOOD)],
                flag,
                "--max-attempts",
                "1",
            )
        )
        assert "FAIL" in run.outcome.said
        said[flag] = len(run.outcome.said)
    assert said["--quiet"] < said["--no-color"] <= said["--verbose"]


@pytest.mark.rows("FC27", "FC29", "FP03")
def test_an_exemption_by_the_planner_is_honoured_with_a_warning(desk):
    trusted = a_task(
        verify_exempt=True, provenance={"bootstrap": True, "planner_run_id": "01HZY3VJ8Q4N5R6S7T8V9W0X1Y"}
    )
    run = passes(factory(desk, desk.repo(verify="exit 9\n"), trusted, [Answer(GOOD)]))
    assert "warning" in run.outcome.stderr.lower()
    plain = a_task(verify_exempt=False, provenance={"bootstrap": True})
    passes(factory(desk, desk.repo(name="two"), plain, [Answer(GOOD)]))


@pytest.mark.rows("FC01", "S09")
def test_relative_paths_and_links_lead_where_they_lead(desk):
    repo = desk.repo()
    put(repo / "plan/WO-01.json", json.dumps(a_task()))
    desk.commit_all(repo)
    (desk.root / "link").symlink_to(repo)
    with LoopbackEndpoint([Answer(GOOD)]) as endpoint:
        argv = ("factory", "run", "--repo", "../link", "--work-order", "../repo/plan/WO-01.json")
        outcome = desk.run(*argv, endpoint=endpoint)
    assert outcome.exit_code == 0, outcome
    assert (repo / "a.txt").exists()
    assert len(list((desk.cwd / "artifacts/factory").iterdir())) == 1


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C", "LANG": None},
        {"TMPDIR": "/nonexistent/place"},
        {"HOME": None},
        {"TERM": "dumb", "COLUMNS": "0"},
        {"PYTHONWARNINGS": "error"},
        {"PYTHONSAFEPATH": "1"},
        {"GIT_DIR": "/nonexistent", "GIT_INDEX_FILE": "/nonexistent", "GIT_WORK_TREE": "/nonexistent"},
        {
            "OPENAI_LOG": "debug",
            "OPENAI_ORG_ID": "org",
            "LANGCHAIN_TRACING": "true",
            "LANGCHAIN_VERBOSE": "true",
        },
    ],
    ids=lambda env: next(iter(env)),
)
def test_the_users_environment_does_not_decide_a_run(desk, env):
    name = "ü/渡し.txt"
    task = a_task(
        title="渡し", allowed_files=[name], postconditions=[exists(name)], acceptance_commands=["true"]
    )
    answer = Answer(json.dumps(a_proposal(a_write(name, "渡\n"))))
    repo = desk.repo()
    run = passes(factory(desk, repo, task, [answer], "--verbose", how={"env": env}))
    assert (repo / name).read_text(encoding="utf-8") == "渡\n"
    assert KEY not in run.outcome.said


def test_no_tracing_service_hears_of_a_run(desk):
    names = ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING_V2", "LANGCHAIN_TRACING")
    with LoopbackEndpoint([Status(200, {})], repeat_last=True) as service:
        address = service.base_url.removesuffix("/v1")
        env = {
            **dict.fromkeys(names, "true"),
            **dict.fromkeys(("LANGSMITH_ENDPOINT", "LANGCHAIN_ENDPOINT"), address),
            **dict.fromkeys(("LANGSMITH_API_KEY", "LANGCHAIN_API_KEY"), "key"),
        }
        passes(factory(desk, desk.repo(), a_task(), [Answer(GOOD)], how={"env": env}))
        plan = json.dumps(a_plan(an_order(1)))
        assert compile_spec(desk, [Answer(plan)], how={"env": env}).outcome.exit_code == 0
        assert service.requests == []


@pytest.mark.rows("FC25")
def test_out_gets_its_copy_after_a_fail_too(desk):
    run = fails(
        factory(
            desk,
            desk.repo(),
            a_task(acceptance_commands=["false"]),
            [Answer(GOOD)],
            "--max-attempts",
            "1",
            "--out",
            desk.root / "out",
        )
    )
    assert (desk.root / "out" / run.run_dir.name / "attempt_1/failure_brief.json").exists()


@pytest.mark.rows("S12", "S13", "S06")
def test_runs_never_share_a_directory(desk):
    repo = desk.repo()
    fails(factory(desk, repo, a_task(acceptance_commands=["false"]), [Answer(GOOD)], "--max-attempts", "1"))
    (first,) = (desk.artifacts / "factory").iterdir()
    kept = {path: path.read_bytes() for path in files_below(first)}
    passes(factory(desk, repo, a_task(), [Answer(GOOD)]))
    assert len(list((desk.artifacts / "factory").iterdir())) == 2
    assert {path: path.read_bytes() for path in files_below(first)} == kept


@pytest.mark.rows("S20")
def test_nothing_is_installed_and_no_environment_is_made(desk):
    repo = desk.repo(
        {"requirements.txt": "left-pad\n", "pyproject.toml": "[project]\nname='x'\nversion='1'\n"}
    )
    home = snapshot(desk.root / "home")
    passes(factory(desk, repo, a_task(), [Answer(GOOD)]))
    names = [".git", "a.txt", "pyproject.toml", "requirements.txt", "scripts"]
    assert sorted(path.name for path in repo.iterdir()) == names
    new = [name for name in snapshot(desk.root / "home") if name not in home]
    assert not [name for name in new if "venv" in name or "site-packages" in name or "pip" in name]


@pytest.mark.rows("FC32")
def test_the_total_time_of_a_run_can_be_bounded(desk):
    described = desk.run("factory", "run", "--help").stdout
    flag = next(
        (
            word
            for word in described.split()
            if word.startswith("--")
            and any(part in word for part in ("wall", "total", "run-timeout", "deadline", "limit"))
        ),
        None,
    )
    assert flag, described
    repo = desk.repo()
    with untouched(repo):
        run = factory(
            desk,
            repo,
            a_task(acceptance_commands=["sleep 50"]),
            [Answer(GOOD)],
            flag.strip(",[]"),
            "3",
            repeat_last=True,
        )
    assert run.outcome.exit_code in (1, 6), run.outcome
    assert run.outcome.seconds < 40
    assert run.summary["verdict"] != "PASS"


@pytest.mark.rows("FB09")
def test_a_proposal_of_many_files_is_one_commit(desk):
    names = [f"many/f{n}.txt" for n in range(40)]
    task = a_task(
        allowed_files=names, postconditions=[exists(name) for name in names], acceptance_commands=["true"]
    )
    repo = desk.repo()
    answer = Answer(json.dumps(a_proposal(*(a_write(name) for name in names))))
    passes(factory(desk, repo, task, [answer]))
    assert len(desk.git(repo, "diff", "--name-only", "HEAD^", "HEAD").splitlines()) == 40
