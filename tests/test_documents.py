"""The documents are true: what they take from the code is up to date, what they name exists."""

from __future__ import annotations

import ast
import html
import json
import os
import re
import subprocess
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from conftest import make_repo, run_git

from factory.defaults import Exit as FactoryExit
from factory.graph import WALK, build_graph
from factory.run import run_one
from factory.settings import RunSettings
from planner.compiler import Settings, compile_plan, read_inputs
from planner.defaults import Exit as PlannerExit
from shared.files import EMPTY_SHA256
from shared.llm import EndpointError, Recorded, Reply, Scripted, Usage
from shared.process import Interrupt

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("llmch", "planner", "factory", "shared")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def _generator():
    spec = spec_from_file_location("generate", ROOT / "docs/generate.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = _generator()

# --- derived -----------------------------------------------------------------------------


@EVERY_PAGE
def test_what_a_page_takes_from_the_code_is_up_to_date(page):
    assert page.read_text("utf-8") == generate.made(page), "run `make docs`"


def test_every_piece_that_is_made_stands_in_a_page():
    text = "".join(page.read_text("utf-8") for page in PAGES)
    used = re.findall(r"<!-- derived: (.+?) \(make docs\) -->", text)
    assert sorted(used) == sorted(generate.PIECES)


def test_check_names_a_page_that_is_behind_and_changes_nothing(tmp_path):
    for name in ("docs/generate.py", "docs/events.md", "tests/test_house.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"), "utf-8")
    page = tmp_path / "docs/events.md"
    page.write_text(page.read_text("utf-8").replace("`run_ended`", "`run_over`"), "utf-8")
    behind = page.read_text("utf-8")

    def start(*arguments):
        command = [sys.executable, tmp_path / "docs/generate.py", *arguments]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    checked = start("--check")
    assert (checked.returncode, checked.stdout) == (1, "is behind: docs/events.md\n"), checked.stderr
    assert page.read_text("utf-8") == behind
    assert start().returncode == 0
    assert page.read_text("utf-8") == (ROOT / "docs/events.md").read_text("utf-8")


# --- the house ---------------------------------------------------------------------------


def test_the_architecture_names_every_module_and_no_other():
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    named = {}
    for package, section in re.findall(r"^### (\w+)\n(.*?)(?=^##)", text, re.DOTALL | re.MULTILINE):
        named[package] = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    there = {
        package: sorted(path.stem for path in (ROOT / package).glob("*.py") if path.stem != "__init__")
        for package in PACKAGES
    }
    assert named == there


def test_the_table_of_the_walk_is_the_walk():
    arrows = {(edge.source, edge.target) for edge in build_graph().get_graph().edges}
    onward = {(stage, target) for stage, following in WALK.items() for target in (following, "finalize")}
    assert arrows == onward | {("__start__", "se"), ("finalize", "se"), ("finalize", "__end__")}


def test_the_picture_of_the_walk_has_every_stage_in_its_place():
    first, *_ = generate.walk().splitlines()[1:]
    assert re.findall(r"\w+", first) == ["start", "se", *WALK.values(), "end"]


def exit_codes_told(page: str, column: int | None = None) -> set[int]:
    rows = [line.strip("|").split("|") for line in (ROOT / page).read_text("utf-8").splitlines()]
    return {
        int(code)
        for codes, *cells in rows
        if cells and re.fullmatch(r" [\d, ]+ ", codes) and (column is None or cells[column].strip())
        for code in codes.split(",")
    }


def test_every_exit_code_is_in_the_tables():
    signals = {129, 130, 143}
    # The planner has a name for 6, and no wall limit yet that would use it.
    planners = set(PlannerExit) | signals
    factorys = set(FactoryExit) | signals
    assert exit_codes_told("ARCHITECTURE.md", 0) == planners
    assert exit_codes_told("ARCHITECTURE.md", 1) == factorys
    assert exit_codes_told("README.md") == (planners | factorys) - {129}


def test_the_picture_shows_the_example_that_is_shipped():
    picture = (ROOT / "docs/demo.svg").read_text("utf-8")
    shown = [html.unescape(re.sub("<[^>]+>", "", line)) for line in picture.splitlines()]
    *_, last = sorted((ROOT / "examples/expenses/transcript/plan").glob("call-*.json"))
    plan = json.loads(json.loads(last.read_text("utf-8"))["reply"]["text"])
    logged = [line.partition(" ")[2] for line in shown if re.match(r"[0-9a-f]{7} WO-", line)]
    assert logged[::-1] == [f"{order['id']}: {order['title']}" for order in plan["work_orders"]]
    assert any("origin: scripted" in line for line in shown)


# --- what is named exists ----------------------------------------------------------------


def headings(page: Path) -> set[str]:
    """The anchors of a page, as forges make them from headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@EVERY_PAGE
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


@EVERY_PAGE
def test_files_that_are_named_exist(page):
    text = page.read_text("utf-8")
    ours = (*PACKAGES, "tests", "docs", "benchmarks")
    named = re.findall(rf"`((?:{'|'.join(ours)})/[\w./-]+\.(?:py|md|svg))`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


@EVERY_PAGE
def test_tests_that_are_named_exist(page):
    text = page.read_text("utf-8")
    there = {name for file in (ROOT / "tests").rglob("test_*.py") for name in names_in(file)}
    named = set(re.findall(r"\b(test_\w+)`", text))
    assert named - there == set()
    for file, name in re.findall(r"`(tests/\S+)::(\w+)`", text):
        assert name in names_in(ROOT / file), f"{file}::{name}"


def test_every_decision_is_in_the_list():
    folder = ROOT / "docs/decisions"
    listed = re.findall(r"\]\((\S+)\)", (folder / "README.md").read_text("utf-8"))
    assert sorted(listed) == sorted(path.name for path in folder.glob("*.md") if path.name != "README.md")


@EVERY_PAGE
def test_no_page_names_this_machine(page):
    text = page.read_text("utf-8")
    assert re.findall(r"/(?:home|root|Users|work|tmp)/\w+", text) == []


@cache
def names_in(file: Path) -> set[str]:
    return {
        node.name for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)
    }


def invariants() -> dict[str, list[str]]:
    """Number -> the tests that hold it."""
    text = (ROOT / "INVARIANTS.md").read_text("utf-8")
    sections = re.findall(r"^### ([A-Z]\d+)\. .*?\n(.*?)(?=^#|\Z)", text, re.DOTALL | re.MULTILINE)
    return {number: re.findall(r"^- `(tests/\S+::\S+)`$", body, re.MULTILINE) for number, body in sections}


def test_no_invariant_is_missing():
    families = {"P": 11, "F": 12, "C": 6, "L": 7}
    assert {f"{letter}{n}" for letter, count in families.items() for n in range(1, count + 1)} <= set(
        invariants()
    )


@pytest.mark.parametrize("number", invariants())
def test_an_invariant_is_held_by_tests_that_exist(number):
    holders = invariants()[number]
    assert holders
    for holder in holders:
        file, _, name = holder.partition("::")
        assert (ROOT / file).is_file(), holder
        assert name in names_in(ROOT / file), holder


# --- artifacts ---------------------------------------------------------------------------


def fields_told() -> dict[str, set[str]]:
    """What docs/artifacts.md says each record has."""
    text = (ROOT / "docs/artifacts.md").read_text("utf-8")
    told = {}
    for name, body in re.findall(
        r"<!-- fields: (.+?) -->\n(.*?)(?=^#|^<!--|\Z)", text, re.DOTALL | re.MULTILINE
    ):
        firsts = re.findall(r"^\| (`.+?`) \|", body, re.MULTILINE)
        told[name] = {field for first in firsts for field in re.findall(r"`(\w+)`", first)}
    return told


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """A place where both tools have run: one bad answer each, then a good one, and a call that failed."""
    place = tmp_path_factory.mktemp("artifacts")
    repo = make_repo(place / "project")
    (place / "spec.md").write_text("Make it so.\n")
    order = {
        "id": "WO-01", "title": "t", "intent": "i", "preconditions": [], "forbidden": [], "notes": "",
        "allowed_files": ["scripts/verify.sh"], "context_files": [], "acceptance_commands": ["true"],
        "postconditions": [{"kind": "file_exists", "path": "scripts/verify.sh"}],
    }  # fmt: skip
    contract = {"requires": order["postconditions"]}
    plans = [
        json.dumps({"verify_contract": contract, "work_orders": [{**order, "id": "WO-02"}]}),
        Reply(json.dumps({"verify_contract": contract, "work_orders": [order]}), usage=Usage(1, 0, 1, 0)),
    ]
    result = compile_plan(
        inputs=read_inputs(place / "spec.md", repo=repo),
        llm=Recorded(Scripted(plans), place / "transcript"),
        artifacts_root=place,
        settings=Settings(),
        outdir=place / "orders",
    )
    assert result.success, result.problem

    def proposal(content):
        write = {"path": "scripts/verify.sh", "base_sha256": EMPTY_SHA256, "content": content}
        return json.dumps({"summary": "s", "writes": [write]})

    chosen = RunSettings(repo=repo, artifacts_root=place, environment=dict(os.environ), push=False)
    model = Scripted([EndpointError("down"), proposal("exit 1\n"), proposal("exit 0\n")])
    code = run_one(
        chosen,
        place / "orders/WO-01.json",
        lambda _event: None,
        Interrupt(),
        llm=Recorded(model, place / "transcript"),
    )
    assert code == 0
    run_git(repo, "switch", "-q", "main")
    return place


def test_the_fields_of_every_record_are_those_of_the_page(artifacts):
    def load(pattern):
        return json.loads(max(artifacts.glob(pattern)).read_text())

    summary = load("factory/*/run_summary.json")
    last = summary["attempts"][-1]
    found = {
        "planner run.json": load("planner/*/run.json"),
        "compile_summary.json": load("planner/*/compile/compile_summary.json"),
        "finding": load("planner/*/compile/validation_errors_attempt_1.json")[0],
        "llm_call_attempt_N.json": load("planner/*/compile/llm_call_attempt_*.json"),
        "WO-NN.json": load("orders/WO-01.json"),
        "WORK_ORDERS_MANIFEST.json": load("orders/WORK_ORDERS_MANIFEST.json"),
        "factory run.json": load("factory/*/run.json"),
        "run_summary.json": summary,
        "attempt": last,
        "command": last["acceptance_results"][0],
        "write_result.json": load("factory/*/attempt_3/write_result.json"),
        "proposed_writes.json": load("factory/*/attempt_3/proposed_writes.json"),
        "raw_llm_response.json": load("factory/*/attempt_3/raw_llm_response.json"),
        "failure_brief.json": load("factory/*/attempt_1/failure_brief.json"),
        "transcript.json": load("transcript/transcript.json"),
        "call-NNNN.json": load("transcript/call-*.json"),
    }
    assert {name: set(record) for name, record in found.items()} == fields_told()


def test_nested_fields_of_a_record_are_named(artifacts):
    text = (ROOT / "docs/artifacts.md").read_text("utf-8")
    for tool, parts in (
        ("planner", ("config", "input_hashes", "tool_version", "provenance", "llm", "usage")),
        ("factory", ("config", "inputs", "provenance", "usage")),
    ):
        record = json.loads(next(artifacts.glob(f"{tool}/*/run.json")).read_text())
        section = text.partition(f"<!-- fields: {tool} run.json -->")[2].partition("\n#")[0]
        rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE))
        for part in parts:
            told = set(re.findall(r"`(\w+)`", rows[part])) if part in rows else None
            assert told is None or not told or set(record[part]) <= told, (tool, part)
    failed = json.loads((artifacts / "transcript/call-0003.json").read_text())
    said = text.partition("A call that ended in an error")[2].partition("\n\n")[0]
    assert set(failed["error"]) <= set(re.findall(r"`(\w+)`", said))


def test_every_file_of_a_run_is_on_the_page(artifacts):
    text = (ROOT / "docs/artifacts.md").read_text("utf-8")
    named = {
        re.sub(r"(?:compile|output|attempt_N)/", "", name) for name in re.findall(r"`([\w./-]+\.\w+)`", text)
    }
    for tool in ("planner", "factory"):
        files = [path.name for path in artifacts.glob(f"{tool}/**/*") if path.is_file()]
        general = {re.sub(r"(?<=attempt_)\d+", "N", name) for name in files}
        general = {re.sub(r"_\d+(?=_std)", "_M", name) for name in general}
        general = {re.sub(r"WO-\d+", "WO-NN", name) for name in general}
        assert general - named == set()
