"""The command line of the planner: `compile`, `validate`, `explain`, `schema`."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from planner.defaults import (
    COMPILE_DIR,
    CONNECT_TIMEOUT_SECONDS,
    DEFAULT_MAX_OUTPUT_TOKENS,
    DEFAULT_MODEL,
    DEFAULT_REASONING_EFFORT,
    DEFAULT_TIMEOUT_SECONDS,
    READ_TIMEOUT_SECONDS,
    VALIDATION_ERRORS_FILE,
    Exit,
)
from shared.console import Console
from shared.flags import (
    ARTIFACTS_FLAG,
    CONSOLE_FLAGS,
    LLM_FLAGS,
    PATH,
    console_from,
    positive,
    with_flags,
)
from shared.llm import REPLAY

if TYPE_CHECKING:  # what a start with --help must not pay for
    from planner.compiler import CompileResult, Settings
    from shared.events import Bus
    from shared.llm import LLM
    from shared.process import Interrupt


class Refused(Exception):
    """The command cannot be carried out as it was given. The text says what to do next."""

    exit_code = Exit.ERROR


class NoModel(Refused):
    """There is nobody to ask."""

    exit_code = Exit.ENDPOINT


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code. Usage errors are 64."""
    arguments = sys.argv[1:] if argv is None else argv
    console = Console(colour=False if "--no-color" in arguments else None)
    try:
        return int(cli.main(args=arguments, prog_name="planner", standalone_mode=False) or 0)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "planner"
        console.error(f"{error.format_message()} (`{where} --help` shows the usage)")
        return Exit.USAGE
    except click.ClickException as error:
        console.error(error.format_message())
        return Exit.ERROR
    except Refused as refusal:
        console.error(str(refusal))
        return refusal.exit_code
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        console.error(f"{name}{error.strerror or error}; check the path and the room on its disk")
        return Exit.ERROR


def last_words(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say in one line what nobody foresaw; a `sys.excepthook`, after which Python ends with exit code 1."""
    if "--debug" in sys.argv:
        traceback.print_exception(kind, error, trace)
    Console().error(f"this is a bug in the planner: {kind.__name__}: {error} (--debug shows where)")


@click.group(
    no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
def cli() -> None:
    """Turn a product spec into a plan of work orders that holds together."""


# --- compile -----------------------------------------------------------------------------


def _said(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise click.BadParameter("must not be empty", param=parameter)
    return value


# Only `last_words` asks for it, when there is nothing left but the command line.
_DEBUG = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of a crash.")


@cli.command("compile")
@click.option("--spec", required=True, type=PATH, help="The product spec, a UTF-8 text file.")
@click.option("--outdir", type=PATH, help="Copy the work orders here, besides the artifact root.")
@click.option("--template", type=PATH, help="A prompt to use in place of the shipped one.")
@with_flags(ARTIFACTS_FLAG)
@click.option("--repo", type=PATH, help="The repository to plan for: its files are what exists before WO-01.")
@click.option("--overwrite", is_flag=True, help="Replace the plan that --outdir holds.")
@click.option("--print-summary", is_flag=True, help="Print ids and titles of the work orders.")
@with_flags(*LLM_FLAGS)
@click.option("--model", default=DEFAULT_MODEL, show_default=True, callback=_said, help="Model name.")
@click.option(
    "--reasoning-effort",
    default=DEFAULT_REASONING_EFFORT,
    show_default=True,
    callback=_said,
    help="How hard the model is to think.",
)
@click.option(
    "--max-output-tokens",
    default=DEFAULT_MAX_OUTPUT_TOKENS,
    show_default=True,
    type=click.IntRange(1, 10**9),
    help="Budget of an answer; one that was cut off is asked for once more with twice of it.",
)
@click.option(
    "--timeout-seconds",
    default=DEFAULT_TIMEOUT_SECONDS,
    show_default=True,
    type=float,
    callback=positive,
    help="Bound of one answer, retries and waiting included.",
)
@with_flags(*CONSOLE_FLAGS)
@_DEBUG
def compile_command(**flags: Any) -> int:
    """Turn a spec into work orders; on stdout, where they are.

    \b
    Example: planner compile --spec SPEC.md --repo . --outdir ../orders --print-summary

    \b
    Exit codes: 0 a plan was written, 1 refused, 2 no valid plan, 3 no model, 4 no JSON, 64 usage.
    """  # noqa: D301  click reads the backspace
    from shared.process import Interrupted, signals_as_flag

    console = console_from(flags)
    with signals_as_flag() as interrupt:
        try:
            result = _compile(flags, console, interrupt)
        except Interrupted as interruption:
            console.error(f"{interruption}; nothing was written")
            return interruption.exit_code
    _tell_ending(result, flags, console)
    return result.exit_code


def _compile(flags: dict[str, Any], console: Console, interrupt: Interrupt) -> CompileResult:
    """Check everything that costs nothing, then ask."""
    from planner.compiler import Settings, compile_plan, read_inputs
    from planner.console import narrator
    from planner.io import OverwriteRefused, check_overwrite, check_writable
    from planner.prompt_template import PromptInputError
    from planner.repo_listing import RepositoryError, would_be_untracked
    from shared.events import Bus
    from shared.run_context import resolve_artifacts_root

    root = resolve_artifacts_root(flags["artifacts_dir"])
    repo, outdir = flags["repo"], flags["outdir"]
    try:
        inputs = read_inputs(flags["spec"], template=flags["template"], repo=repo, on_wait=interrupt.check)
        if outdir is not None:
            check_overwrite(outdir, flags["overwrite"])
        check_writable(root, "--artifacts-dir")
        for name, path in (("--artifacts-dir", root), ("--outdir", outdir)):
            if path is not None and repo is not None and would_be_untracked(repo, path):
                console.warning(
                    f"{name} {path} lies inside the repository and git does not ignore it: "
                    "the factory will refuse to work in a tree that is not clean"
                )
    except (PromptInputError, RepositoryError, OverwriteRefused) as error:
        raise Refused(str(error)) from None
    bus = Bus(narrator(console))
    settings = Settings(
        model=flags["model"],
        reasoning_effort=flags["reasoning_effort"],
        max_output_tokens=flags["max_output_tokens"],
        timeout_seconds=flags["timeout_seconds"],
        llm=flags["llm"],
    )
    llm, settings = _open_model(settings, bus, interrupt, flags["record"])
    return compile_plan(
        inputs=inputs,
        llm=llm,
        artifacts_root=root,
        settings=settings,
        outdir=outdir,
        overwrite=flags["overwrite"],
        emit=bus,
        interrupt=interrupt,
    )


def _open_model(
    settings: Settings, bus: Bus, interrupt: Interrupt, record: Path | None
) -> tuple[LLM, Settings]:
    """Who answers, and the settings with where the answers come from. Raises `Refused`."""
    from dataclasses import replace

    from shared.llm import LLMError, Recorded, Replayed

    model: LLM
    try:
        if settings.llm.startswith(REPLAY):
            model = replayed = Replayed(Path(settings.llm.removeprefix(REPLAY)))
            settings = replace(settings, llm_origin=replayed.origin)
        else:
            model, address = _open_endpoint(settings, bus, interrupt)
            settings = replace(settings, llm_endpoint=address)
        if record is not None:
            model = Recorded(model, record)
    except LLMError as error:
        raise NoModel(str(error)) from None
    except OSError as error:
        raise Refused(
            f"--record {record} cannot be written ({error.strerror}); name another directory"
        ) from None
    return model, settings


def _open_endpoint(settings: Settings, bus: Bus, interrupt: Interrupt) -> tuple[LLM, str]:
    from planner.openai_client import ResponsesLLM, ResponsesSettings
    from shared.events import ModelThinking, ModelWaiting
    from shared.openai_api import Endpoint

    endpoint = Endpoint.from_environment(
        os.environ, connect_timeout=CONNECT_TIMEOUT_SECONDS, read_timeout=READ_TIMEOUT_SECONDS
    )
    model = ResponsesLLM(
        ResponsesSettings(
            endpoint,
            model=settings.model,
            effort=settings.reasoning_effort,
            max_output_tokens=settings.max_output_tokens,
            timeout_seconds=settings.timeout_seconds,
        ),
        on_thinking=lambda text: bus(ModelThinking(text)),
        on_wait=lambda reason, seconds, number, of: bus(ModelWaiting(reason, seconds, number, of)),
        poll=interrupt.check,
    )
    return model, endpoint.address


def _tell_ending(result: CompileResult, flags: dict[str, Any], console: Console) -> None:
    if not result.success:
        console.error(result.problem or result.ending.value)
        if result.errors:
            codes = sorted({finding.code for finding in result.errors})
            console.info(f"findings: {result.run_dir / COMPILE_DIR / VALIDATION_ERRORS_FILE}")
            console.info(f"what they mean: llmch explain {codes[0]}")
        else:
            console.info(f"records: {result.run_dir}")
        return
    if result.problem is not None:
        console.error(result.problem)
    if flags["print_summary"]:
        width = max((len(order["id"]) for order in result.work_orders), default=0)
        for order in result.work_orders:
            console.result(f"{order['id']:<{width}}  {order['title']}")
    place = result.exported_to or result.output_dir
    console.result(str(place))
    if result.work_orders:
        console.info(f"next: llmch run-all --repo {flags['repo'] or 'REPOSITORY'} --workdir {place}")
    else:
        console.info("nothing is left to do: the repository has what the plan would have made")


# --- validate ----------------------------------------------------------------------------


@cli.command("validate")
@click.argument("directory", type=PATH)
@click.option("--repo", type=PATH, help="The repository that the plan is for; without it, an empty one.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@_DEBUG
def validate_command(directory: Path, repo: Path | None, as_json: bool) -> int:
    """Judge the WO-*.json of DIRECTORY by the rules of a plan; no model, no key.

    \b
    Exit codes: 0 no errors (warnings do not count), 1 errors or nothing readable, 64 usage.
    """  # noqa: D301  click reads the backspace
    from planner.plan_directory import NoPlan, judge_directory
    from planner.repo_listing import RepositoryError, list_repository

    console = Console()
    try:
        files = list_repository(repo) if repo is not None else frozenset[str]()
        judgement = judge_directory(directory, files)
    except (NoPlan, RepositoryError) as error:
        raise Refused(str(error)) from None
    findings = [*judgement.errors, *judgement.warnings]
    if as_json:
        from dataclasses import asdict

        record = {
            "work_orders": list(judgement.names),
            "errors": [asdict(finding) for finding in judgement.errors],
            "warnings": [asdict(finding) for finding in judgement.warnings],
        }
        console.result(json.dumps(record, indent=2))
    else:
        for finding in findings:
            place = " ".join(part for part in (finding.wo_id, finding.field) if part) or "plan"
            console.result(f"{finding.code} {place}: {finding.message}".replace("\n", " "))
    counts = len(judgement.names), len(judgement.errors), len(judgement.warnings)
    console.info("{} work orders, {} errors, {} warnings".format(*counts))
    return Exit.ERROR if judgement.errors else Exit.OK


# --- explain, schema ---------------------------------------------------------------------


@cli.command("explain")
@click.argument("code", required=False)
@_DEBUG
def explain_command(code: str | None) -> int:
    """Say what a finding means: CODE is E103, say. Without CODE, all of them in a line each."""
    from planner.validation import RULES, UnknownCode, explain

    console = Console()
    if code is None:
        for rule in RULES.values():
            console.result(f"{rule.code}  {rule.title}")
        return Exit.OK
    try:
        console.result(explain(code).rstrip("\n"))
    except UnknownCode as error:
        raise click.UsageError(str(error)) from None
    return Exit.OK


@cli.command("schema")
@_DEBUG
def schema_command() -> int:
    """Print the JSON Schema of a work order."""
    from shared.work_order import work_order_json_schema

    Console().result(json.dumps(work_order_json_schema(), indent=2))
    return Exit.OK
