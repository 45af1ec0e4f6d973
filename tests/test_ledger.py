"""`kill -9` at every step: the next run needs no manual step, and the repository is whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import make_repo, run_git

from factory.ledger import Ledger, Origin, Owner, Step
from factory.scratch import scratch_tree
from factory.tree_files import remove_tree
from factory.workspace import Recovery, Refused, Repository

SECRET = b"mine, and ignored\0\xff"


@dataclass(frozen=True)
class Case:
    """A publication: where the user stands, and where the commit goes."""

    branch: str
    writes: tuple[tuple[str, bytes], ...]
    commits: bool = True


CASES = {
    "a new branch": Case("work", ((b"README.md".decode(), b"# changed\n"), ("src/deep/new.py", b"x = 1\n"))),
    "the branch that is checked out": Case(
        "here", (("run.sh", b"#!/bin/sh\nexit 1\n"), ("new.txt", b"new\n"))
    ),
    "a branch whose files differ": Case("elsewhere", (("src/new.py", b"y\n"), ("README.md", b"# there\n"))),
    "nothing to commit": Case("idle", (("README.md", b"# a project\n"),), commits=False),
}
EVERY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
ORIGIN = Origin("01RUN", "/artifacts/factory/01RUN", "WO-07", "ab" * 32)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where it can be: a kill is no power cut, and syncing is most of the time here."""
    memory = "/dev/shm"
    place = tempfile.mkdtemp(prefix="llmch-test-", dir=memory if os.access(memory, os.W_OK) else None)
    yield Path(os.path.realpath(place))
    remove_tree(place)


@pytest.fixture(autouse=True)
def tmpdir(tmp_path, monkeypatch):
    """Scratch trees are made here, so that a test sees what is left of them."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


@pytest.fixture
def project(tmp_path) -> Path:
    """Executable, link, ignored secret; a branch `elsewhere` where files and directories are swapped."""
    repo = make_repo(tmp_path / "project")
    (repo / "run.sh").write_bytes(b"#!/bin/sh\n")
    (repo / "run.sh").chmod(0o755)
    (repo / ".gitignore").write_text("secret\n")
    (repo / "link").symlink_to("README.md")
    (repo / "swap").write_text("a file on main\n")
    (repo / "turn").mkdir()
    (repo / "turn" / "x").write_text("a directory on main\n")
    run_git(repo, "add", "-A")
    run_git(repo, "commit", "-q", "-m", "more")
    run_git(repo, "switch", "-q", "-c", "elsewhere")
    run_git(repo, "rm", "-q", "swap", "turn/x", "link")
    (repo / "swap").mkdir()
    (repo / "swap" / "x").write_text("a directory there\n")
    (repo / "turn").write_text("a file there\n")
    (repo / "link").write_text("no link there\n")
    run_git(repo, "add", "-A")
    run_git(repo, "commit", "-q", "-m", "swapped")
    run_git(repo, "switch", "-q", "main")
    (repo / "secret").write_bytes(SECRET)
    return repo


def stand_on(repo: Path, case: Case) -> None:
    if case.branch == "here":
        run_git(repo, "switch", "-q", "-c", "here")


# --- processes that die ------------------------------------------------------------------


def in_a_process(work) -> int:
    """Run `work` in a process of its own; its wait status."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def dying_at(number: int, told: Path | None = None):
    """An `at` that kills its process at its `number`th call."""
    count = 0

    def at(step: Step) -> None:
        nonlocal count
        count += 1
        if told is not None:
            with open(told, "a") as file:
                file.write(f"{step.name}\n")
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return at


def publish(repo: Path, case: Case, at) -> None:
    repository = Repository.open(repo)
    with repository.lock():
        assert repository.recover() is None
        repository.look()
        plan = repository.plan_branch(case.branch, "unused")
        with scratch_tree(repository, plan.baseline, at=at) as tree:
            repository.publish(plan, case.writes, "WO-07: do it\n", ORIGIN, at=at, index=tree.index)
        repository.settle(at)


def recover(repo: Path, at=lambda _step: None, complete=lambda _recovery: None) -> Recovery | None:
    repository = Repository.open(repo)
    with repository.lock():
        recovery = repository.recover(complete, at)
        repository.look()
        return recovery


def steps_of(work, told: Path) -> list[str]:
    """The steps that `work(at)` goes through when nobody kills it."""
    told.unlink(missing_ok=True)
    assert in_a_process(lambda: work(dying_at(0, told))) == 0
    return told.read_text().split()


# --- what is the same before and after -------------------------------------------------


def state_of(repo: Path) -> dict[str, object]:
    """Everything of a repository that a user can see, and what only git sees of refs and HEAD."""
    seen: dict[str, object] = {
        "refs": run_git(repo, "for-each-ref"),
        "HEAD": (repo / ".git/HEAD").read_text(),
    }
    seen["status"] = run_git(repo, "status", "--porcelain")
    seen["staged"] = run_git(repo, "ls-files", "-s")
    for place, folders, names in os.walk(repo):
        if ".git" in folders:
            folders.remove(".git")
        for name in (*folders, *names):
            path = Path(place, name)
            mode = path.lstat().st_mode
            content = (
                os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            )
            seen[str(path.relative_to(repo))] = (mode, content)
    return seen


def leftovers(repo: Path, tmpdir: Path) -> list[str]:
    git_dir = repo / ".git"
    found = [path.name for path in git_dir.rglob("*.lock")]
    found += [path.name for path in git_dir.iterdir() if "llmch" in path.name]
    return found + [path.name for path in tmpdir.iterdir()]


def check_whole(repo: Path, before: dict, after: dict) -> str:
    """The repository is as it was, or exactly at the commit. Says which."""
    state = state_of(repo)
    assert state["status"] == ""
    assert (repo / "secret").read_bytes() == SECRET
    assert state in (before, after)
    return "untouched" if state == before else "published"


def fresh_states(tmp_path: Path, project: Path, case: Case) -> tuple[dict, dict, list[str]]:
    """State before, state after a publication that nobody kills, and the steps it goes through."""
    model = tmp_path / "model" / "project"
    shutil.copytree(project, model, symlinks=True)
    before = state_of(model)
    steps = steps_of(lambda at: publish(model, case, at), tmp_path / "steps")
    return before, state_of(model), steps


@pytest.fixture(autouse=True)
def fixed_dates(monkeypatch):
    """So that the same publication is the same commit."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_DATE", "1700000000 +0000")


def copy_of(project: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(project, place / "project", symlinks=True)
    return place / "project"


# --- the sweeps --------------------------------------------------------------------------


@EVERY_CASE
def test_a_run_killed_at_any_step_is_finished_or_undone_by_the_next(case, project, tmp_path, tmpdir):
    stand_on(project, case)
    before, after, steps = fresh_states(tmp_path, project, case)
    assert {"LEDGER_WRITTEN", "INDEX_UNLOCKED", "LEDGER_CLEARED", "SCRATCH_REMOVED"} <= set(steps)
    outcomes = []
    for number, step in enumerate(steps, start=1):
        repo = copy_of(project, tmp_path / "victim")
        status = in_a_process(lambda repo=repo, number=number: publish(repo, case, dying_at(number)))
        assert os.WTERMSIG(status) == signal.SIGKILL, step
        recovery = recover(repo)
        outcome = check_whole(repo, before, after)
        outcomes.append(outcome)
        assert leftovers(repo, tmpdir) == [], step
        if recovery is not None:
            expected = "published" if recovery.finished else "untouched"
            assert outcome == expected or before == after, step
            assert (recovery.run_id, recovery.order_id) == ("01RUN", "WO-07")
            assert (recovery.commit is not None) == case.commits
        assert recover(repo) is None, f"{step}: a second recovery finds nothing"
    if before != after:
        moved = steps.index("REF_MOVED")
        assert outcomes == ["untouched"] * moved + ["published"] * (len(steps) - moved)


@pytest.mark.parametrize("name", ["the branch that is checked out", "a branch whose files differ"])
def test_a_recovery_killed_at_any_step_is_carried_on_by_the_next(name, project, tmp_path, tmpdir):
    case = CASES[name]
    stand_on(project, case)
    before, after, steps = fresh_states(tmp_path, project, case)
    met = set()
    for step in (
        "SCRATCH_FILLED",
        "LEDGER_WRITTEN",
        "REF_MOVED",
        "INDEX_COPIED",
        "FILES_MOVED",
        "INDEX_MOVED",
    ):
        for kill_at in range(1, 100):
            repo = copy_of(project, tmp_path / "victim")
            number = steps.index(step) + 1
            in_a_process(lambda repo=repo, number=number: publish(repo, case, dying_at(number)))
            told = tmp_path / "told"
            at = dying_at(kill_at, told)
            status = in_a_process(lambda repo=repo, at=at: recover(repo, at))
            recover(repo)
            check_whole(repo, before, after)
            assert leftovers(repo, tmpdir) == [], f"{step}, then step {kill_at}"
            if not os.WIFSIGNALED(status):
                assert status == 0
                break
        met |= set(told.read_text().split())
    assert met == {
        "SCRATCH_REMOVED", "LEFTOVERS_REMOVED", "INDEX_LOCKED", "FILES_RESTORED", "INDEX_COPIED",
        "INDEX_MOVED", "INDEX_UNLOCKED", "LEDGER_CLEARED",
        *(() if case.branch == "here" else ("HEAD_MOVED",)),
    }  # fmt: skip


@pytest.mark.parametrize("survivor", [True, False], ids=["git lives on", "git dies too"])
@pytest.mark.parametrize(
    "name", ["a new branch", "the branch that is checked out", "a branch whose files differ"]
)
def test_a_kill_in_the_middle_of_the_checkout_loses_nothing(name, survivor, project, tmp_path, tmpdir):
    case = CASES[name]
    stand_on(project, case)
    trap, victim, once = tmp_path / "trap", tmp_path / "victim.pid", tmp_path / "once"
    # The filter is called when git has unlinked and written some of the files, and not yet others.
    ended = tmp_path / "ended"
    git_too = f"sleep 1; touch {ended}" if survivor else "kill -9 $PPID"
    trap.write_text(
        f"#!/bin/sh\nif [ -e {once} ]; then cat; exit; fi\ncat >{once}.held\n"
        f"if [ -e {victim} ]; then mv {once}.held {once}; kill -9 $(cat {victim}); {git_too}; cat {once}\n"
        f"else cat {once}.held; fi\n"
    )
    trap.chmod(0o755)
    run_git(project, "config", "filter.trap.smudge", str(trap))
    info = project / ".git/info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_text("run.sh filter=trap\nsrc/** filter=trap\n")
    before, after, _ = fresh_states(tmp_path, project, case)

    def dying():
        def at(step: Step) -> None:
            if step is Step.INDEX_COPIED:  # the next command is the one that moves the files
                victim.write_text(str(os.getpid()))

        publish(project, case, at)

    status = in_a_process(dying)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert not run_git(project, "for-each-ref", "refs/heads/work")
    recovery = recover(project)
    assert recovery is not None
    assert not recovery.finished
    assert ended.exists() == survivor, "a git of the dead run has its turn to the end"
    assert check_whole(project, before, after) == "untouched"
    assert leftovers(project, tmpdir) == []
    publish(project, case, lambda _step: None)
    assert check_whole(project, before, after) == "published"


@pytest.mark.parametrize(
    "left", [b"# chan", b"", b"# changed\n", None], ids=["cut", "empty", "whole", "gone"]
)
def test_a_file_that_git_was_writing_when_it_was_killed_comes_back(left, project, tmp_path):
    case = CASES["a new branch"]
    (project / "src").mkdir()  # an empty directory is the user's as well
    before, _, _ = fresh_states(tmp_path, project, case)
    in_a_process(lambda: publish(project, case, dying_at_step(Step.INDEX_COPIED)))
    (project / "src/deep").mkdir()
    if left is None:
        (project / "README.md").unlink()
    else:
        (project / "README.md").write_bytes(left)
    assert not recover(project).finished
    assert state_of(project) == before


@pytest.mark.parametrize("step", [Step.INDEX_COPIED, Step.FILES_MOVED, Step.REF_MOVED, Step.INDEX_MOVED])
@pytest.mark.parametrize(
    "name", ["a new branch", "the branch that is checked out", "a branch whose files differ"]
)
def test_what_the_user_wrote_after_the_kill_is_kept_and_named(name, step, project, tmpdir):
    case = CASES[name]
    stand_on(project, case)
    in_a_process(lambda: publish(project, case, dying_at_step(step)))
    mine = {"README.md": b"# by hand, after the kill\n", case.writes[-1][0]: b"this one too\n"}
    for path, data in mine.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_bytes(data)
    with pytest.raises(Refused, match="uncommitted changes in"):
        recover(project)
    changed = set(
        run_git(project, "-c", "core.quotePath=false", "status", "--porcelain", "-uall").splitlines()
    )
    assert {line[3:] for line in changed} == set(mine)
    assert {path: (project / path).read_bytes() for path in mine} == mine
    assert leftovers(project, tmpdir) == [], "the user's git must work, to put things right"


def dying_at_step(wanted: Step):
    def at(step: Step) -> None:
        if step is wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    return at


# --- what a recovery is for ---------------------------------------------------------------


def test_the_records_of_the_dead_run_are_completed_before_the_ledger_forgets_it(project):
    case = CASES["a new branch"]
    in_a_process(lambda: publish(project, case, dying_at_step(Step.HEAD_MOVED)))

    def dying(_recovery):
        os.kill(os.getpid(), signal.SIGKILL)

    in_a_process(lambda: recover(project, complete=dying))
    heard = []
    recovery = recover(project, complete=heard.append)
    assert heard == [recovery]
    assert recovery == Recovery(
        run_id="01RUN", run_dir="/artifacts/factory/01RUN", order_id="WO-07", order_sha256="ab" * 32,
        branch="work", commit=run_git(project, "rev-parse", "work"),
        tree=run_git(project, "rev-parse", "work^{tree}"), finished=True,
    )  # fmt: skip


def test_a_run_that_died_before_its_verdict_was_recorded_is_still_told_of(project):
    in_a_process(lambda: publish(project, CASES["a new branch"], dying_at_step(Step.INDEX_UNLOCKED)))
    assert recover(project).finished


def test_a_user_who_has_gone_elsewhere_since_stays_there(project, tmpdir):
    before = state_of(project)
    in_a_process(lambda: publish(project, CASES["a new branch"], dying_at_step(Step.REF_MOVED)))
    run_git(project, "switch", "-q", "-c", "mine")
    assert recover(project).finished
    assert run_git(project, "symbolic-ref", "--short", "HEAD") == "mine"
    after = state_of(project)
    assert {**after, "HEAD": 0, "refs": 0} == {**before, "HEAD": 0, "refs": 0}
    assert leftovers(project, tmpdir) == []


def test_a_branch_that_went_on_counts_as_published_and_one_taken_back_does_not(project):
    case = CASES["a new branch"]
    in_a_process(lambda: publish(project, case, dying_at_step(Step.INDEX_UNLOCKED)))
    run_git(project, "commit", "-q", "--allow-empty", "-m", "on top")
    assert recover(project).finished
    run_git(project, "switch", "-q", "main")
    run_git(project, "branch", "-q", "-D", "work")
    in_a_process(lambda: publish(project, case, dying_at_step(Step.INDEX_UNLOCKED)))
    run_git(project, "switch", "-q", "main")
    run_git(project, "branch", "-q", "-D", "work")
    assert not recover(project).finished


def test_the_next_run_may_stand_in_another_work_tree(project, tmp_path, tmpdir):
    run_git(project, "worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    linked = tmp_path / "linked"
    case = CASES["a new branch"]
    in_a_process(lambda: publish(linked, case, dying_at_step(Step.REF_MOVED)))
    assert recover(project).finished
    assert run_git(linked, "symbolic-ref", "--short", "HEAD") == "work"
    assert run_git(linked, "status", "--porcelain") == ""
    assert run_git(project, "symbolic-ref", "--short", "HEAD") == "main"
    assert leftovers(project, tmpdir) == []


def test_a_work_tree_that_is_gone_does_not_stand_in_the_way(project, tmp_path, tmpdir):
    run_git(project, "worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    in_a_process(lambda: publish(tmp_path / "linked", CASES["a new branch"], dying_at_step(Step.REF_MOVED)))
    shutil.rmtree(tmp_path / "linked")
    assert recover(project).finished
    assert not (project / ".git/llmch").exists()
    assert list(tmpdir.iterdir()) == []


def test_the_index_lock_of_somebody_else_is_not_removed(project):
    in_a_process(lambda: publish(project, CASES["a new branch"], dying_at_step(Step.REF_MOVED)))
    (project / ".git/index.lock").write_bytes(b"")
    with suppress(Refused):
        recover(project)
    assert (project / ".git/index.lock").exists()


def test_locks_that_a_killed_git_left_on_the_refs_are_known_by_what_they_say(project, tmpdir):
    case = CASES["a new branch"]
    in_a_process(lambda: publish(project, case, dying_at_step(Step.INDEX_MOVED)))
    (project / ".git/HEAD.lock").write_text("ref: refs/heads/wo")
    (project / ".git/refs/heads/work.lock").write_text(run_git(project, "rev-parse", "work"))
    assert recover(project).finished
    assert leftovers(project, tmpdir) == []


def test_an_entry_that_cannot_be_read_is_refused_by_name(project):
    directory = project / ".git/llmch"
    directory.mkdir()
    (directory / "publication.json").write_text('{"version": 1, "own')
    with pytest.raises(Refused, match=r"publication\.json.*remove that file"):
        recover(project)


def test_nothing_but_a_scratch_tree_of_ours_is_removed_for_an_entry(project, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    ledger = Ledger(project / ".git")

    def record():
        ledger.write_scratch(precious)

    in_a_process(record)
    assert recover(project) is None
    assert (precious / "file").exists()
    assert not ledger.directory.exists()


def test_the_scratch_tree_of_a_living_run_is_left_alone(project, tmpdir):
    repository = Repository.open(project)
    with scratch_tree(repository, run_git(project, "rev-parse", "HEAD")) as tree:
        assert recover(project) is None
        assert (tree.path / "README.md").exists()
    assert leftovers(project, tmpdir) == []


# --- taking turns ------------------------------------------------------------------------


def test_a_second_run_waits_says_so_and_can_be_interrupted(project):
    held = Repository.open(project)
    reader, writer = os.pipe()

    class Enough(Exception):
        pass

    def waiter():
        heard, polls = [], []

        def poll():
            polls.append(1)
            if len(polls) > 3:
                raise Enough

        try:
            with Repository.open(project).lock(heard.append, poll):
                pass
        except Enough:
            os.write(writer, repr(heard).encode())

    with held.lock():
        pid = os.getpid()
        assert in_a_process(waiter) == 0
    said = os.read(reader, 1000).decode()
    assert said == f"['another run has its turn on this repository (process {pid})']"
    os.close(reader)
    os.close(writer)
    assert not (project / ".git/llmch.lock").exists()


def test_runs_take_turns_one_at_a_time_although_the_lock_file_comes_and_goes(project, tmp_path):
    log = tmp_path / "log"

    def worker():
        for _ in range(15):
            with Repository.open(project).lock():
                with open(log, "a") as file:
                    file.write("in\n")
                time.sleep(0.001)
                with open(log, "a") as file:
                    file.write("out\n")

    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                worker()
                os._exit(0)
            finally:
                os._exit(70)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    assert log.read_text().split() == ["in", "out"] * 60
    assert not (project / ".git/llmch.lock").exists()


def test_a_lock_left_by_a_kill_holds_nobody_up(project):
    def dying():
        with Repository.open(project).lock():
            os.kill(os.getpid(), signal.SIGKILL)

    in_a_process(dying)
    assert (project / ".git/llmch.lock").exists()
    heard = []
    with Repository.open(project).lock(heard.append):
        assert heard == []
    assert not (project / ".git/llmch.lock").exists()


# --- who is alive ------------------------------------------------------------------------


def test_a_process_is_told_from_a_later_one_with_its_number():
    me = Owner.me()
    assert me.alive
    assert me.is_me
    assert not Owner(me.pid, "an earlier start", me.boot).alive
    assert not Owner(me.pid, me.started, "another boot").alive


def test_a_process_that_ended_is_dead_even_before_anybody_asks_how():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
        owner = Owner(child.pid, started, Owner.me().boot)
        assert owner.alive
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not owner.alive
