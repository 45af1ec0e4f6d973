"""The wrapper: one word for each tool, their exit codes, and a sequence of orders."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from loopback import Answer, LoopbackEndpoint, Stall

from blackbox.harness import (
    CONTRACT,
    GOOD,
    ULID,
    Desk,
    a_plan,
    a_proposal,
    a_task,
    a_write,
    absent,
    an_order,
    bootstrap_order,
    exists,
    findings_in,
    newest_dir,
    read_json,
    untouched,
)

ROOT = Path(__file__).resolve().parents[2]
PLAN = json.dumps(a_plan(an_order(1)))


def wo(number: int, **changes):
    """An order that needs what the one before it made."""
    needs = [] if number == 1 else [exists("log.txt")]
    path = "log.txt" if number == 1 else f"f{number}.txt"
    return an_order(
        number,
        **{
            "allowed_files": [path],
            "postconditions": [exists(path)],
            "preconditions": needs,
            "acceptance_commands": [f"test -f {path}"],
            **changes,
        },
    )


def making(*paths: str) -> list[Answer]:
    return [Answer(json.dumps(a_proposal(a_write(path, f"# {path}\n")))) for path in paths]


def a_directory(desk: Desk, *orders: dict, name: str = "orders") -> Path:
    for order in orders:
        desk.write(f"{name}/{order['id']}.json", order)
    desk.write(f"{name}/WORK_ORDERS_MANIFEST.json", {"work_orders": list(orders)})
    desk.write(f"{name}/notes.json", {"not": "an order"})
    return desk.root / "files" / name


def run_all(
    desk: Desk, workdir: Path, repo: Path, steps, *args, tool=("llmch", "run-all"), repeat_last=False
):
    with LoopbackEndpoint(steps, repeat_last=repeat_last) as endpoint:
        outcome = desk.run(
            *tool,
            "--workdir",
            workdir,
            "--repo",
            repo,
            "--artifacts-dir",
            desk.artifacts,
            *args,
            endpoint=endpoint,
        )
    return outcome, list(endpoint.requests)


def summaries(desk: Desk):
    return [read_json(path) for path in sorted((desk.artifacts / "factory").rglob("run_summary.json"))]


# --- one tool at a time ------------------------------------------------------------------


@pytest.mark.rows("LC01", "LC02", "S01")
def test_plan_is_the_planner_with_its_exit_codes(desk):
    spec = desk.write("spec.md", "x\n")
    with LoopbackEndpoint([Answer(PLAN)]) as endpoint:
        good = desk.run("llmch", "plan", "--spec", spec, "--artifacts-dir", desk.artifacts, endpoint=endpoint)
    assert good.exit_code == 0, good
    assert len(list(desk.artifacts.glob("planner/*/output/WO-01.json"))) == 1
    bad = json.dumps(a_plan(an_order(2)))
    with LoopbackEndpoint([Answer(bad)], repeat_last=True) as endpoint:
        invalid = desk.run(
            "llmch", "plan", "--spec", spec, "--artifacts-dir", desk.artifacts, endpoint=endpoint
        )
    assert invalid.exit_code == 2, invalid
    assert desk.run("llmch", "plan", "--spec", spec, env={"OPENAI_API_KEY": None}).exit_code == 3
    assert desk.run("llmch", "plan").exit_code == 64


@pytest.mark.rows("LC01", "LC02", "LC06", "LC09")
def test_run_is_the_factory_with_its_exit_codes_and_arguments_after_two_dashes(desk):
    repo = desk.repo()
    order = desk.write("order.json", a_task(acceptance_commands=["grep -q content a.txt"]))
    bad = json.dumps(a_proposal(a_write("a.txt", "wrong\n")))
    with LoopbackEndpoint([Answer(bad)], repeat_last=True) as endpoint, untouched(repo):
        failed = desk.run(
            "llmch",
            "run",
            "--repo",
            repo,
            "--work-order",
            order,
            "--artifacts-dir",
            desk.artifacts,
            "--",
            "--max-attempts",
            "2",
            "--llm-model",
            "passed-on",
            endpoint=endpoint,
        )
    assert failed.exit_code == 1, failed
    assert [record.body["model"] for record in endpoint.requests] == ["passed-on"] * 2
    with LoopbackEndpoint([Answer(GOOD)]) as endpoint:
        good = desk.run(
            "llmch",
            "run",
            "--repo",
            repo,
            "--work-order",
            order,
            "--artifacts-dir",
            desk.artifacts,
            endpoint=endpoint,
        )
    assert good.exit_code == 0, good
    assert desk.run("llmch", "run").exit_code == 64


@pytest.mark.parametrize(
    "argv", [["juggle"], ["--frobnicate"], ["run-all"], ["run-all", "--repo", "x"]], ids=" ".join
)
def test_a_wrong_call_is_a_usage_error(desk, argv):
    outcome = desk.run("llmch", *argv)
    assert outcome.exit_code == 64, outcome
    assert "Traceback" not in outcome.said


@pytest.mark.rows("S02")
def test_the_console_script_is_declared_and_its_function_runs(desk):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["llmch"]
    assert declared == "llmch.__main__:main"
    code = "import sys; from llmch.__main__ import main; sys.argv = ['llmch', '--version']; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=desk.cwd, env=desk.env, capture_output=True, check=False
    )
    assert done.returncode == 0, done
    assert re.search(r"\d+\.\d+\.\d+", done.stdout.decode())


def test_help_loads_nothing_heavy(desk):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "llmch", "--help"],
        cwd=desk.cwd,
        env=desk.env,
        capture_output=True,
        check=True,
    )
    loaded = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.decode().splitlines()}
    assert loaded & {"pydantic", "openai", "langgraph", "click", "httpx", "rich"} == set()


# --- the sequence ------------------------------------------------------------------------


@pytest.mark.rows("LC03", "LC07", "LC11", "LC06", "LC09", "FB02", "S21")
def test_run_all_takes_the_orders_by_number_on_one_branch(desk):
    repo = desk.repo()
    main = desk.git(repo, "rev-parse", "main")
    workdir = a_directory(desk, wo(10), wo(2), wo(1))
    outcome, requests = run_all(
        desk, workdir, repo, making("log.txt", "f2.txt", "f10.txt"), "--", "--llm-model", "passed-on"
    )
    assert outcome.exit_code == 0, outcome
    assert [record.body["model"] for record in requests] == ["passed-on"] * 3
    assert [summary["work_order_id"] for summary in summaries(desk)] == ["WO-01", "WO-02", "WO-10"]
    assert len({summary["branch"] for summary in summaries(desk)}) == 1
    branch = desk.git(repo, "symbolic-ref", "--short", "HEAD")
    assert branch.startswith("factory/")
    assert desk.git(repo, "rev-list", "--count", f"main..{branch}") == "3"
    assert desk.git(repo, "rev-parse", "main") == main
    assert desk.git(repo, "status", "--porcelain") == ""
    assert len(desk.git(repo, "branch", "--format=%(refname)").splitlines()) == 2
    for name in ("WO-01", "WO-02", "WO-10"):
        assert name in outcome.said


@pytest.mark.rows("LC05", "LC03")
def test_create_branch_holds_for_the_first_order_and_the_rest_reuse_it(desk):
    repo = desk.repo()
    workdir = a_directory(desk, wo(1), wo(2))
    outcome, _ = run_all(
        desk, workdir, repo, making("log.txt", "f2.txt"), "--branch", "work/all", "--create-branch"
    )
    assert outcome.exit_code == 0, outcome
    assert desk.git(repo, "rev-list", "--count", "main..work/all") == "2"
    again, requests = run_all(
        desk, workdir, repo, making("log.txt"), "--branch", "work/all", "--create-branch"
    )
    assert again.exit_code == 1, again
    assert requests == []


@pytest.mark.rows("LC04", "LC02")
def test_the_sequence_stops_at_the_first_failure_and_says_how_to_go_on(desk):
    repo = desk.repo()
    workdir = a_directory(desk, wo(1), wo(2), wo(3))
    bad = Answer(json.dumps(a_proposal(a_write("elsewhere.txt"))))
    outcome, requests = run_all(
        desk, workdir, repo, [*making("log.txt"), bad], "--", "--max-attempts", "1", repeat_last=True
    )
    assert outcome.exit_code == 1, outcome
    assert len(requests) == 2
    assert [summary["verdict"] for summary in summaries(desk)] == ["PASS", "FAIL"]
    assert desk.git(repo, "status", "--porcelain") == ""
    closing = outcome.stdout
    for name in ("WO-01", "WO-02", "WO-03"):
        assert name in closing, closing
    assert re.search(r"not started", closing), closing
    assert "with the same command and --branch" in outcome.stderr


def test_a_sequence_can_be_continued_on_its_branch(desk):
    repo = desk.repo()
    workdir = a_directory(desk, wo(1), wo(2, acceptance_commands=["grep -q f2.txt f2.txt"]))
    bad = Answer(json.dumps(a_proposal(a_write("f2.txt", "no\n"))))
    outcome, _ = run_all(
        desk,
        workdir,
        repo,
        [*making("log.txt"), bad],
        "--branch",
        "work/c",
        "--",
        "--max-attempts",
        "1",
        repeat_last=True,
    )
    assert outcome.exit_code == 1, outcome
    rest = a_directory(desk, wo(2), name="rest")
    outcome, _ = run_all(desk, rest, repo, making("f2.txt"), "--branch", "work/c", "--reuse-branch")
    assert outcome.exit_code == 0, outcome
    assert desk.git(repo, "rev-list", "--count", "main..work/c") == "2"


@pytest.mark.rows("LC08")
@pytest.mark.parametrize("kind", ["empty", "missing", "a file", "only a manifest"])
def test_a_directory_without_orders_is_an_error(desk, kind):
    repo = desk.repo()
    workdir = desk.root / "home" if kind == "empty" else desk.root / "none"
    if kind == "a file":
        workdir = desk.write("some.txt", "x")
    elif kind == "only a manifest":
        workdir = a_directory(desk)
    with untouched(repo):
        outcome, requests = run_all(desk, workdir, repo, [])
    assert outcome.exit_code in (1, 64), outcome
    assert requests == []
    assert workdir.name in outcome.stderr
    assert "Traceback" not in outcome.said


def test_one_broken_order_is_found_before_any_is_run(desk):
    repo = desk.repo()
    workdir = a_directory(desk, wo(1), wo(2, title=7))
    with untouched(repo):
        outcome, requests = run_all(desk, workdir, repo, making("log.txt"))
    assert outcome.exit_code == 1, outcome
    assert requests == []
    assert "WO-02.json" in outcome.stderr


@pytest.mark.rows("LC12")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_sequence(desk, number, code):
    repo = desk.repo()
    workdir = a_directory(desk, wo(1), wo(2), wo(3))
    with LoopbackEndpoint([*making("log.txt"), Stall()]) as endpoint:
        running = desk.start(
            "llmch",
            "run-all",
            "--workdir",
            workdir,
            "--repo",
            repo,
            "--artifacts-dir",
            desk.artifacts,
            endpoint=endpoint,
        )
        running.until(lambda: len(endpoint.requests) == 2)
        running.signal(number)
        outcome = running.finish(30)
    assert outcome.exit_code == code, outcome
    assert len(endpoint.requests) == 2
    assert "Traceback" not in outcome.said
    assert desk.git(repo, "status", "--porcelain") == ""
    assert [summary["verdict"] for summary in summaries(desk)] == ["PASS", "ERROR"]


@pytest.mark.rows("LC10", "LC11", "FC27", "FB02", "FM02")
def test_a_plan_is_built_on_one_branch_that_bears_its_name(desk):
    repo = desk.repo(verify=None)
    plan = a_plan(
        bootstrap_order(
            1,
            preconditions=[absent("scripts/verify.sh")],
            allowed_files=["setup.py"],
            postconditions=[exists("setup.py")],
            acceptance_commands=["test -f setup.py"],
        ),
        bootstrap_order(2),
        wo(3, preconditions=[exists("scripts/verify.sh")]),
        verify_contract=CONTRACT,
    )
    spec = desk.write("spec.md", "x\n")
    with LoopbackEndpoint([Answer(json.dumps(plan))]) as endpoint:
        planned = desk.run(
            "llmch",
            "plan",
            "--spec",
            spec,
            "--repo",
            repo,
            "--artifacts-dir",
            desk.artifacts,
            "--outdir",
            desk.root / "orders",
            endpoint=endpoint,
        )
    assert planned.exit_code == 0, planned
    planner_run = newest_dir(desk.artifacts / "planner").name
    outcome, _ = run_all(desk, desk.root / "orders", repo, making("setup.py", "scripts/verify.sh", "f3.txt"))
    assert outcome.exit_code == 0, outcome
    branch = desk.git(repo, "symbolic-ref", "--short", "HEAD")
    assert re.fullmatch(f"factory/{planner_run}/{ULID.pattern}", branch)
    assert sorted(path.name for path in repo.iterdir()) == [
        ".git",
        "README.md",
        "f3.txt",
        "scripts",
        "setup.py",
    ]
    assert desk.git(repo, "rev-list", "--count", f"main..{branch}") == "3"


# --- verbs without a model ---------------------------------------------------------------


NO_ENDPOINT = {"OPENAI_API_KEY": None, "OPENAI_BASE_URL": None}


def test_validate_judges_a_directory_without_a_key(desk):
    repo = desk.repo({"log.txt": "x\n"})
    good = a_directory(desk, wo(1), wo(2))
    with untouched(repo, good):
        outcome = desk.run("llmch", "validate", good, "--repo", repo, env=NO_ENDPOINT)
    assert outcome.exit_code == 0, outcome


def test_validate_names_every_fault_and_its_order(desk):
    bad = a_directory(desk, wo(1, acceptance_commands=["a | b"]), wo(2, preconditions=[exists("no.txt")]))
    outcome = desk.run("llmch", "validate", bad, env=NO_ENDPOINT)
    assert outcome.exit_code == 1, outcome
    for needle in ("E003", "WO-01", "E101", "WO-02"):
        assert needle in outcome.stdout, outcome
    machine = desk.run("llmch", "validate", bad, "--json", env=NO_ENDPOINT)
    assert machine.exit_code == 1
    assert {(f["code"], f["wo_id"]) for f in findings_in(json.loads(machine.stdout))} >= {
        ("E003", "WO-01"),
        ("E101", "WO-02"),
    }


@pytest.mark.parametrize(
    "kind", ["missing", "empty", "no JSON", "a pipe", "a directory", "a list", "duplicate keys"]
)
def test_validate_refuses_what_is_no_plan(desk, kind):
    directory = desk.root / "files" / "orders"
    if kind != "missing":
        directory.mkdir(parents=True)
    order = directory / "WO-01.json"
    text = json.dumps(wo(1))
    if kind == "a pipe":
        os.mkfifo(order)
    elif kind == "a directory":
        order.mkdir()
    elif kind not in ("missing", "empty"):
        changed = {
            "no JSON": "{",
            "a list": "[]",
            "duplicate keys": text.replace('"id"', '"id": "WO-01", "id"'),
        }
        order.write_text(changed[kind])
    outcome = desk.run("llmch", "validate", directory, env=NO_ENDPOINT)
    assert outcome.exit_code == 1, outcome
    assert "Traceback" not in outcome.said, outcome
    assert outcome.said.strip()


def test_explain_prints_a_rule(desk):
    outcome = desk.run("llmch", "explain", "E103", env={"OPENAI_API_KEY": None})
    assert outcome.exit_code == 0, outcome
    assert "E103" in outcome.stdout
    assert "allowed_files" in outcome.stdout
    unknown = desk.run("llmch", "explain", "E999")
    assert unknown.exit_code in (1, 64), unknown
    assert "E999" in unknown.stderr


def test_schema_is_json_and_version_is_the_version(desk):
    schema = json.loads(desk.run("llmch", "schema").stdout)
    assert {"id", "allowed_files", "acceptance_commands"} <= schema["properties"].keys()
    outcome = desk.run("llmch", "--version")
    assert outcome.exit_code == 0
    assert re.search(r"\d+\.\d+\.\d+", outcome.stdout)
