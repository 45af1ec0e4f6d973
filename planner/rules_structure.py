"""The rules that need one work order at most, or the list of ids: E000 to E007."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planner.defaults import SHELL_OPERATOR_TOKENS
from planner.plan import Draft, Plan, order_id, texts
from planner.rules import Objection, order_rule, rule
from shared.work_order import GLOB_CHARACTERS, BadId, GlobInPath, quoted

_ID = re.compile(r"WO-(0[1-9]|[1-9][0-9]{1,6})")


@rule("E000", "structure")
def shape(plan: Plan) -> Iterator[Objection]:
    """The answer does not have the shape of a plan.

    A plan is one JSON object with a non-empty list `work_orders` of objects and, optionally, an object
    `verify_contract` whose `requires` is a list of conditions. Nothing can be said about orders that
    cannot be found, so this comes before everything else. An answer that is no JSON has this code too.

    Bad:

        {"work_orders": ["WO-01: add a parser"]}

    Good:

        {"work_orders": [{"id": "WO-01", "title": "Add a parser", ...}]}
    """
    if not isinstance(plan.manifest, dict):
        yield Objection("", "the answer must be a JSON object with the key work_orders")
        return
    if "work_orders" not in plan.manifest:
        yield Objection("work_orders", "is missing; a plan is an object with a list of work orders")
        return
    orders = plan.manifest["work_orders"]
    if not isinstance(orders, list):
        yield Objection("work_orders", "must be a list of work orders")
    elif not orders:
        yield Objection("work_orders", "is empty; a plan has at least one work order")
    else:
        for position, element in enumerate(orders):
            if not isinstance(element, dict):
                yield Objection(f"work_orders[{position}]", "must be an object, a whole work order")
    for problem in plan.contract.problems:
        yield Objection(problem.field, problem.message)


@rule("E001", "structure")
def numbering(plan: Plan) -> Iterator[Objection]:
    """The ids are not WO-01, WO-02, … in the order of the list.

    Orders run by number and are looked up by id, so each number from 01 on stands once, in its place.
    After WO-99 come WO-100, WO-101 and so on.

    Bad:

        {"work_orders": [{"id": "WO-01", ...}, {"id": "WO-3", ...}]}

    Good:

        {"work_orders": [{"id": "WO-01", ...}, {"id": "WO-02", ...}]}
    """
    taken: dict[str, int] = {}
    number, place = 0, -1
    for draft in plan.drafts:
        given = draft.raw.get("id")
        if "id" not in draft.raw:
            continue  # E005 says so
        right = f"by its place this order is {order_id(draft.position + 1)}"
        if not isinstance(given, str) or not _ID.fullmatch(given):
            shown = quoted(given) if isinstance(given, str) else "it"
            yield Objection("id", f"{shown} is not of the form WO-01; {right}", draft)
            continue
        if given in taken:
            yield Objection("id", f"{given} is already the id of work_orders[{taken[given]}]; {right}", draft)
        # Judged by the order before it, so that one gap is one finding and not one per later order.
        elif int(given[3:]) != number + draft.position - place:
            yield Objection("id", f"{given} does not follow; {right}", draft)
        taken.setdefault(given, draft.position)
        number, place = int(given[3:]), draft.position


@order_rule("E003", "structure")
def shell_operators(draft: Draft, _: Plan) -> Iterator[tuple[str, str]]:
    """An acceptance command relies on a shell.

    Commands are started directly, without a shell: a word that is `|`, `||`, `&&`, `;`, `>`, `>>`, `<`
    or `<<` would reach the program as an argument. Inside a longer quoted argument these characters
    are fine. Give two commands instead of `&&`; let Python or a test look at the output instead of `|`.

    Bad:

        "acceptance_commands": ["python -m pytest -q && python -m app --version"]

    Good:

        "acceptance_commands": ["python -m pytest -q", "python -m app --version"]
    """
    for place, command in draft.commands:
        if operators := [word for word in command.words if word in SHELL_OPERATOR_TOKENS]:
            message = (
                f"the word {' and '.join(dict.fromkeys(operators))} needs a shell, and there is none; "
                f"give separate commands, or one program that does it all"
            )
            yield f"acceptance_commands[{place}]", message


@order_rule("E004", "structure")
def globs(draft: Draft, _: Plan) -> Iterator[tuple[str, str]]:
    """A path is a pattern.

    What an order may write and must read is a list of files, each by its name. `*`, `?` and `[` are
    refused in `allowed_files`, `context_files` and the paths of conditions.

    Bad:

        "allowed_files": ["src/*.py"]

    Good:

        "allowed_files": ["src/cart.py", "src/price.py"]
    """
    for field, path in _raw_paths(draft):
        if any(character in path for character in GLOB_CHARACTERS):
            yield field, f"{quoted(path)} is a pattern; name each file, without any of * ? ["


def _raw_paths(draft: Draft) -> Iterator[tuple[str, str]]:
    for name in ("allowed_files", "context_files"):
        for place, path in texts(draft.raw.get(name)):
            yield f"{name}[{place}]", path
    for name in ("preconditions", "postconditions"):
        conditions = draft.raw.get(name)
        for place, condition in enumerate(conditions if isinstance(conditions, list) else ()):
            if isinstance(condition, dict) and isinstance(condition.get("path"), str):
                yield f"{name}[{place}].path", condition["path"]


@order_rule("E005", "structure")
def contract(draft: Draft, _: Plan) -> Iterator[tuple[str, str]]:
    """A work order does not conform to the contract.

    The same model reads orders here and when they are carried out. Required are `id`, `title`,
    `intent`, `allowed_files` (at least one), `acceptance_commands` (at least one, none blank) and
    `context_files` (at most 10). `preconditions`, `postconditions`, `forbidden` and `notes` may be left
    out. A condition is `{"kind": "file_exists" | "file_absent", "path": ...}`; a postcondition is always
    `file_exists`. Types are taken as they are: `"true"` is no boolean. Paths are relative to the root of
    the repository, stay inside it and out of `.git`, use `/`, and hold no control characters.

    Bad:

        {"id": "WO-01", "title": "Cart", "allowed_files": ["/src/cart.py"], ...}

    Good:

        {"id": "WO-01", "title": "Cart", "allowed_files": ["src/cart.py"], ...}
    """
    for problem in draft.problems:
        # Patterns are E004's and the form of ids is E001's: one mistake, one finding.
        if not isinstance(problem.cause, (GlobInPath, BadId)):
            yield problem.field, problem.message


@order_rule("E006", "structure")
def python_code(draft: Draft, _: Plan) -> Iterator[tuple[str, str]]:
    r"""The code of a `python -c` command is not Python.

    It would fail whatever the implementation, so every attempt would be spent on it. Often it is a
    compound statement after a semicolon, or quotes that the shell-like splitting takes away. Also
    `python3`, `python3.12` and a full path are looked at, with or without options before `-c`.

    Bad:

        "acceptance_commands": ["python -c \"import cart; for x in cart.items: print(x)\""]

    Good:

        "acceptance_commands": ["python -c \"import cart; [print(x) for x in cart.items]\""]
    """
    for place, command in draft.commands:
        if command.code_error:
            message = (
                f"the code of python -c is not Python: {command.code_error}; "
                f"correct it, or put it into a test file and run that"
            )
            yield f"acceptance_commands[{place}]", message


@order_rule("E007", "structure")
def unsplittable(draft: Draft, _: Plan) -> Iterator[tuple[str, str]]:
    """An acceptance command cannot be split into a program and its arguments.

    Commands are split as a POSIX shell would split words (`shlex.split`). A quote that is never closed,
    a backslash at the very end or an empty program name leave nothing that could be started.

    Bad:

        "acceptance_commands": ["python -c 'print(1)"]

    Good:

        "acceptance_commands": ["python -c 'print(1)'"]
    """
    for place, command in draft.commands:
        reason = command.split_error or ("the program name is empty" if command.words[:1] == ("",) else None)
        if reason:
            yield (
                f"acceptance_commands[{place}]",
                f"cannot be split into words ({reason}); balance the quotes of {quoted(command.text)}",
            )
