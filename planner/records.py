"""What a compile leaves on disk besides the plan: run.json, the artifacts of each attempt, the summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from planner import defaults
from planner.defaults import (
    ATTEMPT_ERRORS_FILE,
    CALL_FILE,
    COMPILE_DIR,
    COMPILE_SUMMARY_FILE,
    PROMPT_FILE,
    RAW_MANIFEST_FILE,
    RAW_RESPONSE_FILE,
    REASONING_FILE,
    VALIDATION_ERRORS_FILE,
)
from planner.validation import ValidationError
from shared.files import save_json, write_text
from shared.llm import LLMError, Reply
from shared.run_context import new_run_dir, update_run_json, write_run_json


@dataclass(frozen=True)
class Records:
    """The records of one run, in a directory of its own. Every method raises `OSError`."""

    run_dir: Path

    @classmethod
    def begin(cls, root: Path, run_id: str, run_json: dict[str, Any]) -> Records:
        """Make the run's directory and its `run.json`, which says that it is running."""
        records = cls(new_run_dir(root, "planner", run_id))
        (records.run_dir / COMPILE_DIR).mkdir()
        write_run_json(records.run_dir, run_json)
        return records

    def asked(self, attempt: int, prompt: str) -> None:
        """Keep what is about to be sent."""
        write_text(self._of(PROMPT_FILE, attempt), prompt)

    def answered(self, attempt: int, reply: Reply) -> None:
        """Keep the answer as it came, and what the endpoint said about it."""
        write_text(self._of(RAW_RESPONSE_FILE, attempt), reply.text)
        write_text(self._of(REASONING_FILE, attempt), reply.reasoning)
        about = {key: value for key, value in reply.as_json().items() if key not in ("text", "reasoning")}
        save_json(self._of(CALL_FILE, attempt), about)

    def not_answered(self, attempt: int, error: LLMError) -> None:
        """Keep why there is no answer."""
        usage = None if error.usage is None else error.usage.as_json()
        about = {"error": str(error), "kind": type(error).__name__, "usage": usage}
        save_json(self._of(CALL_FILE, attempt), about)

    def parsed(self, attempt: int, manifest: object) -> None:
        """Keep the answer as the JSON value it is."""
        save_json(self._of(RAW_MANIFEST_FILE, attempt), manifest)

    def judged(self, attempt: int, findings: Sequence[ValidationError]) -> None:
        """Keep the findings of an attempt, warnings among them; an empty list when there are none."""
        save_json(self._of(ATTEMPT_ERRORS_FILE, attempt), as_json(findings))

    def refused(self, errors: Sequence[ValidationError]) -> None:
        """Keep the errors that a failed compile ended with."""
        save_json(self.run_dir / COMPILE_DIR / VALIDATION_ERRORS_FILE, as_json(errors))

    def summed_up(self, summary: dict[str, Any]) -> None:
        """Write the summary, with the defaults this planner has."""
        save_json(
            self.run_dir / COMPILE_DIR / COMPILE_SUMMARY_FILE, {**summary, "defaults": defaults_snapshot()}
        )

    def ended(self, **changes: Any) -> None:
        """Complete `run.json`."""
        update_run_json(self.run_dir, **changes)

    def _of(self, name: str, attempt: int) -> Path:
        return self.run_dir / COMPILE_DIR / name.format(attempt=attempt)


def as_json(findings: Sequence[ValidationError]) -> list[dict[str, Any]]:
    """Findings in the form that artifacts hold."""
    return [asdict(finding) for finding in findings]


def defaults_snapshot() -> dict[str, Any]:
    """Every constant of `planner.defaults`, as JSON: what a later reader needs to understand a run."""
    constants = {name: value for name, value in vars(defaults).items() if name.isupper()}
    return {
        name: sorted(value) if isinstance(value, frozenset) else value for name, value in constants.items()
    }
