"""Orders whose work is done already: those that would create the verify script a repository has."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from planner.defaults import VERIFY_SCRIPT
from planner.plan import Contract, Draft, Plan, Timeline, order_id


def skip_bootstrap(
    work_orders: list[dict[str, Any]],
    repo_paths: Collection[str] | None,
    verify_contract: object = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Leave out the orders that would create `scripts/verify.sh` where the repository has it.

    Returns the kept orders, renumbered from WO-01 (new dicts, order and content as they were), and the
    skipped ones. An order is kept all the same when a kept order, or the verify contract, needs another
    file that only it makes in time; and when it requires the script to exist, for then it edits it.
    When nothing is skipped, ids stay as they are. When nothing is left, the list is empty: the plan is
    fulfilled, and the caller says so.
    """
    if not isinstance(work_orders, list):
        return [], []
    plan = Plan.of({"work_orders": work_orders, "verify_contract": verify_contract}, repo_paths)
    return without(work_orders, superfluous(plan))


def without(
    work_orders: list[dict[str, Any]], positions: Collection[int]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split off the orders at `positions` and renumber the rest when there were any."""
    if not positions:
        return list(work_orders), []
    kept = [order for position, order in enumerate(work_orders) if position not in positions]
    skipped = [order for position, order in enumerate(work_orders) if position in positions]
    renumbered = [
        {**order, "id": order_id(number)} if isinstance(order, dict) else order
        for number, order in enumerate(kept, start=1)
    ]
    return renumbered, skipped


def superfluous(plan: Plan) -> frozenset[int]:
    """The positions of the orders that `skip_bootstrap` leaves out."""
    if VERIFY_SCRIPT not in plan.timeline.repo_paths:
        return frozenset()
    candidates = frozenset(draft.position for draft in plan.drafts if _creates_script(draft))
    others = Timeline(
        plan.timeline.repo_paths, (draft for draft in plan.drafts if draft.position not in candidates)
    )
    # From the last order to the first, because only later orders decide whether one is needed.
    needed = _needed_at_the_end(plan.contract, others)
    skipped = set()
    for draft in reversed(plan.drafts):
        promised = {promise.path for _, promise in draft.promises}
        if draft.position in candidates:
            if needed.isdisjoint(promised):
                skipped.add(draft.position)
                continue
            needed -= promised
        files = others.before(draft)
        needed |= {
            condition.path
            for _, condition in draft.preconditions
            if condition.kind == "file_exists" and condition.path not in files
        }
    return frozenset(skipped)


def _creates_script(draft: Draft) -> bool:
    edits = any(
        condition.kind == "file_exists" and condition.path == VERIFY_SCRIPT
        for _, condition in draft.preconditions
    )
    return not edits and any(promise.path == VERIFY_SCRIPT for _, promise in draft.promises)


def _needed_at_the_end(contract: Contract, others: Timeline) -> set[str]:
    files = others.at_the_end()
    return {
        condition.path
        for _, condition in contract.requires
        if condition.kind == "file_exists" and condition.path not in files
    }
