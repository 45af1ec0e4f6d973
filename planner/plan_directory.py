"""A plan read back from a directory, and judged as on the day it was made."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.defaults import MANIFEST_FILE, WORK_ORDER_GLOB
from planner.io import order_number
from planner.validation import ValidationError, assess
from shared.files import JsonError, read_json
from shared.work_order import MAX_WORK_ORDER_BYTES

_MAX_MANIFEST_BYTES = 100 * 1024 * 1024
_UNREADABLE = object()


class NoPlan(ValueError):
    """The directory holds no plan. The text is one line: where, what, what to do next."""


@dataclass(frozen=True)
class Judgement:
    """The orders of a directory, by the names of their files, and what the rules say of them."""

    names: tuple[str, ...]
    errors: tuple[ValidationError, ...]
    warnings: tuple[ValidationError, ...]


def judge_directory(directory: Path, repo_files: Collection[str]) -> Judgement:
    """Every finding about the `WO-*.json` of a directory, in the sequence in which they would run.

    The verify contract is taken from the manifest, where there is one. While a file cannot be read,
    only that is said: the rest would be judged by guesses. Raises `NoPlan`.
    """
    if not directory.is_dir():
        problem = "is not a directory" if directory.exists() else "does not exist"
        raise NoPlan(f"{directory} {problem}; name the directory that holds the work orders")
    paths = sorted(directory.glob(WORK_ORDER_GLOB), key=order_number)
    if not paths:
        raise NoPlan(f"{directory} holds no {WORK_ORDER_GLOB}; name the directory that holds the work orders")
    names = tuple(path.stem for path in paths)
    unreadable: list[ValidationError] = []
    orders = [_read(path, path.stem, MAX_WORK_ORDER_BYTES, unreadable) for path in paths]
    manifest = _manifest(directory / MANIFEST_FILE, unreadable)
    if unreadable:
        return Judgement(names, tuple(unreadable), ())
    assessment = assess(
        {"work_orders": orders, "verify_contract": manifest.get("verify_contract")}, repo_files
    )
    misplaced = [*_misnamed(names, orders), *_missing(names, manifest)]
    return Judgement(names, (*misplaced, *assessment.errors), tuple(assessment.warnings))


def _read(path: Path, label: str | None, max_bytes: int, unreadable: list[ValidationError]) -> Any:
    try:
        return read_json(path, max_bytes=max_bytes)
    except OSError as error:
        reason = error.strerror or "not a regular file"
    except JsonError as error:
        reason = f"not strict JSON: {error}"
    unreadable.append(ValidationError("E000", label, f"{path.name} cannot be read: {reason}"))
    return _UNREADABLE


def _manifest(path: Path, unreadable: list[ValidationError]) -> dict[str, Any]:
    if not path.exists():
        return {}
    value = _read(path, None, _MAX_MANIFEST_BYTES, unreadable)
    if isinstance(value, dict):
        return value
    if value is not _UNREADABLE:
        unreadable.append(ValidationError("E000", None, f"{path.name} must hold a JSON object"))
    return {}


def _misnamed(names: tuple[str, ...], orders: list[Any]) -> Iterator[ValidationError]:
    for name, order in zip(names, orders, strict=True):
        given = order.get("id") if isinstance(order, dict) else None
        if isinstance(given, str) and given != name:
            yield ValidationError(
                "E001", name, f"{name}.json holds the order {given!r}; rename one of the two", "id"
            )


def _missing(names: tuple[str, ...], manifest: dict[str, Any]) -> Iterator[ValidationError]:
    listed = manifest.get("work_orders")
    for order in listed if isinstance(listed, list) else ():
        given = order.get("id") if isinstance(order, dict) else None
        if isinstance(given, str) and given not in names:
            yield ValidationError(
                "E001", given, f"{MANIFEST_FILE} lists it, but there is no {given}.json", "id"
            )
