"""The command line of the factory: `run` for one work order, `run-all` for a directory of them."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

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
from shared.console import Console
from shared.flags import ARTIFACTS_FLAG, CONSOLE_FLAGS, LLM_FLAGS, PATH, console_from, positive, with_flags
from shared.process import signals_as_flag


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code. Usage errors are 64."""
    arguments = sys.argv[1:] if argv is None else argv
    console = Console(colour=False if "--no-color" in arguments else None)
    try:
        return int(cli.main(args=arguments, prog_name="factory", standalone_mode=False) or 0)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "factory"
        console.error(f"{error.format_message()} (`{where} --help` shows the usage)")
        return Exit.USAGE
    except click.ClickException as error:
        console.error(error.format_message())
        return Exit.FAIL


@click.group(
    no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
def cli() -> None:
    """Execute work orders: a model proposes writes, deterministic gates decide, git commits."""


def _finite(_context: click.Context, parameter: click.Parameter, value: float) -> float:
    if math.isnan(value):  # it lies in every range
        raise click.BadParameter("must be a number", param=parameter)
    return value


def _branch(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and (not value or value.startswith("-")):
        raise click.BadParameter(f"{value!r} is no branch name", param=parameter)
    return value


_run_flags = with_flags(
    click.option("--repo", required=True, type=PATH, help="The git repository."),
    click.option("--llm-model", default=DEFAULT_LLM_MODEL, show_default=True, help="Model name."),
    click.option(
        "--llm-temperature", default=DEFAULT_LLM_TEMPERATURE, show_default=True, type=click.FloatRange(0, 2),
        callback=_finite, help="Sampling temperature; left out for a model that refuses it.",
    ),
    *LLM_FLAGS,
    click.option(
        "--max-attempts", default=DEFAULT_MAX_ATTEMPTS, show_default=True, type=click.IntRange(1, 1000),
        help="Attempts per work order.",
    ),
    click.option(
        "--timeout-seconds", default=DEFAULT_TIMEOUT_SECONDS, show_default=True, type=float,
        callback=positive, help="Bound of one command and of one model call.",
    ),
    click.option(
        "--max-wall", "max_wall_seconds", default=DEFAULT_MAX_WALL_SECONDS, show_default=True, type=float,
        callback=positive, help="Bound of one order's whole run in seconds; exit code 6 when reached.",
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
    click.option("--out", type=PATH, help="Copy the finished run directory here too."),
    ARTIFACTS_FLAG,
    *CONSOLE_FLAGS,
    click.option("--debug", is_flag=True, help="Show the traceback of a crash."),
)  # fmt: skip


@cli.command("run")
@click.option("--work-order", required=True, type=PATH, help="The work order, a JSON file.")
@_run_flags
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
@click.option("--workdir", required=True, type=PATH, help="The directory of WO-*.json files.")
@click.option(
    "--from", "start", metavar="WO-NN", help="Start at this order: the ones before it are on the branch."
)
@_run_flags
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
    console = console_from(flags)
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
