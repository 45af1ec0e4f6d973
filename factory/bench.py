"""What a run works with and what one pass of it learns."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from factory.schemas import CmdResult, FailureBrief, WriteProposal
from factory.scratch import ScratchTree
from shared.events import Listener
from shared.llm import LLM, Usage
from shared.process import Command, Completed, Interrupt, Runner
from shared.work_order import Condition, WorkOrder


class WallLimitReached(Exception):
    """The run has used up its wall-clock limit."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a run. `deadline` is on the monotonic clock, the rest are counts and seconds."""

    max_attempts: int
    timeout_seconds: float
    deadline: float

    def seconds(self) -> float:
        """How long the next call or command may take. Raises `WallLimitReached`."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise WallLimitReached
        return min(self.timeout_seconds, left)


@dataclass(frozen=True)
class Bench:
    """What does not change in a run."""

    order: WorkOrder
    tree: ScratchTree
    llm: LLM
    runner: Runner
    emit: Listener
    run_dir: Path
    limits: Limits
    environment: Mapping[str, str]
    interrupt: Interrupt
    fallback_python: str = "python"
    """The interpreter of the default verification, which needs pytest."""

    def attempt_dir(self, index: int) -> Path:
        """The artifact directory of an attempt, made when it is not there."""
        path = self.run_dir / f"attempt_{index}"
        path.mkdir(exist_ok=True)
        return path

    def holds(self, condition: Condition) -> bool:
        """Whether a condition is so in the tree as it is now.

        A file is a regular one, found through links; absent means that nothing has the name.
        """
        return condition.holds_in(self.tree.files if condition.kind == "file_exists" else self.tree.names)

    def check(self) -> None:
        """Raise `Interrupted` or `WallLimitReached` when the run has to end. Every wait calls this."""
        self.interrupt.check()
        self.limits.seconds()

    def run(self, argv: tuple[str, ...], name: str, index: int) -> Completed:
        """Run a command in the tree; its output goes to `<name>_stdout.txt` and `<name>_stderr.txt`."""
        folder = self.attempt_dir(index)
        completed = self.runner(
            Command(
                argv,
                cwd=self.tree.path,
                env=self.environment,
                timeout=self.limits.seconds(),
                stdout=folder / f"{name}_stdout.txt",
                stderr=folder / f"{name}_stderr.txt",
            )
        )
        self.check()
        return completed


@dataclass(frozen=True)
class Attempt:
    """One pass. A stage takes one and returns a fuller copy; the next pass starts with a new one."""

    index: int
    previous: FailureBrief | None = None
    shown: Mapping[str, str] = field(default_factory=dict)
    """Files the model was shown whole, with the SHA-256 it was told."""
    proposal: WriteProposal | None = None
    touched_files: tuple[str, ...] = ()
    write_ok: bool | None = None
    verify_results: tuple[CmdResult, ...] = ()
    acceptance_results: tuple[CmdResult, ...] = ()
    failure: FailureBrief | None = None
    final: bool = False
    """The failure is of a kind that no further attempt can change."""
    usage: Usage | None = None
    started: float = field(default_factory=time.monotonic)
