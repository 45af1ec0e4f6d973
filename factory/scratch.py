"""The tree that attempts write to: a checkout of the baseline outside the repository, thrown away after.

It is a repository of its own that borrows the user's objects, and no linked work tree: those share
refs, configuration and hooks with the user's repository, and one `git branch -f` in an acceptance
command would reach them.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from factory.git import CHECKOUT_SECONDS, Git, GitError, Refused, path_text, shown
from factory.ledger import At, Origin, Step, nowhere
from factory.tree_files import TreeFiles, TreeNames, remove_tree
from factory.workspace import SCRATCH_PREFIX, Repository, drift, roll_back, staged_tree

COPIED_PATHS = (".env", ".venv", "venv", "node_modules")
"""Ignored paths that commands get a copy of, at the top of the repository."""
COPY_LIMIT_BYTES = 256 * 1024 * 1024
"""How much is copied in all; what does not fit is left out and noted."""

_BLOCK_BYTES = 4096  # what a small file takes, so that a limit on bytes is one on files too
_TEXT_BYTES = 1024 * 1024

# The parts of the user's configuration that decide how files come out and how git in the tree answers.
# No remote, no address, no credential, no program that git would start by itself.
_KEPT_KEYS = frozenset(
    "core." + key
    for key in (
        "abbrev", "attributesfile", "autocrlf", "bigfilethreshold", "checkroundtripencoding", "eol",
        "excludesfile", "filemode", "ignorecase", "longpaths", "precomposeunicode", "protecthfs",
        "protectntfs", "quotepath", "symlinks",
    )
)  # fmt: skip
_KEPT_PEOPLE = re.compile(r"(user|author|committer)\.(name|email)")
_KEPT_DRIVERS = re.compile(r"(filter|diff|merge)\..+\..+|i18n\..+", re.DOTALL)


class ScratchTree(Protocol):
    """A tree at the baseline that a run may do with as it likes."""

    @property
    def path(self) -> Path:
        """The root of the tree. Its last component is the repository's own name."""
        ...

    @property
    def baseline(self) -> str:
        """The commit it stands at."""
        ...

    @property
    def files(self) -> TreeFiles:
        """The regular files in it, as they are now."""
        ...

    @property
    def names(self) -> TreeNames:
        """Every name in it, as they are now."""
        ...

    @property
    def index(self) -> Path:
        """A git index that stands at the baseline, out of reach of commands that run in the tree."""
        ...

    @property
    def private_tmp(self) -> Path:
        """A directory for temporary files, outside of the tree. It is emptied by `reset`."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about it, a sentence each."""
        ...

    def reset(self) -> None:
        """Bring every byte of it back to the baseline. Raises `GitError` or `OSError`."""
        ...

    def drift(self, touched_files: Iterable[str]) -> list[str]:
        """Files that differ from the baseline or are untracked, but for `touched_files`; sorted."""
        ...

    def tree_hash(self, touched_files: Iterable[str]) -> str:
        """The tree id of the baseline with `touched_files` as they are on disk now."""
        ...


@contextmanager
def scratch_tree(
    repository: Repository,
    baseline: str,
    kind: str = "auto",
    share: Sequence[str] = (),
    *,
    copy_limit: int = COPY_LIMIT_BYTES,
    origin: Origin | None = None,
    at: At = nowhere,
) -> Iterator[ScratchTree]:
    """A scratch tree, gone at the end however it comes. `share` names more ignored paths to copy.

    The ledger names it before it is there, so that the next run removes it where a kill left it, and
    completes the records of the run, `origin`, that was killed.
    Raises `Refused`, `GitError` or `OSError`. An error that is under way gets a note beginning
    "scratch tree" when the tree could not be removed.
    """
    if kind == "overlay":
        raise Refused("--scratch overlay is not built yet: use --scratch worktree")
    wanted = [*COPIED_PATHS, *(_share_path(repository, path) for path in share)]
    room = _room_outside(repository)
    try:
        key = repository.ledger.write_scratch(room, origin)
    except OSError as error:
        raise Refused(f"cannot write to {shown(str(repository.common_dir))}: {error.strerror}") from None
    at(Step.SCRATCH_RECORDED)
    try:
        room.mkdir(mode=0o700)
        at(Step.SCRATCH_MADE)
        tree = PrivateTree(repository, baseline, room, wanted, copy_limit)
        at(Step.SCRATCH_FILLED)
        yield tree
    except BaseException as error:
        if (problem := _remove(repository, room, key, at)) is not None:
            error.add_note(problem)
        raise
    # A tree that stays behind after a pass changes nothing about it; the ledger still names it.
    _remove(repository, room, key, at)


def _remove(repository: Repository, room: Path, key: str, at: At) -> str | None:
    try:
        remove_tree(room)
    except OSError as error:
        return f"scratch tree {shown(str(room))} could not be removed: {error}"
    at(Step.SCRATCH_REMOVED)
    repository.ledger.clear_scratch(key)
    return None


def _room_outside(repository: Repository) -> Path:
    parent = Path(os.path.realpath(tempfile.gettempdir()))
    if parent == repository.top or repository.top in parent.parents:
        raise Refused(f"temporary files would lie inside the repository, in {shown(str(parent))}: set TMPDIR")
    return parent / f"{SCRATCH_PREFIX}{secrets.token_hex(8)}"


def _share_path(repository: Repository, path: str) -> str:
    absolute = os.path.normpath(os.path.join(repository.top, path))
    below = os.path.relpath(absolute, repository.top)
    if below.split(os.sep)[0] in (os.curdir, os.pardir, ".git"):
        raise Refused(f"--share {shown(path)} names nothing below the repository")
    return below


class PrivateTree:
    """The portable scratch tree: a repository of its own, checked out by one git command.

    There are two git directories. `.git` in the tree is for the commands: whatever they do to it is
    thrown away. Ours lies outside of the tree, and we ask no other: git reads settings from its
    directory that make it start programs, and those must not come from what a command wrote.
    """

    def __init__(
        self, repository: Repository, baseline: str, room: Path, wanted: Sequence[str], copy_limit: int
    ) -> None:
        self.baseline = baseline
        self.path = room / "tree" / (repository.top.name or "repository")
        self.private_tmp = room / "tmp"
        self.notes: tuple[str, ...] = ()
        self._repository = repository
        self._git_dir = room / "git"
        self._copy_limit = copy_limit
        self._copies = self._copies_wanted(wanted)
        self._make_git_dir(self._git_dir, borrow_only=True)
        self._git = Git(self.path, repository.git.env, poll=repository.poll).with_env(
            GIT_DIR=self._git_dir, GIT_WORK_TREE=self.path
        )
        self._fill()

    @property
    def files(self) -> TreeFiles:
        """The regular files in it, as they are now."""
        return TreeFiles(self.path)

    @property
    def names(self) -> TreeNames:
        """Every name in it, as they are now."""
        return TreeNames(self.path)

    @property
    def index(self) -> Path:
        """Our own index, at the baseline."""
        return self._git_dir / "index"

    def reset(self) -> None:
        """Bring every byte back to the baseline; a tree that git cannot clean is made anew."""
        try:
            roll_back(self._git, self.path, self.baseline, folder_mode=self._folder_mode)
            self._furnish()
        except (GitError, OSError):
            self._fill()

    def drift(self, touched_files: Iterable[str]) -> list[str]:
        """Files that differ from the baseline or are untracked, but for `touched_files`; sorted."""
        return drift(self._git, touched_files)

    def tree_hash(self, touched_files: Iterable[str]) -> str:
        """The tree id of the baseline with `touched_files` as they are on disk now."""
        private = self._git_dir / "index-for-hash"
        shutil.copy2(self.index, private)
        try:
            return staged_tree(self._git.with_env(GIT_INDEX_FILE=private), self.path, touched_files)
        finally:
            private.unlink(missing_ok=True)

    # --- making it -----------------------------------------------------------------------

    def _fill(self) -> None:
        _clear(self.path)
        self.path.mkdir(parents=True)
        self._folder_mode = stat.S_IMODE(self.path.stat().st_mode)
        self.index.unlink(missing_ok=True)
        self._git("read-tree", "--reset", "-u", self.baseline, timeout=CHECKOUT_SECONDS)
        self._furnish()

    def _furnish(self) -> None:
        """Everything about the tree that is not in the commit."""
        theirs = self.path / ".git"
        _clear(theirs)
        self._make_git_dir(theirs, borrow_only=False)
        shutil.copy2(self.index, theirs / "index")
        _clear(self.private_tmp)
        self.private_tmp.mkdir(mode=0o700)
        notes = []
        left = self._copy_limit
        for path in self._copies:
            source, target = self._repository.top / path, self.path / path
            if os.path.lexists(target):
                continue  # the baseline has it
            size = _size_of(source, left)
            if size > left:
                limit = f"{self._copy_limit // 1024 // 1024} MiB"
                notes.append(f"{shown(path)} is not in the scratch tree: copies are limited to {limit}")
                continue
            left -= size
            _Copier(self._repository.top, self.path).copy(source, target)
        self.notes = tuple(notes)

    def _copies_wanted(self, wanted: Sequence[str]) -> list[str]:
        """Those of `wanted` that the user has and git ignores."""
        standing = [path for path in wanted if os.path.exists(self._repository.top / path)]
        if not standing:
            return []
        asked = b"\0".join(map(os.fsencode, standing)) + b"\0"
        said = self._repository.git.ask("check-ignore", "-z", "--stdin", stdin=asked).stdout
        ignored = {path_text(path) for path in said.split(b"\0")}
        return [path for path in dict.fromkeys(standing) if path in ignored and "\n" not in path]

    # --- its git directories -------------------------------------------------------------

    def _make_git_dir(self, where: Path, *, borrow_only: bool) -> None:
        """A git directory with HEAD at the baseline and the user's objects, refs and rules for content."""
        common = self._repository.common_dir
        for folder in ("objects/info", "refs", "info"):
            (where / folder).mkdir(parents=True)
        (where / "HEAD").write_text(f"{self.baseline}\n")
        (where / "objects/info/alternates").write_bytes(_quoted_line(os.fsencode(common / "objects")))
        (where / "config").write_bytes(
            self._config(borrow_only=borrow_only).encode("utf-8", "surrogateescape")
        )
        for name in ("shallow", "info/attributes"):
            if (common / name).is_file():
                shutil.copyfile(common / name, where / name)
        exclude = (common / "info/exclude").read_bytes() if (common / "info/exclude").is_file() else b""
        ours = [b"/" + re.sub(rb"([\\*?\[\]!# ])", rb"\\\1", os.fsencode(path)) for path in self._copies]
        (where / "info/exclude").write_bytes(b"\n".join([exclude, *ours, b""]))
        if not borrow_only:
            self._copy_refs(where)

    def _copy_refs(self, where: Path) -> None:
        common = self._repository.common_dir
        if "extensions.refstorage" in self._repository.settings:
            # Not kept as files: asked for, and written as files.
            said = self._repository.git("for-each-ref", "--format=%(objectname) %(refname)").stdout
            (where / "packed-refs").write_bytes(said)
            return
        # Loose ones first: a ref that is packed meanwhile is found in one place or in both.
        for place, folders, names in os.walk(common / "refs"):
            below = os.path.relpath(place, common)
            if below == "refs":  # these belong to one work tree each
                folders[:] = [name for name in folders if name not in ("bisect", "worktree", "rewritten")]
            (where / below).mkdir(exist_ok=True)
            for name in names:
                if not name.endswith(".lock"):
                    shutil.copyfile(os.path.join(place, name), where / below / name)
        if (common / "packed-refs").is_file():
            shutil.copyfile(common / "packed-refs", where / "packed-refs")

    def _config(self, *, borrow_only: bool) -> str:
        settings = self._repository.all_settings
        lines = []
        extensions = {}
        if len(self.baseline) == 64:
            extensions["objectformat"] = "sha256"
        if borrow_only:
            # Objects that a partial clone does not have yet are fetched when they are first needed.
            lent = re.compile(r"remote\..+\.(promisor|partialclonefilter)", re.DOTALL)
            lenders = {key.rpartition(".")[0] for key, _ in settings if lent.fullmatch(key)}
            lines += [_setting(key, value) for key, value in settings if key.rpartition(".")[0] in lenders]
            if promisor := self._repository.settings.get("extensions.partialclone"):
                extensions["partialclone"] = promisor
        lines += [_setting(f"extensions.{key}", value) for key, value in extensions.items()]
        lines.append(_setting("core.repositoryformatversion", "1" if extensions else "0"))
        lines += [
            _setting(key, value)
            for key, value in settings
            if key in _KEPT_KEYS or _KEPT_PEOPLE.fullmatch(key) or _KEPT_DRIVERS.fullmatch(key)
        ]
        if storage := self._repository.settings.get("lfs.storage"):
            place = os.path.join(self._repository.common_dir, os.path.expanduser(storage))
            lines.append(_setting("lfs.storage", place))
        # git-lfs finds the user's objects through the alternates; it is not to fetch what is not there.
        lines.append(_setting("lfs.skipdownloaderrors", "true"))
        ours = {
            "core.bare": "false",
            "core.logallrefupdates": "true",
            # A change counts whatever its size and time: these can be set, and a run fits into a second.
            "core.checkstat": "default",
            "core.trustctime": "true",
            "core.ignorestat": "false",
        }
        return "".join([*lines, *(_setting(key, value) for key, value in ours.items())])


def _setting(key: str, value: str) -> str:
    """One value as it stands in a configuration file."""
    section, _, rest = key.partition(".")
    subsection, _, name = rest.rpartition(".")
    escaped = subsection.replace("\\", "\\\\").replace('"', '\\"')
    head = f'[{section} "{escaped}"]' if subsection else f"[{section}]"
    for char, written in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t"), ("\b", "\\b")):
        value = value.replace(char, written)
    return f'{head}\n\t{name} = "{value}"\n'


def _quoted_line(path: bytes) -> bytes:
    """A path as a line of `objects/info/alternates`."""
    if not re.search(rb'^["#]|[\n\\]', path):
        return path + b"\n"
    escaped = path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
    return b'"' + escaped + b'"\n'


def _clear(path: Path) -> None:
    """Remove whatever stands at `path`."""
    try:
        folder = stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    if folder:
        remove_tree(path)
    else:
        path.unlink()


# --- copies of ignored files -------------------------------------------------------------


def _size_of(source: Path, enough: int) -> int:
    """What a file or a tree takes on disk; the count ends soon after `enough`."""
    if not source.is_dir():
        return _taken(source)
    total = 0
    for place, _, names in os.walk(source):
        total += _BLOCK_BYTES + sum(_taken(Path(place, name)) for name in names)
        if total > enough:
            break
    return total


def _taken(path: Path) -> int:
    try:
        size = path.lstat().st_size
    except OSError:
        return 0
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES


class _Copier:
    """Copies below `home` to below `tree`. What refers to `home` by its full path refers to `tree` after.

    Copies and no links, since a write through a link would reach the user's bytes. The paths are
    adapted because an environment with an editable install would else bring the user's checkout
    to the tests, in the place of the tree they are to judge.
    """

    def __init__(self, home: Path, tree: Path) -> None:
        self._home = home
        self._tree = tree
        self._named = re.compile(rb"(?<![\w.-])" + re.escape(os.fsencode(home)) + rb"(?![\w.-])")

    def copy(self, source: Path, target: Path) -> None:
        """Copy a file or a directory; a link at the very top stands for what it points to."""
        target.parent.mkdir(parents=True, exist_ok=True)
        real = Path(os.path.realpath(source))
        if not real.is_dir():
            self._copy_file(real, target)
            return
        for place, folders, names in os.walk(real):
            below = target / os.path.relpath(place, real)
            below.mkdir(exist_ok=True)
            for name in (*names, *folders):
                entry = Path(place, name)
                if entry.is_symlink():
                    # Where it stood in the user's repository, should the top have been a link.
                    self._copy_link(entry, below / name)
                elif name in names:
                    self._copy_file(entry, below / name)

    def _copy_link(self, link: Path, target: Path) -> None:
        text = os.readlink(link)
        pointed = os.path.normpath(os.path.join(link.parent, text))
        if os.path.isabs(text):
            below = os.path.relpath(pointed, self._home)
            inside = below.split(os.sep)[0] != os.pardir
            os.symlink(os.path.join(self._tree, below) if inside else text, target)
        else:
            inside = os.path.relpath(pointed, self._home).split(os.sep)[0] != os.pardir
            os.symlink(text if inside else pointed, target)

    def _copy_file(self, source: Path, target: Path) -> None:
        seen = source.lstat()
        if not stat.S_ISREG(seen.st_mode):
            return  # a socket or a FIFO belongs to a program that is running there
        data = source.read_bytes() if seen.st_size <= _TEXT_BYTES else b""
        if self._named.search(data) and b"\0" not in data:
            target.write_bytes(self._named.sub(lambda _: os.fsencode(self._tree), data))
            shutil.copymode(source, target)
        else:
            shutil.copy2(source, target)
