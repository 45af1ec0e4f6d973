"""How long a plan takes to judge: by its length, and by the size of the repository it is for.

Linear means that the time per order stays what it is, for 5,000 orders as for 10. The last ratio is
paid to Python's garbage collector, which looks through all that is alive from time to time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.timing import medians
from planner.validation import assess

LENGTHS = (10, 100, 1_000, 5_000)
REPOSITORIES = (0, 100_000)


def a_plan(length: int) -> dict[str, Any]:
    """Orders as they come: each builds on the one before, writes two files and runs two commands."""
    return {"work_orders": [_order(number) for number in range(1, length + 1)], "verify_contract": None}


def _order(number: int) -> dict[str, Any]:
    module, test = f"shop/part_{number}.py", f"tests/test_part_{number}.py"
    before = [{"kind": "file_exists", "path": f"shop/part_{number - 1}.py"}] if number > 1 else []
    return {
        "id": f"WO-{number:02d}",
        "title": f"Add part {number}",
        "intent": f"Part {number} builds on the part before it and is covered by a test of its own.",
        "preconditions": [*before, {"kind": "file_absent", "path": module}],
        "postconditions": [{"kind": "file_exists", "path": path} for path in (module, test)],
        "allowed_files": [module, test],
        "forbidden": ["Do not touch other parts."],
        "acceptance_commands": [
            f'python -c "from shop.part_{number} import run; assert run(2) == {number}"',
            f"python -m pytest -q {test}",
        ],
        "context_files": [f"shop/part_{number - 1}.py"] if number > 1 else [],
        "notes": None,
    }


def a_repository(size: int) -> set[str]:
    """Paths that the plan does not touch."""
    return {f"lib/{number // 100}/module_{number}.py" for number in range(size)}


def rows() -> Iterator[str]:
    """Each length and repository: time per order, against that of 10 orders and no repository."""
    work, orders = {}, {}
    for size in REPOSITORIES:
        repository = a_repository(size)
        for length in LENGTHS:
            name = f"{length:,} orders, {size:,} files in the repository"
            # Short plans are judged many times over: a clock tells nothing about one millisecond.
            repeats = max(1, 1_000 // length)
            work[name] = partial(_judge, a_plan(length), repository, repeats)
            orders[name] = length * repeats
    seconds = medians(work, rounds=5)
    per_order = {name: seconds[name] / count for name, count in orders.items()}
    base = next(iter(per_order.values()))
    for name, each in per_order.items():
        comparison = f"{each / base:5.2f} x  the time per order of the first row"
        yield f"{name:<48} {each * 1000:.3f} ms per order  {comparison}"


def _judge(plan: dict[str, Any], repository: set[str], repeats: int) -> None:
    for _ in range(repeats):
        assess(plan, repository)


if __name__ == "__main__":
    for row in rows():
        print(row)
