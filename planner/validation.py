"""The judge of plans: every rule over a whole plan, all findings in one pass.

Deterministic and pure: no disk, no clock, no model. Everything here takes JSON of any shape, also
malformed at any depth, and answers with findings, never with an exception.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from planner import rules_chain, rules_structure
from planner.bootstrap import skip_bootstrap, superfluous, without
from planner.commands import extract_file_dependencies
from planner.plan import Contract, Plan, normalize_work_order
from planner.rules import Layer, Rule, ValidationError

__all__ = [
    "RULES",
    "Assessment",
    "Rule",
    "UnknownCode",
    "ValidationError",
    "assess",
    "compute_verify_exempt",
    "explain",
    "extract_file_dependencies",
    "normalize_work_order",
    "parse_and_validate",
    "rules_page",
    "rules_table",
    "skip_bootstrap",
    "validate_plan",
    "validate_plan_v2",
]

_WRITTEN = [
    written
    for room in (rules_structure, rules_chain)
    for written in vars(room).values()
    if isinstance(written, Rule)
]
RULES: Mapping[str, Rule] = MappingProxyType(
    {written.code: written for written in sorted(_WRITTEN, key=lambda written: written.code)}
)
"""Every rule by its code, in the order of codes (errors first). Writing a rule registers it."""


# --- the verdict ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Assessment:
    """A plan, tidied, with everything the rules have to say about it.

    `work_orders` are normalised; orders that were skipped as done already are in `skipped`, and the
    others are then renumbered. Findings name orders by the ids the plan came with.
    """

    work_orders: list[dict[str, Any]]
    findings: list[ValidationError]
    skipped: list[dict[str, Any]]

    @property
    def errors(self) -> list[ValidationError]:
        """The findings that stop a plan."""
        return [finding for finding in self.findings if _stops(finding)]

    @property
    def warnings(self) -> list[ValidationError]:
        """The findings that do not."""
        return [finding for finding in self.findings if not _stops(finding)]


def _stops(finding: ValidationError) -> bool:
    return RULES[finding.code].kind == "error"


def assess(manifest: object, repo_paths: Collection[str], *, skip_done: bool = False) -> Assessment:
    """Judge a whole manifest by every rule, in one pass, in time linear in the number of orders.

    With `skip_done`, orders that would create the verify script a repository already has are left out
    before the chain is looked at (see `skip_bootstrap`).
    """
    tidy = _normalized(manifest)
    plan = Plan.of(tidy, repo_paths)
    orders = _orders(tidy)
    done = superfluous(plan) if skip_done else frozenset()
    structure = _found(plan, "structure")
    chain = _found(plan.without(done) if done else plan, "chain")
    kept, skipped = without(orders, done)
    return Assessment(kept, _in_order([*structure, *chain]), skipped)


def parse_and_validate(manifest: object) -> tuple[list[dict[str, Any]], list[ValidationError]]:
    """Normalise the orders of a manifest and judge each by itself.

    Returns the normalised orders and the findings; `([], findings)` when `work_orders` is not a
    non-empty list of objects.
    """
    tidy = _normalized(manifest)
    plan = Plan.of(tidy)
    orders = _orders(tidy)
    well_shaped = all(isinstance(order, dict) for order in orders)
    return orders if well_shaped else [], _in_order(_found(plan, "structure"))


def validate_plan(work_orders: list[Any]) -> list[ValidationError]:
    """The findings of the structural layer: shape, ids, schema, commands (E000 to E007)."""
    return _in_order(_found(Plan.of({"work_orders": work_orders}), "structure"))


def validate_plan_v2(
    work_orders: list[Any], verify_contract: object, repo_paths: Collection[str]
) -> list[ValidationError]:
    """The findings of the chain layer: files from order to order (E101 to E106, W101).

    E000 is among them where an order or the contract is malformed; an empty list of orders is none,
    for a plan may have been fulfilled before it started.
    """
    plan = Plan.of({"work_orders": work_orders, "verify_contract": verify_contract}, repo_paths)
    malformed = [] if work_orders == [] and not plan.contract.problems else list(RULES["E000"](plan))
    return _in_order([*malformed, *_found(plan, "chain")])


def compute_verify_exempt(
    work_orders: list[dict[str, Any]], verify_contract: object, repo_paths: Collection[str]
) -> list[dict[str, Any]]:
    """New dicts with `verify_exempt` set by the planner, whatever was there before.

    An order is exempt when, after it, something that the contract requires still does not hold. With no
    contract, or one that is no object, none is.
    """
    plan = Plan.of({"work_orders": work_orders}, repo_paths)
    exempt = _exempt_positions(plan, Contract.of(verify_contract))
    return [
        {**order, "verify_exempt": position in exempt} if isinstance(order, dict) else order
        for position, order in enumerate(_orders(plan.manifest))
    ]


def _exempt_positions(plan: Plan, contract: Contract) -> set[int]:
    missing = {
        condition.path
        for _, condition in contract.requires
        if condition.kind == "file_exists" and condition.path not in plan.timeline.repo_paths
    }
    unwanted = {condition.path for _, condition in contract.requires if condition.kind == "file_absent"}
    spoiled = any(path in plan.timeline.repo_paths for path in unwanted)
    exempt = set()
    for draft in plan.drafts:
        made = {promise.path for _, promise in draft.promises}
        missing -= made
        spoiled = spoiled or not unwanted.isdisjoint(made)
        if missing or spoiled:
            exempt.add(draft.position)
    return exempt


def _normalized(manifest: object) -> object:
    if not isinstance(manifest, dict) or not isinstance(manifest.get("work_orders"), list):
        return manifest
    return {**manifest, "work_orders": [normalize_work_order(order) for order in manifest["work_orders"]]}


def _orders(manifest: object) -> list[Any]:
    orders = manifest.get("work_orders") if isinstance(manifest, dict) else None
    return orders if isinstance(orders, list) else []


def _found(plan: Plan, layer: Layer) -> Iterable[tuple[int, ValidationError]]:
    for written in RULES.values():
        if written.layer == layer:
            yield from written(plan)


def _in_order(found: Iterable[tuple[int, ValidationError]]) -> list[ValidationError]:
    """By order, then by code: what is wrong with one order stands together."""
    return [finding for _, finding in sorted(found, key=lambda item: item[0])]


# --- the rules as text ---------------------------------------------------------------------


class UnknownCode(KeyError):
    """A code that no rule has. The text lists those that exist."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        return f"no rule has the code {self.code!r}; there are {', '.join(RULES)}"


def explain(code: str) -> str:
    """What the rule `code` looks for, why, and an example. Raises `UnknownCode`."""
    known = RULES.get(code.strip().upper())
    if known is None:
        raise UnknownCode(code)
    return f"{known.code} ({known.kind}): {known.doc}\n"


def rules_table() -> str:
    """All rules in a Markdown table."""
    rows = [f"| [{r.code}](#{r.code.lower()}) | {r.kind} | {r.title} |" for r in RULES.values()]
    return "\n".join(["| code | kind | says |", "|---|---|---|", *rows]) + "\n"


def rules_page() -> str:
    """The page of the documents that is made from the rules: the table, then each rule's own text."""
    texts = [f"## {written.code}\n\n{written.doc}\n" for written in RULES.values()]
    return "\n".join([_PAGE_HEAD, rules_table(), *texts])


_PAGE_HEAD = """# The rules of a plan

Made from the rules themselves by `planner.validation.rules_page()`; a test holds this page to them.
`llmch explain CODE` prints the same text. Errors send the plan back to the model; warnings do not.
"""
