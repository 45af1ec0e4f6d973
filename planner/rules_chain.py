"""The rules about files over time, from order to order: E101 to E106, W101."""

from __future__ import annotations

from collections.abc import Iterator

from planner.commands import Dependency
from planner.defaults import VERIFY_SCRIPT
from planner.plan import Draft, Plan, Timeline
from planner.rules import Objection, order_rule, rule
from shared.work_order import Condition


@order_rule("E101", "chain")
def preconditions_hold(draft: Draft, plan: Plan) -> Iterator[tuple[str, str]]:
    """A precondition does not hold when its order starts.

    Before an order run, there are the files of the repository and those that earlier orders promise.
    A `file_exists` precondition must be among them, a `file_absent` one must not. An order's own
    postconditions do not count: they speak of the time after it.

    Bad (WO-01 promises `cart.py`, and nothing promises `price.py`):

        {"id": "WO-02", "preconditions": [{"kind": "file_exists", "path": "price.py"}], ...}

    Good:

        {"id": "WO-02", "preconditions": [{"kind": "file_exists", "path": "cart.py"}], ...}
    """
    files = plan.timeline.before(draft)
    for place, condition in draft.preconditions:
        if not condition.holds_in(files):
            yield f"preconditions[{place}]", _unmet(condition, draft, plan.timeline)


def _unmet(condition: Condition, draft: Draft, timeline: Timeline) -> str:
    path, maker = condition.path, timeline.maker(condition.path)
    if condition.kind == "file_absent":
        if path in timeline.repo_paths:
            have = "the repository already has it"
        else:
            have = f"{maker.label if maker else 'an earlier order'} has made it by then"
        return f"{path} must be absent, but {have}; if this order edits it, require file_exists instead"
    if maker is None:
        return (
            f"{path} must exist, but the repository does not have it and no order makes it; "
            f"let an earlier order promise it in its postconditions, or drop the precondition"
        )
    if maker.position == draft.position:
        return (
            f"{path} must exist before this order, but it is this order that makes it; "
            f"require file_absent, or drop the precondition"
        )
    return (
        f"{path} must exist, but only {maker.label} makes it, which comes later; "
        f"move that order before this one, or drop the precondition"
    )


@order_rule("E102", "chain")
def preconditions_agree(draft: Draft, _: Plan) -> Iterator[tuple[str, str]]:
    """An order requires one file to be both there and absent.

    No repository can fulfil that, so the order could never start.

    Bad:

        "preconditions": [{"kind": "file_absent", "path": "cart.py"},
                          {"kind": "file_exists", "path": "cart.py"}]

    Good:

        "preconditions": [{"kind": "file_absent", "path": "cart.py"}]
    """
    kinds: dict[str, set[str]] = {}
    for place, condition in draft.preconditions:
        known = kinds.setdefault(condition.path, set())
        if known and condition.kind not in known:
            yield (
                f"preconditions[{place}]",
                f"{condition.path} is required to be both there and absent; keep one of the two",
            )
        known.add(condition.kind)


@order_rule("E103", "chain")
def promises_in_reach(draft: Draft, _: Plan) -> Iterator[tuple[str, str]]:
    """A postcondition names a file that the order may not write.

    An order can only promise what it is allowed to do. Add the file to `allowed_files`, or let the
    order that writes it promise it.

    Bad:

        "allowed_files": ["cart.py"],
        "postconditions": [{"kind": "file_exists", "path": "price.py"}]

    Good:

        "allowed_files": ["cart.py"],
        "postconditions": [{"kind": "file_exists", "path": "cart.py"}]
    """
    if not isinstance(draft.raw.get("allowed_files"), list):
        return  # E005 says so; every promise would be out of reach of nothing
    allowed = {path for _, path in draft.allowed_files}
    for place, promise in draft.promises:
        if promise.path not in allowed:
            yield (
                f"postconditions[{place}]",
                f"{promise.path} is promised but not in allowed_files; add it there, or drop the promise",
            )


@order_rule("E104", "chain")
def allowed_files_promised(draft: Draft, _: Plan) -> Iterator[tuple[str, str]]:
    """An allowed file has no postcondition.

    Later orders build on what earlier ones promise, so an order that promises anything promises every
    file it may write. An order without any postcondition is left alone.

    Bad:

        "allowed_files": ["cart.py", "price.py"],
        "postconditions": [{"kind": "file_exists", "path": "cart.py"}]

    Good:

        "allowed_files": ["cart.py"],
        "postconditions": [{"kind": "file_exists", "path": "cart.py"}]
    """
    if not draft.promises:
        return
    promised = {promise.path for _, promise in draft.promises}
    for place, path in draft.allowed_files:
        if path not in promised:
            message = (
                f"{path} may be written but is not promised; add a file_exists postcondition for it, "
                f"or remove it from allowed_files"
            )
            yield f"allowed_files[{place}]", message


@order_rule("E105", "chain")
def verification_left_out(draft: Draft, _: Plan) -> Iterator[tuple[str, str]]:
    """An acceptance command runs the global verification.

    `scripts/verify.sh` is run for every order anyway, before its acceptance commands, and early orders
    are exempt from it until the plan has made what it needs. As an acceptance command it would run
    twice, or too early. It is recognised through other shells, options, arguments and spellings of the
    path. `bash -n scripts/verify.sh`, which only checks its grammar, is fine.

    Bad:

        "acceptance_commands": ["bash scripts/verify.sh"]

    Good:

        "acceptance_commands": ["python -m pytest -q tests/test_cart.py"]
    """
    for place, command in draft.commands:
        if command.runs_verification:
            message = (
                f"runs {VERIFY_SCRIPT}, which is run for every order anyway; "
                f"remove it and test what this order adds"
            )
            yield f"acceptance_commands[{place}]", message


@rule("E106", "chain")
def contract_fulfilled(plan: Plan) -> Iterator[Objection]:
    """The plan ends without fulfilling its verify contract.

    `verify_contract.requires` lists what the global verification needs. When the last order is done,
    all of it must hold: from the repository, or promised by some order. Otherwise no order of the plan
    would ever be verified.

    Bad (no order promises `scripts/verify.sh`, and the repository does not have it):

        "verify_contract": {"requires": [{"kind": "file_exists", "path": "scripts/verify.sh"}]}

    Good: the same, with an order whose `allowed_files` and `postconditions` name `scripts/verify.sh`.
    """
    files = plan.timeline.at_the_end()
    for place, condition in plan.contract.requires:
        if condition.holds_in(files):
            continue
        field, path = f"verify_contract.requires[{place}]", condition.path
        if condition.kind == "file_exists":
            yield Objection(
                field,
                f"{path} is required, but the repository does not have it and no order makes it; "
                f"let an order promise it in its postconditions, or drop the requirement",
            )
        else:
            maker = plan.timeline.maker(path)
            have = f"{maker.label} makes it" if maker else "the repository has it and no order can remove it"
            yield Objection(field, f"{path} is required to be absent, but {have}; drop the requirement")


@order_rule("W101", "chain")
def dependencies_provided(draft: Draft, plan: Plan) -> Iterator[tuple[str, str]]:
    r"""An acceptance command leans on a file that nothing provides.

    A warning, which never stops a plan: a module may be an installed package. Looked at are the imports
    of `python -c` and the scripts that `bash` and `python` are given; the standard library is known.
    The files are those before the order and those it promises itself. `python -m`, dynamic imports and
    other programs are not looked into.

    Bad (nothing promises `price.py` or `price/__init__.py`):

        "acceptance_commands": ["python -c \"import price\""],
        "postconditions": [{"kind": "file_exists", "path": "cart.py"}]

    Good:

        "acceptance_commands": ["python -c \"import cart\""],
        "postconditions": [{"kind": "file_exists", "path": "cart.py"}]
    """
    files = plan.timeline.after(draft)
    for place, command in draft.commands:
        for dependency in command.dependencies:
            if not any(path in files for path in dependency.candidates + dependency.also):
                yield f"acceptance_commands[{place}]", _unprovided(dependency, plan.timeline)


def _unprovided(dependency: Dependency, timeline: Timeline) -> str:
    wanted = " or ".join(dependency.candidates)
    later = next((maker for path in dependency.candidates if (maker := timeline.maker(path))), None)
    if later:
        return f"needs {wanted}, but only {later.label} makes it, which comes later"
    if len(dependency.candidates) == 1:
        return f"runs {wanted}, which neither the repository nor an order up to this one provides"
    return (
        f"imports {dependency.name}, but neither the repository nor an order up to this one provides "
        f"{wanted}; fine if it is an installed package"
    )
