"""The rules of a plan: each with plans it refuses and their nearest twins that it lets pass."""

from __future__ import annotations

import copy
import json
from dataclasses import FrozenInstanceError, dataclass, field
from pathlib import Path

import pytest
from plans import absent, exists, order, plan, requires

from planner.defaults import SHELL_OPERATOR_TOKENS
from planner.validation import (
    RULES,
    UnknownCode,
    ValidationError,
    assess,
    compute_verify_exempt,
    explain,
    extract_file_dependencies,
    normalize_work_order,
    parse_and_validate,
    rules_page,
    rules_table,
    skip_bootstrap,
    validate_plan,
    validate_plan_v2,
)

ROOT = Path(__file__).resolve().parent.parent


def commands(*texts, **changes):
    return plan(order(acceptance_commands=list(texts), **changes))


def codes(findings):
    return {finding.code for finding in findings}


# --- one table: every rule, its bad plans and their good twins --------------------------------


@dataclass(frozen=True)
class Specimen:
    code: str
    name: str
    bad: object
    good: object
    repo: frozenset[str] = field(default=frozenset())

    def __str__(self):
        return f"{self.code}-{self.name}"


def specimen(code, name, bad, good, *repo):
    return Specimen(code, name, bad, good, frozenset(repo))


def paths(code, name, path, twin):
    """The same bad path in every field that holds paths."""
    yield specimen(
        code, f"{name} in allowed_files", plan(order(allowed_files=[path])), plan(order(allowed_files=[twin]))
    )
    yield specimen(
        code, f"{name} in context_files", plan(order(context_files=[path])), plan(order(context_files=[twin]))
    )
    yield specimen(
        code,
        f"{name} in preconditions",
        plan(order(preconditions=absent(path))),
        plan(order(preconditions=absent(twin))),
    )
    yield specimen(
        code,
        f"{name} in postconditions",
        plan(order(allowed_files=[twin], postconditions=exists(path))),
        plan(order(allowed_files=[twin], postconditions=exists(twin))),
    )


GOOD = plan(order(1), order(2))

SPECIMENS = [
    # PV04-PV09
    specimen("E000", "empty list", plan(), GOOD),
    specimen("E000", "no work_orders", {}, GOOD),
    specimen("E000", "work_orders is an object", {"work_orders": {"WO-01": order()}}, GOOD),
    specimen("E000", "work_orders is null", {"work_orders": None}, GOOD),
    specimen("E000", "an order is a string", plan(order(1), "WO-02"), GOOD),
    specimen("E000", "an order is a list", plan(order(1), [order(2)]), GOOD),
    specimen("E000", "an order is null", plan(order(1), None), GOOD),
    specimen("E000", "top level is a list", [order(1)], GOOD),
    specimen("E000", "top level is null", None, GOOD),
    specimen(
        "E000", "contract is a list", plan(order(), verify_contract=[]), plan(order(), verify_contract=None)
    ),
    specimen(
        "E000", "contract is text", plan(order(), verify_contract="x"), plan(order(), verify_contract={})
    ),
    specimen(
        "E000",
        "requires is an object",
        plan(order(), verify_contract={"requires": {}}),
        plan(order(), verify_contract={"requires": []}),
    ),
    specimen(
        "E000",
        "requires is missing",
        plan(order(), verify_contract={"require": exists("part_1.py")}),
        plan(order(), verify_contract={"requires": exists("part_1.py"), "command": "bash scripts/verify.sh"}),
    ),
    specimen(
        "E000",
        "an entry of requires is a number",
        plan(order(), verify_contract=requires(7)),
        plan(order(), verify_contract=requires("part_1.py")),
    ),
    specimen(
        "E000",
        "an entry of requires leaves the repository",
        plan(order(), verify_contract=requires("../part_1.py")),
        plan(order(), verify_contract=requires(" ./part_1.py ")),
    ),
    # PV10-PV13
    *(
        specimen("E001", f"id {bad[:12]}", plan(order(id=bad)), plan(order(id="WO-01")))
        for bad in (
            "WO-1",
            "wo-01",
            "WO-00",
            "WO-001",
            "1",
            "WO-01a",
            "",
            "W" * 100_000,
            "WO-" + "9" * 5000,
            "WO-\u0660\u0661",
        )
    ),
    specimen("E001", "id is a number", plan(order(id=1)), plan(order(1))),
    specimen("E001", "gap", plan(order(1), order(3)), plan(order(1), order(2))),
    specimen("E001", "duplicate", plan(order(1), order(2, id="WO-01")), plan(order(1), order(2))),
    specimen("E001", "starts at 2", plan(order(2)), plan(order(1))),
    specimen("E001", "backwards", plan(order(2), order(1)), plan(order(1), order(2))),
    specimen(
        "E001",
        "after WO-99",
        plan(*(order(number) for number in range(1, 100)), order(100, id="WO-00")),
        plan(*(order(number) for number in range(1, 102))),
    ),
    # PV14, PV15
    *(
        specimen(
            "E003",
            f"operator {operator}",
            commands(f"python -m pytest {operator} tail"),
            commands(f"python -m pytest -k 'a {operator} tail'"),
        )
        for operator in sorted(SHELL_OPERATOR_TOKENS)
    ),
    # PV16-PV18
    *paths("E004", "star", "src/*.py", "src/a.py"),
    *paths("E004", "question mark", "src/?.py", "src/a.py"),
    *paths("E004", "bracket", "src/[ab].py", "src/a.py"),
    # PV19-PV24
    *(
        specimen("E005", f"no {name}", plan(order(**{name: ...})), plan(order()))
        for name in ("id", "title", "intent", "allowed_files", "acceptance_commands", "context_files")
    ),
    *(
        specimen("E005", f"{name} is {str(value)[:40]!r}", plan(order(**{name: value})), plan(order()))
        for name, value in [
            ("id", 1),
            ("title", None),
            ("title", ["a"]),
            ("intent", {"text": "a"}),
            ("preconditions", None),
            ("preconditions", {"kind": "file_exists", "path": "a"}),
            ("preconditions", ["part_0.py"]),
            ("preconditions", [[{"kind": "file_exists", "path": "a"}]]),
            ("preconditions", [{"kind": "file_exists"}]),
            ("preconditions", [{"kind": "file_exists", "path": 3}]),
            ("preconditions", [{"kind": "file_exists", "path": {"a": [1]}}]),
            ("preconditions", [{"kind": ["file_exists"], "path": "a"}]),
            ("postconditions", "part_1.py"),
            ("allowed_files", "part_1.py"),
            ("allowed_files", [["part_1.py"]]),
            ("allowed_files", [None]),
            ("allowed_files", []),
            ("forbidden", "nothing"),
            ("forbidden", [1]),
            ("acceptance_commands", "python -m pytest"),
            ("acceptance_commands", [["python", "-m", "pytest"]]),
            ("acceptance_commands", [{"cmd": "python"}]),
            ("acceptance_commands", []),
            ("acceptance_commands", ["  "]),
            ("acceptance_commands", ["python -c 'a\0b'"]),
            ("acceptance_commands", ["python -c '" + "#" * 200_000 + "'"]),
            ("context_files", None),
            ("context_files", [1.5]),
            ("notes", 1),
            ("notes", ["a"]),
            ("verify_exempt", "true"),
            ("verify_exempt", 1),
        ]
    ),
    specimen(
        "E005",
        "11 context files",
        plan(order(context_files=[f"c{n}" for n in range(11)])),
        plan(order(context_files=[f"c{n}" for n in range(10)])),
    ),
    specimen(
        "E005",
        "file_absent as a postcondition",
        plan(order(postconditions=[*exists("part_1.py"), *absent("old.py")])),
        plan(order(postconditions=exists("part_1.py"))),
    ),
    specimen(
        "E005",
        "unknown kind",
        plan(order(preconditions=[{"kind": "dir_absent", "path": "x"}])),
        plan(order(preconditions=[{"kind": "file_absent", "path": "x"}])),
    ),
    # PV25-PV30
    *paths("E005", "absolute", "/src/a.py", "src/a.py"),
    *paths("E005", "upward", "../a.py", "a.py"),
    *paths("E005", "upward in disguise", "src/../../a.py", "src/../a.py"),
    *paths("E005", "backslash", "src\\a.py", "src/a.py"),
    *paths("E005", "NUL", "a\0.py", "a.py"),
    *paths("E005", "control character", "a\x1f.py", "a.py"),
    *paths("E005", "line feed inside", "a\n.py", " a.py\n"),
    *paths("E005", "dot", ".", "./a.py"),
    *paths("E005", "empty", "", "a.py"),
    *paths("E005", "drive letter", "C:/a.py", "C/a.py"),
    *paths("E005", "git directory", ".git/hooks/pre-commit", ".github/hooks"),
    # PV31
    *(
        specimen("E006", bad[:60], commands(bad), commands(good))
        for bad, good in [
            ('python -c "for x in []: print(x"', 'python -c "for x in []: print(x)"'),
            ('python3 -c "import os; for x in []: pass"', 'python3 -c "import os; [x for x in []]"'),
            ('python3.11 -c "def f(: pass"', 'python3.11 -c "def f(): pass"'),
            ('/usr/bin/python3 -c "1 +"', '/usr/bin/python3 -c "1 + 1"'),
            ('python -I -W error -c "1 +"', 'python -I -W error -c "1 + 1"'),
            ('python -Ic "1 +"', 'python -Ic "1 + 1"'),
            ('python -c"1 +"', 'python -c"1 + 1"'),
            ("python -X dev -c", "python -X dev -c pass"),
            # These parse with a warning, which is no finding and must not become one under -W error.
            ("python -c '1if 1 else'", "python -c '1if 1 else 2'"),
            ("python -c 'print(\"\\d\"'", "python -c 'print(\"\\d\")'"),
            ('env PYTHONPATH=src python -c "1 +"', 'env PYTHONPATH=src python -c "1 + 1"'),
            ('timeout 60 python -c "1 +"', 'timeout 60 python -c "1 + 1"'),
            ("python -c '" + "-" * 100_000 + "1'", "python -c '" + "-" * 10 + "1'"),
            ('python -c "1 +"', "python part_1.py -c '1 +'"),
        ]
    ),
    # PV32
    specimen("E007", "open quote", commands('python -c "print(1)'), commands('python -c "print(1)"')),
    specimen("E007", "backslash at the end", commands("ls \\"), commands("ls \\\\")),
    specimen("E007", "empty program", commands("'' --version"), commands("'ls' ''")),
    # PV33-PV38, Q10
    specimen(
        "E101",
        "nobody makes it",
        plan(order(preconditions=exists("a.py"))),
        plan(order(preconditions=absent("a.py"))),
    ),
    specimen(
        "E101",
        "a later order makes it",
        plan(order(1, preconditions=exists("part_2.py")), order(2)),
        plan(order(1), order(2, preconditions=exists("part_1.py"))),
    ),
    specimen(
        "E101",
        "the same order makes it",
        plan(order(1, preconditions=exists("part_1.py"))),
        plan(order(1, preconditions=absent("part_1.py"))),
    ),
    specimen(
        "E101",
        "the repository has it",
        plan(order(preconditions=absent("src/a.py"))),
        plan(order(preconditions=exists("./src//a.py"))),
        "src/a.py",
    ),
    specimen(
        "E101",
        "an earlier order made it",
        plan(order(1), order(2, preconditions=absent("./part_1.py"))),
        plan(order(1), order(2, preconditions=exists("./part_1.py"))),
    ),
    # PV39
    specimen(
        "E102",
        "both kinds",
        plan(order(preconditions=exists("a.py") + absent("./a.py"))),
        plan(order(preconditions=exists("a.py") + absent("b.py"))),
        "a.py",
    ),
    # PV40
    specimen(
        "E103",
        "not allowed",
        plan(order(allowed_files=["a.py"], postconditions=exists("a.py", "b.py"))),
        plan(order(allowed_files=["a.py", "b.py"], postconditions=exists("./a.py", "b.py"))),
    ),
    # PV41, PV42
    specimen(
        "E104",
        "not promised",
        plan(order(allowed_files=["a.py", "b.py"], postconditions=exists("a.py"))),
        plan(order(allowed_files=["a.py", "b.py"], postconditions=[])),
    ),
    # PV43-PV45, Q8
    *(
        specimen(
            "E105", bad, commands(bad), commands(good), "scripts/verify.sh", "scripts/other.sh", "verify.sh"
        )
        for bad, good in [
            ("bash scripts/verify.sh", "bash scripts/other.sh"),
            ("  bash   'scripts/verify.sh' ", "bash verify.sh"),
            ("bash ./scripts//verify.sh", "bash -n scripts/verify.sh"),
            ("bash scripts/../scripts/verify.sh", "test -f scripts/verify.sh"),
            ("/bin/bash scripts/verify.sh", "grep -q pytest scripts/verify.sh"),
            ("sh scripts/verify.sh", "grep bash scripts/verify.sh"),
            ("./scripts/verify.sh", "cat ./scripts/verify.sh"),
            ("scripts/verify.sh --fast", "ls scripts/verify.sh --all"),
            ("bash -x scripts/verify.sh", "bash -x scripts/other.sh"),
            ("bash -eu -o pipefail scripts/verify.sh --fast", "bash -eu -o pipefail scripts/other.sh"),
            (
                "bash --norc --rcfile x -- scripts/verify.sh",
                "bash --rcfile scripts/verify.sh scripts/other.sh",
            ),
            ("bash +x scripts/verify.sh", "bash scripts/other.sh scripts/verify.sh"),
            ("env CI=1 timeout 60s bash scripts/verify.sh", "env CI=1 timeout 60s bash scripts/other.sh"),
            ("bash -c 'set -e; bash scripts/verify.sh'", "bash -c 'set -e; test -x scripts/verify.sh'"),
            ("bash -c 'cd . && ./scripts/verify.sh'", "bash -c 'cd . && ls ./scripts/verify.sh'"),
            ('bash -ec ". scripts/verify.sh\necho"', 'bash -ec "echo . scripts/verify.sh"'),
        ]
    ),
    # PV46, PV47
    specimen(
        "E106",
        "nobody makes it",
        plan(order(), verify_contract=requires(*exists("scripts/verify.sh"))),
        plan(
            order(allowed_files=["scripts/verify.sh"]),
            verify_contract=requires(*exists("scripts//verify.sh")),
        ),
    ),
    specimen(
        "E106",
        "the repository has something else",
        plan(order(), verify_contract=requires("verify.sh")),
        plan(order(), verify_contract=requires("scripts/verify.sh")),
        "scripts/verify.sh",
    ),
    specimen(
        "E106",
        "required to be absent, but made",
        plan(order(), verify_contract=requires(*absent("part_1.py"))),
        plan(order(), verify_contract=requires(*absent("part_2.py"))),
    ),
    # PV48-PV51
    *(
        specimen(
            "W101",
            bad,
            commands(bad),
            commands(good),
            "src/tool.py",
            "run.sh",
            "pkg/__init__.py",
            "names/one.py",
        )
        for bad, good in [
            ('python -c "import part_2"', 'python -c "import part_1"'),
            ('python -c "import src.tools"', 'python -c "import src.tool"'),
            ('python -c "from pkg.sub import x"', 'python -c "from pkg import x"'),
            ('python -c "from names import two"', 'python -c "from names import one"'),
            ('python -c "if 1:\n import numpy"', 'python -c "if 1:\n import json, os.path, importlib"'),
            ("bash missing.sh", "bash ./run.sh"),
            ("python src/missing.py", "python src/tool.py"),
            ("python3 -I src/missing.py", "python3 -I ./src/tool.py --flag"),
            ("python src/missing.py", "python -m missing"),
            ("bash missing.sh", "bash /usr/local/missing.sh"),
        ]
    ),
    specimen(
        "W101",
        "a later order makes it",
        plan(order(1, acceptance_commands=['python -c "import part_2"']), order(2)),
        plan(order(1), order(2, acceptance_commands=['python -c "import part_1"'])),
    ),
]


@pytest.mark.parametrize("case", SPECIMENS, ids=str)
def test_a_bad_plan_has_its_code_and_its_good_twin_has_no_finding(case):
    assert case.code in codes(assess(case.bad, case.repo).findings)
    assert assess(case.good, case.repo).findings == []


def test_every_rule_has_a_specimen():
    assert {case.code for case in SPECIMENS} == set(RULES)


def test_the_codes_are_the_fixed_set():
    """PV03: a program that reads findings knows all codes there can be."""
    known = "E000 E001 E003 E004 E005 E006 E007 E101 E102 E103 E104 E105 E106 W101"
    assert " ".join(RULES) == known


@pytest.mark.parametrize("case", [case for case in SPECIMENS if isinstance(case.bad, dict)], ids=str)
def test_one_pass_finds_what_the_two_layers_find(case):
    orders, contract = case.bad.get("work_orders"), case.bad.get("verify_contract")
    if isinstance(orders, list):
        orders = [normalize_work_order(each) for each in orders]
    layers = validate_plan(orders) + validate_plan_v2(orders, contract, set(case.repo))
    assert codes(layers) == codes(assess(case.bad, case.repo).findings)


@pytest.mark.parametrize("case", SPECIMENS, ids=str)
def test_only_errors_stop_a_plan(case):
    assessment = assess(case.bad, case.repo)
    assert codes(assessment.errors) | codes(assessment.warnings) == codes(assessment.findings)
    assert all(finding.code.startswith("E") for finding in assessment.errors)
    assert all(finding.code.startswith("W") for finding in assessment.warnings)


# --- what a finding says ---------------------------------------------------------------------


def the_message(manifest, code, *repo):
    return next(finding for finding in assess(manifest, set(repo)).findings if finding.code == code).message


def test_a_finding_says_which_rule_which_order_what_and_where():
    """PV02"""
    [finding] = validate_plan(plan(order(1), order(2, title=7))["work_orders"])
    assert finding == ValidationError("E005", "WO-02", "must be a string, not a number", "title")
    assert str(finding) == "[E005] WO-02 title: must be a string, not a number"
    with pytest.raises(FrozenInstanceError):
        finding.code = "E000"


def test_a_finding_about_the_plan_as_a_whole_names_no_order():
    [finding] = validate_plan([])
    assert (finding.wo_id, finding.field) == (None, "work_orders")


def test_an_order_without_a_usable_id_is_named_by_its_place():
    assert {finding.wo_id for finding in validate_plan([order(1), order(2, id=None)])} == {"work_orders[1]"}


@pytest.mark.parametrize(
    ("manifest", "repo", "words"),
    [
        (plan(order(1, preconditions=exists("a.py"))), (), ["a.py", "no order makes it"]),
        (plan(order(1, preconditions=exists("part_2.py")), order(2)), (), ["only WO-02 makes it", "later"]),
        (plan(order(1, preconditions=exists("part_1.py"))), (), ["this order that makes it"]),
        (plan(order(1, preconditions=absent("a.py"))), ("a.py",), ["the repository already has it"]),
        (plan(order(1), order(2, preconditions=absent("part_1.py"))), (), ["WO-01 has made it"]),
    ],
)
def test_an_unmet_precondition_says_who_makes_the_file(manifest, repo, words):
    message = the_message(manifest, "E101", *repo)
    assert all(word in message for word in words)


def test_a_wrong_number_is_told_with_the_right_one():
    assert "this order is WO-02" in the_message(plan(order(1), order(3)), "E001")


def test_a_gap_is_one_finding_not_one_per_later_order():
    findings = validate_plan([order(1), order(3), order(4), order(5)])
    assert [finding.wo_id for finding in findings] == ["WO-03"]


def test_a_pattern_is_one_finding_not_two():
    assert codes(validate_plan([order(allowed_files=["src/*.py"], postconditions=[])])) == {"E004"}


def test_a_path_that_is_a_pattern_and_leaves_the_repository_is_both():
    assert codes(validate_plan([order(allowed_files=["../*.py"], postconditions=[])])) == {"E004", "E005"}


def test_all_findings_are_reported_in_one_pass_by_order():
    """PV58, Q6: chain rules look at what is well formed even beside structural errors."""
    manifest = plan(
        order(1, title=None, preconditions=exists("nowhere.py")),
        order(2, acceptance_commands=["bash scripts/verify.sh && true", 'python -c "1 +"']),
        "junk",
        order(4, preconditions=exists("a.py") + absent("a.py")),
        verify_contract=requires("verify.sh", 1),
    )
    found = [(finding.wo_id, finding.code) for finding in assess(manifest, set()).errors]
    assert found == [
        (None, "E000"),
        (None, "E000"),
        (None, "E106"),
        ("WO-01", "E005"),
        ("WO-01", "E101"),
        ("WO-02", "E003"),
        ("WO-02", "E006"),
        ("WO-02", "E105"),
        ("WO-04", "E101"),
        ("WO-04", "E102"),
    ]


def test_messages_stay_short_when_the_plan_is_huge():
    huge = "x" * 3_000_000
    manifest = plan(
        order(id=huge, allowed_files=[huge, huge + "*"], preconditions=[{"kind": huge, "path": huge}]),
    )
    findings = assess(manifest, set()).findings
    assert findings
    assert all(len(str(finding)) < 600 for finding in findings)


def test_provenance_from_a_model_is_not_judged():
    """It is the planner's to write, and overwritten whatever stands there."""
    assert validate_plan([order(provenance="made up", verify_exempt=True)]) == []


# --- the shapes callers rely on ----------------------------------------------------------------


@pytest.mark.parametrize("manifest", [None, [], "x", 7, {}, {"work_orders": None}, plan(), plan(order(), 3)])
def test_parse_and_validate_gives_no_orders_when_the_shape_is_wrong(manifest):
    orders, findings = parse_and_validate(manifest)
    assert orders == []
    assert codes(findings) == {"E000"}


def test_parse_and_validate_gives_the_orders_normalised_and_leaves_the_answer_alone():
    answer = plan(order(allowed_files=["./part_1.py"], title="  Part 1 "))
    before = copy.deepcopy(answer)
    orders, findings = parse_and_validate(answer)
    assert (orders, findings) == ([order()], [])
    assert answer == before


def test_a_plan_with_no_orders_left_has_no_chain_to_break():
    assert validate_plan_v2([], None, {"scripts/verify.sh"}) == []


def test_chain_rules_need_no_complete_orders():
    assert codes(validate_plan_v2([{"id": "WO-01", "preconditions": exists("a")}], None, set())) == {"E101"}


def test_a_list_serves_as_a_listing():
    assert assess(plan(order(preconditions=exists("a.py"))), ["a.py"]).findings == []


def test_normalising_strips_spells_paths_one_way_and_drops_repetitions():
    """PV52, M-06"""
    given = order(
        id=" WO-01 ",
        title=" T ",
        notes=" n\n",
        allowed_files=[" ./src//a.py ", "src/a.py", "src/b/../c.py\n"],
        context_files=["x/./y", "x/y"],
        acceptance_commands=[" ls  -l ", "ls  -l", "ls -l"],
        forbidden=["no", " no "],
        preconditions=exists("./a", "a") + absent("a"),
        postconditions=exists("src//a.py"),
    )
    before = copy.deepcopy(given)
    assert normalize_work_order(given) == order(
        id="WO-01",
        title="T",
        notes="n",
        allowed_files=["src/a.py", "src/c.py"],
        context_files=["x/y"],
        acceptance_commands=["ls  -l", "ls -l"],
        forbidden=["no"],
        preconditions=exists("a") + absent("a"),
        postconditions=exists("src/a.py"),
    )
    assert given == before


def test_normalising_keeps_what_is_malformed_for_the_rules_to_name():
    given = {
        "id": 3,
        "allowed_files": [1, 1, None, ["a"], "a\0/../b"],
        "preconditions": [{"path": 1}],
        "x": {},
    }
    assert normalize_work_order(given) == given


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ('python -c "import a.b"', ["a/b.py", "a/b/__init__.py"]),
        ('python -c "import a, c as d"', ["a.py", "a/__init__.py", "c.py", "c/__init__.py"]),
        ('python -c "from a.b import f; from a.b import g"', ["a/b.py", "a/b/__init__.py"] * 2),
        ("python3 -c 'def f():\n  import lazy'", ["lazy.py", "lazy/__init__.py"]),
        ("bash scripts/check.sh -v", ["scripts/check.sh"]),
        ("sh ./scripts//check.sh", ["scripts/check.sh"]),
        ("python tools/gen.py out", ["tools/gen.py"]),
        ('python -c "import os, sys, json, ast"', []),
        ('python -c "from . import a"', []),
        ('python -c "1 +"', []),
        ("python -m pytest tests/test_a.py", []),
        ("python", []),
        ("python - x.py", []),
        ("bash -c 'python x.py'", []),
        ("bash -s x.sh", []),
        ("ls a.py", []),
        ("python '/opt/x.py'", []),
        ("python ../x.py", []),
        ("'", []),
        ("", []),
    ],
)
def test_the_files_a_command_leans_on(command, files):
    """PV51"""
    assert extract_file_dependencies(command) == files


# --- exemption from verification -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("contract", "repo", "expected"),
    [
        (None, (), [False, False, False]),
        ({}, (), [False, False, False]),
        ("junk", (), [False, False, False]),
        (["part_2.py"], (), [False, False, False]),
        ({"requires": "part_2.py"}, (), [False, False, False]),
        (requires("part_2.py"), (), [True, False, False]),
        (requires("part_2.py", *exists("./part_3.py")), (), [True, True, False]),
        (requires("part_2.py"), ("part_2.py",), [False, False, False]),
        (requires("never.py"), (), [True, True, True]),
        (requires(*absent("part_2.py")), (), [False, True, True]),
        (requires(*absent("old.py")), ("old.py",), [True, True, True]),
        (requires(3, "part_2.py"), (), [True, False, False]),
    ],
)
def test_an_order_is_exempt_while_something_the_contract_requires_is_missing(contract, repo, expected):
    """PV55-PV57, Q19"""
    orders = [order(1, verify_exempt=True), order(2, verify_exempt=False), order(3)]
    before = copy.deepcopy(orders)
    exempt = compute_verify_exempt(orders, contract, set(repo))
    assert [each["verify_exempt"] for each in exempt] == expected
    assert orders == before
    assert all(new is not old for new, old in zip(exempt, orders, strict=True))


# --- orders whose work is done already -------------------------------------------------------------

SCRIPT = "scripts/verify.sh"


def bootstrap(number=1, *more, **changes):
    return order(number, allowed_files=[SCRIPT, *more], **{"preconditions": absent(SCRIPT), **changes})


def test_orders_that_create_the_verify_script_are_left_out_and_the_rest_renumbered():
    """PB01, PB02, PB04"""
    orders = [bootstrap(1), order(2, notes="after WO-01"), bootstrap(3), order(4)]
    before = copy.deepcopy(orders)
    kept, skipped = skip_bootstrap(orders, {SCRIPT})
    assert kept == [{**order(2), "id": "WO-01", "notes": "after WO-01"}, {**order(4), "id": "WO-02"}]
    assert skipped == [bootstrap(1), bootstrap(3)]
    assert orders == before


@pytest.mark.parametrize("repo", [set(), None, {"verify.sh"}])
def test_without_the_script_in_the_repository_nothing_is_left_out(repo):
    """PB03"""
    orders = [order(1), bootstrap(7)]
    assert skip_bootstrap(orders, repo) == (orders, [])


def test_an_order_that_makes_what_a_later_one_needs_is_kept():
    """PB06, Q14"""
    orders = [bootstrap(1, "lib.sh"), order(2, preconditions=exists("lib.sh"))]
    assert skip_bootstrap(orders, {SCRIPT}) == (orders, [])
    assert skip_bootstrap(orders, {SCRIPT, "lib.sh"})[1] == [orders[0]]


def test_an_order_is_left_out_when_another_makes_its_files_in_time():
    needs = order(3, preconditions=exists("lib.sh"))
    in_time = [bootstrap(1, "lib.sh"), order(2, allowed_files=["lib.sh"]), needs]
    assert skip_bootstrap(in_time, {SCRIPT})[1] == [in_time[0]]
    too_late = [bootstrap(1, "lib.sh"), needs, order(2, allowed_files=["lib.sh"])]
    assert skip_bootstrap(too_late, {SCRIPT})[1] == []


def test_an_order_that_makes_what_the_contract_requires_is_kept():
    orders = [bootstrap(1, "lib.sh"), order(2)]
    assert skip_bootstrap(orders, {SCRIPT}, requires("lib.sh"))[1] == []
    assert skip_bootstrap(orders, {SCRIPT}, requires(SCRIPT))[1] == [orders[0]]


def test_an_order_needed_only_by_one_that_is_left_out_is_left_out_too():
    orders = [bootstrap(1, "lib.sh"), bootstrap(2, preconditions=exists("lib.sh")), order(3)]
    assert skip_bootstrap(orders, {SCRIPT})[1] == orders[:2]


def test_an_order_that_edits_the_existing_script_is_kept():
    orders = [bootstrap(1, preconditions=exists(SCRIPT)), order(2)]
    assert skip_bootstrap(orders, {SCRIPT}) == (orders, [])


def test_a_plan_that_is_only_the_bootstrap_order_is_fulfilled():
    """Q16: no orders, no findings; the caller says so and ends well."""
    assessment = assess(plan(bootstrap(1)), {SCRIPT}, skip_done=True)
    assert (assessment.work_orders, assessment.findings) == ([], [])
    assert assessment.skipped == [bootstrap(1)]


def test_a_plan_for_an_empty_repository_needs_no_revision_where_the_script_exists():
    """Q13: the skip comes before the chain, so `file_absent scripts/verify.sh` costs no model call."""
    manifest = plan(bootstrap(1), order(2), verify_contract=requires(SCRIPT))
    assert codes(assess(manifest, {SCRIPT}).errors) == {"E101"}
    assessment = assess(manifest, {SCRIPT}, skip_done=True)
    assert (assessment.findings, assessment.work_orders) == ([], [{**order(2), "id": "WO-01"}])


def test_findings_name_orders_by_the_ids_the_plan_came_with():
    manifest = plan(bootstrap(1), order(2, preconditions=exists("nowhere.py")))
    [finding] = assess(manifest, {SCRIPT}, skip_done=True).findings
    assert (finding.code, finding.wo_id) == ("E101", "WO-02")


# --- the rules as text -------------------------------------------------------------------------------


@pytest.mark.parametrize("code", RULES)
def test_a_rule_explains_itself_with_a_bad_and_a_good_example(code):
    text = explain(code)
    assert text.startswith(f"{code} (")
    assert "Bad" in text
    assert "Good" in text
    assert explain(code.lower()) == text
    assert max(map(len, text.splitlines())) <= 110


def test_an_unknown_code_is_told_with_the_known_ones():
    with pytest.raises(UnknownCode, match="no rule has the code 'E002'; there are E000, E001") as error:
        explain("E002")
    assert isinstance(error.value, KeyError)


def test_the_page_of_rules_says_what_the_rules_say():
    page = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert rules_table() in page
    assert page == rules_page(), "docs/rules.md has drifted: write planner.validation.rules_page() to it"


def test_the_shipped_example_is_a_plan_of_one_order():
    example = json.loads((ROOT / "example_work_order.json").read_text(encoding="utf-8"))
    assert assess(plan(example), set()).findings == []
