"""Files below a directory that somebody else may have prepared: no link is followed, nothing blocks."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Container, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotAFile(OSError):
    """Something that is no regular file stands on the way to a path. The text names it."""


class LinkInTheWay(NotAFile):
    """It is a symbolic link: what it leads to may lie anywhere, so nobody follows it."""


def _in_the_way(mode: int, text: str) -> NotAFile:
    return LinkInTheWay(text) if stat.S_ISLNK(mode) else NotAFile(text)


class TreeFiles(Container[str]):
    """The regular files of a live tree: `path in files` looks at the disk, and caches nothing.

    Links are followed as long as they stay inside the tree and out of its `.git`.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = os.path.realpath(root)

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, str):
            return False
        try:
            found = os.path.realpath(os.path.join(self._root, path), strict=True)
            regular = stat.S_ISREG(os.lstat(found).st_mode)
        except (OSError, ValueError):  # ValueError: a NUL in the name
            return False
        below = os.path.relpath(found, self._root).split(os.sep)
        return regular and below[0] not in (os.pardir, ".git")


class TreeNames(Container[str]):
    """Every name of a live tree, whatever it is the name of: a file, a directory, a dangling link."""

    def __init__(self, root: str | Path) -> None:
        self._root = os.fspath(root)

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and "\0" not in path and os.path.lexists(os.path.join(self._root, path))


# --- reading -----------------------------------------------------------------------------


def read_file(root: str | Path, path: str, max_bytes: int) -> bytes | None:
    """At most `max_bytes` of the regular file `path` below `root`; None when nothing is there.

    Raises `NotAFile` where a link, a directory, a FIFO or a device stands in the way, and `OSError`.
    """
    try:
        with _parent_of(root, path, create=False) as (folder, name):
            handle = _open_regular(folder, name, path)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        return file.read(max_bytes)


def _open_regular(folder: int, name: str, path: str) -> int:
    _check_regular(folder, name, path)
    # Non-blocking: a FIFO that took the file's place in between must not hold us.
    handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotAFile(f"{path} is no regular file")
    return handle


def _check_regular(folder: int, name: str, path: str) -> os.stat_result:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISREG(found.st_mode):
        raise _in_the_way(found.st_mode, f"{path} is {_kind(found.st_mode)}, not a file")
    return found


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFREG: "a file",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


@contextmanager
def _parent_of(root: str | Path, path: str, *, create: bool) -> Iterator[tuple[int, str]]:
    """The directory that holds `path`, opened component by component, and the last component."""
    *folders, name = path.split("/")
    if {"", ".", ".."} & {*folders, name}:
        raise NotAFile(f"{path} is no path of a file below a directory")
    with ExitStack() as stack:
        here = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, here)
        for depth, folder in enumerate(folders, start=1):
            if create:
                with suppress(FileExistsError):
                    os.mkdir(folder, dir_fd=here)
            try:
                below = os.open(folder, _DIRECTORY, dir_fd=here)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                mode = os.stat(folder, dir_fd=here, follow_symlinks=False).st_mode
                text = f"{'/'.join(folders[:depth])} is {_kind(mode)}, not a directory"
                raise _in_the_way(mode, text) from None
            stack.callback(os.close, below)
            here = below
        yield here, name


# --- writing -----------------------------------------------------------------------------


def write_files(root: str | Path, files: Iterable[tuple[str, bytes]], *, durable: bool = True) -> None:
    """Write files below `root`: all temporaries, one round of syncs (if `durable`), then all renames.

    Parents are made, an existing file keeps its mode, a new one follows the umask. Each file is
    replaced atomically, the set is not. Raises `OSError` (`NotAFile` where a link or a directory
    stands in the way), and leaves no temporary behind then.
    """
    pending: list[tuple[str, str]] = []
    try:
        for path, data in files:
            pending.append((path, _write_temporary(root, path, data)))
        if durable:
            for path, temporary in pending:
                _sync(root, path, temporary)
        while pending:
            path, temporary = pending[0]
            with _parent_of(root, path, create=False) as (folder, name):
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            pending.pop(0)
    finally:
        for path, temporary in pending:
            with suppress(OSError), _parent_of(root, path, create=False) as (folder, _):
                os.unlink(temporary, dir_fd=folder)


def _write_temporary(root: str | Path, path: str, data: bytes) -> str:
    temporary = f".llmch-{secrets.token_hex(8)}"
    with _parent_of(root, path, create=True) as (folder, name):
        mode: int | None
        try:
            mode = stat.S_IMODE(_check_regular(folder, name, path).st_mode)
        except FileNotFoundError:
            mode = None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(temporary, flags, 0o666, dir_fd=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                if mode is not None:
                    os.fchmod(handle, mode)
        except BaseException:
            os.unlink(temporary, dir_fd=folder)
            raise
    return temporary


def _sync(root: str | Path, path: str, temporary: str) -> None:
    with _parent_of(root, path, create=False) as (folder, _):
        handle = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# --- removing ----------------------------------------------------------------------------


def remove_tree(root: str | Path) -> None:
    """Remove a directory whatever is in it: read-only directories, any depth, links (not followed).

    Nothing happens when it is not there. Raises `OSError`.
    """
    root = os.fspath(root)
    try:
        if not stat.S_ISDIR(os.lstat(root).st_mode):
            raise NotAFile(f"{root} is no directory")
    except FileNotFoundError:
        return
    # Directories are moved up to one level before they are emptied, so that neither the longest path
    # the kernel takes nor the number of open files nor our stack bounds the depth that can be removed.
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        make_writable(folder)
        with os.scandir(folder) as found:
            entries = list(found)
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
            elif folder == root:
                waiting.append(entry.path)
            else:
                make_writable(entry.path)
                above = os.path.join(root, f".llmch-{secrets.token_hex(8)}")
                os.rename(entry.path, above)
                waiting.append(above)
        if folder != root:
            os.rmdir(folder)
    os.rmdir(root)


def make_writable(folder: str | bytes) -> None:
    """Give the owner of a directory all rights to it."""
    mode = stat.S_IMODE(os.lstat(folder).st_mode)
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        os.chmod(folder, mode | stat.S_IRWXU)
