"""What a plan rule is: a code, the text that explains it, and a function that looks.

A rule is documented where it is written: its docstring is what `llmch explain` prints and what the
table in the documents is made from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from planner.plan import Draft, Plan

Layer = Literal["structure", "chain"]
Kind = Literal["error", "warning"]


@dataclass(frozen=True)
class ValidationError:
    """One finding: which rule, which work order (None for the plan as a whole), what, and where in it."""

    code: str
    wo_id: str | None
    message: str
    field: str | None = None

    def __str__(self) -> str:
        place = " ".join(part for part in (self.wo_id, self.field) if part)
        return f"[{self.code}] {place}: {self.message}" if place else f"[{self.code}] {self.message}"


class Objection(NamedTuple):
    """What a rule says: where and what. `draft` is None when it is about the plan as a whole."""

    field: str
    message: str
    draft: Draft | None = None


@dataclass(frozen=True)
class Rule:
    """A registered rule. `doc` is its text in full, `title` its first line."""

    code: str
    title: str
    doc: str
    kind: Kind
    layer: Layer
    look: Callable[[Plan], Iterator[Objection]]

    def __call__(self, plan: Plan) -> Iterator[tuple[int, ValidationError]]:
        """The findings in `plan`, each with the position of its order (-1: the plan as a whole)."""
        for field, message, draft in self.look(plan):
            label = draft.label if draft else None
            yield draft.position if draft else -1, ValidationError(self.code, label, message, field)


def rule(code: str, layer: Layer) -> Callable[[Callable[[Plan], Iterator[Objection]]], Rule]:
    """Register a function that looks at a whole plan."""

    def register(look: Callable[[Plan], Iterator[Objection]]) -> Rule:
        return _rule(code, layer, look, inspect.getdoc(look))

    return register


def order_rule(
    code: str, layer: Layer
) -> Callable[[Callable[[Draft, Plan], Iterator[tuple[str, str]]]], Rule]:
    """Register a function that looks at one order at a time, and says field and message."""

    def register(look: Callable[[Draft, Plan], Iterator[tuple[str, str]]]) -> Rule:
        def look_at_each(plan: Plan) -> Iterator[Objection]:
            for draft in plan.drafts:
                for field, message in look(draft, plan):
                    yield Objection(field, message, draft)

        return _rule(code, layer, look_at_each, inspect.getdoc(look))

    return register


def _rule(code: str, layer: Layer, look: Callable[[Plan], Iterator[Objection]], doc: str | None) -> Rule:
    text = doc or ""
    kind: Kind = "warning" if code.startswith("W") else "error"
    return Rule(code, text.partition("\n")[0], text, kind, layer, look)
