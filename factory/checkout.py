"""The user's checkout: brought from one commit to another, and nothing else in it touched."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from factory.git import (
    CHECKOUT_SECONDS,
    Git,
    GitError,
    listed,
    path_bytes,
    path_text,
    shown,
)
from factory.ledger import At, Step, nowhere

_LOCK_SECONDS = 5.0
"""How long another git process may hold the index before we give up on it."""
_LOOK_AGAIN_SECONDS = 0.05

_LINK, _SUBMODULE = "120000", "160000"
_NOTHING = "000000"


@dataclass(frozen=True)
class Move:
    """Where HEAD, index and files are, and where they are to be."""

    from_ref: str
    from_commit: str
    to_ref: str
    to_commit: str
    marker: str
    """What a lock says that we made for this move, so that it is known again."""
    folders: tuple[str, ...] = ()
    """Directories that new files go to and that are there already: they stay, should it all be undone."""

    @property
    def in_place(self) -> bool:
        """The branch that moves is the one that is checked out."""
        return self.from_ref == self.to_ref


@dataclass(frozen=True)
class Change:
    """A path whose entry differs between two commits. Modes and ids are git's; a mode of zeros is "none"."""

    path: str
    old_mode: str
    old_id: str
    new_mode: str
    new_id: str

    @classmethod
    def addition(cls, path: str) -> Change:
        """A file that is yet to be written."""
        return cls(path, _NOTHING, "", "100644", "")

    @property
    def added(self) -> bool:
        """Nothing of this name is in the old commit."""
        return self.old_mode == _NOTHING

    @property
    def deleted(self) -> bool:
        """Nothing of this name is in the new commit."""
        return self.new_mode == _NOTHING

    @property
    def is_submodule(self) -> bool:
        """A submodule's directory is never looked into."""
        return _SUBMODULE in (self.old_mode, self.new_mode)


class Occupied(Exception):
    """Something that git does not have stands where a file is to be put. The text names it."""


class Checkout:
    """A work tree with its index. `scrap` is a directory of ours for a copy of the index."""

    def __init__(self, git: Git, top: Path, git_dir: Path, common_dir: Path, scrap: Path) -> None:
        self._git = git
        self._top = top
        self._index = git_dir / "index"
        self._lock = git_dir / "index.lock"
        self._head = git_dir / "HEAD"
        self._head_lock = git_dir / "HEAD.lock"
        self._common_dir = common_dir
        self._scrap = scrap

    # --- looking -------------------------------------------------------------------------

    def head_is(self, ref: str, commit: str) -> bool:
        """Whether the branch `ref` is checked out, and is at `commit`."""
        with suppress(OSError, ValueError):
            # As git keeps both nearly always; where it does not, git is asked.
            head, at = self._head.read_text(), (self._common_dir / ref).read_text()
            if (head, at) == (f"ref: {ref}\n", f"{commit}\n"):
                return True
        said = self._git.ask("rev-parse", "HEAD", "--symbolic-full-name", "HEAD").text
        return said.splitlines() == [commit, ref]

    def changes(self, old: str, new: str) -> list[Change]:
        """What differs between two commits."""
        if old == new:
            return []
        raw = self._git("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", old, new).stdout
        found = []
        words = iter(raw.split(b"\0")[:-1])
        for about, path in zip(words, words, strict=True):
            old_mode, new_mode, old_id, new_id, _ = about.decode().removeprefix(":").split()
            found.append(Change(path_text(path), old_mode, old_id, new_mode, new_id))
        return found

    def in_the_way(self, changes: Iterable[Change]) -> list[str]:
        """What stands where the changes would put a new file, and is not git's: never to be overwritten."""
        changes = list(changes)
        leaving = {change.path for change in changes if change.deleted}
        found = {blocker for change in changes if change.added for blocker in self._blockers(change, leaving)}
        return sorted(found)

    def folders_for(self, changes: Iterable[Change]) -> tuple[str, ...]:
        """The directories above new files that are there already."""
        above = {folder for change in changes if change.added for folder in folders_above(change.path)}
        return tuple(sorted(folder for folder in above if stat.S_ISDIR(self._mode(folder) or 0)))

    def _blockers(self, change: Change, leaving: set[str]) -> Iterable[str]:
        for above in folders_above(change.path):
            mode = self._mode(above)
            if mode is None or above in leaving:
                return []
            if not stat.S_ISDIR(mode):
                return [above]
        mode = self._mode(change.path)
        if mode is None:
            return []
        if not stat.S_ISDIR(mode):
            return [change.path]
        return [] if change.is_submodule else self._strangers_below(change.path, leaving)

    def _strangers_below(self, folder: str, known: set[str]) -> list[str]:
        """Files in a directory other than the `known` ones, and directories that are empty."""
        found = []
        for place, folders, files in os.walk(self._top / folder):
            below = os.path.relpath(place, self._top)
            found += [path for name in files if (path := f"{below}/{name}") not in known]
            links = [name for name in folders if os.path.islink(os.path.join(place, name))]
            found += [path for name in links if (path := f"{below}/{name}") not in known]
            if not folders and not files:
                found.append(below)
        return found

    def _mode(self, path: str) -> int | None:
        try:
            return os.lstat(self._top / path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None

    # --- moving --------------------------------------------------------------------------

    # Files first, then the branch, then index and HEAD, all under our lock on the index: as long as the
    # branch has not moved everything can be taken back, and once it has only renames are left to do.

    def bring(
        self, move: Move, changes: list[Change], move_ref: Callable[[], None], at: At = nowhere
    ) -> str | None:
        """Move files, the branch (by `move_ref`), index and HEAD; returns why the files had to stay.

        Then everything is as it was, and `move_ref` was not called. Files that git does not track are
        never overwritten, changed ones neither. What `move_ref` raises passes through; the files are
        put back then.
        """
        problem = self._lock_index(move.marker)
        if problem is not None:
            return problem
        try:
            at(Step.INDEX_LOCKED)
            try:
                if not self.head_is(move.from_ref, move.from_commit):
                    return "something else has been checked out meanwhile"
                self._move_files(move, changes, at)
            except (GitError, OSError, Occupied) as error:
                return str(error)
            try:
                move_ref()
            except Exception:
                self._undo_half_done(move, changes)
                raise
            at(Step.REF_MOVED)
            self._move_index_and_head(move, at, index=bool(changes), head=not move.in_place)
            return None
        finally:
            self._unlock_index(at)

    def finish(self, move: Move, at: At = nowhere) -> None:
        """After a kill, when the branch had moved: the files had as well, so index and HEAD follow.

        A file that somebody has written to since keeps its content, and counts as changed.
        """
        if not self._lock_is_ours(move.marker):
            return  # it was done but for the ledger, or the files had to stay where they were
        try:
            at(Step.INDEX_LOCKED)
            changes = self.changes(move.from_commit, move.to_commit)
            to_move = bool(changes) and not self._index_is_at(move.to_commit, changes)
            if not self._stands_at(move):
                if to_move:  # the user has gone elsewhere since, and takes none of this along
                    self._undo_half_done(move, changes)
                return
            if to_move:
                self._copy_index()
                self._private("read-tree", "-i", "-m", move.from_commit, move.to_commit)
                self._private("update-index", "-q", "--refresh", fails=True)
                at(Step.INDEX_COPIED)
            self._move_index_and_head(
                move, at, index=to_move, head=not self.head_is(move.to_ref, move.to_commit)
            )
        finally:
            self._unlock_index(at)

    def _stands_at(self, move: Move) -> bool:
        """Whether HEAD is where the move began or where it ends."""
        before = move.to_commit if move.in_place else move.from_commit
        return self.head_is(move.from_ref, before) or self.head_is(move.to_ref, move.to_commit)

    def undo(self, move: Move, at: At = nowhere) -> None:
        """After a kill, when the branch had not moved: what git did to the files is taken back.

        A file that somebody has written to since keeps its content, and counts as changed.
        """
        if not self._lock_is_ours(move.marker):
            return  # files are moved under our lock only
        try:
            at(Step.INDEX_LOCKED)
            self._undo_half_done(move, self.changes(move.from_commit, move.to_commit))
            at(Step.FILES_RESTORED)
        finally:
            self._unlock_index(at)

    def _move_files(self, move: Move, changes: list[Change], at: At) -> None:
        """Bring the files to the new commit, and a copy of the index with them; all or nothing."""
        if not changes:
            return
        if blocked := self.in_the_way(changes):
            raise Occupied(f"{listed(blocked)} would be overwritten, and git does not have it")
        self._copy_index()
        at(Step.INDEX_COPIED)
        kept = self._permissions(changes)
        before = self._signs(changes)
        read_tree = ("read-tree", "-m", "-u", move.from_commit, move.to_commit)
        try:
            try:
                self._private(*read_tree)
            except GitError:
                # A file that was only touched counts as changed until the index has looked at it again.
                if self._signs(changes) != before:
                    raise
                self._private("update-index", "-q", "--refresh", fails=True)
                self._private(*read_tree)
        except GitError:
            if self._signs(changes) != before:  # the disk is full, or a filter failed half-way
                self._undo_half_done(move, changes)
            raise
        self._put_permissions_back(kept)
        at(Step.FILES_MOVED)

    def _move_index_and_head(self, move: Move, at: At, *, index: bool, head: bool) -> None:
        if index:
            os.replace(self._copy, self._index)
            at(Step.INDEX_MOVED)
        if head:
            said = f"llmch: from {move.from_ref.removeprefix('refs/heads/')}"
            self._git("symbolic-ref", "-m", said, "HEAD", move.to_ref)
            at(Step.HEAD_MOVED)

    def _permissions(self, changes: list[Change]) -> dict[str, int]:
        """Permission bits of the files that are rewritten: git itself keeps no more than the x of them."""
        found = {}
        for change in changes:
            mode = self._mode(change.path)
            same = change.old_mode == change.new_mode
            if same and change.old_mode != _LINK and mode is not None and stat.S_ISREG(mode):
                found[change.path] = stat.S_IMODE(mode)
        return found

    def _put_permissions_back(self, kept: dict[str, int]) -> None:
        changed = False
        for path, permissions in kept.items():
            mode = self._mode(path)
            if mode is not None and stat.S_ISREG(mode) and stat.S_IMODE(mode) != permissions:
                os.chmod(self._top / path, permissions)
                changed = True
        if changed:
            self._private("update-index", "-q", "--refresh", fails=True)

    def _signs(self, changes: list[Change]) -> list[tuple[int, int, int] | None]:
        """What tells whether somebody has written to the changed paths."""
        found: list[tuple[int, int, int] | None] = []
        for change in changes:
            try:
                seen = os.lstat(self._top / change.path)
                found.append((seen.st_ino, seen.st_size, seen.st_ctime_ns))
            except (FileNotFoundError, NotADirectoryError):
                found.append(None)
        return found

    # --- the index -----------------------------------------------------------------------
    # The user's index is locked by a file of our own while a copy of it is worked on, and replaced by
    # the copy in one rename. So a lock that a dead run left is known to be ours by what it says, and
    # the index is always a whole one.

    @property
    def _copy(self) -> Path:
        return self._scrap / "index"

    def _copy_index(self) -> None:
        self._scrap.mkdir(parents=True, exist_ok=True)
        # With its times: git trusts an entry only if it is older than the index.
        shutil.copy2(self._index, self._copy)

    def _drop_copy(self) -> None:
        for path in (self._copy, self._copy.with_name("index.lock")):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self._scrap.rmdir()
            self._scrap.parent.rmdir()

    def _private(self, *args: str, stdin: bytes = b"", fails: bool = False) -> None:
        """Git on the copy of the index. `fails`: its exit code says nothing that matters here."""
        git = self._git.with_env(GIT_INDEX_FILE=self._copy)
        (git.ask if fails else git)(*args, stdin=stdin, timeout=CHECKOUT_SECONDS)

    def _lock_index(self, marker: str) -> str | None:
        """Take the index lock; returns why it cannot be had."""
        said = f"llmch {marker}\n".encode()
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                self._make_lock(said)
            except FileExistsError:
                if self._lock_is_ours(marker):
                    return None
            except OSError as error:
                return f"cannot lock the index: {error}"
            else:
                return None
            if time.monotonic() > deadline:
                return f"another git process holds {shown(str(self._lock))}"
            time.sleep(_LOOK_AGAIN_SECONDS)

    def _lock_is_ours(self, marker: str) -> bool:
        try:
            return self._lock.read_bytes() == f"llmch {marker}\n".encode()
        except OSError:
            return False

    def _unlock_index(self, at: At) -> None:
        self._drop_copy()
        self._lock.unlink(missing_ok=True)
        at(Step.INDEX_UNLOCKED)

    def _make_lock(self, said: bytes) -> None:
        # Linked into place with its content: a kill never leaves a lock that does not say whose it is.
        self._scrap.mkdir(parents=True, exist_ok=True)
        draft = self._scrap / "index-lock"
        draft.write_bytes(said)
        try:
            os.link(draft, self._lock)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            with open(self._lock, "xb") as lock:
                lock.write(said)
        finally:
            draft.unlink()

    def _index_is_at(self, commit: str, changes: list[Change]) -> bool:
        raw = self._git("diff-index", "--cached", "-z", "--name-only", "--no-renames", commit).stdout
        differing = {path_text(path) for path in raw.split(b"\0") if path}
        return not differing & {change.path for change in changes}

    # --- after a kill --------------------------------------------------------------------

    def remove_leftovers(self, move: Move) -> None:
        """Remove the locks that git itself held for this move when it was killed.

        Only to be called when no process of the dead run is left.
        """
        branch_lock = self._common_dir / f"{move.to_ref}.lock"
        for path, written in (
            (self._head_lock, f"ref: {move.to_ref}\n"),
            (branch_lock, f"{move.to_commit}\n"),
        ):
            with suppress(FileNotFoundError, NotADirectoryError):
                content = path.read_bytes()
                if not content:
                    # Nobody's name is on it yet: a living git would be done with it in a moment.
                    time.sleep(10 * _LOOK_AGAIN_SECONDS)
                    content = path.read_bytes()
                if written.encode().startswith(content):
                    path.unlink()

    def _undo_half_done(self, move: Move, changes: list[Change]) -> None:
        """Put changed paths back to the old commit, where the index still is. Undoes git's own work only."""
        self._copy_index()
        self._private("update-index", "-q", "--refresh", fails=True)
        git = self._git.with_env(GIT_INDEX_FILE=self._copy)
        raw = git("diff-files", "-z", "--name-only", "--ignore-submodules=all").stdout
        not_old = {path_text(path) for path in raw.split(b"\0") if path}
        changes = [change for change in changes if not change.is_submodule]
        written = {
            change.path
            for change in changes
            if change.added and self._mode(change.path) is not None and self._is_explained(change)
        }
        for path in written:
            os.unlink(self._top / path)
        for change in changes:
            if change.added:
                self._prune(change.path, move.folders)
        restored = [
            path_bytes(change.path)
            for change in changes
            if not change.added and change.path in not_old and self._is_explained(change)
        ]
        if restored:
            self._private("checkout-index", "-f", "-u", "-z", "--stdin", stdin=b"\0".join(restored) + b"\0")
            os.replace(self._copy, self._index)  # with the times of what was just written

    def let_go(self, move: Move) -> None:
        """Remove the index lock of a dead run, if it is the one of this move."""
        if self._lock_is_ours(move.marker):
            self._unlock_index(nowhere)

    def _is_explained(self, change: Change) -> bool:
        """Whether what stands at a changed path is the old or the new content, or the beginning of one.

        Git unlinks a file, creates it, and writes it: each of that can be the last thing it did.
        """
        mode = self._mode(change.path)
        if mode is None:
            return True
        if stat.S_ISDIR(mode):
            return not change.added and _holds_nothing(self._top / change.path)
        if stat.S_ISLNK(mode):
            target = os.fsencode(os.readlink(self._top / change.path))
            return any(
                target == self._git("cat-file", "blob", blob).stdout for blob in _blobs(change, link=True)
            )
        if not stat.S_ISREG(mode):
            return False
        data = (self._top / change.path).read_bytes()
        return any(
            self._git("cat-file", "--filters", f"--path={change.path}", blob).stdout.startswith(data)
            for blob in _blobs(change, link=False)
        )

    def _prune(self, path: str, folders: tuple[str, ...]) -> None:
        with suppress(OSError):
            for above in reversed(folders_above(path)):
                if above not in folders:
                    os.rmdir(self._top / above)


def folders_above(path: str) -> list[str]:
    """Every directory above a path, the topmost first."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _holds_nothing(folder: Path) -> bool:
    walk = os.walk(folder)
    return not any(
        files or any(map(os.path.islink, (os.path.join(place, name) for name in folders)))
        for place, folders, files in walk
    )


def _blobs(change: Change, *, link: bool) -> list[str]:
    sides = ((change.old_mode, change.old_id), (change.new_mode, change.new_id))
    return [blob for mode, blob in sides if mode != _NOTHING and (mode == _LINK) == link]
