"""PO: run what must pass."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from factory.bench import Attempt, Bench
from factory.defaults import (
    ARTIFACT_ACCEPTANCE_RESULT,
    ARTIFACT_VERIFY_RESULT,
    MAX_EXCERPT_CHARS,
)
from factory.schemas import CmdResult, FailureBrief, Stage, brief, excerpt_of, excerpt_of_streams
from factory.verification import verification_of
from shared.events import CommandEnded, StepDone
from shared.files import save_json


def po_node(attempt: Attempt, bench: Bench) -> Attempt:
    """Verification, then postconditions, then acceptance; the first failure ends the attempt.

    Postconditions are judged on the tree as the proposal left it, before any command ran: what a
    command creates or removes is not in the commit.
    """
    unmet = [
        f"{condition.path} does not exist after the writes"
        for condition in bench.order.postconditions
        if not bench.holds(condition)
    ]
    attempt = _verify(attempt, bench)
    if attempt.failure is not None:
        return attempt
    if unmet:
        failure = brief(Stage.ACCEPTANCE_FAILED, "postcondition not met: " + "; ".join(unmet))
        bench.emit(StepDone("postconditions", ok=False, detail="; ".join(unmet)))
        return replace(attempt, failure=failure)
    return _accept(attempt, bench)


# --- verification ------------------------------------------------------------------------


def _verify(attempt: Attempt, bench: Bench) -> Attempt:
    results: list[CmdResult] = []
    failure = None
    for number, argv in enumerate(verification_of(bench).commands, start=1):
        result = run_command(argv, shlex.join(argv), f"verify_{number}", attempt, bench)
        results.append(result)
        if result.exit_code != 0:
            failure = failed(Stage.VERIFY_FAILED, result)
            break
    _save(results, ARTIFACT_VERIFY_RESULT, attempt, bench)
    bench.emit(StepDone("verify", ok=failure is None, detail=results[-1].command))
    return replace(attempt, verify_results=tuple(results), failure=failure)


# --- acceptance --------------------------------------------------------------------------


def _accept(attempt: Attempt, bench: Bench) -> Attempt:
    results: list[CmdResult] = []
    failure = None
    for number, command in enumerate(bench.order.acceptance_commands, start=1):
        argv = split_command(command)
        if isinstance(argv, FailureBrief):
            failure = argv
            break
        result = run_command(argv, command, f"acceptance_{number}", attempt, bench)
        results.append(result)
        if result.exit_code != 0:
            failure = failed(Stage.ACCEPTANCE_FAILED, result)
            break
    _save(results, ARTIFACT_ACCEPTANCE_RESULT, attempt, bench)
    count = len(bench.order.acceptance_commands)
    passed = f"{count} command{'s' if count != 1 else ''}"
    detail = passed if failure is None else failure.command or ""
    bench.emit(StepDone("acceptance", ok=failure is None, detail=detail))
    return replace(attempt, acceptance_results=tuple(results), failure=failure)


def split_command(command: str) -> tuple[str, ...] | FailureBrief:
    """The words of a command, as a shell would split them; no shell ever sees it."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        return brief(Stage.ACCEPTANCE_FAILED, f"the command cannot be split: {error}", command=command)
    if not words:
        return brief(Stage.ACCEPTANCE_FAILED, "the command is empty", command=command)
    return words


# --- both --------------------------------------------------------------------------------


def run_command(argv: tuple[str, ...], shown: str, name: str, attempt: Attempt, bench: Bench) -> CmdResult:
    """Run one command in the tree and keep its whole output beside the attempt."""
    completed = bench.run(argv, name, attempt.index)
    folder = bench.attempt_dir(attempt.index)
    out, err = folder / f"{name}_stdout.txt", folder / f"{name}_stderr.txt"
    bench.emit(CommandEnded(shown, completed.exit_code, completed.seconds))
    return CmdResult(
        command=shown,
        exit_code=completed.exit_code,
        stdout_trunc=excerpt_of(_ends_of(out)),
        stderr_trunc=excerpt_of(_ends_of(err)),
        stdout_path=str(out),
        stderr_path=str(err),
        duration_seconds=round(completed.seconds, 6),
        timed_out=completed.timed_out,
    )


def failed(stage: Stage, result: CmdResult) -> FailureBrief:
    """The brief of a command that did not exit 0, with both of its streams."""
    excerpt = excerpt_of_streams(result.stderr_trunc, result.stdout_trunc)
    return brief(stage, excerpt, command=result.command, exit_code=result.exit_code)


def _ends_of(path: Path) -> str:
    """The text of an output file; of a long one only as much of both ends as an excerpt can use."""
    room = 4 * MAX_EXCERPT_CHARS  # bytes of UTF-8 that certainly hold so many characters
    with open(path, "rb") as file:
        head = file.read(2 * room)
        rest = path.stat().st_size - len(head)
        if rest <= 0:
            return head.decode("utf-8", "replace")
        file.seek(max(len(head), path.stat().st_size - room))
        return head[:room].decode("utf-8", "replace") + "\n…\n" + file.read().decode("utf-8", "replace")


def _save(results: list[CmdResult], name: str, attempt: Attempt, bench: Bench) -> None:
    save_json(bench.attempt_dir(attempt.index) / name, [result.model_dump() for result in results])
