"""Signals, crashes, kills and stuck locks: what is left behind, and how the next run fares."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from loopback import Answer, LoopbackEndpoint, Stall

from blackbox.harness import (
    AS_USER,
    GOOD,
    Desk,
    Running,
    a_task,
    differences,
    factory,
    leftovers,
    newest_dir,
    passes,
    read_json,
    snapshot,
    untouched,
)


def start(desk: Desk, repo: Path, endpoint: LoopbackEndpoint, task: dict, *args: str) -> Running:
    order = desk.write("order.json", task)
    return desk.start(
        "factory",
        "run",
        "--repo",
        repo,
        "--work-order",
        order,
        "--artifacts-dir",
        desk.artifacts,
        *args,
        endpoint=endpoint,
    )


def run_dir(desk: Desk) -> Path:
    found = newest_dir(desk.artifacts / "factory")
    assert found
    return found


def sleeper() -> tuple[str, str]:
    mark = f"8{os.getpid()}{time.monotonic_ns() % 10**6}"
    return mark, f"bash -c 'setsid sleep {mark} & sleep {mark}'"


def asleep(mark: str) -> bool:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"sleep\0{mark}".encode() in (entry / "cmdline").read_bytes():
                    return True
            except OSError:
                continue
    return False


@pytest.mark.rows("FE05", "FE01", "FE03", "FE04", "FE08", "FC19")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("moment", ["model call", "command"])
def test_a_signal_ends_the_run_with_its_code_a_summary_and_an_untouched_repository(
    desk, moment, number, code
):
    repo = desk.repo()
    mark, command = sleeper()
    steps = [Stall()] if moment == "model call" else [Answer(GOOD)]
    with LoopbackEndpoint(steps) as endpoint, untouched(repo):
        running = start(desk, repo, endpoint, a_task(acceptance_commands=[command]))
        running.until(lambda: endpoint.requests if moment == "model call" else asleep(mark))
        running.signal(number)
        outcome = running.finish(30)
    assert outcome.exit_code == code, outcome
    assert "Traceback" not in outcome.said
    assert not asleep(mark)
    summary = read_json(run_dir(desk) / "run_summary.json")
    assert summary["verdict"] == "ERROR"
    assert summary["rollback_failed"] is False
    record = read_json(run_dir(desk) / "run.json")
    assert "ERROR" in json.dumps(record)
    assert leftovers(desk) == []
    assert len(endpoint.requests) == 1


@pytest.mark.rows("FE05")
def test_a_run_that_waits_for_another_can_be_interrupted(desk):
    repo = desk.repo()
    mark, command = sleeper()
    with LoopbackEndpoint([Answer(GOOD)]) as endpoint, untouched(repo):
        first = start(desk, repo, endpoint, a_task(acceptance_commands=[command]))
        first.until(lambda: asleep(mark))
        second = start(desk, repo, endpoint, a_task(acceptance_commands=[command]))
        second.until(lambda: second.stderr)
        second.signal(signal.SIGINT)
        assert second.finish(30).exit_code == 130
        assert first.process.poll() is None, "the other run goes on"
        first.signal(signal.SIGHUP)
        outcome = first.finish(30)
    assert outcome.exit_code == 129, outcome
    assert len(endpoint.requests) == 1


@pytest.mark.rows("FE05")
def test_ctrl_c_at_a_terminal_reaches_commands_only_through_us(desk):
    """A terminal sends SIGINT to the whole foreground group, not to one process."""
    repo = desk.repo()
    mark, command = sleeper()
    with LoopbackEndpoint([Answer(GOOD)]) as endpoint, untouched(repo):
        running = start(desk, repo, endpoint, a_task(acceptance_commands=[command]))
        running.until(lambda: asleep(mark))
        os.killpg(running.process.pid, signal.SIGINT)
        time.sleep(0.05)
        os.killpg(running.process.pid, signal.SIGINT)
        outcome = running.finish(30)
    assert outcome.exit_code == 130, outcome
    assert read_json(run_dir(desk) / "run_summary.json")["verdict"] == "ERROR"


@pytest.mark.rows("FE01", "FE02", "FE03", "FE04", "FE08")
def test_a_crash_is_exit_2_with_message_and_traceback_on_record(desk):
    repo = desk.repo()

    def sabotage(_record):
        attempt = run_dir(desk) / "attempt_1"
        shutil.rmtree(attempt)
        attempt.write_text("a file where a directory was\n")
        return Answer(GOOD)

    with untouched(repo):
        run = factory(desk, repo, a_task(), sabotage, "--out", desk.root / "out")
    assert run.outcome.exit_code == 2, run.outcome
    assert "Traceback" not in run.outcome.said
    assert run.summary["verdict"] == "ERROR"
    assert run.summary["rollback_failed"] is False
    text = json.dumps(run.summary)
    assert "Traceback" in text
    assert "attempt_1" in text
    assert "ERROR" in json.dumps(run.run_json)
    assert (desk.root / "out" / run.run_dir.name / "run_summary.json").exists()
    assert leftovers(desk) == []
    (run.run_dir / "attempt_1").unlink()
    passes(factory(desk, repo, a_task(), [Answer(GOOD)]))


@pytest.mark.rows("FE07", "FE04")
def test_a_stuck_git_lock_cannot_hide_the_run(desk):
    repo = desk.repo()
    baseline = desk.git(repo, "rev-parse", "main")
    lock = repo / ".git/index.lock"

    def stick(_record):
        lock.touch()
        return Answer(GOOD)

    run = factory(desk, repo, a_task(), stick)
    verdict = run.summary["verdict"]
    assert run.outcome.exit_code == {"PASS": 0, "FAIL": 1, "ERROR": 2}[verdict], run.outcome
    assert isinstance(run.summary["rollback_failed"], bool)
    assert lock.exists(), "it is not ours to remove"
    assert desk.git(repo, "rev-parse", "main") == baseline
    lock.unlink()
    if verdict == "PASS":
        assert desk.git(repo, "status", "--porcelain") == ""
    else:
        passes(factory(desk, repo, a_task(), [Answer(GOOD)], "--branch", "after"))
        assert desk.git(repo, "status", "--porcelain") == ""


def test_a_repository_that_changes_under_a_run_is_not_overrun(desk):
    repo = desk.repo()

    def meddle(_record):
        (repo / "a.txt").write_text("the user was faster\n")
        return Answer(GOOD)

    run = factory(desk, repo, a_task(), meddle, "--max-attempts", "1")
    assert run.outcome.exit_code in (0, 1), run.outcome
    assert (repo / "a.txt").read_text() == "the user was faster\n"
    assert desk.git(repo, "symbolic-ref", "--short", "HEAD") == "main", (
        "a checkout with edits stays where it is"
    )
    if run.outcome.exit_code == 0:
        assert desk.git(repo, "show", f"{run.summary['branch']}:a.txt") == "content"
        assert "warning" in run.outcome.stderr
        assert "a.txt" in run.outcome.stderr


def moved(desk: Desk, repo: Path) -> str:
    tree = desk.git(repo, "rev-parse", "HEAD^{tree}")
    theirs = desk.git(repo, *AS_USER, "commit-tree", tree, "-p", "HEAD", "-m", "theirs")
    desk.git(repo, "update-ref", "refs/heads/work", theirs)
    return theirs


@pytest.mark.parametrize("existing", [False, True], ids=["made", "moved"])
def test_a_branch_that_somebody_else_moves_under_a_run_is_left_to_them(desk, existing):
    repo = desk.repo()
    if existing:
        desk.git(repo, "branch", "work")
    theirs = []

    def meddle(_record):
        theirs.append(moved(desk, repo))
        return Answer(GOOD)

    run = factory(desk, repo, a_task(), meddle, "--branch", "work")
    assert run.outcome.exit_code == 1, run.outcome
    assert desk.git(repo, "rev-parse", "work") == theirs[0]
    assert desk.git(repo, "symbolic-ref", "--short", "HEAD") == "main"
    assert desk.git(repo, "status", "--porcelain") == ""
    assert run.summary["verdict"] == "FAIL"
    assert "work" in run.outcome.said


@pytest.mark.parametrize("deed", ["switches", "commits", "stages"])
def test_what_the_user_does_meanwhile_stays_done(desk, deed):
    repo = desk.repo()

    def meddle(_record):
        if deed == "switches":
            desk.git(repo, "checkout", "-q", "-b", "other")
        else:
            (repo / "mine.txt").write_text("mine\n")
            desk.git(repo, "add", "mine.txt")
            if deed == "commits":
                desk.commit_all(repo, "mine")
        return Answer(GOOD)

    run = factory(desk, repo, a_task(), meddle)
    assert run.outcome.exit_code in (0, 1), run.outcome
    if deed == "switches":
        assert desk.git(repo, "symbolic-ref", "--short", "HEAD") == "other"
        assert desk.git(repo, "status", "--porcelain") == ""
    elif deed == "commits":
        assert desk.git(repo, "log", "-1", "--format=%s", "main") == "mine"
        assert (repo / "mine.txt").read_text() == "mine\n"
        assert desk.git(repo, "status", "--porcelain") == ""
    else:
        assert desk.git(repo, "status", "--porcelain") == "A  mine.txt"
    if run.outcome.exit_code == 0:
        assert desk.git(repo, "show", f"{run.summary['branch']}:a.txt") == "content"
        assert desk.git(repo, "diff", "--name-only", "HEAD", run.summary["branch"], "--", "a.txt") == (
            "" if desk.git(repo, "symbolic-ref", "--short", "HEAD") == run.summary["branch"] else "a.txt"
        )


@pytest.mark.rows("FE04", "FE01")
def test_a_clean_up_that_fails_is_recorded(desk):
    repo = desk.repo()

    def sabotage(_record):
        (place,) = (path for path in (desk.root / "tmp").iterdir() if path.is_dir())
        shutil.rmtree(place)
        place.write_text("a file where a directory was\n")
        return Answer(GOOD)

    before = snapshot(repo)
    run = factory(desk, repo, a_task(), sabotage)
    # What is left to be cleared stays noted until the next run clears it.
    notes = ".git/llmch"
    assert [line for line in differences(before, snapshot(repo)) if not line.startswith(notes)] == []
    assert run.outcome.exit_code == 2, run.outcome
    assert run.summary["verdict"] == "ERROR"
    assert run.summary["rollback_failed"] is True
    for path in (desk.root / "tmp").iterdir():
        path.unlink()
    passes(factory(desk, repo, a_task(), [Answer(GOOD)]))
    assert [name for name in snapshot(repo) if name.startswith(notes)] == []


def test_edits_elsewhere_under_a_run_survive_it(desk):
    repo = desk.repo({"README.md": "x\n", ".gitignore": "*.log\n"})

    def meddle(_record):
        (repo / "README.md").write_text("edited meanwhile\n")
        (repo / "run.log").write_text("logged meanwhile\n")
        return Answer(GOOD)

    run = factory(desk, repo, a_task(), meddle, "--max-attempts", "1")
    assert run.outcome.exit_code in (0, 1, 2), run.outcome
    assert (repo / "README.md").read_text() == "edited meanwhile\n"
    assert (repo / "run.log").read_text() == "logged meanwhile\n"


@pytest.mark.rows("FF03")
@pytest.mark.parametrize("moment", ["model call", "command"])
def test_after_kill_9_the_next_run_needs_no_help(desk, moment):
    repo = desk.repo({".gitignore": ".env\n", "README.md": "x\n"})
    (repo / ".env").write_text("mine\n")
    before = {name: what for name, what in snapshot(repo).items() if not name.startswith(".git/")}
    mark, command = sleeper()
    steps = [Stall()] if moment == "model call" else [Answer(GOOD)]
    with LoopbackEndpoint(steps) as endpoint:
        running = start(desk, repo, endpoint, a_task(acceptance_commands=[command]))
        running.until(lambda: endpoint.requests if moment == "model call" else asleep(mark))
        running.kill()
    assert {name: what for name, what in snapshot(repo).items() if not name.startswith(".git/")} == before
    assert desk.git(repo, "status", "--porcelain") == ""
    assert desk.git(repo, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    run = passes(factory(desk, repo, a_task(), [Answer(GOOD)]))
    assert run.outcome.seconds < 60
    assert desk.git(repo, "worktree", "list").count("\n") == 0
    assert leftovers(desk) == []
    assert (repo / ".env").read_text() == "mine\n"
    end(mark)


def end(mark: str) -> None:
    """What a killed run left running is ended by this check, by its id."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"sleep\0{mark}".encode() in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue
