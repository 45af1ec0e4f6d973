"""The one way git is called: no hook, no prompt, no inherited setting, no wait without end."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shared.process import CANNOT_START, Captured, allowed_environment, run_captured

QUESTION_SECONDS = 120.0
"""Bound of a git command that looks, or that writes a few files."""
CHECKOUT_SECONDS = 1800.0
"""Bound of a git command that may write a whole tree, filters included."""

_MAX_COMPLAINT = 600

# What no configuration may change: programs that would run, prompts, and rules about what is an
# error or a change. A repository's own rules for content (filters, line endings) stay as they are.
_SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",  # it trusts directory times, which any command can set
    "core.quotePath": "false",
    "core.askPass": "",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "i18n.commitEncoding": "UTF-8",
    "submodule.recurse": "false",
    "status.renames": "false",
    "diff.renames": "false",
    "advice.detachedHead": "false",
}
_PREFIX = ("git", *(word for key, value in _SETTINGS.items() for word in ("-c", f"{key}={value}")))

# Where the user's own configuration is; nothing else that is called GIT_… is passed on.
_CONFIG_PLACES = ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")


class Refused(Exception):
    """An expected no. The text is one line for the user: what is wrong, where, and what to do next."""


class GitError(Exception):
    """A git command failed. The text is one line: the command, the place, git's own words."""


@dataclass(frozen=True)
class Git:
    """Git in one directory. Calling it runs one command; `Git.at` makes one from an environment."""

    cwd: Path
    env: Mapping[str, str]
    poll: Callable[[], None] | None = None
    """Called while a command runs; what it raises ends the command and passes through."""
    keep_open: tuple[int, ...] = ()
    """Descriptors the command holds to its end, so that a lock on one outlives us with it."""

    @classmethod
    def at(cls, cwd: str | Path, source: Mapping[str, str] | None = None) -> Git:
        """Git in `cwd`, with what it may see of the environment `source` (default: our own)."""
        return cls(Path(cwd), git_environment(os.environ if source is None else source))

    def __call__(self, *args: str, stdin: bytes = b"", timeout: float = QUESTION_SECONDS) -> Captured:
        """The output of a command that succeeded. Raises `GitError` for any other."""
        captured = self.ask(*args, stdin=stdin, timeout=timeout)
        if captured.exit_code != 0:
            raise GitError(f"git {_command_of(args)} failed in {self.cwd}: {one_line(captured.complaint)}")
        return captured

    def ask(self, *args: str, stdin: bytes = b"", timeout: float = QUESTION_SECONDS) -> Captured:
        """The outcome of a command whose exit code is an answer. Raises `GitError` if it could not run."""
        captured = run_captured(
            [*_PREFIX, *args],
            cwd=self.cwd,
            env=self.env,
            stdin=stdin,
            timeout=timeout,
            on_wait=self.poll,
            keep_open=self.keep_open,
        )
        if captured.exit_code == CANNOT_START:
            raise GitError(f"git {_command_of(args)} in {self.cwd}: {one_line(captured.complaint)}")
        return captured

    def with_env(self, **changes: str | Path) -> Git:
        """The same git with more variables set, such as `GIT_INDEX_FILE`."""
        return replace(self, env={**self.env, **{name: str(value) for name, value in changes.items()}})


def git_environment(source: Mapping[str, str]) -> dict[str, str]:
    """What git may see of `source`: the allow-list and the places of the user's configuration."""
    env = allowed_environment(
        source,
        extra=_CONFIG_PLACES,
        LC_ALL="C",
        GIT_OPTIONAL_LOCKS="0",
        GIT_TERMINAL_PROMPT="0",
    )
    env.pop("LANGUAGE", None)  # it overrides LC_ALL for messages, and we pass messages on
    # A relative entry would let a repository bring its own `git`.
    env["PATH"] = os.pathsep.join(filter(os.path.isabs, env.get("PATH", os.defpath).split(os.pathsep)))
    return env


def _command_of(args: tuple[str, ...]) -> str:
    for word, before in zip(args, ("", *args), strict=False):
        if not word.startswith("-") and before != "-c":
            return word
    return ""


def one_line(text: str) -> str:
    """Git's complaint as one line: prefixes, hints and advice dropped, passwords in addresses too."""
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(("hint:", "warning:"))] or lines
    said = "; ".join(re.sub(r"^(fatal|error): ", "", line) for line in kept if line)
    said = re.sub(r"(\w://)[^/@\s]+@", r"\1", said)
    return shown(said if len(said) <= _MAX_COMPLAINT else said[:_MAX_COMPLAINT] + "…")


def shown(text: str) -> str:
    """`text` as a message shows it: as it is when it is printable, else with escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def path_bytes(path: str) -> bytes:
    """A path as git writes it: bytes that are not UTF-8 come back as they were."""
    return path.encode("utf-8", "surrogateescape")


def path_text(path: bytes) -> str:
    """A path from git's output as text."""
    return path.decode("utf-8", "surrogateescape")


def listed(paths: list[str], limit: int = 5) -> str:
    """The first few of `paths` for a message."""
    more = f" and {len(paths) - limit} more" if len(paths) > limit else ""
    return ", ".join(map(shown, paths[:limit])) + more
