"""What is about to happen to a repository, on disk before it happens; and whose turn it is.

Everything here lies in git's common directory: `llmch.lock` while a run has its turn, and `llmch/`
while there is something that a later run would have to finish or clear away.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from factory.git import Refused, shown
from shared.files import read_regular, write_atomic
from shared.process import run_captured

LEDGER_VERSION = 1

_LOCK_FILE = "llmch.lock"
_DIRECTORY = "llmch"
_PUBLICATION = "publication.json"
_SCRATCH_PREFIX = "scratch-"
_MAX_ENTRY_BYTES = 1024 * 1024
_LOOK_AGAIN_SECONDS = 0.1


class Step(StrEnum):
    """Points that a publication, a scratch tree and a recovery go through.

    Whoever passes an `at` is told each one just after its effect is there. Tests kill the process at
    every one of them; the next run has to cope with what is left.
    """

    SCRATCH_RECORDED = "the ledger names a scratch tree that is not there yet"
    SCRATCH_MADE = "the scratch tree is an empty directory"
    SCRATCH_FILLED = "the scratch tree is ready"
    SCRATCH_REMOVED = "the scratch tree is gone, the ledger still names it"
    COMMIT_BUILT = "the commit exists, and nothing refers to it"
    LEDGER_WRITTEN = "the ledger says what is about to move"
    INDEX_LOCKED = "the user's index is locked by us"
    INDEX_COPIED = "a copy of the index is there to work on"
    FILES_MOVED = "the files are those of the commit"
    REF_MOVED = "the branch is at the commit: from here on it is finished, before it is undone"
    INDEX_MOVED = "the index is that of the commit"
    HEAD_MOVED = "HEAD is on the branch"
    INDEX_UNLOCKED = "the index is the user's again"
    LEDGER_CLEARED = "the ledger has nothing to say any more"
    LEFTOVERS_REMOVED = "a recovery has removed locks and copies of a dead run"
    FILES_RESTORED = "a recovery has undone a half-done checkout"


At = Callable[[Step], None]


def nowhere(_step: Step) -> None:
    """The `at` of everybody who has no business with steps."""


# --- whose turn it is --------------------------------------------------------------------


@contextmanager
def taking_turns(common_dir: Path, on_wait: Callable[[str], None], poll: Callable[[], None]) -> Iterator[int]:
    """Hold the repository's lock, and give the descriptor that holds it.

    A process that inherits the descriptor holds the lock as well, until it ends. `on_wait` is told
    once who is waited for; `poll` is called all the while, and what it raises ends the waiting.
    """
    # Not at the top: it costs a tenth of a run's start, and a refusal does not need it.
    from filelock import FileLock, Timeout

    path = common_dir / _LOCK_FILE
    descriptors: list[int] = []
    lock = FileLock(path, on_acquired=descriptors.append)
    told = False
    while not lock.is_locked:
        try:
            lock.acquire(timeout=_LOOK_AGAIN_SECONDS if told else 0, poll_interval=_LOOK_AGAIN_SECONDS / 4)
        except Timeout:
            poll()
            if not told:
                told = True
                on_wait(f"another run has its turn on this repository{_holder(path)}")
        except OSError as error:
            raise Refused(
                f"cannot lock the repository: {shown(str(path))}: {error.strerror or error}; "
                "llmch needs to write to the repository's git directory"
            ) from None
    try:
        os.ftruncate(descriptors[-1], 0)
        os.pwrite(descriptors[-1], f"{os.getpid()}\n".encode(), 0)
        yield descriptors[-1]
    finally:
        # Removed while it is held: whoever opened the old file meanwhile finds, once it gets the lock,
        # that the file has no name any more, and starts over (filelock looks at st_nlink).
        with suppress(OSError):
            os.unlink(path)
        lock.release()


def _holder(path: Path) -> str:
    with suppress(OSError, ValueError):
        return f" (process {int(path.read_bytes()[:20])})"
    return ""


# --- who wrote an entry ------------------------------------------------------------------


@dataclass(frozen=True)
class Owner:
    """A process, told apart from a later one with the same number."""

    pid: int
    started: str | None
    boot: str | None

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        return cls(os.getpid(), _start_of(os.getpid()), _boot_id())

    @property
    def is_me(self) -> bool:
        """Whether this very process is meant."""
        return self == Owner.me()

    @property
    def alive(self) -> bool:
        """Whether that process still runs. One that ended and was not reaped yet is dead."""
        if self.boot != _boot_id():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return self.started == _start_of(self.pid)


def _start_of(pid: int) -> str | None:
    """When a process was started, in the system's own words; None for one that is gone or dead."""
    if sys.platform == "linux":
        try:
            # The name stands in brackets and may hold anything, so what follows the last one is read.
            state, *rest = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except (OSError, ValueError):
            return None
        return None if state in (b"Z", b"X") else rest[18].decode()
    answer = run_captured(["ps", "-o", "lstart=", "-p", str(pid)], cwd="/", timeout=10)
    return answer.text.strip() or None


def _boot_id() -> str | None:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None


# --- entries -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Origin:
    """The run that something is done for: what its records need, should it die."""

    run_id: str
    run_dir: str
    order_id: str
    order_sha256: str


@dataclass(frozen=True)
class Publication:
    """A branch, and the checkout with it, on its way to a commit."""

    owner: Owner
    origin: Origin
    branch: str
    ref_old: str | None
    """Where the branch was; None for one that is made."""
    head_ref: str
    """The full name of the branch that was checked out."""
    head_commit: str
    commit: str
    tree: str
    made: bool
    """Whether `commit` is the run's own; False when there was nothing to commit."""
    top: str
    git_dir: str
    folders: tuple[str, ...]
    """Directories of the checkout that new files go to and that are there already."""

    @property
    def ref(self) -> str:
        """The full name of the branch."""
        return f"refs/heads/{self.branch}"


@dataclass(frozen=True)
class ScratchEntry:
    """A scratch tree's directory, and the run it is for."""

    owner: Owner
    path: str
    origin: Origin | None = None


@dataclass(frozen=True)
class Recovery:
    """What became of a publication that its run did not live to report."""

    run_id: str
    run_dir: str
    order_id: str
    order_sha256: str
    branch: str
    commit: str | None
    """The commit on the branch; None when there was nothing to commit."""
    tree: str
    finished: bool
    """True: the branch is at the commit. False: everything is as it was before the run."""


class Ledger:
    """The entries of one repository. Each is a file of its own, written whole or not at all."""

    def __init__(self, common_dir: Path) -> None:
        self.directory = common_dir / _DIRECTORY

    def write_publication(self, entry: Publication) -> None:
        """Put the entry on disk before anything moves. Raises `OSError`."""
        self._write(_PUBLICATION, entry)

    def publication(self) -> Publication | None:
        """The entry of a publication that nobody has settled. Raises `Refused` for one that is no entry."""
        path = self.directory / _PUBLICATION
        if not path.exists():
            return None
        found = _read(path)
        try:
            parts = {"owner": Owner(**found["owner"]), "origin": Origin(**found["origin"])}
            return Publication(**{**found, **parts, "folders": tuple(found["folders"])})
        except (KeyError, TypeError):
            raise _unreadable(path, "an incomplete entry") from None

    def clear_publication(self) -> None:
        """The publication is over and recorded elsewhere."""
        (self.directory / _PUBLICATION).unlink(missing_ok=True)
        self.vanish_when_empty()

    def write_scratch(self, path: Path, origin: Origin | None = None) -> str:
        """Record a scratch tree before it is made; returns the key to clear it by. Raises `OSError`."""
        key = f"{_SCRATCH_PREFIX}{secrets.token_hex(8)}.json"
        self._write(key, ScratchEntry(Owner.me(), os.fspath(path), origin))
        return key

    def scratch_trees(self) -> dict[str, ScratchEntry]:
        """Every scratch tree that is recorded, by key. Raises `Refused` for what is no entry."""
        found = {}
        for path in sorted(self.directory.glob(f"{_SCRATCH_PREFIX}*.json")):
            record = _read(path)
            try:
                origin = None if record["origin"] is None else Origin(**record["origin"])
                found[path.name] = ScratchEntry(Owner(**record["owner"]), record["path"], origin)
            except (KeyError, TypeError):
                raise _unreadable(path, "an incomplete entry") from None
        return found

    def clear_scratch(self, key: str) -> None:
        """The scratch tree is gone."""
        (self.directory / key).unlink(missing_ok=True)
        self.vanish_when_empty()

    def stray_files(self) -> list[Path]:
        """What a run that was killed left here and is no entry. Only to be asked under the lock."""
        entries = {_PUBLICATION, *self.scratch_trees()}
        if not self.directory.is_dir():
            return []
        return sorted(path for path in self.directory.iterdir() if path.name not in entries)

    def _write(self, name: str, entry: Publication | ScratchEntry) -> None:
        entry_text = json.dumps({"version": LEDGER_VERSION, **asdict(entry)}, indent=2)
        write_atomic(self.directory / name, entry_text.encode() + b"\n")

    def vanish_when_empty(self) -> None:
        """Leave no empty directory behind."""
        with suppress(OSError):
            self.directory.rmdir()


def _read(path: Path) -> dict[str, Any]:
    try:
        # Not our strict reader: a path that is not UTF-8 is kept as the surrogates Python knows it by.
        found = json.loads(read_regular(path, max_bytes=_MAX_ENTRY_BYTES))
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from None
    if not isinstance(found, dict) or found.pop("version", None) != LEDGER_VERSION:
        raise _unreadable(path, "written by another version of llmch")
    return found


def _unreadable(path: Path, why: str) -> Refused:
    return Refused(
        f"cannot read what an earlier run left in {shown(str(path))}: {why}; "
        "look at `git status` and `git log --all`, then remove that file"
    )
