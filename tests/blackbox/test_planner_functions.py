"""The call shapes that tools rely on, called as a tool would."""

from __future__ import annotations

import copy
import dataclasses
import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from blackbox.harness import CONTRACT, ULID, a_plan, an_order, bootstrap_order, exists, sha


@pytest.mark.rows("PV01", "PV02")
def test_the_two_layers_return_validation_errors():
    from planner.validation import ValidationError, validate_plan, validate_plan_v2

    (first,) = validate_plan([an_order(1, acceptance_commands=["a | b"])])
    (second,) = validate_plan_v2([an_order(1, preconditions=[exists("x")])], None, set())
    for error, code in ((first, "E003"), (second, "E101")):
        assert isinstance(error, ValidationError)
        assert (error.code, error.wo_id) == (code, "WO-01")
        assert error.message
        assert {"code", "wo_id", "message", "field"} <= {f.name for f in dataclasses.fields(error)}
    assert validate_plan([an_order(1)]) == []
    assert validate_plan_v2([an_order(1)], CONTRACT, {"scripts/verify.sh"}) == []


@pytest.mark.rows("PV01", "PV54")
@pytest.mark.parametrize(
    "manifest", [None, 1, "x", [], {}, {"work_orders": None}, {"work_orders": [None, 1, [], {}]}], ids=repr
)
def test_no_shape_makes_the_validator_raise(manifest):
    from planner.validation import parse_and_validate, validate_plan, validate_plan_v2

    orders, errors = parse_and_validate(manifest)
    assert errors
    assert isinstance(orders, list)
    if isinstance(manifest, list) or (
        isinstance(manifest, dict) and isinstance(manifest.get("work_orders"), list)
    ):
        raw = manifest if isinstance(manifest, list) else manifest["work_orders"]
        validate_plan(raw)
        validate_plan_v2(raw, "nonsense", set())


@pytest.mark.rows("PV56", "PV55")
def test_exemption_is_computed_on_copies_and_tolerates_any_contract():
    from planner.validation import compute_verify_exempt

    orders = [an_order(1, verify_exempt=False), bootstrap_order(2), an_order(3, verify_exempt=True)]
    before = copy.deepcopy(orders)
    marked = compute_verify_exempt(orders, CONTRACT, set())
    assert [order["verify_exempt"] for order in marked] == [True, False, False]
    assert orders == before
    assert all(new is not old for new, old in zip(marked, orders, strict=True))
    for contract in (None, "x", ["y"], 7):
        assert not any(order["verify_exempt"] for order in compute_verify_exempt(orders, contract, set()))
    assert not any(
        order["verify_exempt"] for order in compute_verify_exempt(orders, CONTRACT, {"scripts/verify.sh"})
    )


@pytest.mark.rows("PV52")
def test_normalising_strips_spells_paths_one_way_and_drops_repeats():
    from planner.validation import normalize_work_order

    order = an_order(
        1,
        title="  t ",
        allowed_files=["./a//b", "a/b", "c "],
        context_files=["x/../y", "y"],
        forbidden=["f", "f"],
        acceptance_commands=[" true ", "true"],
        preconditions=[exists("./q//r")],
    )
    before = copy.deepcopy(order)
    clean = normalize_work_order(order)
    assert clean["title"] == "t"
    assert clean["allowed_files"] == ["a/b", "c"]
    assert clean["context_files"] == ["y"]
    assert clean["forbidden"] == ["f"]
    assert clean["acceptance_commands"] == ["true"]
    assert clean["preconditions"][0]["path"] == "q/r"
    assert order == before
    assert normalize_work_order(clean) == clean


@pytest.mark.rows("PV51")
@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("python -c 'import a.b'", {"a/b.py", "a/b/__init__.py"}),
        ("python3 -c 'from pkg.mod import x'", {"pkg/mod.py", "pkg/mod/__init__.py"}),
        ("bash tools/go.sh", {"tools/go.sh"}),
        ("python tools/go.py --flag", {"tools/go.py"}),
        ("python -c 'import json, sys'", set()),
        ("grep x y", set()),
        ("echo 'unclosed", set()),
        ("", set()),
    ],
)
def test_dependencies_of_a_command(command, wanted):
    from planner.validation import extract_file_dependencies

    found = extract_file_dependencies(command)
    assert isinstance(found, list)
    assert wanted <= set(found) if wanted else found == []


@pytest.mark.rows("PI01", "PI02", "PI03")
def test_orders_are_written_whole_and_an_export_is_guarded(tmp_path):
    from planner.io import check_overwrite, write_work_orders

    check_overwrite(tmp_path / "new", overwrite=False)
    write_work_orders(tmp_path / "new", [an_order(1)], a_plan(an_order(1)))
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"WO-01.json", "WORK_ORDERS_MANIFEST.json"}
    assert json.loads((tmp_path / "new" / "WO-01.json").read_text()) == an_order(1)
    with pytest.raises(Exception, match="overwrite"):
        check_overwrite(tmp_path / "new", overwrite=False)
    check_overwrite(tmp_path / "new", overwrite=True)


@pytest.mark.rows("S05", "S06", "S07", "S08", "S10", "S11")
def test_the_shared_tools_of_a_run(tmp_path):
    from shared import run_context as rc

    ids = [rc.generate_ulid() for _ in range(200)]
    assert len(set(ids)) == 200
    assert all(ULID.fullmatch(name) for name in ids)
    moment = datetime.fromisoformat(rc.utc_now_iso())
    assert moment.utcoffset() == timedelta(0)
    assert rc.sha256_bytes(b"abc") == sha("abc")
    (tmp_path / "f").write_bytes(b"abc")
    assert rc.sha256_file(tmp_path / "f") == sha("abc")
    assert rc.sha256_json({"a": 1, "b": [2]}) == rc.sha256_json({"b": [2], "a": 1})
    rc.write_run_json(tmp_path, {"run_id": ids[0]})
    assert rc.read_run_json(tmp_path) == {"run_id": ids[0]}
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("f", "run.json")] == []
    version = rc.get_tool_version()
    assert {"commit", "dirty"} <= version.keys()


@pytest.mark.rows("S22")
def test_the_example_work_order_loads():
    from shared.work_order import load_work_order

    root = Path(__file__).resolve().parents[2]
    assert load_work_order(root / "example_work_order.json").id
