"""A run of either tool: its id, its clock, its place on disk, its run.json, the tool's version."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ulid import ULID

from shared.files import read_json, save_json, sha256_bytes, sha256_file, sha256_json
from shared.process import run_captured

__all__ = [
    "generate_ulid",
    "get_tool_version",
    "new_run_dir",
    "read_run_json",
    "resolve_artifacts_root",
    "sha256_bytes",
    "sha256_file",
    "sha256_json",
    "update_run_json",
    "utc_now_iso",
    "write_run_json",
]

RUN_JSON = "run.json"
_MAX_RUN_JSON_BYTES = 50 * 1024 * 1024


def generate_ulid() -> str:
    """A new ULID: 26 characters, sorts by creation time."""
    return str(ULID())


def utc_now_iso() -> str:
    """The current time in UTC, ISO 8601, always with microseconds and an explicit offset."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def resolve_artifacts_root(flag: str | Path | None) -> Path:
    """Where runs are kept: the flag, else `$ARTIFACTS_DIR`, else `./artifacts`; absolute."""
    return Path(flag or os.environ.get("ARTIFACTS_DIR") or "artifacts").absolute()


def new_run_dir(root: Path, tool: str, run_id: str) -> Path:
    """Make `<root>/<tool>/<run_id>/`, which must be new. Raises `OSError`."""
    path = root / tool / run_id
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir()
    return path


def write_run_json(run_dir: str | Path, record: dict[str, Any]) -> None:
    """Write `run.json` of a run atomically."""
    save_json(Path(run_dir) / RUN_JSON, record)


def read_run_json(run_dir: str | Path) -> dict[str, Any]:
    """Read `run.json` of a run. Raises `OSError`, or `JsonError` when it is not a JSON object."""
    record = read_json(Path(run_dir) / RUN_JSON, max_bytes=_MAX_RUN_JSON_BYTES)
    if not isinstance(record, dict):
        raise TypeError(f"{run_dir}: {RUN_JSON} is not a JSON object")
    return record


def update_run_json(run_dir: str | Path, **changes: Any) -> dict[str, Any]:
    """Merge `changes` into `run.json`, atomically, and return the whole record."""
    record = {**read_run_json(run_dir), **changes}
    write_run_json(run_dir, record)
    return record


def get_tool_version() -> dict[str, Any]:
    """Which llmch this is: package version, and for a checkout its commit and whether it is dirty.

    `commit` and `dirty` are None where the tool does not run from a git checkout of its own.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        released: str | None = version("llmch")
    except PackageNotFoundError:
        released = None
    commit, dirty = _checkout_state(Path(__file__).resolve().parent.parent)
    return {"version": released, "commit": commit, "dirty": dirty}


def _checkout_state(home: Path) -> tuple[str | None, bool | None]:
    if not (home / ".git").exists():
        return None, None
    status = run_captured(
        ["git", "-c", "core.fsmonitor=false", "--no-optional-locks", "status", "--porcelain=v2",
         "--branch", "--untracked-files=no"],
        cwd=home, timeout=10,
    )  # fmt: skip
    if status.exit_code != 0:
        return None, None
    lines = status.stdout.decode("utf-8", "replace").splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid")), None)
    return commit, any(not line.startswith("#") for line in lines)
