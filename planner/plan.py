"""A plan as a model gave it: read tolerantly, so that every rule can judge what is well formed.

JSON of any shape goes in; drafts of work orders and a timeline of files come out. Nothing raises.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from pydantic import ValidationError as SchemaError

from planner.commands import Command
from shared.work_order import Condition, Problem, WorkOrder, checked_path, normalize_path, problems_of

_TEXT_FIELDS = ("id", "title", "intent", "notes")
_PATH_FIELDS = ("allowed_files", "context_files")
_WORD_FIELDS = ("forbidden", "acceptance_commands")
_CONDITION_FIELDS = ("preconditions", "postconditions")


def order_id(number: int) -> str:
    """The id of the work order at `number`, counted from 1: WO-01 … WO-99, WO-100 …."""
    return f"WO-{number:02d}"


# --- normalising ---------------------------------------------------------------------------


def normalize_work_order(order: dict[str, Any]) -> dict[str, Any]:
    """A new dict: texts stripped, paths in their one spelling, repeated list entries dropped.

    What is malformed stays as it is, for the rules to name; nothing is reordered and nothing added.
    """
    if not isinstance(order, dict):
        return order
    tidy = dict(order)
    for name in _TEXT_FIELDS:
        if isinstance(tidy.get(name), str):
            tidy[name] = tidy[name].strip()
    for names, tidied in (
        (_PATH_FIELDS, _tidy_path),
        (_WORD_FIELDS, _tidy_text),
        (_CONDITION_FIELDS, _tidy_condition),
    ):
        for name in names:
            if isinstance(tidy.get(name), list):
                tidy[name] = list(_once(tidied(entry) for entry in tidy[name]))
    return tidy


def _tidy_text(entry: object) -> object:
    return entry.strip() if isinstance(entry, str) else entry


def _tidy_path(entry: object) -> object:
    return normalize_path(entry) if isinstance(entry, str) else entry


def _tidy_condition(entry: object) -> object:
    if isinstance(entry, dict) and isinstance(entry.get("path"), str):
        return {**entry, "path": normalize_path(entry["path"])}
    return entry


def _once(entries: Iterable[object]) -> Iterator[object]:
    seen: set[object] = set()
    for entry in entries:
        key = entry
        if isinstance(entry, dict) and entry.keys() == {"kind", "path"}:
            key = (entry["kind"], entry["path"])
        # What cannot be a key is malformed; two of those are two findings.
        if isinstance(key, str) or (isinstance(key, tuple) and all(isinstance(part, str) for part in key)):
            if key in seen:
                continue
            seen.add(key)
        yield entry


# --- drafts --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Draft:
    """One element of `work_orders` that is an object, with what in it is well formed.

    The numbers beside the entries are their places in the list, so that a finding can point there.
    """

    position: int
    label: str
    raw: Mapping[str, Any]
    problems: tuple[Problem, ...]
    preconditions: tuple[tuple[int, Condition], ...]
    promises: tuple[tuple[int, Condition], ...]
    allowed_files: tuple[tuple[int, str], ...]
    commands: tuple[tuple[int, Command], ...]

    @classmethod
    def of(cls, position: int, raw: Mapping[str, Any]) -> Draft:
        """Read one element. It is checked against the contract once, here."""
        label = f"work_orders[{position}]"
        if isinstance(raw.get("id"), str) and 0 < len(raw["id"]) <= 64 and raw["id"].isprintable():
            label = raw["id"]
        # Provenance is the planner's to write, so what a model says there is neither kept nor judged.
        said = {key: value for key, value in raw.items() if key != "provenance"}
        try:
            order = WorkOrder.model_validate(said)
        except SchemaError as error:
            return cls(
                position,
                label,
                raw,
                tuple(problems_of(error)),
                tuple(_conditions(raw.get("preconditions"))),
                tuple(
                    item for item in _conditions(raw.get("postconditions")) if item[1].kind == "file_exists"
                ),
                tuple(_paths(raw.get("allowed_files"))),
                tuple((place, Command.of(text)) for place, text in texts(raw.get("acceptance_commands"))),
            )
        return cls(
            position,
            label,
            raw,
            (),
            tuple(enumerate(order.preconditions)),
            tuple(enumerate(order.postconditions)),
            tuple(enumerate(order.allowed_files)),
            tuple((place, Command.of(text)) for place, text in enumerate(order.acceptance_commands)),
        )


def texts(value: object) -> Iterator[tuple[int, str]]:
    """The strings of a list with their places; nothing for anything else."""
    if isinstance(value, list):
        yield from ((place, entry) for place, entry in enumerate(value) if isinstance(entry, str))


def _conditions(value: object) -> Iterator[tuple[int, Condition]]:
    for place, entry in enumerate(value if isinstance(value, list) else ()):
        if condition := _condition(entry)[0]:
            yield place, condition


def _paths(value: object) -> Iterator[tuple[int, str]]:
    for place, entry in texts(value):
        with suppress(ValueError):
            yield place, checked_path(entry)


def _condition(entry: object) -> tuple[Condition | None, list[Problem]]:
    try:
        return Condition.model_validate(entry), []
    except SchemaError as error:
        return None, problems_of(error)


# --- the verify contract -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Contract:
    """What must hold once the whole plan is done; empty when the plan states nothing."""

    requires: tuple[tuple[int, Condition], ...] = ()
    problems: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, value: object) -> Contract:
        """Read a `verify_contract`. A bare string in `requires` means that this file exists."""
        if value is None or value == {}:
            return cls()
        if not isinstance(value, dict):
            return cls(problems=(Problem("verify_contract", "must be an object or null"),))
        if not isinstance(value.get("requires"), list):
            problem = Problem("verify_contract.requires", "must be a list of conditions {kind, path}")
            return cls(problems=(problem,))
        requires: list[tuple[int, Condition]] = []
        problems: list[Problem] = []
        for place, entry in enumerate(value["requires"]):
            given = {"kind": "file_exists", "path": entry} if isinstance(entry, str) else entry
            condition, found = _condition(_tidy_condition(given))
            if condition:
                requires.append((place, condition))
            where = f"verify_contract.requires[{place}]"
            problems += [
                Problem(f"{where}.{problem.field}" if problem.field else where, problem.message)
                for problem in found
            ]
        return cls(tuple(requires), tuple(problems))


# --- files over time -----------------------------------------------------------------------


class _Moment:
    """The files that exist at one point of the plan, as a container of paths."""

    def __init__(self, repo_paths: Container[str], makers: Mapping[str, Draft], position: float) -> None:
        self._repo_paths = repo_paths
        self._makers = makers
        self._position = position

    def __contains__(self, path: object) -> bool:
        maker = self._makers.get(path)  # type: ignore[call-overload]
        return (maker is not None and maker.position < self._position) or path in self._repo_paths


class Timeline:
    """Which files exist before and after each order: the repository's, and what orders promise.

    Every path is kept once, with the first order that makes it. So a moment costs nothing to look at,
    and the repository's listing is looked into, never copied.
    """

    def __init__(self, repo_paths: Container[str], drafts: Iterable[Draft]) -> None:
        self.repo_paths = repo_paths
        self._makers: dict[str, Draft] = {}
        for draft in drafts:
            for _, promise in draft.promises:
                self._makers.setdefault(promise.path, draft)

    def before(self, draft: Draft) -> Container[str]:
        """The files when `draft` starts."""
        return _Moment(self.repo_paths, self._makers, draft.position)

    def after(self, draft: Draft) -> Container[str]:
        """The files when `draft` is done."""
        return _Moment(self.repo_paths, self._makers, draft.position + 1)

    def at_the_end(self) -> Container[str]:
        """The files when the whole plan is done."""
        return _Moment(self.repo_paths, self._makers, inf)

    def maker(self, path: str) -> Draft | None:
        """The first order that makes `path`."""
        return self._makers.get(path)


def listing(repo_paths: Collection[str] | None) -> Container[str]:
    """`repo_paths` as something that answers `in` at once, without a copy where it already does."""
    if isinstance(repo_paths, (set, frozenset, Mapping)):
        return repo_paths
    return frozenset(repo_paths or ())


# --- the whole -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """A manifest, read once. What is not an object or a list where one belongs is left to E000."""

    manifest: object
    drafts: tuple[Draft, ...]
    contract: Contract
    timeline: Timeline

    @classmethod
    def of(cls, manifest: object, repo_paths: Collection[str] | None = None) -> Plan:
        """Read a manifest of any shape."""
        stated = manifest if isinstance(manifest, dict) else {}
        orders = stated.get("work_orders")
        elements = enumerate(orders if isinstance(orders, list) else ())
        drafts = tuple(Draft.of(position, raw) for position, raw in elements if isinstance(raw, dict))
        contract = Contract.of(stated.get("verify_contract"))
        return cls(manifest, drafts, contract, Timeline(listing(repo_paths), drafts))

    def without(self, positions: Container[int]) -> Plan:
        """The same plan without the orders at `positions`; the others keep their ids and places."""
        kept = tuple(draft for draft in self.drafts if draft.position not in positions)
        return replace(self, drafts=kept, timeline=Timeline(self.timeline.repo_paths, kept))
