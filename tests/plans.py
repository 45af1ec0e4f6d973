"""Plans for tests: each names only what the test is about, the rest is in order."""

from __future__ import annotations

from typing import Any


def exists(*paths: str) -> list[dict[str, str]]:
    return [{"kind": "file_exists", "path": path} for path in paths]


def absent(*paths: str) -> list[dict[str, str]]:
    return [{"kind": "file_absent", "path": path} for path in paths]


def order(number: int = 1, **changes: Any) -> dict[str, Any]:
    """A work order that writes one file of its own; `...` as a value leaves the key out."""
    path = f"part_{number}.py"
    whole = {
        "id": f"WO-{number:02d}",
        "title": f"Part {number}",
        "intent": "Add one part.",
        "preconditions": [],
        "postconditions": exists(*changes.get("allowed_files", [path])) if _paths(changes) else exists(path),
        "allowed_files": [path],
        "forbidden": [],
        "acceptance_commands": ["python -m pytest -q"],
        "context_files": [],
        "notes": None,
        **changes,
    }
    return {key: value for key, value in whole.items() if value is not ...}


def _paths(changes: dict[str, Any]) -> bool:
    allowed = changes.get("allowed_files", [])
    return isinstance(allowed, list) and all(isinstance(path, str) for path in allowed)


def plan(*orders: Any, **keys: Any) -> dict[str, Any]:
    return {"work_orders": list(orders), **keys}


def requires(*conditions: Any) -> dict[str, Any]:
    return {"requires": list(conditions)}
