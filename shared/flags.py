"""The flags that both command lines have, declared once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from shared.console import Console, Level
from shared.llm import REPLAY

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)


def with_flags(*flags: Callable[[F], F]) -> Callable[[F], F]:
    """A decorator that adds flags to a command, in the order in which its help shows them."""

    def decorate(command: F) -> F:
        for flag in reversed(flags):
            command = flag(command)
        return command

    return decorate


def positive(_context: click.Context, parameter: click.Parameter, value: float) -> float:
    """A callback that refuses what is no positive, finite number."""
    if not 0 < value < float("inf"):
        raise click.BadParameter("must be a positive number", param=parameter)
    return value


def _llm(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value != "openai" and not (value.startswith(REPLAY) and value.removeprefix(REPLAY).strip()):
        raise click.BadParameter(f"{value!r} is neither `openai` nor `replay:DIR`", param=parameter)
    return value


LLM_FLAGS: tuple[Callable[[F], F], ...] = (
    click.option(
        "--llm",
        default="openai",
        show_default=True,
        callback=_llm,
        metavar="openai|replay:DIR",
        help="Who answers: the endpoint (OPENAI_API_KEY, OPENAI_BASE_URL), or a transcript.",
    ),
    click.option("--record", type=PATH, help="Keep a transcript of every model call in this directory."),
)

ARTIFACTS_FLAG: Callable[[F], F] = click.option(
    "--artifacts-dir", type=PATH, help="Where runs are kept; else $ARTIFACTS_DIR, else ./artifacts."
)

CONSOLE_FLAGS: tuple[Callable[[F], F], ...] = (
    click.option("--verbose", is_flag=True, help="Say more."),
    click.option("--quiet", is_flag=True, help="Say verdicts and errors only."),
    click.option("--no-color", is_flag=True, help="No colour, whatever the terminal."),
)


def console_from(flags: Mapping[str, Any]) -> Console:
    """The console that `CONSOLE_FLAGS` ask for. Raises `click.UsageError` when they contradict."""
    if flags["verbose"] and flags["quiet"]:
        raise click.UsageError("--verbose and --quiet exclude each other")
    level = Level.QUIET if flags["quiet"] else Level.VERBOSE if flags["verbose"] else Level.NORMAL
    return Console(level, colour=False if flags["no_color"] else None)
