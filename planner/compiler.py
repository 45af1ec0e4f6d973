"""Spec to plan: ask, read, judge, ask again; a plan is written only when every rule holds."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from planner.defaults import (
    DEFAULT_MAX_OUTPUT_TOKENS,
    DEFAULT_MODEL,
    DEFAULT_REASONING_EFFORT,
    DEFAULT_TIMEOUT_SECONDS,
    MAX_COMPILE_ATTEMPTS,
    MAX_JSON_PAYLOAD_BYTES,
    OUTPUT_DIR,
    VERIFY_SCRIPT,
    Exit,
)
from planner.io import check_overwrite, write_work_orders
from planner.plan_schema import plan_schema
from planner.prompt_template import (
    LISTING_PLACEHOLDER,
    Template,
    as_text,
    load_template,
    read_input,
    render,
    render_revision,
)
from planner.records import Records, as_json
from planner.repo_listing import list_repository
from planner.validation import ValidationError, assess, compute_verify_exempt
from shared.answers import json_object_in
from shared.events import (
    AttemptStarted,
    Bus,
    EventLog,
    ModelAnswered,
    ModelAsked,
    PlanAccepted,
    PlanRefused,
    RunEnded,
    RunStarted,
    Warned,
)
from shared.files import JsonError, loads_strict, sha256_bytes, sha256_json
from shared.llm import LLM, LLMError, Metered, Reply, Request
from shared.process import Interrupt, Interrupted
from shared.run_context import generate_ulid, get_tool_version, utc_now_iso

SUBJECT = "plan"


class Ending(Enum):
    """How a compile ended. The value is what the records say."""

    SUCCESS = "success"
    INVALID = "invalid_plan"
    NOT_JSON = "not_json"
    ENDPOINT = "endpoint_error"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Settings:
    """What is asked of the model, and how often."""

    model: str = DEFAULT_MODEL
    reasoning_effort: str = DEFAULT_REASONING_EFFORT
    max_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Bound of one answer, all retries and waiting included."""
    max_attempts: int = MAX_COMPILE_ATTEMPTS
    llm: str = "openai"
    """Who answers, for the records: `openai` or `replay:DIR`."""
    llm_origin: str = "live"
    """Where the answers come from: `live`, or what a transcript says of itself."""
    llm_endpoint: str | None = None
    """The address that is asked, without secrets; None when nobody is."""


@dataclass(frozen=True)
class PlanInputs:
    """What a plan is made from, read once. `repo_files` is None when no repository was named."""

    spec_path: Path
    spec: bytes
    template: Template
    repo: Path | None = None
    repo_files: frozenset[str] | None = None

    @property
    def prompt(self) -> str:
        """The first prompt."""
        return render(self.template, spec=as_text(self.spec, "the spec"), repo_files=self.repo_files)

    @property
    def known_files(self) -> set[str]:
        """The files that exist before the first order."""
        return set(self.repo_files or ())


@dataclass(frozen=True)
class CompileResult:
    """How a compile ended, after its records are on disk."""

    ending: Ending
    exit_code: int
    attempts: int
    """How many answers were asked for."""
    run_id: str
    run_dir: Path
    compile_hash: str
    problem: str | None = None
    """Why there is no plan, or why it could not be exported; None when all is well."""
    work_orders: tuple[dict[str, Any], ...] = ()
    errors: tuple[ValidationError, ...] = ()
    warnings: tuple[ValidationError, ...] = ()
    skipped: tuple[str, ...] = ()
    """Ids, as the model gave them, of the orders that the repository made needless."""
    manifest_sha256: str | None = None
    output_dir: Path | None = None
    exported_to: Path | None = None

    @property
    def success(self) -> bool:
        """Whether there is a plan."""
        return self.ending is Ending.SUCCESS


def read_inputs(
    spec: Path,
    *,
    template: Path | None = None,
    repo: Path | None = None,
    on_wait: Callable[[], None] | None = None,
) -> PlanInputs:
    """Read and check everything a plan is made from.

    Raises `PromptInputError` for a spec or template that cannot be used, `RepositoryError` for a
    repository that cannot be listed.
    """
    data = read_input(spec, "--spec")
    as_text(data, f"--spec {spec}")
    loaded = load_template(template)
    return PlanInputs(spec, data, loaded, repo, None if repo is None else list_repository(repo, on_wait))


def compile_hash(spec: bytes, template: bytes, model: str, reasoning_effort: str) -> str:
    """16 hex digits that are equal for equal inputs. Each part is preceded by its length."""
    parts = (spec, template, model.encode(), reasoning_effort.encode())
    return sha256_bytes(b"".join(len(part).to_bytes(8, "big") + part for part in parts))[:16]


def compile_plan(
    *,
    inputs: PlanInputs,
    llm: LLM,
    artifacts_root: Path,
    settings: Settings | None = None,
    outdir: Path | None = None,
    overwrite: bool = False,
    emit: Bus | None = None,
    interrupt: Interrupt | None = None,
) -> CompileResult:
    """Ask for a plan until one holds, at most `settings.max_attempts` times, and write it.

    Before anything is sent the run has its directory and its `run.json`; every ending completes
    them, a signal and a crash included (a crash is raised again). Work orders appear on disk only when
    the plan has no errors: whole in the run's `output/`, and as a copy in `outdir`. Raises
    `OverwriteRefused` before anything has happened, `OSError` when the records cannot be written.
    """
    if outdir is not None:
        check_overwrite(outdir, overwrite)
    run = _begin(
        inputs=inputs,
        settings=settings or Settings(),
        llm=Metered(llm),
        artifacts_root=artifacts_root,
        export=_Export(outdir, overwrite),
        emit=emit or Bus(),
        interrupt=interrupt or Interrupt(),
    )
    try:
        try:
            return _finish(run, _pursue(run))
        except BaseException as error:
            _record_crash(run, error)
            raise
    finally:
        run.emit.remove(run.log)
        run.log.close()


# --- a run -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Export:
    outdir: Path | None
    overwrite: bool


@dataclass(frozen=True)
class _Run:
    """What does not change in a run."""

    run_id: str
    inputs: PlanInputs
    settings: Settings
    llm: Metered
    export: _Export
    emit: Bus
    interrupt: Interrupt
    records: Records
    log: EventLog
    hash: str
    started_at: str
    started: float


def _begin(
    *,
    inputs: PlanInputs,
    settings: Settings,
    llm: Metered,
    artifacts_root: Path,
    export: _Export,
    emit: Bus,
    interrupt: Interrupt,
) -> _Run:
    run_id = generate_ulid()
    started_at, started = utc_now_iso(), time.monotonic()
    fingerprint = compile_hash(inputs.spec, inputs.template.data, settings.model, settings.reasoning_effort)
    run_json = {
        "tool": "planner",
        "run_id": run_id,
        "status": "running",
        "started_at": started_at,
        "finished_at": None,
        "exit_code": None,
        "config": _config(inputs, settings, export),
        "input_hashes": {
            "spec_sha256": sha256_bytes(inputs.spec),
            "template_sha256": sha256_bytes(inputs.template.data),
            "repo_files_sha256": None if inputs.repo_files is None else _listing_hash(inputs.repo_files),
        },
        "tool_version": get_tool_version(),
        "provenance": {"planner_run_id": run_id, "compile_hash": fingerprint, "manifest_sha256": None},
        "llm": {
            "source": settings.llm,
            "origin": settings.llm_origin,
            "endpoint": settings.llm_endpoint,
        },
    }
    records = Records.begin(artifacts_root, run_id, run_json)
    log = EventLog(records.run_dir)
    emit.add(log)
    shown = {
        "spec": str(inputs.spec_path),
        "repository": str(inputs.repo) if inputs.repo else "(none: planned for an empty one)",
        "model": _model_shown(settings),
        "run": str(records.run_dir),
    }
    emit(RunStarted("planner", run_id, SUBJECT, str(records.run_dir), shown))
    return _Run(
        run_id,
        inputs,
        settings,
        llm,
        export,
        emit,
        interrupt,
        records,
        log,
        fingerprint,
        started_at,
        started,
    )


def _config(inputs: PlanInputs, settings: Settings, export: _Export) -> dict[str, Any]:
    return {
        "spec": str(inputs.spec_path),
        "template": inputs.template.source,
        "repo": None if inputs.repo is None else str(inputs.repo),
        "outdir": None if export.outdir is None else str(export.outdir),
        "overwrite": export.overwrite,
        "model": settings.model,
        "reasoning_effort": settings.reasoning_effort,
        "max_output_tokens": settings.max_output_tokens,
        "timeout_seconds": settings.timeout_seconds,
        "max_compile_attempts": settings.max_attempts,
    }


def _model_shown(settings: Settings) -> str:
    if settings.llm_endpoint is None and settings.llm != "openai":
        return f"none is asked; answers from {settings.llm} (origin: {settings.llm_origin})"
    return f"{settings.model}, effort {settings.reasoning_effort}"


def _listing_hash(files: frozenset[str]) -> str:
    return sha256_bytes("\0".join(sorted(files)).encode("utf-8", "surrogateescape"))


# --- attempts ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Attempt:
    """One answer and what became of it. Without a `manifest` it was not JSON."""

    number: int
    text: str
    seconds: float
    findings: tuple[ValidationError, ...]
    parse_error: str | None = None
    work_orders: tuple[dict[str, Any], ...] = ()
    verify_contract: Any = None
    skipped: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[ValidationError, ...]:
        return tuple(finding for finding in self.findings if not finding.code.startswith("W"))

    @property
    def warnings(self) -> tuple[ValidationError, ...]:
        return tuple(finding for finding in self.findings if finding.code.startswith("W"))


@dataclass(frozen=True)
class _Pursuit:
    """The attempts of a run so far, and what ended it if not a verdict on the last of them."""

    asked: int = 0
    history: tuple[_Attempt, ...] = ()
    stopped_by: LLMError | Interrupted | None = None

    @property
    def last(self) -> _Attempt | None:
        return self.history[-1] if self.history else None


def _pursue(run: _Run) -> _Pursuit:
    """Ask until a plan has no errors, the attempts are used up, or there is no answer to be had."""
    pursuit = _Pursuit()
    first_prompt = run.inputs.prompt
    if run.inputs.repo_files and not run.inputs.template.has(LISTING_PLACEHOLDER):
        run.emit(
            Warned(
                f"{run.inputs.template.source} has no {{{{{LISTING_PLACEHOLDER}}}}}: "
                "the model does not see the files of the repository"
            )
        )
    try:
        for number in range(1, run.settings.max_attempts + 1):
            run.interrupt.check()
            pursuit = replace(pursuit, asked=number)
            run.emit(AttemptStarted(SUBJECT, number, run.settings.max_attempts))
            last = pursuit.last
            prompt = first_prompt if last is None else _revision_of(first_prompt, last)
            attempt = _judge(run, number, _ask(run, number, prompt))
            pursuit = replace(pursuit, history=(*pursuit.history, attempt))
            if not attempt.errors:
                break
            run.emit(PlanRefused(number, [str(finding) for finding in attempt.errors]))
    except (LLMError, Interrupted) as stop:
        return replace(pursuit, stopped_by=stop)
    return pursuit


def _ask(run: _Run, number: int, prompt: str) -> Reply:
    """The answer. The request is on disk before it is sent, the answer before it is read."""
    request = Request("plan" if number == 1 else "revise", prompt, SUBJECT, number, schema=plan_schema())
    run.records.asked(number, prompt)
    run.emit(ModelAsked(request.role, SUBJECT, number, len(prompt.encode())))
    try:
        reply = run.llm(request)
    except LLMError as error:
        run.records.not_answered(number, error)
        raise
    run.records.answered(number, reply)
    usage = None if reply.usage is None else reply.usage.as_json()
    run.emit(ModelAnswered(request.role, SUBJECT, number, reply.seconds, usage))
    return reply


def _judge(run: _Run, number: int, reply: Reply) -> _Attempt:
    """What the rules say of an answer; all findings at once, on disk."""
    try:
        manifest = _read(reply.text)
    except JsonError as error:
        finding = ValidationError("E000", None, f"the answer cannot be read: {error}")
        run.records.judged(number, [finding])
        return _Attempt(number, reply.text, reply.seconds, (finding,), parse_error=str(error))
    run.records.parsed(number, manifest)
    assessment = assess(manifest, run.inputs.known_files, skip_done=True)
    run.records.judged(number, assessment.findings)
    return _Attempt(
        number,
        reply.text,
        reply.seconds,
        tuple(assessment.findings),
        work_orders=tuple(assessment.work_orders),
        verify_contract=manifest.get("verify_contract") if isinstance(manifest, dict) else None,
        skipped=tuple(str(order.get("id")) for order in assessment.skipped),
    )


def _read(text: str) -> object:
    try:
        return json_object_in(text, max_bytes=MAX_JSON_PAYLOAD_BYTES)
    except JsonError:
        # JSON that is no object is a plan of the wrong shape, and E000 says so better than a parser.
        if text.lstrip()[:1] == "[" and len(text) <= MAX_JSON_PAYLOAD_BYTES:
            return loads_strict(text.strip())
        raise


# --- asking again ------------------------------------------------------------------------


def _revision_of(first_prompt: str, last: _Attempt) -> str:
    findings = [str(finding) for finding in last.errors]
    return render_revision(first_prompt, previous=last.text, findings=findings, remark=_remark(last))


def _remark(attempt: _Attempt) -> str:
    """What a model must know about a plan from which an order was dropped."""
    if not attempt.skipped:
        return ""
    gone = ", ".join(attempt.skipped)
    return (
        f"{VERIFY_SCRIPT} exists in the repository already, so {gone} was set aside. Leave it\n"
        "out of the new plan and number the others anew; the findings above name orders as you did."
    )


# --- the end -----------------------------------------------------------------------------


def _finish(run: _Run, pursuit: _Pursuit) -> CompileResult:
    """Write the plan where there is one, then complete the records, then say so."""
    last = pursuit.last
    result = CompileResult(
        ending=_ending_of(pursuit),
        exit_code=_exit_code_of(pursuit),
        attempts=pursuit.asked,
        run_id=run.run_id,
        run_dir=run.records.run_dir,
        compile_hash=run.hash,
        problem=_problem_of(pursuit, run.settings.max_attempts),
        errors=last.errors if last else (),
        warnings=last.warnings if last else (),
        skipped=last.skipped if last else (),
    )
    if result.success:
        assert last is not None
        result = _published(run, last, result)
    _complete_records(run, pursuit, result)
    run.emit(
        RunEnded(result.ending.value, result.exit_code, time.monotonic() - run.started, _summary_of(result))
    )
    return result


def _ending_of(pursuit: _Pursuit) -> Ending:
    if isinstance(pursuit.stopped_by, LLMError):
        return Ending.ENDPOINT
    if isinstance(pursuit.stopped_by, Interrupted):
        return Ending.INTERRUPTED
    last = pursuit.last
    if last is not None and last.errors:
        # The last attempt decides what kind of failure it was.
        return Ending.INVALID if last.parse_error is None else Ending.NOT_JSON
    return Ending.SUCCESS


_EXIT_CODES = {
    Ending.SUCCESS: Exit.OK,
    Ending.INVALID: Exit.INVALID_PLAN,
    Ending.NOT_JSON: Exit.NOT_JSON,
    Ending.ENDPOINT: Exit.ENDPOINT,
}


def _exit_code_of(pursuit: _Pursuit) -> int:
    if isinstance(pursuit.stopped_by, Interrupted):
        return pursuit.stopped_by.exit_code
    return int(_EXIT_CODES[_ending_of(pursuit)])


def _problem_of(pursuit: _Pursuit, max_attempts: int) -> str | None:
    if pursuit.stopped_by is not None:
        return str(pursuit.stopped_by)
    last = pursuit.last
    if last is None or not last.errors:
        return None
    tried = "after 1 attempt" if max_attempts == 1 else f"after {max_attempts} attempts"
    if last.parse_error is not None:
        return f"the model's answer is still not JSON {tried}: {last.parse_error}"
    count = "1 error" if len(last.errors) == 1 else f"{len(last.errors)} errors"
    return f"the plan still has {count} {tried}; the first: {last.errors[0]}"


def _published(run: _Run, attempt: _Attempt, result: CompileResult) -> CompileResult:
    """Write the plan: whole or not at all into the run's directory, then a copy where one is wanted."""
    orders, manifest = _stamped(run, attempt)
    output = run.records.run_dir / OUTPUT_DIR
    partial = output.with_name(f".{OUTPUT_DIR}")
    write_work_orders(partial, orders, manifest)
    os.rename(partial, output)
    result = replace(
        result,
        work_orders=tuple(orders),
        manifest_sha256=manifest["manifest_sha256"],
        output_dir=output,
    )
    if run.export.outdir is not None:
        try:
            # Somebody else may have put a plan there while the model was thinking.
            check_overwrite(run.export.outdir, run.export.overwrite)
            write_work_orders(run.export.outdir, orders, manifest)
        except OSError as error:
            problem = f"the plan is in {output}, but could not be copied: {error}"
            return replace(result, problem=problem, exit_code=int(Exit.ERROR))
        result = replace(result, exported_to=run.export.outdir)
    if result.skipped:
        gone = ", ".join(result.skipped)
        run.emit(
            Warned(f"{gone} was left out and the rest renumbered: the repository has {VERIFY_SCRIPT} already")
        )
    for warning in result.warnings:
        run.emit(Warned(str(warning)))
    ids = [str(order["id"]) for order in orders]
    run.emit(PlanAccepted(attempt.number, ids, str(result.exported_to or output)))
    return result


def _stamped(run: _Run, attempt: _Attempt) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The orders as they are written, and the manifest: exemptions and provenance are ours alone."""
    plain = [{k: v for k, v in order.items() if k != "provenance"} for order in attempt.work_orders]
    orders = compute_verify_exempt(plain, attempt.verify_contract, run.inputs.known_files)
    # Before provenance goes in, else it would have to contain itself; so equal plans have equal hashes.
    fingerprint = sha256_json({"verify_contract": attempt.verify_contract, "work_orders": orders})
    origin = {"planner_run_id": run.run_id, "compile_hash": run.hash, "manifest_sha256": fingerprint}
    stamped = [
        {**order, "provenance": {**origin, "bootstrap": bool(order["verify_exempt"])}} for order in orders
    ]
    return stamped, {**origin, "verify_contract": attempt.verify_contract, "work_orders": stamped}


def _complete_records(run: _Run, pursuit: _Pursuit, result: CompileResult) -> None:
    finished_at, seconds = utc_now_iso(), round(time.monotonic() - run.started, 6)
    usage = run.llm.as_json()
    if not result.success:
        run.records.refused(result.errors)
    run.records.summed_up(
        {
            "success": result.success,
            "status": result.ending.value,
            "exit_code": result.exit_code,
            "problem": result.problem,
            "run_id": run.run_id,
            "compile_hash": run.hash,
            "manifest_sha256": result.manifest_sha256,
            "attempts": result.attempts,
            "max_attempts": run.settings.max_attempts,
            "errors": as_json(result.errors),
            "warnings": as_json(result.warnings),
            "skipped_bootstrap": list(result.skipped),
            "work_orders": [order["id"] for order in result.work_orders],
            "timing": {
                "started_at": run.started_at,
                "finished_at": finished_at,
                "seconds": seconds,
                "model_seconds": [attempt.seconds for attempt in pursuit.history],
            },
            "usage": usage,
        }
    )
    run.records.ended(
        status=result.ending.value,
        success=result.success,
        exit_code=result.exit_code,
        finished_at=finished_at,
        seconds=seconds,
        attempts=result.attempts,
        error=result.problem,
        error_codes=sorted({finding.code for finding in result.errors}),
        work_orders=[order["id"] for order in result.work_orders],
        output_dir=None if result.output_dir is None else str(result.output_dir),
        exported_to=None if result.exported_to is None else str(result.exported_to),
        usage=usage,
        provenance={
            "planner_run_id": run.run_id,
            "compile_hash": run.hash,
            "manifest_sha256": result.manifest_sha256,
        },
    )


def _record_crash(run: _Run, error: BaseException) -> None:
    """What nobody foresaw is on record too, as far as the disk allows."""
    with suppress(OSError, JsonError):
        run.records.ended(
            status="crashed",
            success=False,
            exit_code=int(Exit.ERROR),
            finished_at=utc_now_iso(),
            error=f"{type(error).__name__}: {error}",
            traceback="".join(traceback.format_exception(error)),
        )


def _summary_of(result: CompileResult) -> str:
    if result.problem is not None:
        return result.problem
    count = "1 work order" if len(result.work_orders) == 1 else f"{len(result.work_orders)} work orders"
    return f"{count} in {result.exported_to or result.output_dir}"
