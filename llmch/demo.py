"""`llmch demo`: the whole way once on a shipped example, with the model's answers replayed."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from shared.console import Console
from shared.process import Interrupt, Interrupted, run_captured, run_shown, signals_as_flag

USAGE_ERROR = 64
GIT_SECONDS = 60

OTHERS_VARIABLES = ("OPENAI_", "LLMCH_", "LANGSMITH_", "LANGCHAIN_", "GIT_")
"""Not for the children: keys they must do without, settings that would make a run unlike its record."""

IDENTITY = {
    "GIT_AUTHOR_NAME": "llmch demo",
    "GIT_AUTHOR_EMAIL": "demo@llmch.invalid",
    "GIT_COMMITTER_NAME": "llmch demo",
    "GIT_COMMITTER_EMAIL": "demo@llmch.invalid",
}

# The user's own git configuration must not change the bytes of an example.
LOCAL_CONFIG = {
    "core.autocrlf": "false",
    "core.excludesFile": os.devnull,
    "core.attributesFile": os.devnull,
    "core.hooksPath": os.devnull,
    "commit.gpgSign": "false",
}


class DemoError(Exception):
    """The demo cannot be set up; the text says why and what to do."""


@dataclass(frozen=True)
class Example:
    """A spec, what the repository holds before, and the answers a model gave."""

    name: str
    directory: Path
    is_shipped: bool

    @property
    def about(self) -> str:
        """One line on what the example builds."""
        for file in (self.directory / "about.txt", self.spec):
            if file.is_file():
                return file.read_text(encoding="utf-8").strip().partition("\n")[0].lstrip("# ")
        return ""

    @property
    def spec(self) -> Path:
        """What the planner is given."""
        return self.directory / "spec.md"

    @property
    def seed(self) -> Path | None:
        """The files of the repository before the first work order, where the example has any."""
        seed = self.directory / "seed"
        return seed if seed.is_dir() else None

    def answers(self, tool: str) -> Path:
        """The transcript of the model's answers to one tool: `plan` or `orders`."""
        return self.directory / "transcript" / tool

    @property
    def origin(self) -> str:
        """Where the answers come from, in the transcripts' own words: `scripted` or `recorded`."""
        return " and ".join(sorted({_origin(self.answers(tool)) for tool in ("plan", "orders")}))


def _origin(transcript: Path) -> str:
    try:
        header = json.loads((transcript / "transcript.json").read_bytes())
        return str(header["origin"])
    except (OSError, ValueError, KeyError, TypeError):
        raise DemoError(f"{transcript} holds no transcript: is the installation complete?") from None


@dataclass(frozen=True)
class Stage:
    """Where a demo plays: a directory with the spec, a repository and its remote."""

    directory: Path
    repository: Path
    environment: Mapping[str, str]
    """What the children get."""


def main(argv: Sequence[str] | None = None) -> int:
    """Play an example and return the exit code of the first child that failed, or 0."""
    console = Console()
    try:
        options = parser().parse_args(argv)
        if options.list:
            for example in shipped_examples():
                console.result(f"{example.name:<16} {example.about}")
            return 0
        example = find_example(options.name)
        with signals_as_flag() as interrupt, _directory(options.keep) as directory:
            return _play(example, set_stage(example, directory), console, interrupt, options.keep)
    except DemoError as error:
        console.error(str(error))
        return 1
    except Interrupted as signal:
        console.error(str(signal))
        return signal.exit_code


# --- examples ----------------------------------------------------------------------------


def shipped_examples() -> list[Example]:
    """The examples that came with this llmch, by name: inside a wheel, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    for root in (package / "examples", package.parent / "examples"):
        if root.is_dir():
            found = [path for path in sorted(root.iterdir()) if (path / "spec.md").is_file()]
            return [Example(path.name, path, is_shipped=True) for path in found]
    return []


def find_example(name: str | None) -> Example:
    """The example called `name`, the directory `name`, or the first one. Raises `DemoError`."""
    shipped = shipped_examples()
    if name is None:
        if not shipped:
            raise DemoError("no examples were shipped with this llmch: install it again")
        return shipped[0]
    for example in shipped:
        if example.name == name:
            return example
    directory = Path(name).absolute()
    if (directory / "spec.md").is_file():
        return Example(directory.name, directory, is_shipped=False)
    names = ", ".join(example.name for example in shipped) or "none"
    raise DemoError(f"no example {name!r}, and no directory with a spec.md either; shipped: {names}")


# --- the stage ---------------------------------------------------------------------------


@contextmanager
def _directory(kept: Path | None) -> Iterator[Path]:
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="llmch-demo-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary).resolve()
        return
    try:
        kept.mkdir(parents=True, exist_ok=True)
        if any(kept.iterdir()):
            raise DemoError(f"{kept} is not empty: name a new directory with --keep")
    except OSError as error:
        raise DemoError(f"cannot use {kept}: {error.strerror}") from None
    yield kept.resolve()


def set_stage(example: Example, directory: Path) -> Stage:
    """Make the spec, a repository with one commit, and a bare remote `origin` in `directory`.

    A transcript fits a repository made here and no other: its file listing is part of the prompts.
    """
    repository = directory / example.name
    remote = directory / "origin.git"
    shutil.copyfile(example.spec, directory / "spec.md")
    if example.seed is None:
        repository.mkdir()
    else:
        # pip leaves compiled files beside every .py of a wheel.
        shutil.copytree(example.seed, repository, ignore=shutil.ignore_patterns("__pycache__"))
    stage = Stage(directory, repository, children_environment(os.environ, directory))
    _git(stage, "init", "--quiet", "--bare", "--template=", str(remote), cwd=directory)
    _git(stage, "init", "--quiet", "--template=")
    _git(stage, "symbolic-ref", "HEAD", "refs/heads/main")
    for key, value in LOCAL_CONFIG.items():
        _git(stage, "config", key, value)
    _git(stage, "remote", "add", "origin", str(remote))
    _git(stage, "add", "--all", "--force")
    _git(stage, "commit", "--quiet", "--allow-empty", "-m", f"Start of {example.name}")
    _git(stage, "push", "--quiet", "--set-upstream", "origin", "main")
    return stage


def children_environment(environment: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Ours, as an activated environment would have it, without keys and without others' settings."""
    kept = {
        key: value
        for key, value in environment.items()
        if not key.startswith(OTHERS_VARIABLES) and key != "PYTHONHOME"
    }
    programs = os.path.dirname(sys.executable)
    kept["PATH"] = os.pathsep.join(filter(None, (programs, environment.get("PATH", os.defpath))))
    kept["ARTIFACTS_DIR"] = str(directory / "artifacts")
    # It comes with what llmch needs, no example uses it, and it doubles the time that pytest takes to start.
    kept["PYTEST_ADDOPTS"] = "-p no:anyio"
    if sys.prefix != sys.base_prefix:
        kept["VIRTUAL_ENV"] = sys.prefix
    return kept | IDENTITY


# --- the play ----------------------------------------------------------------------------


def _play(example: Example, stage: Stage, console: Console, interrupt: Interrupt, kept: Path | None) -> int:
    source = "the transcript that ships with llmch" if example.is_shipped else str(example.directory)
    notice = (
        f"The model's answers are replayed from {source} (origin: {example.origin}). No model is asked, "
        "no key is used, nothing leaves this machine. Everything else is real."
    )
    console.header(f"llmch demo: {example.name}, {example.about}")
    console.info(notice)
    plan = ("--spec", "spec.md", "--repo", example.name, "--outdir", "orders")
    orders = ("--workdir", "orders", "--repo", example.name)
    for verb, child, arguments, answers in (
        ("plan", ("planner", "compile"), plan, example.answers("plan")),
        ("run-all", ("factory", "run-all"), orders, example.answers("orders")),
    ):
        line = (*arguments, "--llm", f"replay:{answers}")
        console.info("")
        console.info(" ".join(("$ llmch", verb, *line)))
        command = (sys.executable, "-P", "-m", *child, *line)
        code = run_shown(command, cwd=stage.directory, env=stage.environment, interrupt=interrupt)
        interrupt.check()
        if code != 0:
            console.error(f"llmch {verb} ended with exit code {code}; the demo stops here")
            return code
    code = _show_result(stage, console)
    console.info("")
    console.info(notice)
    if kept is None:
        named = example.name if example.is_shipped else example.directory
        console.info(f"To look at what was made: llmch demo {named} --keep DIR")
    else:
        console.info(f"Everything is kept in {stage.directory}: look at {stage.repository}")
    return code


def _show_result(stage: Stage, console: Console) -> int:
    branch = _git(stage, "symbolic-ref", "--short", "HEAD")
    head = _git(stage, "rev-parse", "HEAD")
    console.info("")
    console.info(f"$ git log --oneline {branch}")
    console.result(_git(stage, "log", "--oneline", "--no-decorate", branch))
    console.info("")
    console.info(f"$ git ls-remote origin {branch}")
    listed = _git(stage, "ls-remote", "origin", f"refs/heads/{branch}")
    console.result(listed)
    if listed.partition("\t")[0] != head:
        console.error(f"the remote does not have {head} as {branch}")
        return 1
    return 0


def _git(stage: Stage, *arguments: str, cwd: Path | None = None) -> str:
    done = run_captured(
        ("git", *arguments), cwd=cwd or stage.repository, env=stage.environment, timeout=GIT_SECONDS
    )
    if done.exit_code != 0:
        raise DemoError(f"git {arguments[0]} failed: {done.complaint}")
    return done.text


# --- arguments ---------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.format_usage()}{self.prog}: {message}\n")


def parser() -> argparse.ArgumentParser:
    """What the demo can be told."""
    parser = _Parser(
        prog="llmch demo",
        description="Play a shipped example: the real planner, factory and git in a fresh repository, "
        "with the model's answers replayed from a transcript. No model, no key, no network.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="an example of --list, or a directory")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in DIR (new or empty) and leave it")
    parser.add_argument("--list", action="store_true", help="say which examples there are, and stop")
    return parser


if __name__ == "__main__":
    sys.exit(main())
