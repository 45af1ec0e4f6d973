"""The rows of the requirements that can be seen from outside, and who checks them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

OBSERVABLE = """
FB 01-19
FC 01-34
FE 01-05 07-08
FF 01-11
FG 02-11
FM 02-07 09-11
FP 01-21
FS 01-22
FT 01-14
FU 02 04
FW 01-05 08-09
LC 01-12
PB 01-06
PC 01-14
PD 01-05
PI 01-06
PK 01-35
PO 01-16
PT 01-05
PV 01-60
S 01-02 04-14 16-22 24-25
X 01-08
"""


def observable() -> list[str]:
    """The ids of all rows that have to be checked here."""
    found = []
    for line in OBSERVABLE.split("\n"):
        family, *spans = line.split() or [""]
        for span in spans:
            first, _, last = span.partition("-")
            found += [f"{family}{number:02d}" for number in range(int(first), int(last or first) + 1)]
    return found


def checked() -> dict[str, list[str]]:
    """Row id -> the tests that carry it in `@pytest.mark.rows(...)` or in a `Case(...)` of a table."""
    found: dict[str, list[str]] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for row, where in _marks(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(row, []).append(f"{path.name}::{where}")
    return found


def _marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.rows":
                    yield from ((ast.literal_eval(row), node.name) for row in decorator.args)
        elif isinstance(node, ast.keyword) and node.arg == "rows" and isinstance(node.value, ast.Constant):
            for row in str(node.value.value).split():
                yield row, f"case at line {node.value.lineno}"


if __name__ == "__main__":
    have = checked()
    for row in observable():
        print(row, "  ".join(have.get(row, ["NO CHECK"])))  # noqa: T201  a listing for people
