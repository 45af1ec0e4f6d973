"""kill -9 at every step of a pass: the next run needs no manual step and ends in the same tree."""

import json
import os
import signal
import subprocess
import sys

import pytest

from factory.ledger import Step

# Runs one order in a process of its own and kills that process at the named point: a step of the
# publication, or the first event of a kind. `-` kills nowhere. Prints the points it came by.
DRIVER = """
import json, os, signal, sys
from pathlib import Path
from factory.run import run_one
from factory.settings import RunSettings
from shared.llm import Scripted
from shared.process import Interrupt

repo, order, artifacts, answers, point = sys.argv[1:]

def pass_by(name):
    print(name, flush=True)
    if name == point:
        os.kill(os.getpid(), signal.SIGKILL)

settings = RunSettings(
    repo=Path(repo), artifacts_root=Path(artifacts), environment=dict(os.environ), branch="work", push=False
)
sys.exit(run_one(
    settings, Path(order), lambda event: pass_by(event.kind), Interrupt(),
    llm=Scripted(json.loads(answers)), at=lambda step: pass_by(step.name),
))
"""

# What a pass comes by; of an event that comes more than once the first is meant.
POINTS = [
    "run_started", "SCRATCH_RECORDED", "SCRATCH_MADE", "SCRATCH_FILLED", "attempt_started", "model_asked",
    "model_answered", "step_done", "command_ended", "COMMIT_BUILT", "LEDGER_WRITTEN", "REF_MOVED",
    "INDEX_LOCKED", "INDEX_COPIED", "FILES_MOVED", "INDEX_MOVED", "HEAD_MOVED", "INDEX_UNLOCKED",
    "SCRATCH_REMOVED", "committed", "run_ended",
]  # fmt: skip
LAST = Step.LEDGER_CLEARED.name
RECOVERY_ONLY = {Step.LEFTOVERS_REMOVED.name, Step.FILES_RESTORED.name}


@pytest.fixture
def stage(repo, git, an_order, a_proposal, tmp_path):
    """A repository whose order changes one file, makes one, and needs one that git ignores."""
    (repo / "scripts").mkdir()
    (repo / "scripts/verify.sh").write_text("exit 0\n")
    (repo / "app.sh").write_text("echo old\n")
    (repo / "app.sh").chmod(0o755)
    (repo / ".gitignore").write_text(".env\n")
    git("add", "-A")
    git("commit", "-q", "-m", "app")
    (repo / ".env").write_text("SECRET=1\n")
    order = tmp_path / "WO-01.json"
    order.write_text(
        json.dumps(
            an_order(
                allowed_files=["app.sh", "lib/new.txt"],
                preconditions=[{"kind": "file_absent", "path": "lib/new.txt"}],
                acceptance_commands=["bash app.sh"],
            )
        )
    )
    answer = json.dumps(a_proposal({"app.sh": "echo new\n", "lib/new.txt": "new\n"}, repo))
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def run(point):
        arguments = (repo, order, tmp_path / "artifacts", json.dumps([answer]), point)
        return subprocess.run(
            [sys.executable, "-P", "-c", DRIVER, *arguments],
            env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    run.temporary = temporary
    run.runs = tmp_path / "artifacts" / "factory"
    return run


def test_the_sweep_comes_by_every_step_there_is(stage):
    done = stage("-")
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {*POINTS, LAST}
    assert {step.name for step in Step} - RECOVERY_ONLY <= {*POINTS, LAST}


@pytest.mark.parametrize("point", POINTS)
def test_after_a_kill_the_next_run_ends_in_the_same_tree(stage, repo, git, point):
    killed = stage(point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (repo / ".env").read_text() == "SECRET=1\n"

    again = stage("-")
    assert again.returncode == 0, again.stdout + again.stderr
    assert_finished(stage, repo, git)


def test_a_kill_at_the_very_end_leaves_a_finished_run(stage, repo, git):
    assert stage(LAST).returncode == -signal.SIGKILL
    # Nobody was left to remove the lock's file; no process holds it, and the next run takes it over.
    assert_finished(stage, repo, git, left=["llmch.lock"])
    summary = json.loads((next(stage.runs.iterdir()) / "run_summary.json").read_text())
    assert summary["verdict"] == "PASS"


def assert_finished(stage, repo, git, left=()):
    assert git("log", "--format=%s", "work").splitlines() == ["WO-01: Add a greeting", "app", "begin"]
    assert git("symbolic-ref", "HEAD") == "refs/heads/work"
    assert git("status", "--porcelain", "--ignored") == "!! .env"
    listed = git("ls-tree", "-r", "--format=%(path) %(objectmode)", "HEAD").splitlines()
    modes = dict(line.split() for line in listed)
    assert modes == {
        ".gitignore": "100644",
        "README.md": "100644",
        "app.sh": "100755",
        "lib/new.txt": "100644",
        "scripts/verify.sh": "100644",
    }
    assert (repo / "app.sh").read_text() == "echo new\n"
    assert (repo / "lib/new.txt").read_text() == "new\n"
    assert (repo / ".env").read_text() == "SECRET=1\n"
    assert os.access(repo / "app.sh", os.X_OK)

    ours = [path.name for path in (repo / ".git").iterdir() if "llmch" in path.name or path.suffix == ".lock"]
    assert ours == list(left)
    assert list(stage.temporary.iterdir()) == []


@pytest.mark.parametrize("point", ["REF_MOVED", "HEAD_MOVED", "SCRATCH_REMOVED", "run_ended"])
def test_a_pass_that_was_killed_is_completed_without_asking_the_model(stage, point):
    stage(point)
    dead = next(stage.runs.iterdir())
    again = stage("-")
    assert "model_asked" not in again.stdout
    summary = json.loads((dead / "run_summary.json").read_text())
    assert summary["verdict"] == "PASS"
    assert json.loads((dead / "run.json").read_text())["verdict"] == "PASS"
    mine = next(path for path in stage.runs.iterdir() if path != dead)
    assert json.loads((mine / "run_summary.json").read_text())["recovered_from"] == dead.name


@pytest.mark.parametrize("point", ["SCRATCH_RECORDED", "model_asked", "command_ended", "COMMIT_BUILT"])
def test_a_run_that_was_killed_early_gets_its_summary_from_the_next_one(stage, point):
    stage(point)
    dead = next(stage.runs.iterdir())
    assert not (dead / "run_summary.json").exists()
    assert stage("-").returncode == 0
    summary = json.loads((dead / "run_summary.json").read_text())
    assert (summary["verdict"], summary["commit"]) == ("ERROR", None)
    assert "killed" in summary["error"]
    assert json.loads((dead / "run.json").read_text())["status"] == "recovered"
