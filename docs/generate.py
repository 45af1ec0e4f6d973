"""Make what the documents can take from the code: `python docs/generate.py`, with `--check` only compare.

A page holds a derived piece between two markers, and the name in the first says which piece it is:

    <!-- derived: NAME (make docs) -->
    <!-- end -->

Everything outside of the markers is written by hand. `docs/rules.md` is derived as a whole.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType

import click

import factory.cli
import factory.defaults
import llmch.demo
import planner.cli
import planner.defaults
from factory.graph import WALK
from factory.ledger import Step
from factory.schemas import Stage
from llmch.__main__ import CHILDREN, HELP
from planner.validation import rules_page
from shared.events import Event, event_kinds

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("llmch", "planner", "factory", "shared")
_PIECE = re.compile(r"(<!-- derived: ([^(\n]+?) \(make docs\) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a page is behind")
    only_check = parser.parse_args().check
    behind = [path for path in pages() if path.read_text("utf-8") != made(path)]
    for path in behind:
        print(f"{'is behind' if only_check else 'made'}: {path.relative_to(ROOT)}")
        if not only_check:
            path.write_text(made(path), "utf-8")
    return 1 if only_check and behind else 0


def pages() -> list[Path]:
    """Every page of ours."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def made(path: Path) -> str:
    """A page as it should be. Raises `KeyError` for a piece that nobody makes."""
    if path == ROOT / "docs/rules.md":
        return rules_page()
    return _PIECE.sub(
        lambda match: f"{match[1]}\n{PIECES[match[2]]().strip()}\n\n{match[3]}", path.read_text("utf-8")
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = [tuple(head), *map(tuple, rows)]
    lines.insert(1, ("---",) * len(lines[0]))
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# --- the house ---------------------------------------------------------------------------


def rooms(package: str) -> str:
    """What a package is for, and a line for each of its modules: its own words, and the plan's."""
    allowed = _import_plan()
    lines = []
    for path in sorted((ROOT / package).glob("*.py")):
        if path.name == "__init__.py":
            continue
        name = f"{package}.{path.stem}"
        friends = [friend.removeprefix(f"{package}.") for friend in allowed.get(name, ())]
        lines.append((f"`{path.stem}`", _purpose(path), ", ".join(friends)))
    return (
        _purpose(ROOT / package / "__init__.py")
        + "\n\n"
        + table(("room", "what it is for", "may import"), lines)
    )


def _purpose(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


def _import_plan() -> Mapping[str, list[str]]:
    """Room -> what it may import, libraries last. The table itself stands in the test that holds it up."""
    tree = ast.parse((ROOT / "tests/test_house.py").read_text("utf-8"))
    plan = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PLAN"
    )
    lines = filter(None, plan.replace("\\\n", "").splitlines())
    split = (line.replace("{", " ").replace("}", " ").split() for line in lines)
    return {name: friends for name, *friends in split}


def walk() -> str:
    """The walk of an order through the graph, drawn from the table that the code follows."""
    chain = ["se"]
    while chain[-1] in WALK:
        chain.append(WALK[chain[-1]])
    line = "start ─> " + " ─> ".join(chain) + " ─> end"
    last = line.index(chain[-1])
    fails = [line.index(f" {name} ") + 1 for name in chain[:-1] if WALK[name] != chain[-1]]
    into, back = last + 2, last + 5
    below = {fails[0]: "└", **dict.fromkeys(fails[1:], "┴"), into: "┘", back: "└"}
    rule = "".join(below.get(at, "─" if fails[0] < at < into else " ") for at in range(back + 1))
    bars = "".join("▲" if at == into else "│" if at in below else " " for at in range(back + 1))
    names = "failure"
    middle = (fails[-1] + into - len(names)) // 2
    rule = f"{rule[:middle]} {names} {rule[middle + len(names) + 2 :]}"
    return f"```text\n{line}\n{bars.rstrip()}\n{rule}─ next attempt ─> {chain[0]}\n```"


def stages() -> str:
    """Where an attempt can fail, whether that is tried again, and what the model is told."""
    rows = ((f"`{stage}`", "yes" if stage.retryable else "no", stage.reminder) for stage in Stage)
    return table(("stage", "tried again", "what the model is reminded of"), rows)


def steps() -> str:
    """The points of a publication, a scratch tree and a recovery."""
    return table(("point", "what is so there"), ((f"`{step.name}`", step.value) for step in Step))


def events() -> str:
    """Every kind of event, its fields, and its own words."""
    words = {kind.kind: " ".join((kind.__doc__ or "").split()) for kind in Event.__subclasses__()}
    rows = (
        (f"`{kind}`", ", ".join(f"`{name}`" for name in names), words[kind])
        for kind, names in event_kinds().items()
    )
    return table(("kind", "fields", "what happened"), rows)


# --- the command line --------------------------------------------------------------------


def verbs() -> str:
    """The verbs of `llmch`, and what each becomes."""
    said = dict(re.findall(r"^  ([a-z-]+) {2,}(.+)$", HELP, re.MULTILINE))
    rows = (
        (f"`llmch {verb}`", f"`python -P -m {' '.join(child)}`", said[verb])
        for verb, child in CHILDREN.items()
    )
    return table(("verb", "becomes", "what it does"), rows)


TOOLS = {"planner": planner.cli.cli, "factory": factory.cli.cli}


def command(tool: str, name: str, *, told: str | None = None) -> str:
    """One command: what it does, its arguments, its options but for those that `told` has."""
    found = TOOLS[tool].commands[name]
    verb = next(verb for verb, child in CHILDREN.items() if child == (tool, name))
    arguments = [param for param in found.params if isinstance(param, click.Argument)]
    words = [f"{param.name}".upper() if param.required else f"[{param.name}]".upper() for param in arguments]
    paragraphs = [_unwrapped(part) for part in (found.help or "").split("\n\n")]
    known = {param.name for param in TOOLS[tool].commands[told].params} if told else set()
    options = [param for param in found.params if isinstance(param, click.Option) and param.name not in known]
    rows = ((_spelling(option), _fallback(option), option.help or "") for option in options)
    listed = table(("option", "default", "meaning"), rows)
    return "\n\n".join([f"`{' '.join(['llmch', verb, *words, '[OPTIONS]'])}`", *paragraphs, listed])


def _unwrapped(paragraph: str) -> str:
    return " ".join(paragraph.replace("\b", "").split())


def _spelling(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    return names if option.is_flag else f"{names} {_kind(option)}"


def _kind(option: click.Option) -> str:
    match option.type:
        case _ if option.metavar:
            return f"`{option.metavar}`"
        case click.Choice(choices=choices):
            return f"`{'|'.join(choices)}`"
        case click.IntRange(min=least, max=most) | click.FloatRange(min=least, max=most):
            return (
                f"`N` ({least:g} to {most:g})" if most is not None and most < 10**9 else f"`N` (from {least})"
            )
        case click.Path():
            return "`PATH`"
        case click.types.FloatParamType():
            return "`N`"
        case _:
            return "`TEXT`"


def _fallback(option: click.Option) -> str:
    if option.required:
        return "required"
    if not option.show_default:
        return ""
    value = option.default
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def demo() -> str:
    """The arguments of the demo."""
    parser = llmch.demo.parser()
    rows = []
    for action in parser._actions:  # noqa: SLF001  argparse has no other list of them
        names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`[{action.metavar}]`"
        value = f" `{action.metavar}`" if action.option_strings and action.metavar else ""
        rows.append((names + value, action.help or ""))
    return "\n\n".join([str(parser.description), table(("argument", "meaning"), rows)])


_NAMES_OF_FILES = re.compile(r"ARTIFACT_.*|.*_(FILE|DIR|GLOB|TEMPLATE)")


def numbers(room: ModuleType) -> str:
    """The constants of a `defaults` room that bound or choose something."""
    constants = {name: value for name, value in vars(room).items() if name.isupper()}
    rows = (
        (f"`{name}`", f"`{_shown(value)}`")
        for name, value in constants.items()
        if not _NAMES_OF_FILES.fullmatch(name)
    )
    return table(("constant", "value"), rows)


def _shown(value: object) -> str:
    match value:
        case frozenset():
            return " ".join(sorted(map(str, value)))
        case tuple() if value and isinstance(value[0], tuple):
            return "; ".join(" ".join(words) for words in value)
        case tuple():
            return " ".join(map(str, value))
        case float():
            return f"{value:g}"
        case _:
            return str(value)


PIECES: Mapping[str, Callable[[], str]] = {
    **{f"rooms of {package}": partial(rooms, package) for package in PACKAGES},
    "walk": walk,
    "stages": stages,
    "steps": steps,
    "events": events,
    "verbs": verbs,
    "plan": partial(command, "planner", "compile"),
    "validate": partial(command, "planner", "validate"),
    "explain": partial(command, "planner", "explain"),
    "schema": partial(command, "planner", "schema"),
    "run": partial(command, "factory", "run"),
    "run-all": partial(command, "factory", "run-all", told="run"),
    "demo": demo,
    "numbers of the planner": partial(numbers, planner.defaults),
    "numbers of the factory": partial(numbers, factory.defaults),
}


if __name__ == "__main__":
    sys.exit(main())
