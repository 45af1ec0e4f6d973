"""What the stages hand on: proposal, failure brief, command result, attempt, summary."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from factory.defaults import MAX_EXCERPT_CHARS, MAX_FILE_BYTES, MAX_PROPOSAL_BYTES
from shared.work_order import Condition, RepoPath, WorkOrder, load_work_order

__all__ = [
    "AttemptRecord",
    "CmdResult",
    "Condition",
    "FailureBrief",
    "FileWrite",
    "RunSummary",
    "Stage",
    "WorkOrder",
    "WriteProposal",
    "load_work_order",
    "proposal_schema",
]

_MARK = "\n[… {} characters left out …]\n"


class Stage(StrEnum):
    """Where an attempt can fail (INVARIANTS C6). The set is fixed."""

    PREFLIGHT = "preflight"
    LLM_OUTPUT_INVALID = "llm_output_invalid"
    WRITE_SCOPE_VIOLATION = "write_scope_violation"
    STALE_CONTEXT = "stale_context"
    WRITE_FAILED = "write_failed"
    VERIFY_FAILED = "verify_failed"
    ACCEPTANCE_FAILED = "acceptance_failed"
    EXCEPTION = "exception"

    @property
    def retryable(self) -> bool:
        """Whether another answer of the model could change it."""
        return self not in (Stage.PREFLIGHT, Stage.WRITE_FAILED)

    @property
    def reminder(self) -> str:
        """The rule that was broken, as the model is told it on the next attempt."""
        return _REMINDERS[self]


_REMINDERS = {
    Stage.PREFLIGHT: "Every precondition must hold before the work order starts: the plan is wrong.",
    Stage.LLM_OUTPUT_INVALID: "Answer with exactly one JSON object of the given form and nothing around it.",
    Stage.WRITE_SCOPE_VIOLATION: "Write only allowed files, each at most once, never through a link.",
    Stage.STALE_CONTEXT: "base_sha256 is the SHA-256 shown for the file as it is now; for a file that does "
    "not exist it is the SHA-256 of no bytes.",
    Stage.WRITE_FAILED: "The files could not be written: the machine is at fault, not the answer.",
    Stage.VERIFY_FAILED: "The verification of the whole repository must pass before acceptance is tried.",
    Stage.ACCEPTANCE_FAILED: "Every postcondition must hold and every acceptance command must exit 0.",
    Stage.EXCEPTION: "The model endpoint gave no answer.",
}


class FileWrite(BaseModel):
    """One whole file as the model wants it. `base_sha256` is the hash of what it replaces."""

    model_config = ConfigDict(frozen=True, strict=True)

    path: RepoPath
    base_sha256: str
    content: str

    @field_validator("content")
    @classmethod
    def _bounded(cls, content: str) -> str:
        if len(content.encode("utf-8", "backslashreplace")) > MAX_FILE_BYTES:
            raise ValueError(f"content is larger than {MAX_FILE_BYTES // 1024} KB")
        return content

    @property
    def data(self) -> bytes:
        """The bytes to write: the content as UTF-8, newlines as given."""
        return self.content.encode("utf-8")


class WriteProposal(BaseModel):
    """A model's whole answer to a work order."""

    model_config = ConfigDict(frozen=True, strict=True)

    summary: str
    writes: list[FileWrite] = Field(min_length=1)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if sum(len(write.data) for write in self.writes) > MAX_PROPOSAL_BYTES:
            raise ValueError(f"the writes are larger than {MAX_PROPOSAL_BYTES // 1024} KB together")
        return self


def proposal_schema() -> dict[str, Any]:
    """The strict JSON Schema of a proposal, for endpoints that enforce one."""
    text = {"type": "string"}
    write = {"path": text, "base_sha256": text, "content": text}
    writes = {"type": "array", "items": _strict_object(write)}
    return _strict_object({"summary": text, "writes": writes})


def _strict_object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def excerpt_of(text: str, limit: int = MAX_EXCERPT_CHARS) -> str:
    """At most `limit` characters of `text`, its head and its tail with a mark between them."""
    if len(text) <= limit:
        return text
    mark = _MARK.format(len(text))
    room = limit - len(mark)
    head = room // 3  # the end of a long output is where the reason stands
    return text[:head] + mark + text[len(text) - (room - head) :]


def excerpt_of_streams(stderr: str, stdout: str) -> str:
    """Both streams of a command within the bound; a short one leaves its room to the other."""
    parts = [(name, text.strip()) for name, text in (("stderr", stderr), ("stdout", stdout)) if text.strip()]
    if not parts:
        return "(no output)"
    room = MAX_EXCERPT_CHARS - sum(len(name) + 3 for name, _ in parts)
    if len(parts) == 1:
        shares = [room]
    else:
        first, second = (len(text) for _, text in parts)
        half = room // 2
        shares = [max(half, room - second), max(room - half, room - first)]
    return "\n".join(
        f"{name}:\n{excerpt_of(text, share)}" for (name, text), share in zip(parts, shares, strict=True)
    )


class FailureBrief(BaseModel):
    """Why an attempt failed: kept on disk, and told to the model on the next one."""

    model_config = ConfigDict(frozen=True)

    stage: Stage
    command: str | None = None
    exit_code: int | None = None
    primary_error_excerpt: str = ""
    constraints_reminder: str = ""

    @field_validator("primary_error_excerpt")
    @classmethod
    def _cut(cls, text: str) -> str:
        return excerpt_of(text)


def brief(
    stage: Stage, excerpt: str, *, command: str | None = None, exit_code: int | None = None
) -> FailureBrief:
    """A failure brief with the reminder that belongs to its stage."""
    return FailureBrief(
        stage=stage,
        command=command,
        exit_code=exit_code,
        primary_error_excerpt=excerpt,
        constraints_reminder=stage.reminder,
    )


class CmdResult(BaseModel):
    """How one command ended. The two `_trunc` texts are excerpts, the two paths hold the output."""

    model_config = ConfigDict(frozen=True)

    command: str
    exit_code: int
    stdout_trunc: str
    stderr_trunc: str
    stdout_path: str
    stderr_path: str
    duration_seconds: float
    timed_out: bool = False


class AttemptRecord(BaseModel):
    """One pass from prompt to verdict, as the run summary keeps it."""

    model_config = ConfigDict(frozen=True)

    attempt_index: int
    verdict: Literal["PASS", "FAIL"]
    proposal_path: str | None = None
    touched_files: list[str] = []
    write_ok: bool | None = None
    verify_results: list[CmdResult] = []
    acceptance_results: list[CmdResult] = []
    failure_brief: FailureBrief | None = None
    repo_drift: list[str] = []
    repo_tree_hash_after: str | None = None
    usage: dict[str, int] | None = None
    duration_seconds: float = 0.0


class RunSummary(BaseModel):
    """`run_summary.json`: the verdict of a run and all it rests on."""

    run_id: str
    work_order_id: str
    verdict: Literal["PASS", "FAIL", "ERROR"]
    exit_code: int
    llm: str
    llm_origin: str
    llm_model: str
    llm_temperature: float
    max_attempts: int
    timeout_seconds: float
    max_wall_seconds: float
    baseline_commit: str | None = None
    branch: str | None = None
    commit: str | None = None
    repo_tree_hash_after: str | None = None
    attempts: list[AttemptRecord] = []
    total_attempts: int = 0
    usage: dict[str, int] = {}
    push: dict[str, Any] | None = None
    checkout_problem: str | None = None
    recovered_from: str | None = None
    rollback_failed: bool = False
    error: str | None = None
    traceback: str | None = None
    started_at: str
    finished_at: str
    duration_seconds: float
