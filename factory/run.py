"""One work order, from its file to a commit: the order of effects, and the only wiring."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from factory.bench import Bench, Limits, WallLimitReached
from factory.defaults import (
    ADHOC_BRANCH_PART,
    GIT_BRANCH_PREFIX,
    PUSH_TIMEOUT_SECONDS,
    PYTEST_ADDOPTS,
    VERIFY_SCRIPT,
    Exit,
)
from factory.git import GitError, shown
from factory.ledger import Recovery
from factory.records import OrderFile, Result, Run, begin, complete_dead_run, finish
from factory.scratch import scratch_tree
from factory.settings import RunSettings
from factory.workspace import BranchPlan, Origin, Published, Refused, Repository, Step
from shared.console import printable
from shared.events import (
    Bus,
    Committed,
    EventLog,
    Listener,
    ModelWaiting,
    Pushed,
    Recovered,
    RunStarted,
    Waiting,
    Warned,
)
from shared.files import read_regular
from shared.llm import LLM, REPLAY, LLMError, Metered, Recorded, Replayed
from shared.process import Interrupt, Interrupted, allowed_environment, local_runner, run_captured
from shared.run_context import generate_ulid
from shared.work_order import MAX_WORK_ORDER_BYTES, WorkOrder, WorkOrderError, load_work_order

if TYPE_CHECKING:
    from factory.graph import Walked  # the graph loads langgraph, which a refusal does not need

_PLANNER_RUN_ID = re.compile(r"[0-9A-Za-z]{1,64}")

_PROBE_SECONDS = 30.0

At = Callable[[Step], None]


@dataclass(frozen=True)
class _Job:
    """Everything that carrying out one order needs."""

    run: Run
    repository: Repository
    plan: BranchPlan
    remote: str | None
    model: LLM
    limits: Limits
    emit: Listener
    interrupt: Interrupt
    at: At


def preload() -> None:
    """Import what a run will need, so that a process forked from this one has it already."""
    import factory.graph
    import factory.llm  # noqa: F401  loading it is the point
    from shared.openai_api import load_sdk

    load_sdk()


def run_one(
    settings: RunSettings,
    work_order: Path,
    listener: Listener,
    interrupt: Interrupt,
    *,
    llm: LLM | None = None,
    at: At = lambda _step: None,
) -> int:
    """Execute one work order and return the exit code (`factory.defaults.Exit`, or 128 + a signal).

    Raises `Refused` before anything has happened: no request, no run directory, no change. After
    that every ending, a crash and a signal included, leaves `run_summary.json` and `run.json` behind
    and the repository either as it was or at the commit that passed. `llm` stands in for the model
    that the settings name; `at` is told each step of a publication (tests kill the process there).
    """
    limits = Limits(
        settings.max_attempts, settings.timeout_seconds, time.monotonic() + settings.max_wall_seconds
    )

    def poll() -> None:
        interrupt.check()
        limits.seconds()

    source = _read(work_order)
    warning = check_verify_exempt_policy(source.order, allowed=settings.allow_verify_exempt)
    bus = Bus(listener)
    repository = Repository.open(settings.repo, settings.environment)
    places = {
        "--artifacts-dir": settings.artifacts_root,
        "--out": settings.out,
        "--record": settings.record,
    }
    for flag, path in places.items():
        if path is not None:
            repository.refuse_inside(path, flag)
    if settings.out is not None:
        _refuse_unusable(settings.out)
    if llm is None:
        llm, origin = _open_llm(settings, bus, poll)
        settings = replace(settings, llm_origin=origin)
    model = Metered(llm)
    with repository.lock(on_wait=lambda text: bus(Waiting(text)), poll=poll), ExitStack() as stack:
        recovery = _recover(repository, bus)
        if recovery is not None and recovery.finished and recovery.order_sha256 == source.sha256:
            run = _start(settings, source, None, bus, stack)
            result = _already_done(recovery)
        else:
            plan = _plan(repository, settings, source.order)
            remote = repository.first_remote() if settings.push else None
            run = _start(settings, source, plan, bus, stack)
            if warning is not None:
                bus(Warned(warning))
            job = _Job(run, repository, plan, remote, model, limits, bus, interrupt, at)
            result = _guard(run, lambda: _carry_out(job))
        usage = model.as_json()
        finish(run, result, usage, bus)
        # Only now may the ledger forget: a run that dies before this is completed by the next one.
        repository.settle(at)
    return result.exit_code


# --- before anything happens -------------------------------------------------------------


def _read(path: Path) -> OrderFile:
    try:
        order = load_work_order(path)
        return OrderFile(path, read_regular(path, max_bytes=MAX_WORK_ORDER_BYTES), order)
    except WorkOrderError as error:
        raise Refused(str(error)) from None
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}; --work-order names a WO-NN.json file") from None


def _refuse_unusable(out: Path) -> None:
    """Find out before the run what its copy would only find out after it."""
    place = next(place for place in (out.absolute(), *out.absolute().parents) if os.path.lexists(place))
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise Refused(f"--out {out}: {place} is not a directory that can be written to")


def check_verify_exempt_policy(order: WorkOrder, *, allowed: bool) -> str | None:
    """Whether an exemption from verification is honoured; a warning where it is on trust.

    Raises `Refused` for an exemption that neither the flag nor the planner's provenance covers.
    """
    if not order.verify_exempt or allowed:
        return None
    origin = order.provenance
    if origin is not None and origin.bootstrap and origin.planner_run_id:
        return (
            f"{order.id} is exempt from the full verification: planner run {origin.planner_run_id} marked it"
        )
    raise Refused(
        f"{order.id} says verify_exempt, and no planner run vouches for it: "
        "pass --allow-verify-exempt if you mean it, or remove the field"
    )


def branch_name(order: WorkOrder, ulid: str) -> str:
    """The working branch when none is named: after the plan the order comes from, else ad hoc."""
    origin = order.provenance.planner_run_id if order.provenance else None
    part = origin if origin and _PLANNER_RUN_ID.fullmatch(origin) else ADHOC_BRANCH_PART
    return f"{GIT_BRANCH_PREFIX}{part}/{ulid}"


def _open_llm(settings: RunSettings, emit: Listener, poll: Callable[[], None]) -> tuple[LLM, str]:
    """The model that the settings name, and where its answers come from. Raises `Refused`."""
    try:
        model: LLM
        if settings.llm == "openai":
            model, origin = _open_endpoint(settings, emit, poll), "live"
        else:
            model = replayed = Replayed(Path(settings.llm.removeprefix(REPLAY)))
            origin = replayed.origin
        return (model if settings.record is None else Recorded(model, settings.record)), origin
    except (LLMError, OSError) as error:
        raise Refused(str(error)) from None


def _open_endpoint(settings: RunSettings, emit: Listener, poll: Callable[[], None]) -> LLM:
    from factory.llm import ChatLLM, ChatSettings
    from shared.openai_api import Endpoint

    def on_wait(reason: str, seconds: float, next_try: int, of: int) -> None:
        emit(ModelWaiting(reason, seconds, next_try, of))

    endpoint = Endpoint.from_environment(settings.environment)
    chosen = ChatSettings(endpoint, settings.model, settings.temperature, settings.timeout_seconds)
    return ChatLLM(chosen, on_wait=on_wait, poll=poll)


def _plan(repository: Repository, settings: RunSettings, order: WorkOrder) -> BranchPlan:
    """Look at the repository and decide where the commit would go. Raises `Refused`."""
    repository.look()
    plan = repository.plan_branch(
        settings.branch,
        branch_name(order, generate_ulid()),
        create=settings.create_branch,
        reuse=settings.reuse_branch,
        commit_hash=settings.commit_hash,
    )
    repository.refuse_blocked(order.allowed_files, plan)
    return plan


def _recover(repository: Repository, emit: Listener) -> Recovery | None:
    """Finish or undo what dead runs left, and complete their records."""

    def complete(recovery: Recovery) -> None:
        what = f"its commit is on {recovery.branch}" if recovery.finished else "it had changed nothing"
        published = _published_by(recovery) if recovery.finished else None
        complete_dead_run(Path(recovery.run_dir), published, recovery.branch, what)
        emit(Recovered(recovery.run_id, what))

    def abandoned(origin: Origin) -> None:
        what = "it had changed nothing"
        complete_dead_run(Path(origin.run_dir), None, None, what)
        emit(Recovered(origin.run_id, what))

    return repository.recover(complete, abandoned=abandoned)


def _published_by(recovery: Recovery) -> Published:
    return Published(recovery.commit, recovery.tree, None)


def _already_done(recovery: Recovery) -> Result:
    said = f"PASS {recovery.order_id}: run {recovery.run_id} had finished it before it was killed"
    done = _published_by(recovery)
    return Result(
        "PASS", Exit.PASS, said, branch=recovery.branch, published=done, recovered_from=recovery.run_id
    )


# --- the run ------------------------------------------------------------------------------


def _start(
    settings: RunSettings, source: OrderFile, plan: BranchPlan | None, bus: Bus, stack: ExitStack
) -> Run:
    run = begin(settings, source, None if plan is None else plan.baseline)
    log = EventLog(run.directory)
    stack.callback(log.close)
    bus.add(log)
    answers = f"none is asked; answers from {settings.llm} (origin: {settings.llm_origin})"
    model = settings.model if settings.llm == "openai" else answers
    shown = {"order": run.order.title, "repository": str(settings.repo), "model": model}
    if plan is not None:
        shown |= {"branch": plan.name, "baseline": plan.baseline[:12]}
    directory = str(run.directory)
    bus(RunStarted("factory", run.run_id, run.order.id, directory, {**shown, "artifacts": directory}))
    return run


def _carry_out(job: _Job) -> Result:
    """Walk the attempts in a scratch tree; on a pass commit, bring the checkout along, and push."""
    from factory.graph import build_graph, walk

    run, settings = job.run, job.run.settings
    with scratch_tree(
        job.repository,
        job.plan.baseline,
        settings.scratch,
        settings.share,
        origin=_origin_of(run),
        at=job.at,
    ) as tree:
        for note in tree.notes:
            job.emit(Warned(note))
        bench = Bench(
            order=run.order,
            tree=tree,
            llm=job.model,
            runner=local_runner(job.interrupt),
            emit=job.emit,
            run_dir=run.directory,
            limits=job.limits,
            environment=command_environment(settings, tree.private_tmp),
            interrupt=job.interrupt,
        )
        bench = replace(bench, fallback_python=_fallback_python(bench))
        walked = walk(build_graph(), bench)
        if walked.last.failure is not None:
            return _failed(walked)
        job.interrupt.check()
        # The critical section of a pass: from here to the end of `publish` no signal is looked at.
        try:
            published = _publish(job, walked, tree.index)
        except (Refused, GitError) as error:
            said = f"FAIL: the attempt passed, but there is no commit: {error}"
            return Result("FAIL", Exit.FAIL, said, walked.attempts, error=str(error))
    return _passed(job, walked, published)


def _failed(walked: Walked) -> Result:
    last = walked.attempts[-1]
    assert last.failure_brief is not None
    count = f"{len(walked.attempts)} attempt{'s' if len(walked.attempts) != 1 else ''}"
    said = f"FAIL after {count}: {last.failure_brief.stage.value}; llmch changed nothing in the repository"
    return Result("FAIL", Exit.FAIL, said, walked.attempts)


def _origin_of(run: Run) -> Origin:
    return Origin(run.run_id, str(run.directory), run.order.id, run.source.sha256)


def _publish(job: _Job, walked: Walked, index: Path) -> Published:
    assert walked.last.proposal is not None
    order = job.run.order
    writes = [(write.path, write.data) for write in walked.last.proposal.writes]
    trailers = f"Work-Order: {order.id}\nLlmch-Run: {job.run.run_id}\n"
    # One line for the title, and nothing raw: a plan or a model must not write trailers or escapes.
    title = shown(" ".join(order.title.split()))
    message = f"{order.id}: {title}\n\n{printable(walked.last.proposal.summary)}\n\n{trailers}"
    origin = _origin_of(job.run)
    return job.repository.publish(job.plan, writes, message, origin, at=job.at, index=index)


def _passed(job: _Job, walked: Walked, published: Published) -> Result:
    *earlier, last = walked.attempts
    last = last.model_copy(update={"repo_tree_hash_after": published.tree})
    branch = job.plan.name
    if published.commit is None:
        job.emit(Warned("the proposal changes nothing: there is no commit to make"))
    else:
        job.emit(Committed(branch, published.commit, last.touched_files))
    if published.checkout_problem is not None:
        job.emit(Warned(published.checkout_problem))
    push = None
    if job.remote is not None:
        problem = _push(job, job.remote)
        job.emit(Pushed(job.remote, branch, problem))
        push = {"remote": job.remote, "branch": branch, "ok": problem is None, "problem": problem}
    where = published.commit[:12] if published.commit else "nothing to commit"
    said = f"PASS {job.run.order.id}: {where} on {branch}"
    return Result("PASS", Exit.PASS, said, (*earlier, last), branch, published, push)


def _push(job: _Job, remote: str) -> str | None:
    try:
        poll = job.interrupt.check
        return job.repository.push(job.plan.name, remote, timeout=PUSH_TIMEOUT_SECONDS, poll=poll)
    except Interrupted as interruption:
        return str(interruption)  # the commit stands; what the user stopped is the push


def _guard(run: Run, work: Callable[[], Result]) -> Result:
    """The result of `work`, or of whatever ended it: every ending is a record, none a traceback."""
    untouched = "llmch changed nothing in the repository"
    try:
        return work()
    except Refused as refusal:
        return Result("FAIL", Exit.FAIL, f"FAIL: {refusal}; {untouched}", error=str(refusal))
    except WallLimitReached:
        limit = f"{run.settings.max_wall_seconds:g} s"
        said = f"FAIL: the run reached its limit of {limit} (--max-wall); {untouched}"
        return Result("FAIL", Exit.BUDGET, said, error=f"reached --max-wall of {limit}")
    except Interrupted as interruption:
        return _crashed(f"ERROR: {interruption}; {untouched}", interruption, interruption.exit_code)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else Exit.CRASH
        return _crashed(f"ERROR: a stage left with exit code {leaving.code!r}", leaving, code)
    except Exception as error:  # noqa: BLE001  whatever it was, the run must leave its record
        if run.settings.debug:
            traceback.print_exc(file=sys.stderr)
        where = "" if run.settings.debug else "; run_summary.json has the traceback"
        return _crashed(f"ERROR: {type(error).__name__}: {error}{where}", error, Exit.CRASH)


def _crashed(said: str, error: BaseException, code: int) -> Result:
    return Result(
        "ERROR",
        code,
        said,
        rollback_failed=any(note.startswith("scratch tree") for note in getattr(error, "__notes__", ())),
        error=f"{type(error).__name__}: {error}",
        traceback="".join(traceback.format_exception(error)),
    )


# --- what commands run with ---------------------------------------------------------------


def command_environment(settings: RunSettings, private_tmp: Path) -> dict[str, str]:
    """What verification and acceptance commands see: an allow-list of the user's environment.

    No bytecode and no pytest cache is written; temporary files have a directory of their own.
    """
    addopts = " ".join(filter(None, (settings.environment.get("PYTEST_ADDOPTS"), PYTEST_ADDOPTS)))
    return allowed_environment(
        settings.environment,
        extra=settings.pass_env,
        PYTHONDONTWRITEBYTECODE="1",
        PYTEST_ADDOPTS=addopts,
        TMPDIR=str(private_tmp),
    )


def _fallback_python(bench: Bench) -> str:
    """The interpreter of the default verification: the user's `python` if it has pytest, else ours."""
    if VERIFY_SCRIPT in bench.tree.files and not bench.order.verify_exempt:
        return "python"
    if bench.order.verify_exempt:
        return "python" if shutil.which("python", path=bench.environment.get("PATH")) else sys.executable
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pytest') is None)"
    found = run_captured(
        ["python", "-c", probe],
        cwd=bench.tree.private_tmp,  # nothing of the repository is to be imported
        env=bench.environment,
        timeout=_PROBE_SECONDS,
        on_wait=bench.check,
    )
    if found.exit_code == 0:
        return "python"
    reason = f"does not run ({found.complaint})" if found.exit_code < 0 else "has no pytest"
    bench.emit(Warned(f"`python` {reason}: the default verification runs with {sys.executable}"))
    return sys.executable
