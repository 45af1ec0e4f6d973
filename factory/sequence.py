"""`run-all`: the orders of a directory, one after the other, on one branch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from factory.console import narrator
from factory.defaults import Exit
from factory.ending import ending_of
from factory.run import branch_name, check_verify_exempt_policy, preload, run_one
from factory.settings import RunSettings
from factory.workspace import Refused
from shared.console import Console
from shared.process import Interrupt, in_child
from shared.run_context import generate_ulid
from shared.work_order import WorkOrder, WorkOrderError, load_work_order

_ORDER_FILE = re.compile(r"WO-(\d+)\.json")


@dataclass(frozen=True)
class Planned:
    """A work order file of the directory, read once before anything is run."""

    path: Path
    number: int
    order: WorkOrder


def run_all(
    settings: RunSettings, workdir: Path, console: Console, interrupt: Interrupt, start: str | None = None
) -> int:
    """Run the orders of `workdir` by number, from the one called `start`; stop at the first failure.

    All share one working branch: the one asked for, else one named after the plan. Each order runs in
    a process of its own, forked from this one with everything already imported, so that a crash of
    one is that order's error and nothing more. Returns the exit code of the order that ended it.
    Raises `Refused` before anything has run when the directory or any order in it cannot be used.
    """
    planned = _from(start, read_plan(workdir))
    for item in planned:  # before the first is paid for
        check_verify_exempt_policy(item.order, allowed=settings.allow_verify_exempt)
    branch = settings.branch or branch_name(planned[0].order, generate_ulid())
    created = settings.create_branch
    settings = replace(settings, branch=branch)
    preload()
    passed: list[str] = []
    for position, item in enumerate(planned):
        if position > 0:
            settings = replace(settings, create_branch=False, reuse_branch=True, commit_hash=None)
        code = in_child(partial(_run_in_child, settings, item, console, interrupt), interrupt)
        if code != 0 or interrupt.signum is not None:
            if code == 0:
                passed.append(item.order.id)
                code = 128 + (interrupt.signum or 0)
            rest = planned[len(passed) :]
            _closing(console, passed, rest, code)
            if rest:
                console.info(_how_to_go_on(branch, rest[0].order.id, passed, created))
            return code
        passed.append(item.order.id)
    console.verdict(f"all {len(passed)} work orders passed on {branch}", ok=True)
    return Exit.PASS


def _run_in_child(settings: RunSettings, item: Planned, console: Console, interrupt: Interrupt) -> int:
    return ending_of(
        lambda: run_one(settings, item.path, narrator(console), interrupt), console, debug=settings.debug
    )


def read_plan(workdir: Path) -> list[Planned]:
    """The work orders of a directory by number. Raises `Refused`, naming every file that is at fault."""
    try:
        names = sorted(entry.name for entry in workdir.iterdir())
    except OSError as error:
        raise Refused(
            f"cannot read {workdir}: {error.strerror}; --workdir names the plan's directory"
        ) from None
    planned: list[Planned] = []
    faults: list[str] = []
    for name in names:
        match = _ORDER_FILE.fullmatch(name)
        if match is None:
            continue
        try:
            planned.append(Planned(workdir / name, int(match[1]), load_work_order(workdir / name)))
        except WorkOrderError as error:
            faults.append(str(error))
    planned.sort(key=lambda item: item.number)
    for earlier, later in pairwise(planned):
        if earlier.number == later.number:
            faults.append(f"{earlier.path.name} and {later.path.name} have the same number")
    if faults:
        raise Refused("; ".join(faults))
    if not planned:
        raise Refused(
            f"no WO-*.json in {workdir}; `llmch plan --outdir {shlex.quote(str(workdir))}` makes them"
        )
    return planned


def _from(start: str | None, planned: list[Planned]) -> list[Planned]:
    if start is None:
        return planned
    for index, item in enumerate(planned):
        if item.order.id == start:
            return planned[index:]
    raise Refused(
        f"no work order {start} in this plan: it has {planned[0].order.id} to {planned[-1].order.id}"
    )


def _closing(console: Console, passed: Sequence[str], rest: Sequence[Planned], code: int) -> None:
    """Say what passed, what ended the sequence, and what was not started."""
    ended = "interrupted" if code > 128 else "failed"
    parts = [f"passed: {', '.join(passed) or 'none'}"]
    if rest:
        parts.append(f"{ended}: {rest[0].order.id} (exit {code})")
    parts.append(f"not started: {', '.join(item.order.id for item in rest[1:]) or 'none'}")
    console.verdict("; ".join(parts), ok=False)


def _how_to_go_on(branch: str, start: str, passed: Sequence[str], created: bool) -> str:
    if not passed:
        return "go on, once the cause is mended, with the same command"
    words = shlex.join(["--branch", branch, "--from", start])
    but = ", without --create-branch" if created else ""
    return f"go on, once the cause is mended, with the same command and {words}{but}"
