"""What a run leaves on disk: run.json at its start, run_summary.json and the verdict at its end."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from factory.defaults import ARTIFACT_RUN_SUMMARY, ARTIFACT_WORK_ORDER
from factory.schemas import AttemptRecord, RunSummary
from factory.settings import RunSettings
from factory.workspace import Published, Refused
from shared.events import Listener, RunEnded, Warned
from shared.files import JsonError, canonical_json_bytes, save_json, sha256_bytes, write_atomic
from shared.run_context import (
    generate_ulid,
    get_tool_version,
    new_run_dir,
    read_run_json,
    update_run_json,
    utc_now_iso,
    write_run_json,
)
from shared.work_order import WorkOrder


@dataclass(frozen=True)
class OrderFile:
    """A work order with the bytes it was read from."""

    path: Path
    data: bytes
    order: WorkOrder

    @property
    def sha256(self) -> str:
        """Hash of the file as it was read."""
        return sha256_bytes(self.data)


@dataclass(frozen=True)
class Run:
    """A run that has its directory."""

    settings: RunSettings
    source: OrderFile
    run_id: str
    directory: Path
    started_at: str
    started: float

    @property
    def order(self) -> WorkOrder:
        """The order that is carried out."""
        return self.source.order


@dataclass(frozen=True)
class Result:
    """What a run came to, before it is written down. `said` is its one line on the terminal."""

    verdict: Literal["PASS", "FAIL", "ERROR"]
    exit_code: int
    said: str
    attempts: tuple[AttemptRecord, ...] = ()
    branch: str | None = None
    published: Published | None = None
    push: dict[str, Any] | None = None
    recovered_from: str | None = None
    rollback_failed: bool = False
    error: str | None = None
    traceback: str | None = None


def compute_run_id(work_order: Mapping[str, Any], baseline_commit: str) -> str:
    """A fingerprint of a run's inputs: 16 hex digits, equal for equal order and baseline."""
    return sha256_bytes(canonical_json_bytes(work_order) + b"\n" + baseline_commit.encode())[:16]


def begin(settings: RunSettings, source: OrderFile, baseline: str | None) -> Run:
    """Make the run directory with an unfinished run.json and a copy of the order.

    Raises `Refused` when artifacts cannot be kept there.
    """
    run_id = generate_ulid()
    try:
        directory = new_run_dir(settings.artifacts_root, "factory", run_id)
        run = Run(settings, source, run_id, directory, utc_now_iso(), time.monotonic())
        write_run_json(directory, _first_record(run, baseline))
        write_atomic(directory / ARTIFACT_WORK_ORDER, source.data)
    except OSError as error:
        shutil.rmtree(settings.artifacts_root / "factory" / run_id, ignore_errors=True)
        raise Refused(
            f"cannot keep artifacts in {settings.artifacts_root}: {error.strerror or error}; "
            "--artifacts-dir names another place"
        ) from None
    return run


def _first_record(run: Run, baseline: str | None) -> dict[str, Any]:
    order, settings = run.order, run.settings
    return {
        "tool": "factory",
        "tool_version": get_tool_version(),
        "run_id": run.run_id,
        "status": "running",
        "verdict": None,
        "started_at": run.started_at,
        "finished_at": None,
        "work_order_id": order.id,
        "config": settings.recorded(),
        "inputs": {
            "work_order": str(run.source.path.absolute()),
            "work_order_sha256": run.source.sha256,
            "repo": str(settings.repo.absolute()),
            "baseline_commit": baseline,
            "fingerprint": compute_run_id(order.model_dump(mode="json"), baseline or ""),
        },
        "provenance": None if order.provenance is None else order.provenance.model_dump(),
        "sandbox": "none",
        "usage": None,
    }


class Unrecorded(Exception):
    """The verdict stands, but could not be written down. The text has both."""


def finish(run: Run, result: Result, usage: dict[str, int], emit: Listener) -> None:
    """Write the summary, complete run.json, say the verdict, and copy the run to `--out`.

    Raises `Unrecorded`.
    """
    try:
        seconds = _complete(run, result, usage)
    except (OSError, JsonError, TypeError, KeyError) as error:  # a full disk; or a command had a hand in it
        why = error.strerror if isinstance(error, OSError) else error
        raise Unrecorded(f"{result.said}; {run.directory} could not be completed: {why}") from error
    emit(RunEnded(result.verdict, result.exit_code, seconds, result.said))
    if run.settings.out is not None:
        _export(run, run.settings.out, emit)


def _complete(run: Run, result: Result, usage: dict[str, int]) -> float:
    """Write both records; returns how long the run took."""
    published = result.published
    finished_at, seconds = utc_now_iso(), round(time.monotonic() - run.started, 6)
    inputs = read_run_json(run.directory)["inputs"]
    summary = RunSummary(
        run_id=run.run_id,
        work_order_id=run.order.id,
        verdict=result.verdict,
        exit_code=result.exit_code,
        **run.settings.recorded(),
        baseline_commit=inputs["baseline_commit"],
        branch=result.branch,
        commit=published.commit if published else None,
        repo_tree_hash_after=published.tree if published else None,
        attempts=list(result.attempts),
        total_attempts=len(result.attempts),
        usage=usage,
        push=result.push,
        checkout_problem=published.checkout_problem if published else None,
        recovered_from=result.recovered_from,
        rollback_failed=result.rollback_failed,
        error=result.error,
        traceback=result.traceback,
        started_at=run.started_at,
        finished_at=finished_at,
        duration_seconds=seconds,
    )
    save_json(run.directory / ARTIFACT_RUN_SUMMARY, summary.model_dump(mode="json"))
    kept = ("verdict", "exit_code", "branch", "commit", "push", "usage", "error", "duration_seconds")
    record = summary.model_dump(mode="json", include=set(kept))
    update_run_json(run.directory, status="finished", finished_at=finished_at, **record)
    return seconds


def _export(run: Run, out: Path, emit: Listener) -> None:
    try:
        shutil.copytree(run.directory, out / run.run_id)
    except OSError as error:
        emit(Warned(f"cannot copy the run to {out}: {error}; it is in {run.directory}"))


def complete_dead_run(directory: Path, published: Published | None, branch: str | None, what: str) -> None:
    """Complete the records of a run that was killed, as far as they can be reached.

    The repository is already in order when this is called; records on a disk that is gone, or that
    the kill left half made, do not stand in the way of the next run.
    """
    with suppress(OSError, JsonError, TypeError, KeyError, ValueError):
        verdict: Literal["PASS", "ERROR"] = "ERROR" if published is None else "PASS"
        record = read_run_json(directory)
        if published is None and record["status"] != "running":
            return  # it had come to its end, and was killed while it cleared up
        finished_at, error = utc_now_iso(), f"the process was killed; {what}"
        summary = RunSummary(
            run_id=record["run_id"],
            work_order_id=record["work_order_id"],
            verdict=verdict,
            exit_code=0 if published else 2,
            **record["config"],
            baseline_commit=record["inputs"]["baseline_commit"],
            branch=branch if published else None,
            commit=published.commit if published else None,
            repo_tree_hash_after=published.tree if published else None,
            error=error,
            started_at=record["started_at"],
            finished_at=finished_at,
            duration_seconds=0.0,
        )
        save_json(directory / ARTIFACT_RUN_SUMMARY, summary.model_dump(mode="json"))
        update_run_json(directory, status="recovered", verdict=verdict, finished_at=finished_at, error=error)
