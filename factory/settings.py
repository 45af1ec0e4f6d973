"""What the command line asks of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from factory.defaults import (
    DEFAULT_LLM_MODEL,
    DEFAULT_LLM_TEMPERATURE,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_WALL_SECONDS,
    DEFAULT_TIMEOUT_SECONDS,
)


@dataclass(frozen=True)
class RunSettings:
    """The settings that one order or a whole sequence runs with. Times are seconds."""

    repo: Path
    artifacts_root: Path
    environment: Mapping[str, str]
    """The environment llmch was started in. Commands see an allow-listed part of it."""
    out: Path | None = None
    llm: str = "openai"
    llm_origin: str = "live"
    """Where the answers come from: `live`, or what a transcript says of itself."""
    record: Path | None = None
    model: str = DEFAULT_LLM_MODEL
    temperature: float = DEFAULT_LLM_TEMPERATURE
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    max_wall_seconds: float = DEFAULT_MAX_WALL_SECONDS
    branch: str | None = None
    create_branch: bool = False
    reuse_branch: bool = False
    commit_hash: str | None = None
    push: bool = True
    allow_verify_exempt: bool = False
    scratch: str = "auto"
    share: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()
    debug: bool = False

    def recorded(self) -> dict[str, Any]:
        """The settings that records name: what the run was asked for, nothing of the machine."""
        return {
            "llm": self.llm,
            "llm_origin": self.llm_origin,
            "llm_model": self.model,
            "llm_temperature": self.temperature,
            "max_attempts": self.max_attempts,
            "timeout_seconds": self.timeout_seconds,
            "max_wall_seconds": self.max_wall_seconds,
        }
