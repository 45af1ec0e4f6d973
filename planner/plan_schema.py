"""The form of a plan, as a strict JSON Schema for endpoints that hold an answer to one."""

from __future__ import annotations

from typing import Any


def plan_schema() -> dict[str, Any]:
    """The strict schema of the answer the planner asks for.

    Narrower than what the rules accept: `verify_exempt` and `provenance` are not in it, because they
    are never the model's to set, and a postcondition can only be `file_exists`. Only what every strict
    endpoint takes is used: no patterns, no lengths, every property required. The rules judge every
    answer all the same.
    """
    order = _closed(
        id=_text("WO-01, WO-02, … in the sequence of execution"),
        title=_text("one line, as of a commit message"),
        intent=_text("all that the executor is to know about what it builds"),
        preconditions=_list(_condition("file_exists", "file_absent")),
        postconditions=_list(_condition("file_exists")),
        allowed_files=_list(_path()),
        forbidden=_list(_text("what must not be done")),
        acceptance_commands=_list(_text("one command, started without a shell")),
        context_files=_list(_path()),
        notes=_text("what helps but is no requirement; may be empty"),
    )
    contract = _closed(requires=_list(_condition("file_exists")))
    return _closed(verify_contract=contract, work_orders=_list(order))


def _closed(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _path() -> dict[str, Any]:
    return _text("a file, relative to the repository root")


def _condition(*kinds: str) -> dict[str, Any]:
    return _closed(kind={"type": "string", "enum": list(kinds)}, path=_path())
