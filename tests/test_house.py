"""The plan of the house, held up by reading the imports: who may know whom, and which library lives where."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("planner", "factory", "shared", "llmch")

# --- the plan ----------------------------------------------------------------------------
# A room may import the rooms that are listed after it (a package name stands for all of its rooms),
# the libraries in braces, and the standard library. Its own package's `defaults` is free to all.

PLAN = r"""
shared.answers           shared.files
shared.console
shared.events            shared.files shared.run_context
shared.files
shared.flags            shared.console shared.llm {click}
shared.llm               shared.files
shared.openai_api        shared.llm {httpx2 openai}
shared.process
shared.run_context       shared.files shared.process {ulid}
shared.template
shared.wire              shared.llm shared.openai_api
shared.work_order        shared.files {pydantic}

planner.__main__         planner.cli
planner.bootstrap        planner.plan
planner.cli              planner shared {click}
planner.commands         shared.work_order
planner.compiler         planner shared
planner.console          shared.console shared.events
planner.defaults
planner.io               shared.files
planner.openai_client    planner.responses shared
planner.plan             planner.commands shared.work_order {pydantic}
planner.plan_directory   planner.io planner.validation shared.files shared.work_order
planner.plan_schema
planner.prompt_template  planner.repo_listing shared.files shared.template shared.work_order
planner.records          planner.validation shared.files shared.llm shared.run_context
planner.repo_listing     shared.console shared.process
planner.responses        shared.llm shared.wire
planner.rules            planner.plan
planner.rules_chain      planner.commands planner.plan planner.rules shared.work_order
planner.rules_structure  planner.plan planner.rules shared.work_order
planner.validation       planner.bootstrap planner.commands planner.plan planner.rules planner.rules_chain \
                         planner.rules_structure

factory.__main__         factory.cli
factory.bench            factory.schemas factory.scratch shared
factory.branches         factory.git
factory.checkout         factory.git factory.ledger
factory.cli              factory shared {click}
factory.console          shared.console shared.events
factory.defaults
factory.ending           factory.bench factory.git factory.records shared.console shared.process
factory.git              shared.process
factory.graph            factory.bench factory.nodes_se factory.nodes_tr factory.nodes_po factory.schemas \
                         shared.events shared.files {langgraph langsmith}
factory.ledger           factory.git shared.files shared.process {filelock}
factory.llm              shared
factory.nodes_po         factory.bench factory.schemas factory.verification shared.events shared.files
factory.nodes_se         factory.bench factory.schemas factory.scratch factory.tree_files \
                         factory.verification shared {pydantic}
factory.nodes_tr         factory.bench factory.schemas factory.tree_files shared
factory.records          factory.schemas factory.settings factory.workspace shared
factory.run              factory shared
factory.schemas          shared.work_order {pydantic}
factory.scratch          factory.git factory.ledger factory.tree_files factory.workspace shared
factory.sequence         factory.console factory.ending factory.run factory.settings factory.workspace shared
factory.settings
factory.tree_files       shared.files
factory.verification     factory.bench
factory.workspace        factory.branches factory.checkout factory.git factory.ledger \
                         factory.tree_files shared

llmch.__main__           llmch
llmch.demo               shared.console shared.process
"""

# --- reading -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Room:
    """A module of ours as it is written."""

    name: str
    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    def imports(self) -> set[str]:
        """Every module it imports: at the top, inside functions, and our own for types only as well."""
        return {module for module in self._imports(self.tree) if is_ours(module)} | self.loads()

    def loads(self) -> set[str]:
        """Every module it imports when it runs: one that types alone need is named, not loaded."""
        return self._imports(WithoutTypes().visit(self.tree))

    def _imports(self, tree: ast.AST) -> set[str]:
        found = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}: rooms are named in full"
                inside = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (inside & names_of_rooms()) or {node.module}
        return found

    def top_imports(self) -> set[str]:
        """The libraries it loads when it is imported itself."""
        return {
            library_of(alias.name if isinstance(node, ast.Import) else node.module)
            for node in self.tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }

    def uses(self) -> set[str]:
        """Every dotted name it mentions, such as `os.fork`."""
        return {
            ast.unparse(node) for node in ast.walk(self.tree) if isinstance(node, ast.Attribute | ast.Name)
        }


class WithoutTypes(ast.NodeTransformer):
    """Takes away what stands under `if TYPE_CHECKING`."""

    def visit_If(self, node: ast.If) -> ast.If | None:
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


@cache
def paths() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def names_of_rooms() -> set[str]:
    return set(paths())


def rooms() -> list[Room]:
    return [Room(name, path) for name, path in paths().items()]


def library_of(module: str) -> str:
    return module.partition(".")[0]


def is_ours(module: str) -> bool:
    return library_of(module) in PACKAGES


def is_library(module: str) -> bool:
    return library_of(module) not in {*PACKAGES, *sys.stdlib_module_names, "__future__"}


def plan() -> dict[str, tuple[set[str], set[str]]]:
    """Room -> (rooms, libraries) that it may import."""
    table = {}
    for line in filter(None, PLAN.replace("\\\n", "").splitlines()):
        head, _, braces = line.partition("{")
        name, *allowed = head.split()
        table[name] = ({*allowed, f"{library_of(name)}.defaults"}, set(braces.rstrip("}").split()))
    return table


EVERY_ROOM = pytest.mark.parametrize("room", rooms(), ids=lambda room: room.name)

# --- who may know whom -------------------------------------------------------------------


@EVERY_ROOM
def test_a_room_imports_only_what_the_plan_lets_it(room):
    if room.name in PACKAGES:
        assert not room.imports(), "a package's __init__ would load it for everybody"
        return
    assert room.name in plan(), "a new room: give it a place in the plan"
    allowed, libraries = plan()[room.name]
    ours = {module for module in room.imports() if is_ours(module)}
    assert {module for module in ours if not {module, library_of(module)} & allowed} == set()
    assert {library_of(module) for module in room.imports() if is_library(module)} - libraries == set()


def test_the_plan_has_no_room_that_is_not_built():
    assert set(plan()) - names_of_rooms() == set()


@pytest.mark.parametrize(
    ("package", "strangers"),
    [
        ("planner", {"factory", "llmch"}),
        ("factory", {"planner", "llmch"}),
        ("shared", {"planner", "factory", "llmch"}),
        ("llmch", {"planner", "factory"}),
    ],
)
def test_planner_and_factory_stand_side_by_side_on_shared(package, strangers):
    met = {
        (room.name, module)
        for room in rooms()
        for module in room.imports()
        if library_of(room.name) == package and library_of(module) in strangers
    }
    assert met == set()


def test_the_wrapper_is_the_standard_library_and_its_own_name():
    wrapper = Room("llmch.__main__", paths()["llmch.__main__"])
    assert {module for module in wrapper.imports() if is_library(module) or is_ours(module)} == {"llmch"}


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("langgraph", {"factory.graph"}),
        ("langsmith", {"factory.graph"}),
        ("langchain_core", set()),
        ("openai", {"shared.openai_api"}),
        ("httpx2", {"shared.openai_api"}),
        ("click", {"planner.cli", "factory.cli", "shared.flags"}),
        ("filelock", {"factory.ledger"}),
        ("ulid", {"shared.run_context"}),
    ],
)
def test_a_heavy_library_has_one_home(library, home):
    users = {room.name for room in rooms() if library in map(library_of, room.imports())}
    assert users <= home


def test_the_sdk_is_loaded_only_inside_the_function_that_opens_it():
    assert {room.name for room in rooms() if {"openai", "httpx2"} & room.top_imports()} == set()


# --- doors -------------------------------------------------------------------------------

# The wrapper becomes its child, and waits for it where there is no exec.
DOORS = {
    "shared.process": {"subprocess", "os.fork", "os._exit"},
    "llmch.__main__": {"subprocess", "os.execve"},
}
STARTS_A_PROCESS = re.compile(
    r"(subprocess|multiprocessing|concurrent\.futures|pty|os\.(fork|forkpty|_exit|system|popen|exec\w*|spawn\w*"
    r"|posix_spawn\w*)|asyncio\.create_subprocess\w*)"
)


@EVERY_ROOM
def test_only_one_door_starts_processes(room):
    used = {name for name in room.uses() | room.imports() if STARTS_A_PROCESS.fullmatch(name)}
    assert used - DOORS.get(room.name, set()) == set()


@EVERY_ROOM
def test_no_shell_reads_a_command(room):
    calls = [node for node in ast.walk(room.tree) if isinstance(node, ast.Call)]
    assert [ast.unparse(call) for call in calls if any(word.arg == "shell" for word in call.keywords)] == []


@EVERY_ROOM
def test_text_never_becomes_code(room):
    calls = {
        node.func.id
        for node in ast.walk(room.tree)
        if isinstance(node, ast.Call) and hasattr(node.func, "id")
    }
    assert calls & {"eval", "exec", "compile", "__import__"} == set()
    assert {"pickle", "marshal", "shelve", "runpy"} & room.imports() == set()
    assert {"importlib.import_module", "import_module"} & room.uses() == set()


@EVERY_ROOM
def test_only_the_outermost_ends_the_process_or_prints(room):
    if room.name.endswith(".__main__") or room.name == "llmch.demo":
        return
    calls = {ast.unparse(node.func) for node in ast.walk(room.tree) if isinstance(node, ast.Call)}
    assert {"sys.exit", "exit", "quit", "SystemExit", "print"} & calls == set()


# --- reasons -----------------------------------------------------------------------------


@EVERY_ROOM
def test_whoever_catches_everything_says_why(room):
    lines = room.text.splitlines()
    for handler in (node for node in ast.walk(room.tree) if isinstance(node, ast.ExceptHandler)):
        caught = "bare" if handler.type is None else ast.unparse(handler.type)
        passes_on = isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None
        if re.search(r"\b(bare|Exception|BaseException)\b", caught) and not passes_on:
            # The reason stands on the line, or under it.
            said = "\n".join(lines[handler.lineno - 1 : handler.body[0].lineno])
            assert re.search(r"#.*[a-z]+ [a-z]+", said), said


WRITTEN = [
    path for name in (*PACKAGES, "tests", "benchmarks") for path in sorted((ROOT / name).rglob("*.py"))
]


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_silenced_rule_has_its_reason(path):
    silenced = [line for line in path.read_text(encoding="utf-8").splitlines() if "# noqa" in line]
    reasoned = re.compile(r"# noqa: [A-Z]+[0-9]+(, ?[A-Z]+[0-9]+)*\W+\w+\W+\w+|[\"\\s]# noqa")
    assert [line for line in silenced if not reasoned.search(line)] == []


# --- starting ----------------------------------------------------------------------------

HEAVY = {"openai", "httpx2", "langgraph", "langchain_core", "langsmith"}


def loaded_by(*arguments, cwd=ROOT):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        cwd=cwd, env={"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return {library_of(line.rpartition("|")[2].strip()) for line in done.stderr.splitlines() if "|" in line}


@pytest.mark.parametrize("tool", ["planner", "factory"])
def test_help_of_a_tool_loads_no_sdk_and_no_graph(tool):
    assert HEAVY & loaded_by("-m", tool, "--help") == set()


def test_the_demo_is_the_standard_library_and_two_rooms():
    added = loaded_by("-P", "-m", "llmch.demo", "--list") - loaded_by("-m", "this")
    assert added & set(packages_distributions()) - set(PACKAGES) == set()
    assert added & set(PACKAGES) == {"llmch", "shared"}


@pytest.mark.parametrize("tool", ["planner", "factory"])
def test_a_tool_does_not_import_from_the_repository_it_stands_in(tool, tmp_path):
    for name in ("json", "click", "pydantic", "shared", "typing", "re", "hashlib"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'a').write(__name__)\n")
    loaded_by("-m", tool, "--help", cwd=tmp_path)
    assert not (tmp_path / "ran").exists()
