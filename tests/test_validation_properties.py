"""What holds for every plan, however it came about: no crash, no false precondition, one truth."""

from __future__ import annotations

import copy
import posixpath
import shlex

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plans import absent, exists, order, plan, requires

from planner.commands import Command
from planner.validation import (
    RULES,
    ValidationError,
    assess,
    compute_verify_exempt,
    extract_file_dependencies,
    normalize_work_order,
    parse_and_validate,
    skip_bootstrap,
    validate_plan,
    validate_plan_v2,
)
from shared.work_order import checked_path, normalize_path

# The machine that runs this may be busy: examples are counted, seconds are not. And everybody who runs
# the suite gets the same examples, so a red test is red for the next one too.
UNHURRIED = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

# --- plans of few files, so that promises and conditions meet -------------------------------------

SCRIPT = "scripts/verify.sh"
FILES = ["a.py", "b.py", "pkg/c.py", SCRIPT]
some_files = st.lists(st.sampled_from(FILES), unique=True, max_size=3)
conditions = st.builds(lambda there, gone: exists(*there) + absent(*gone), some_files, some_files)


@st.composite
def small_plans(draw):
    count = draw(st.integers(1, 5))
    orders = [
        order(number, preconditions=draw(conditions), allowed_files=draw(some_files.filter(bool)))
        for number in range(1, count + 1)
    ]
    contract = draw(st.none() | st.builds(lambda found: requires(*found), conditions))
    return plan(*orders, verify_contract=contract)


repositories = st.frozensets(st.sampled_from(FILES))


def walk(orders, repo):
    """The plain way to follow a plan: the files before and after each order, copied each time."""
    files = set(repo)
    for each in orders:
        before = set(files)
        files |= {promise["path"] for promise in each["postconditions"]}
        yield each, before, set(files)


def holds(condition, files):
    return (condition["path"] in files) == (condition["kind"] == "file_exists")


def false_preconditions(orders, repo):
    return {
        (each["id"], f"preconditions[{place}]")
        for each, before, _ in walk(orders, repo)
        for place, condition in enumerate(each["preconditions"])
        if not holds(condition, before)
    }


@given(small_plans(), repositories)
@UNHURRIED
def test_exactly_the_preconditions_that_would_be_false_are_found(manifest, repo):
    """So a plan without findings, carried out in order, never meets a false precondition."""
    found = {(each.wo_id, each.field) for each in assess(manifest, repo).findings if each.code == "E101"}
    assert found == false_preconditions(manifest["work_orders"], repo)


@given(small_plans(), repositories)
@UNHURRIED
def test_a_contract_is_found_broken_exactly_when_the_end_of_the_plan_breaks_it(manifest, repo):
    *_, (_, _, end) = walk(manifest["work_orders"], repo)
    contract = manifest["verify_contract"] or {"requires": []}
    broken = any(not holds(condition, end) for condition in contract["requires"])
    assert broken == any(each.code == "E106" for each in assess(manifest, repo).findings)


@given(small_plans(), repositories)
@UNHURRIED
def test_exempt_is_what_leaves_the_contract_unfulfilled(manifest, repo):
    orders, contract = manifest["work_orders"], manifest["verify_contract"]
    conditions = contract["requires"] if contract else []
    expected = [any(not holds(each, after) for each in conditions) for _, _, after in walk(orders, repo)]
    assert [each["verify_exempt"] for each in compute_verify_exempt(orders, contract, set(repo))] == expected


@given(small_plans(), repositories)
@UNHURRIED
def test_leaving_out_done_orders_breaks_nothing_that_held(manifest, repo):
    orders, contract = manifest["work_orders"], manifest["verify_contract"]
    kept, skipped = skip_bootstrap(orders, repo, contract)
    assert [each["id"] for each in kept] == [f"WO-{n:02d}" for n in range(1, len(kept) + 1)]
    old_ids = {
        new["id"]: old["id"] for new, old in zip(kept, [o for o in orders if o not in skipped], strict=True)
    }
    after = {(old_ids[wo_id], field) for wo_id, field in false_preconditions(kept, repo)}
    assert after <= false_preconditions(orders, repo)

    def broken(some_orders):
        return {
            each.field for each in validate_plan_v2(some_orders, contract, set(repo)) if each.code == "E106"
        }

    assert broken(kept) <= broken(orders)


@given(small_plans(), repositories)
@UNHURRIED
def test_judging_is_deterministic_and_leaves_the_answer_alone(manifest, repo):
    before = copy.deepcopy(manifest)
    assert assess(manifest, repo) == assess(manifest, set(repo))
    assert manifest == before


# --- anything at all -----------------------------------------------------------------------------

any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4)
    ),
    max_leaves=12,
)
KEYS = [*order(), "verify_exempt", "provenance", "kind", "path", "requires", "work_orders", "verify_contract"]
# The right keys around the wrong values reach deeper than random keys do.
near_json = st.recursive(
    any_json
    | st.sampled_from(["file_exists", "a.py", "bash x.sh", "python -c 'import a'", "WO-01", "\ud800", "'"]),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.sampled_from(KEYS), children, max_size=5)
    ),
    max_leaves=20,
)


@st.composite
def damaged_plans(draw):
    """A good plan with the values at one to three random places replaced."""
    manifest = plan(
        order(1), order(2, preconditions=exists("part_1.py")), verify_contract=requires(*exists("part_2.py"))
    )
    for _ in range(draw(st.integers(1, 3))):
        node = manifest
        while True:
            places = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not places:
                break
            place = draw(st.sampled_from(places))
            if isinstance(node[place], (dict, list)) and draw(st.booleans()):
                node = node[place]
                continue
            node[place] = draw(near_json)
            break
    return manifest


@given(any_json | near_json | damaged_plans(), st.frozensets(st.sampled_from(["part_1.py", SCRIPT])))
@settings(UNHURRIED, max_examples=400)
def test_no_answer_of_any_shape_crashes_the_judge(manifest, repo):
    """PV20, PV54"""
    before = copy.deepcopy(manifest)
    assessment = assess(manifest, repo, skip_done=True)
    orders, structural = parse_and_validate(manifest)
    stated = manifest if isinstance(manifest, dict) else {}
    raw, contract = stated.get("work_orders"), stated.get("verify_contract")
    findings = [
        *assessment.findings,
        *structural,
        *validate_plan(raw),
        *validate_plan_v2(raw, contract, set(repo)),
        *validate_plan_v2(orders, contract, set(repo)),
    ]
    compute_verify_exempt(raw, contract, set(repo))
    skip_bootstrap(raw, set(repo), contract)
    assert all(isinstance(each, ValidationError) and each.code in RULES for each in findings)
    assert all(isinstance(each.wo_id, str | None) and isinstance(each.field, str) for each in findings)
    assert all("\n" not in str(each) for each in findings)
    assert manifest == before


@given(near_json)
@UNHURRIED
def test_one_order_of_any_shape_crashes_nothing(value):
    for each in (value, {**order(), **value} if isinstance(value, dict) else value):
        normalize_work_order(each)
        validate_plan([each])
        validate_plan_v2([each], None, set())


@given(near_json)
@UNHURRIED
def test_normalising_twice_is_normalising_once(value):
    tidy = normalize_work_order(
        {**order(), **value} if isinstance(value, dict) else {"allowed_files": [value]}
    )
    assert normalize_work_order(tidy) == tidy


WORDS = """python python3 -c -Ic -m -W -X bash sh -x -n -o -- env A=1 timeout 5 x.sh scripts/verify.sh
    pass import 1+ ' " \\ ; && - . .. /x a.b""".split()  # noqa: SIM905 - as a person would type them


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=6), max_size=7).map(" ".join))
@UNHURRIED
def test_no_command_of_any_words_crashes_the_reader(command):
    assert all(isinstance(path, str) for path in extract_file_dependencies(command))
    assess(plan(order(acceptance_commands=[command])), {SCRIPT})


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=6).map(" ".join))
@UNHURRIED
def test_a_command_is_split_as_the_factory_will_split_it(text):
    try:
        expected = tuple(shlex.split(text))
    except ValueError:
        expected = ()
    assert Command.of(text).words == expected


# --- paths -----------------------------------------------------------------------------------------

paths = st.lists(
    st.sampled_from(
        ["a", "b.py", ".", "..", "", " ", ".git", ".GIT ", "git~1", "\u200c", "\0", "\\", "*", ":", "C:"]
    )
    | st.text(max_size=3),
    min_size=1,
    max_size=5,
).map("/".join)


@given(paths)
@UNHURRIED
def test_an_accepted_path_has_one_spelling_and_stays_below_the_root(text):
    try:
        path = checked_path(text)
    except ValueError:
        return
    assert checked_path(path) == path == normalize_path(path)
    joined = posixpath.normpath(posixpath.join("/srv/repo", path))
    assert joined == f"/srv/repo/{path}"
    assert ".git" not in path.lower().split("/")


@pytest.mark.parametrize("size", [500, 5000])
def test_a_long_plan_is_judged_whole(size):
    """Each order builds on the one before; the last one breaks the chain and only it is found."""
    orders = [
        order(number, id=f"WO-{number:02d}", preconditions=exists(f"part_{number - 1}.py"))
        for number in range(2, size + 1)
    ]
    manifest = plan(order(1), *orders, order(size + 1, preconditions=exists(f"part_{size + 2}.py")))
    assert [(each.code, each.wo_id) for each in assess(manifest, set()).findings] == [
        ("E101", f"WO-{size + 1}")
    ]
