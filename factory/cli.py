"""The command line of the factory: `run` for one work order, `run-all` for a directory of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from factory.defaults import (
    DEFAULT_LLM_MODEL,
    DEFAULT_LLM_TEMPERATURE,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_WALL_SECONDS,
    DEFAULT_TIMEOUT_SECONDS,
    Exit,
)
from factory.settings import RunSettings
from shared.console import Console, Level
from shared.process import signals_as_flag

F = TypeVar("F", bound=Callable[..., Any])


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code. Usage errors are 64."""
    try:
        code = cli.main(args=argv, prog_name="factory", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return Exit.USAGE
    except click.ClickException as error:
        error.show()
        return Exit.FAIL
    except click.Abort:
        return 130
    return int(code or 0)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """Execute work orders: a model proposes writes, deterministic gates decide, git commits."""


def _positive(_context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not 0 < value < float("inf"):
        raise click.BadParameter("must be a positive number", param=parameter)
    return value


def _finite(_context: click.Context, parameter: click.Parameter, value: float) -> float:
    if math.isnan(value):  # it lies in every range
        raise click.BadParameter("must be a number", param=parameter)
    return value


def _llm(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value != "openai" and not value.removeprefix("replay:").strip():
        raise click.BadParameter("replay: needs a directory", param=parameter)
    if value != "openai" and not value.startswith("replay:"):
        raise click.BadParameter(f"{value!r} is neither `openai` nor `replay:DIR`", param=parameter)
    return value


def _branch(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and (not value or value.startswith("-")):
        raise click.BadParameter(f"{value!r} is no branch name", param=parameter)
    return value


_OPTIONS: list[Callable[[F], F]] = [
    click.option("--repo", required=True, type=click.Path(path_type=Path), help="The git repository."),
    click.option("--llm-model", default=DEFAULT_LLM_MODEL, show_default=True, help="Model name."),
    click.option(
        "--llm-temperature", default=DEFAULT_LLM_TEMPERATURE, show_default=True, type=click.FloatRange(0, 2),
        callback=_finite, help="Sampling temperature; left out for a model that refuses it.",
    ),
    click.option(
        "--llm", default="openai", show_default=True, callback=_llm, metavar="openai|replay:DIR",
        help="Who answers: the endpoint (OPENAI_API_KEY, OPENAI_BASE_URL), or a transcript.",
    ),
    click.option("--record", type=click.Path(path_type=Path), help="Keep a transcript of all model calls."),
    click.option(
        "--max-attempts", default=DEFAULT_MAX_ATTEMPTS, show_default=True, type=click.IntRange(1, 1000),
        help="Attempts per work order.",
    ),
    click.option(
        "--timeout-seconds", default=DEFAULT_TIMEOUT_SECONDS, show_default=True, type=float,
        callback=_positive, help="Bound of one command and of one model call.",
    ),
    click.option(
        "--max-wall", "max_wall_seconds", default=DEFAULT_MAX_WALL_SECONDS, show_default=True, type=float,
        callback=_positive, help="Bound of one order's whole run in seconds; exit code 6 when reached.",
    ),
    click.option("--branch", callback=_branch, help="Working branch; made from HEAD when it does not exist."),
    click.option("--create-branch", is_flag=True, help="The working branch must be new."),
    click.option("--reuse-branch", is_flag=True, help="The working branch must exist."),
    click.option("--commit-hash", help="Start a new working branch at this commit."),
    click.option("--no-push", is_flag=True, help="Do not push the working branch."),
    click.option("--allow-verify-exempt", is_flag=True, help="Honour verify_exempt whoever set it."),
    click.option(
        "--scratch", type=click.Choice(["auto", "worktree", "overlay"]), default="auto", show_default=True,
        help="How the scratch tree is made.",
    ),
    click.option("--share", multiple=True, metavar="PATH", help="An ignored path commands get a copy of."),
    click.option("--pass-env", multiple=True, metavar="NAME", help="A variable that commands may see."),
    click.option("--out", type=click.Path(path_type=Path), help="Copy the finished run directory here too."),
    click.option(
        "--artifacts-dir", type=click.Path(path_type=Path),
        help="Where runs are kept; else $ARTIFACTS_DIR, else ./artifacts.",
    ),
    click.option("--verbose", is_flag=True, help="Say more."),
    click.option("--quiet", is_flag=True, help="Say verdicts and errors only."),
    click.option("--no-color", is_flag=True, help="No colour, whatever the terminal."),
    click.option("--debug", is_flag=True, help="Show the traceback of a crash."),
]  # fmt: skip


def _run_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@cli.command("run")
@click.option(
    "--work-order", required=True, type=click.Path(path_type=Path), help="The work order, a JSON file."
)
@_run_options
def run_command(work_order: Path, **flags: Any) -> int:
    """Execute one work order.

    \b
    Example: factory run --repo . --work-order plan/WO-01.json
    """  # noqa: D301  click reads the backspace
    from factory.console import narrator
    from factory.ending import ending_of
    from factory.run import run_one

    settings, console = _settled(flags)
    with signals_as_flag() as interrupt:
        return ending_of(
            lambda: run_one(settings, work_order, narrator(console), interrupt), console, debug=settings.debug
        )


@cli.command("run-all")
@click.option(
    "--workdir", required=True, type=click.Path(path_type=Path), help="The directory of WO-*.json files."
)
@click.option(
    "--from", "start", metavar="WO-NN", help="Start at this order: the ones before it are on the branch."
)
@_run_options
def run_all_command(workdir: Path, start: str | None, **flags: Any) -> int:
    """Execute every work order of a directory, in order, on one branch; stop at the first failure.

    \b
    Example: factory run-all --repo . --workdir plan
    """  # noqa: D301  click reads the backspace
    from factory.ending import ending_of
    from factory.sequence import run_all

    settings, console = _settled(flags)
    with signals_as_flag() as interrupt:
        return ending_of(
            lambda: run_all(settings, workdir, console, interrupt, start), console, debug=settings.debug
        )


def _settled(flags: dict[str, Any]) -> tuple[RunSettings, Console]:
    from shared.run_context import resolve_artifacts_root

    if flags["create_branch"] and flags["reuse_branch"]:
        raise click.UsageError("--create-branch and --reuse-branch exclude each other")
    if flags["reuse_branch"] and flags["branch"] is None:
        raise click.UsageError("--reuse-branch needs --branch NAME")
    if flags["verbose"] and flags["quiet"]:
        raise click.UsageError("--verbose and --quiet exclude each other")
    level = Level.QUIET if flags["quiet"] else Level.VERBOSE if flags["verbose"] else Level.NORMAL
    console = Console(level, colour=False if flags["no_color"] else None)
    settings = RunSettings(
        repo=flags["repo"],
        artifacts_root=resolve_artifacts_root(flags["artifacts_dir"]),
        out=flags["out"],
        llm=flags["llm"],
        record=flags["record"],
        model=flags["llm_model"],
        temperature=flags["llm_temperature"],
        max_attempts=flags["max_attempts"],
        timeout_seconds=flags["timeout_seconds"],
        max_wall_seconds=flags["max_wall_seconds"],
        branch=flags["branch"],
        create_branch=flags["create_branch"],
        reuse_branch=flags["reuse_branch"],
        commit_hash=flags["commit_hash"],
        push=not flags["no_push"],
        allow_verify_exempt=flags["allow_verify_exempt"],
        scratch=flags["scratch"],
        share=flags["share"],
        pass_env=flags["pass_env"],
        environment=dict(os.environ),
        debug=flags["debug"],
    )
    return settings, console
