"""The repository a plan is made for: which files it has, and how the model is shown them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from planner.defaults import GIT_TIMEOUT_SECONDS, MAX_REPO_FILES, MAX_REPO_LISTING_BYTES
from shared.console import printable
from shared.process import Captured, allowed_environment, run_captured


class RepositoryError(ValueError):
    """The repository cannot be listed. The text is one line: where, what, what to do next."""


def list_repository(repo: Path, on_wait: Callable[[], None] | None = None) -> frozenset[str]:
    """The paths of the files in `repo`, relative to it. Raises `RepositoryError`.

    Of a git repository these are the tracked files, because a plan runs on what is committed; before
    its first commit, what that commit would hold. Of a plain directory it is every file below it.
    A directory inside somebody else's repository is a plain directory. `on_wait` is called now and
    then; what it raises passes through.
    """
    if not repo.is_dir():
        problem = "is not a directory" if repo.exists() else "does not exist"
        raise RepositoryError(f"--repo {repo} {problem}; name the directory the plan is for")
    if os.path.lexists(repo / ".git"):
        return _tracked(repo, on_wait)
    if (repo / "HEAD").is_file() and (repo / "objects").is_dir() and (repo / "refs").is_dir():
        raise RepositoryError(f"--repo {repo} is a bare repository; name a checkout of it")
    return frozenset(_walked(repo, on_wait))


def would_be_untracked(repo: Path, path: Path) -> bool:
    """Whether something written to the directory `path` would show up as untracked in the git repository."""
    inside = path.resolve().is_relative_to(repo.resolve())
    if not inside or not os.path.lexists(repo / ".git"):
        return False
    # The directory may not exist yet, and a pattern such as `artifacts/` is only for directories.
    return _git(repo, None, "check-ignore", "--quiet", f"{path.resolve()}/x").exit_code != 0


# --- git ---------------------------------------------------------------------------------


def _tracked(repo: Path, on_wait: Callable[[], None] | None) -> frozenset[str]:
    # `--stage` tells files from submodules, which are directories in a checkout.
    staged = _git_fields(repo, on_wait, "--cached", "--stage")
    heads_and_paths = (entry.split("\t", 1) for entry in staged)
    found = frozenset(path for head, path in heads_and_paths if not head.startswith("160000"))
    return found or frozenset(_git_fields(repo, on_wait, "--others", "--exclude-standard"))


def _git_fields(repo: Path, on_wait: Callable[[], None] | None, *options: str) -> list[str]:
    listed = _git(repo, on_wait, "ls-files", "-z", *options)
    if listed.exit_code != 0:
        complaint = " ".join(listed.complaint.split())
        raise RepositoryError(f"--repo {repo}: git cannot list its files: {complaint}")
    # Bytes that are not UTF-8 become surrogates: such a name equals no path that a plan may name.
    return [name for name in listed.stdout.decode("utf-8", "surrogateescape").split("\0") if name]


def _git(repo: Path, on_wait: Callable[[], None] | None, *arguments: str) -> Captured:
    # Nothing that the repository configures may run, and no inherited GIT_DIR may lead elsewhere.
    quiet = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "--no-optional-locks")
    return run_captured(
        ["git", *quiet, *arguments],
        cwd=repo,
        env=allowed_environment(
            os.environ,
            LC_ALL="C",
            GIT_TERMINAL_PROMPT="0",
            GIT_CEILING_DIRECTORIES=str(repo.absolute().parent),
        ),
        timeout=GIT_TIMEOUT_SECONDS,
        on_wait=on_wait,
    )


# --- a plain directory -------------------------------------------------------------------


def _walked(repo: Path, on_wait: Callable[[], None] | None) -> Iterator[str]:
    count = 0
    pending = [""]
    while pending:
        below = pending.pop()
        if on_wait is not None:
            on_wait()
        for entry in _entries(repo, below):
            name = f"{below}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if entry.name != ".git":
                    pending.append(f"{name}/")
            elif _is_file(entry):
                yield name
                count += 1
                if count > MAX_REPO_FILES:
                    raise RepositoryError(
                        f"--repo {repo} holds more than {MAX_REPO_FILES} files; is this the right directory?"
                    )


def _entries(repo: Path, below: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(repo / below) as entries:
            return list(entries)
    except OSError as error:
        raise RepositoryError(f"--repo {repo}: cannot read {below or '.'} ({error.strerror})") from None


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return stat.S_ISREG(entry.stat().st_mode)  # through links: a plan may rely on what they lead to
    except OSError:  # a link to nowhere
        return False


# --- for the model -----------------------------------------------------------------------


@dataclass
class _Directory:
    """A directory while it is being shown. `size` is the number of files anywhere below it."""

    path: str
    size: int = 0
    files: list[str] = field(default_factory=list)
    directories: dict[str, _Directory] = field(default_factory=dict)

    def folded(self) -> dict[str, str]:
        """One line for all of it. Keys are what lines are sorted by."""
        return {self.path: f"{_shown(self.path) or './'} ({_count(self.size)}, not listed)"}

    def opened(self) -> dict[str, str]:
        """A line for each file and each directory directly in it."""
        lines = {path: _shown(path) for path in self.files}
        return _merged([lines, *(child.folded() for child in self.directories.values())])

    def half_opened(self) -> dict[str, str]:
        """A line for each directory directly in it, and one for its own files."""
        own = f"{_shown(self.path) or './'} ({_count(len(self.files))} directly in it, not listed)"
        lines = {f"{self.path}*": own} if self.files else {}
        return _merged([lines, *(child.folded() for child in self.directories.values())])


def describe(files: Iterable[str], max_bytes: int = MAX_REPO_LISTING_BYTES) -> str:
    """The listing as the model sees it: sorted, a path a line, at most `max_bytes` of UTF-8.

    What does not fit is folded into its directory, the deeper levels first, and a last line says so.
    Equal sets of files give equal text.
    """
    ordered = sorted(files)
    if not ordered:
        return "(no files)"
    lines = [_shown(path) for path in ordered]
    if _size(lines) <= max_bytes:
        return "\n".join(lines)
    closing = f"({len(ordered)} files in all; directories marked `not listed` were folded to keep this short)"
    room = max_bytes - _size([closing])
    return "\n".join([*_unfolded(_tree(ordered), room), closing])


def _tree(ordered: list[str]) -> _Directory:
    root = _Directory("")
    for path in ordered:
        here = root
        here.size += 1
        *parents, _ = path.split("/")
        for parent in parents:
            here = here.directories.setdefault(parent, _Directory(f"{here.path}{parent}/"))
            here.size += 1
        here.files.append(path)
    return root


def _unfolded(root: _Directory, room: int) -> list[str]:
    """Open directories level by level, each as far as its contents fit in the room that is left."""
    shown = root.folded()
    left = room - _size(shown.values())
    level = [root]
    while level:
        deeper: list[_Directory] = []
        for directory in level:
            closed = _size(directory.folded().values())
            for lines in (directory.opened(), directory.half_opened()):
                cost = _size(lines.values()) - closed
                if cost <= left:
                    left -= cost
                    del shown[directory.path]
                    shown.update(lines)
                    deeper += directory.directories.values()
                    break
        level = deeper
    return [shown[path] for path in sorted(shown)]


def _merged(parts: Iterable[dict[str, str]]) -> dict[str, str]:
    return {path: line for part in parts for path, line in part.items()}


def _count(files: int) -> str:
    return "1 file" if files == 1 else f"{files} files"


def _size(lines: Iterable[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _shown(path: str) -> str:
    return printable(path).replace("\n", "\\n").replace("\t", "\\t")
