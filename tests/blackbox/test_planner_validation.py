"""Every rule of the plan, seen through compiles: five answers each, the last one good where it can be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from loopback import Answer

from blackbox.harness import (
    CONTRACT,
    a_plan,
    absent,
    an_order,
    bootstrap_order,
    codes_in,
    compile_spec,
    exists,
    findings_in,
)

KNOWN = {"E000", "E001", *(f"E00{n}" for n in range(3, 8)), *(f"E10{n}" for n in range(1, 7)), "W101"}
GOOD = a_plan(an_order(1))
LISTING = {"README.md": "x\n", "src/old.py": "X = 1\n", "tools/other.sh": "exit 0\n", "data/in.csv": "1\n"}


@dataclass(frozen=True)
class Case:
    """A plan, the code it must get, and whether it may get others besides.

    `code` None: a good twin. It comes with a second order whose id is out of sequence, so that the
    compile goes on; E001 is then all that may be found.
    """

    name: str
    plan: Any
    code: str | None = None
    alone: bool = True
    at: str | None = None
    repo: bool = False
    rows: str = ""


def one(**changes: Any) -> dict[str, Any]:
    return a_plan(an_order(1, **changes))


def path_case(name: str, path: Any, code: str = "E005", *, rows: str) -> Case:
    return Case(
        name,
        one(allowed_files=[path], postconditions=[exists(path)]),
        code,
        alone=False,
        at="WO-01",
        rows=rows,
    )


def commands(*texts: Any) -> dict[str, Any]:
    return one(acceptance_commands=list(texts))


def needs(path: str, how: Any = exists) -> dict[str, Any]:
    return one(preconditions=[how(path)])


CASES = [
    # --- shape
    Case("no orders", a_plan(), "E000", rows="PV04"),
    Case("no work_orders", {"verify_contract": None}, "E000", rows="PV05"),
    Case("work_orders is an object", {"work_orders": {"0": an_order(1)}}, "E000", rows="PV06"),
    Case("work_orders is null", {"work_orders": None}, "E000", rows="PV06"),
    Case("an order is a string", a_plan(an_order(1), "WO-02"), "E000", alone=False, rows="PV07"),
    Case("an order is null", a_plan(None), "E000", alone=False, rows="PV07"),
    Case("contract is a list", a_plan(an_order(1), verify_contract=["x"]), "E000", alone=False, rows="PV08"),
    Case("contract is text", a_plan(an_order(1), verify_contract="bash"), "E000", alone=False, rows="PV08"),
    # --- ids
    *(
        Case(f"id {bad!r}", one(id=bad), "E001", alone=False, rows="PV10")
        for bad in ("WO-1", "wo-01", "WO_01", "WO-01 x", "", "W0-01", "WO-1a", "WO-\u0660\u0661")
    ),
    Case("a gap", a_plan(an_order(1), an_order(3)), "E001", rows="PV11"),
    Case(
        "a duplicate",
        a_plan(an_order(1), an_order(1, allowed_files=["b"], postconditions=[exists("b")])),
        "E001",
        alone=False,
        rows="PV12",
    ),
    Case("starts at two", a_plan(an_order(2)), "E001", rows="PV13"),
    Case("starts at zero", a_plan(an_order(0), an_order(1)), "E001", alone=False, rows="PV13"),
    Case("out of order", a_plan(an_order(2), an_order(1)), "E001", rows="PV11"),
    # --- commands
    *(
        Case(f"operator {op}", commands(f"true {op} false"), "E003", at="WO-01", rows="PV14")
        for op in ("|", "||", "&&", ";", ">", ">>", "<", "<<")
    ),
    Case(
        "quoted operators",
        commands("python -c 'a = 1; print(a > 0, 3 << 1, 1 | 2)'", "echo 'a && b' \"x | y\""),
        rows="PV15",
    ),
    Case("bad python", commands("python -c 'def f(:'"), "E006", at="WO-01", rows="PV31"),
    Case("bad python3", commands('python3 -c "print(1"'), "E006", at="WO-01", rows="PV31"),
    Case("good python", commands("python -c 'def f(): pass'"), rows="PV31"),
    Case("open quote", commands("echo 'never closed"), "E007", at="WO-01", rows="PV32"),
    Case("verify script", commands("bash scripts/verify.sh"), "E105", at="WO-01", rows="PV43"),
    *(
        Case(f"verify script as {text}", commands(text), "E105", rows="PV44")
        for text in (
            "bash   scripts/verify.sh",
            "bash ./scripts/verify.sh",
            "'bash' \"scripts/verify.sh\"",
            "bash scripts//verify.sh",
            "bash scripts/../scripts/verify.sh",
        )
    ),
    Case(
        "another script",
        a_plan(an_order(1, acceptance_commands=["bash tools/other.sh"])),
        repo=True,
        rows="PV45",
    ),
    Case("talk about the script", commands("grep verify scripts/verify.sh.txt"), rows="PV45"),
    # --- paths
    path_case("glob * in allowed_files", "src/*.py", "E004", rows="PV16"),
    path_case("glob ? in allowed_files", "src/?.py", "E004", rows="PV16"),
    path_case("glob [ in allowed_files", "src/[a].py", "E004", rows="PV16"),
    Case("glob in context_files", one(context_files=["src/*.py"]), "E004", alone=False, rows="PV17"),
    Case("glob in a condition", one(preconditions=[exists("src/*.py")]), "E00?", alone=False, rows="PV18"),
    path_case("absolute path", "/etc/passwd", rows="PV25 FM03"),
    path_case("upward path", "../x", rows="PV26 FM03"),
    path_case("hidden upward path", "a/../../x", rows="PV26"),
    path_case("backslash", "src\\a.py", rows="PV27 FM03"),
    path_case("NUL", "a\x00b", rows="PV28 FM03"),
    path_case("control character", "a\x1bb", rows="PV28"),
    path_case("newline", "a\nb", rows="PV28"),
    path_case("dot", ".", rows="PV29 FM03"),
    path_case("dot in disguise", "a/..", rows="PV29"),
    path_case("drive letter", "C:/x", rows="PV30 FM03"),
    path_case("empty path", "", rows="PV29"),
    path_case("git directory", ".git/hooks/post-commit", rows="PV26"),
    path_case("git directory in capitals", "sub/.GIT/config", rows="PV26"),
    # --- fields
    *(
        Case(f"{field} is missing", one(**{field: ...}), "E005", alone=False, at="WO-01", rows="PV19")
        for field in ("title", "intent", "allowed_files", "acceptance_commands")
    ),
    *(
        Case(f"{field} is {value!r}"[:60], one(**{field: value}), "E005", alone=False, rows="PV20 PV54")
        for field, value in [
            ("title", 7),
            ("title", None),
            ("intent", ["x"]),
            ("allowed_files", "src/a.py"),
            ("allowed_files", {"a": 1}),
            ("allowed_files", [["a"]]),
            ("allowed_files", [None]),
            ("context_files", 3),
            ("context_files", [{}]),
            ("preconditions", "none"),
            ("preconditions", [["file_exists", "a"]]),
            ("preconditions", [None]),
            ("preconditions", [{"kind": "file_exists", "path": ["a"]}]),
            ("preconditions", [{"kind": ["file_exists"], "path": "a"}]),
            ("preconditions", [{"kind": "file_exists"}]),
            ("preconditions", [{"path": "a"}]),
            ("postconditions", {"kind": "file_exists", "path": "a"}),
            ("postconditions", [7]),
            ("postconditions", [{"kind": {}, "path": {}}]),
            ("acceptance_commands", "true"),
            ("acceptance_commands", [["true"]]),
            ("acceptance_commands", [None]),
            ("acceptance_commands", [{}]),
            ("forbidden", 5),
            ("forbidden", [[]]),
            ("notes", {"a": [1]}),
        ]
    ),
    Case("id is a number", one(id=1), "E00?", alone=False, rows="PV20"),
    Case("id is a list", one(id=["WO-01"]), "E00?", alone=False, rows="PV20"),
    Case(
        "requires is text",
        a_plan(an_order(1), verify_contract={"requires": "x"}),
        "E???",
        alone=False,
        rows="PV54",
    ),
    Case(
        "requires holds a number",
        a_plan(an_order(1), verify_contract={"requires": [1, None, {}]}),
        "E???",
        alone=False,
        rows="PV54",
    ),
    Case("no commands", commands(), "E005", rows="PV21"),
    Case(
        "11 context files", one(context_files=[f"c{n}" for n in range(11)]), "E005", alone=False, rows="PV22"
    ),
    Case("10 context files", one(context_files=[f"c{n}" for n in range(10)]), rows="PV22 FM04"),
    Case(
        "a promise of absence",
        one(postconditions=[exists("src/f1.txt"), absent("old.txt")]),
        "E005",
        alone=False,
        rows="PV23",
    ),
    Case(
        "an unknown kind",
        one(preconditions=[{"kind": "dir_exists", "path": "src"}]),
        "E005",
        alone=False,
        rows="PV24",
    ),
    # --- the chain
    Case("needs what nobody makes", needs("made.txt"), "E101", at="WO-01", rows="PV33 PV53"),
    Case(
        "needs what an earlier one makes",
        a_plan(an_order(1), an_order(2, preconditions=[exists("src/f1.txt")])),
        rows="PV34 PV53",
    ),
    Case("needs what it makes itself", needs("src/f1.txt"), "E101", rows="PV35"),
    Case(
        "needs what a later one makes",
        a_plan(an_order(1, preconditions=[exists("src/f2.txt")]), an_order(2)),
        "E101",
        at="WO-01",
        rows="PV35",
    ),
    Case("needs what the repository has", needs("src/old.py"), repo=True, rows="PV36 PV53"),
    Case("needs what the repository lacks", needs("src/none.py"), "E101", repo=True, rows="PV36"),
    Case("absence of what the repository has", needs("src/old.py", absent), "E101", repo=True, rows="PV37"),
    Case(
        "absence of what an earlier one makes",
        a_plan(an_order(1), an_order(2, preconditions=[absent("src/f1.txt")])),
        "E101",
        at="WO-02",
        rows="PV37",
    ),
    Case("absence of what it makes itself", needs("src/f1.txt", absent), rows="PV37"),
    Case("another spelling in allowed_files", one(allowed_files=["./src//f1.txt"]), rows="PV38"),
    Case(
        "another spelling in a precondition",
        a_plan(an_order(1), an_order(2, preconditions=[exists("./src/x/../f1.txt")])),
        rows="PV38",
    ),
    Case("another spelling in a promise", one(postconditions=[exists("src/./f1.txt")]), rows="PV38"),
    Case(
        "present and absent",
        one(preconditions=[exists("src/old.py"), absent("./src//old.py")]),
        "E102",
        alone=False,
        repo=True,
        rows="PV39",
    ),
    Case(
        "a promise out of reach",
        one(postconditions=[exists("src/f1.txt"), exists("b.txt")]),
        "E103",
        rows="PV40",
    ),
    Case("a file without a promise", one(allowed_files=["src/f1.txt", "b.txt"]), "E104", rows="PV41"),
    Case(
        "files without any promise",
        one(allowed_files=["src/f1.txt", "b.txt"], postconditions=[]),
        rows="PV42 PV60",
    ),
    Case("a contract never met", a_plan(an_order(1), verify_contract=CONTRACT), "E106", rows="PV46"),
    Case("a contract met by the plan", a_plan(bootstrap_order(1), verify_contract=CONTRACT), rows="PV47"),
    Case(
        "a contract met by the repository",
        a_plan(an_order(1), verify_contract={"requires": [exists("./src/old.py")]}),
        repo=True,
        rows="PV47",
    ),
    # --- several at once
    Case(
        "three orders, three faults",
        a_plan(
            an_order(1, acceptance_commands=["a | b"]),
            an_order(2, preconditions=[exists("no.txt")]),
            an_order(3, allowed_files=["x?"], postconditions=[]),
        ),
        "E003 E101 E004",
        alone=False,
        rows="PV58 PV03",
    ),
]


def twin(case: Case) -> Any:
    if case.code is not None:
        return case.plan
    return {**case.plan, "work_orders": [*case.plan["work_orders"], an_order(77)]}


def wrong(case: Case, findings: list[dict[str, Any]]) -> str | None:
    """What is wrong with what was found, or None."""
    found = {finding["code"] for finding in findings} - {"W101"}
    if not found <= KNOWN:
        return f"unknown codes {found - KNOWN}"
    for code in (case.code or "E001").split():
        hits = [f for f in findings if all(a in ("?", b) for a, b in zip(code, f["code"], strict=True))]
        if not hits:
            return f"wanted {code}, found {findings}"
        if case.at and case.at not in {finding["wo_id"] for finding in hits}:
            return f"wanted it at {case.at}, found {findings}"
        if case.alone and found != {code}:
            return f"wanted {code} alone, found {findings}"
    return None


def batches() -> list[tuple[bool, list[Case]]]:
    made = []
    for repo in (False, True):
        cases = [case for case in CASES if case.repo == repo]
        made += [(repo, cases[start : start + 5]) for start in range(0, len(cases), 5)]
    return made


@pytest.mark.parametrize(("repo", "cases"), batches(), ids=[f"{b[0].name} …" for _, b in batches()])
def test_each_fault_gets_its_code_and_each_good_twin_none(desk, repo, cases):
    args = ["--repo", desk.repo(LISTING, verify=None)] if repo else []
    answers = [Answer(json.dumps(twin(case))) for case in cases]
    compiled = compile_spec(desk, [*answers, *[Answer(json.dumps(GOOD))] * (5 - len(cases))], *args)
    assert compiled.outcome.exit_code == (2 if len(cases) == 5 else 0), compiled.outcome
    seen = {
        case.name: wrong(case, findings_in(compiled.artifact(f"validation_errors_attempt_{number}.json")))
        for number, case in enumerate(cases, start=1)
    }
    assert {name: fault for name, fault in seen.items() if fault} == {}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_same_holds_for_a_caller_of_the_functions(case):
    from planner.validation import parse_and_validate, validate_plan_v2

    plan = twin(case)
    orders, errors = parse_and_validate(plan)
    contract = plan.get("verify_contract") if isinstance(plan.get("verify_contract"), dict) else None
    listing = set(LISTING) if case.repo else set()
    chain = validate_plan_v2(orders, contract, listing) if orders else []
    findings = [{"code": e.code, "wo_id": e.wo_id, "message": e.message} for e in (*errors, *chain)]
    if case.code == "E???" and not findings:
        return  # whether a contract's inside is judged by the first layer or the compiler is open
    assert wrong(case, findings) is None


@pytest.mark.rows("PC06", "PV58")
def test_the_last_compile_with_faults_names_them_all_in_its_summary(desk):
    plan = a_plan(an_order(1, acceptance_commands=["a | b"]), an_order(2, preconditions=[exists("no.txt")]))
    compiled = compile_spec(desk, [Answer(json.dumps(plan))], repeat_last=True)
    assert {"E003", "E101"} <= codes_in(compiled.summary)
    assert {"E003", "E101"} <= codes_in(compiled.artifact("validation_errors.json"))


@pytest.mark.rows("PK07", "PV48", "PV49", "PV50", "PV51", "PV03")
def test_warnings_name_what_nobody_provides_and_never_block(desk):
    def python(number, code, **changes):
        return an_order(number, acceptance_commands=[f'python -c "{code}"'], **changes)

    package = {"allowed_files": ["pkg/__init__.py"], "postconditions": [exists("pkg/__init__.py")]}
    module = {"allowed_files": ["late.py"], "postconditions": [exists("late.py")]}
    plan = a_plan(
        python(1, "import ghost"),
        python(2, "import json, os.path, sqlite3"),
        python(3, "import pkg", **package),
        python(4, "from pkg import thing"),
        python(5, "import late"),
        python(6, "import late", **module),
        python(7, "from ghost.deep import x"),
        an_order(8, acceptance_commands=["bash scripts/none.sh"]),
        an_order(9, acceptance_commands=["python tools/none.py"]),
        an_order(10, acceptance_commands=["cat none.txt"]),
    )
    compiled = compile_spec(desk, [Answer(json.dumps(plan))])
    assert compiled.outcome.exit_code == 0, compiled.outcome
    assert len(compiled.requests) == 1
    warned = [f["wo_id"] for f in findings_in(compiled.summary) if f["code"] == "W101"]
    assert sorted(set(warned)) == ["WO-01", "WO-05", "WO-07", "WO-08", "WO-09"]


@pytest.mark.rows("PV55", "PV57")
@pytest.mark.parametrize(
    ("contract", "exempt"),
    [
        (..., [False, False, False]),
        (None, [False, False, False]),
        ({"requires": [exists("src/f2.txt")]}, [True, False, False]),
        ({"requires": [exists("src/f1.txt"), exists("./src//f3.txt")]}, [True, True, False]),
        ({"requires": []}, [False, False, False]),
        ({}, [False, False, False]),
    ],
    ids=["absent", "null", "met by the second", "met by the third", "requires nothing", "empty"],
)
def test_an_order_is_exempt_until_the_contract_is_met(desk, contract, exempt):
    orders = [an_order(n, verify_exempt=True) for n in (1, 2, 3)]
    plan = a_plan(*orders, **({} if contract is ... else {"verify_contract": contract}))
    compiled = compile_spec(desk, [Answer(json.dumps(plan))])
    assert compiled.outcome.exit_code == 0, compiled.outcome
    assert [order["verify_exempt"] for order in compiled.orders.values()] == exempt
    assert [order["provenance"]["bootstrap"] for order in compiled.orders.values()] == exempt


def test_a_plan_beyond_99_orders_is_accepted(desk):
    plan = a_plan(*[an_order(n, id=f"WO-{n:02d}") for n in range(1, 121)])
    compiled = compile_spec(desk, [Answer(json.dumps(plan))])
    assert compiled.outcome.exit_code == 0, compiled.outcome
    assert len(compiled.orders) == 120
    assert (compiled.output / "WO-120.json").exists()


# --- the repository already has its verifier ---------------------------------------------


def from_scratch() -> dict[str, Any]:
    """The plan that a model makes for an empty repository."""
    return a_plan(
        bootstrap_order(1, preconditions=[absent("scripts/verify.sh")]),
        an_order(2, notes="keep me"),
        an_order(3, preconditions=[exists("src/f2.txt"), exists("scripts/verify.sh")]),
        verify_contract=CONTRACT,
    )


@pytest.mark.rows("PB01", "PB02", "PB04", "PB05")
def test_the_bootstrap_order_is_dropped_where_the_repository_has_its_verifier(desk):
    repo = desk.repo()
    compiled = compile_spec(desk, [Answer(json.dumps(from_scratch()))], "--repo", repo)
    assert compiled.outcome.exit_code == 0, compiled.outcome
    assert len(compiled.requests) == 1
    kept = compiled.orders
    assert list(kept) == ["WO-01", "WO-02"]
    assert [order["id"] for order in kept.values()] == ["WO-01", "WO-02"]
    for now, was in (("WO-01", 2), ("WO-02", 3)):
        wanted = from_scratch()["work_orders"][was - 1]
        for field in (
            "title",
            "intent",
            "allowed_files",
            "acceptance_commands",
            "preconditions",
            "postconditions",
        ):
            assert kept[now][field] == wanted[field]
        assert kept[now]["verify_exempt"] is False
        assert kept[now]["provenance"]["bootstrap"] is False
    manifest = json.loads((compiled.output / "WORK_ORDERS_MANIFEST.json").read_text())
    assert [order["id"] for order in manifest["work_orders"]] == ["WO-01", "WO-02"]


@pytest.mark.rows("PB03")
@pytest.mark.parametrize("with_repo", [False, True])
def test_nothing_is_dropped_where_there_is_no_verifier(desk, with_repo):
    args = ["--repo", desk.repo(verify=None)] if with_repo else []
    compiled = compile_spec(desk, [Answer(json.dumps(from_scratch()))], *args)
    assert compiled.outcome.exit_code == 0, compiled.outcome
    assert list(compiled.orders) == ["WO-01", "WO-02", "WO-03"]
    assert [order["verify_exempt"] for order in compiled.orders.values()] == [False, False, False]


@pytest.mark.rows("PB06", "PB05")
def test_dropping_never_breaks_the_chain(desk):
    files = ["scripts/verify.sh", "setup.cfg"]
    plan = a_plan(
        bootstrap_order(1, allowed_files=files, postconditions=[exists(path) for path in files]),
        an_order(2, preconditions=[exists("setup.cfg")]),
        verify_contract=CONTRACT,
    )
    compiled = compile_spec(desk, [Answer(json.dumps(plan))], "--repo", desk.repo(), repeat_last=True)
    if compiled.outcome.exit_code == 0:
        state = {"README.md", "scripts/verify.sh"}
        for number, order in enumerate(compiled.orders.values(), start=1):
            assert order["id"] == f"WO-{number:02d}"
            assert {condition["path"] for condition in order["preconditions"]} <= state
            state |= {condition["path"] for condition in order["postconditions"]}
        assert "Title of 2" in {order["title"] for order in compiled.orders.values()}
    else:
        assert compiled.outcome.exit_code == 2, compiled.outcome
        assert "E101" in codes_in(compiled.artifact("validation_errors.json"))


@pytest.mark.rows("PB01")
def test_a_plan_that_is_all_bootstrap_ends_well_and_says_so(desk):
    plan = a_plan(bootstrap_order(1), verify_contract=CONTRACT)
    compiled = compile_spec(desk, [Answer(json.dumps(plan))], "--repo", desk.repo())
    assert compiled.outcome.exit_code == 0, compiled.outcome
    assert len(compiled.requests) == 1
    assert compiled.outcome.said.strip()
