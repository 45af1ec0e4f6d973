"""One good compile and one hopeless one, looked at from every side."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from loopback import Answer

from blackbox.harness import (
    CONTRACT,
    KEY,
    ULID,
    Compile,
    Desk,
    a_plan,
    an_order,
    bootstrap_order,
    codes_in,
    compile_spec,
    files_below,
    findings_in,
    peeking,
    read_json,
    text_of,
)

SPEC = "# Product\nA ferry timetable with SPEC-MARKER-7 in it.\n{{PRODUCT_SPEC}} may stand in a spec.\n"
LIES = {"planner_run_id": "LIED", "compile_hash": "LIED", "manifest_sha256": "LIED", "bootstrap": False}
PLAN = a_plan(
    an_order(1, verify_exempt=False, provenance=LIES),
    bootstrap_order(2, verify_exempt=True, provenance={**LIES, "bootstrap": True}),
    an_order(3, verify_exempt=True, notes="  spaced  ", allowed_files=["./src//f3.txt", "src/f3.txt"]),
    verify_contract=CONTRACT,
)
TEXT = json.dumps(PLAN)


@dataclass
class Good:
    desk: Desk
    outdir: Path
    first: Compile
    first_files: dict[Path, bytes]
    again: Compile
    early: dict[str, Any]


@pytest.fixture(scope="module")
def good(shared_desk) -> Good:
    early: dict[str, Any] = {}
    outdir = shared_desk.root / "export" / "deep"

    def look(_record):
        (run_dir,) = (shared_desk.artifacts / "planner").iterdir()
        early["run_json"] = read_json(run_dir / "run.json")
        early["files"] = [str(p.relative_to(run_dir)) for p in files_below(run_dir)]
        early["exported"] = outdir.exists() and files_below(outdir)

    first = compile_spec(
        shared_desk,
        peeking(look, [Answer(TEXT, reasoning="THOUGHT-MARKER about ferries")]),
        "--outdir",
        outdir,
        "--print-summary",
        spec=SPEC,
    )
    assert first.outcome.exit_code == 0, first.outcome
    assert first.run_dir
    kept = {path: path.read_bytes() for path in files_below(first.run_dir)}
    again = compile_spec(shared_desk, [Answer(TEXT)], spec=SPEC)
    assert again.outcome.exit_code == 0, again.outcome
    return Good(shared_desk, outdir, first, kept, again, early)


@pytest.mark.rows("S01", "S24", "PC01", "PC02", "PC04", "PK03", "PO01", "S04")
def test_a_valid_first_answer_is_the_only_request_and_goes_to_the_responses_api(good):
    (record,) = good.first.requests
    assert (record.method, record.path) == ("POST", "/v1/responses")
    assert record.body["stream"] is True


@pytest.mark.rows("PD01", "PD02", "PD03", "PO15")
def test_the_request_carries_the_documented_defaults_and_the_key(good):
    (record,) = good.first.requests
    assert record.body["model"] == "gpt-5.2-codex"
    assert record.body["reasoning"]["effort"] == "medium"
    assert record.body["max_output_tokens"] == 64000
    headers = {name.lower(): value for name, value in dict(record.headers).items()}
    assert headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.rows("PK33", "PT02", "PT04")
def test_the_shipped_prompt_holds_the_spec_word_for_word_and_no_open_placeholder(good):
    prompt = good.first.artifact("prompt_attempt_1.txt")
    assert SPEC.strip() in prompt, "the placeholder inside the spec is the user's text and stays"
    assert "{{" not in prompt.replace(SPEC.strip(), "")


@pytest.mark.rows("PK11", "PK10")
def test_the_prompt_on_disk_is_the_prompt_that_was_sent(good):
    prompt = good.first.artifact("prompt_attempt_1.txt")
    assert prompt.strip() in text_of(good.first.requests[0])
    assert good.first.compile_dir.parent.parent == good.desk.artifacts / "planner"


@pytest.mark.rows("PK12", "PK13", "PK14", "PO03")
def test_answer_reasoning_and_manifest_are_kept_as_received(good):
    assert good.first.artifact("llm_raw_response_attempt_1.txt") == TEXT
    assert "THOUGHT-MARKER about ferries" in good.first.artifact("llm_reasoning_attempt_1.txt")
    assert good.first.artifact("manifest_raw_attempt_1.json") == PLAN


@pytest.mark.rows("PK16")
def test_one_attempt_leaves_one_set_of_attempt_files(good):
    numbers = {
        match.group(1)
        for path in good.first.compile_dir.iterdir()
        if (match := re.search(r"_attempt_(\d+)\.", path.name))
    }
    assert numbers == {"1"}


@pytest.mark.rows("PK17", "PC10", "PI05", "PI01")
def test_the_export_is_byte_for_byte_the_canonical_output(good):
    canonical = {path.name: path.read_bytes() for path in good.first.output.iterdir()}
    assert canonical.keys() == {"WO-01.json", "WO-02.json", "WO-03.json", "WORK_ORDERS_MANIFEST.json"}
    assert {path.name: path.read_bytes() for path in good.outdir.iterdir()} == canonical
    manifest = read_json(good.first.output / "WORK_ORDERS_MANIFEST.json")
    assert [order["id"] for order in manifest["work_orders"]] == ["WO-01", "WO-02", "WO-03"]


@pytest.mark.rows("PI02")
def test_the_manifest_is_written_last(good):
    for place in (good.first.output, good.outdir):
        stamps = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}
        assert stamps.pop("WORK_ORDERS_MANIFEST.json") >= max(stamps.values())


@pytest.mark.rows("PK18", "PK35", "PC05")
def test_the_summary_counts_attempts_names_warnings_time_and_defaults(good):
    summary = good.first.summary
    assert summary["success"] is True
    text = json.dumps(summary)
    for word in ("attempt", "error", "warning", "gpt-5.2-codex", "64000", "medium"):
        assert word in text, summary
    assert codes_in(summary.get("errors", [])) == set()
    assert re.search(r'"[^"]*(second|duration|elapsed|time|ended|finished|completed)[^"]*":', text), summary
    assert any(value == 1 for key, value in _numbers(summary) if "attempt" in key), summary


@pytest.mark.rows("S06", "S12", "PK25")
def test_run_ids_are_ulids_that_sort_by_time_and_name_the_run(good):
    one, two = good.first.run_dir.name, good.again.run_dir.name
    assert ULID.fullmatch(one)
    assert ULID.fullmatch(two)
    assert one < two
    for compiled, run_id in ((good.first, one), (good.again, two)):
        assert {order["provenance"]["planner_run_id"] for order in compiled.orders.values()} == {run_id}
        assert compiled.run_json["run_id"] == run_id


@pytest.mark.rows("S13")
def test_a_second_run_leaves_the_first_one_byte_for_byte(good):
    assert {path: path.read_bytes() for path in files_below(good.first.run_dir)} == good.first_files


@pytest.mark.rows("S14", "PK21", "PK01", "PK34")
def test_run_json_is_there_before_the_answer_and_work_orders_are_not(good):
    assert good.early["run_json"]["run_id"] == good.first.run_dir.name
    assert "compile/prompt_attempt_1.txt" in good.early["files"]
    assert [name for name in good.early["files"] if "WO-" in name or "MANIFEST" in name] == []
    assert not good.early["exported"]
    assert good.early["run_json"] != good.first.run_json


@pytest.mark.rows("PK21", "S07", "S11")
def test_run_json_tells_when_with_what_and_by_which_tool(good):
    record = good.first.run_json
    stamps = [value for value in _strings(record) if re.match(r"\d{4}-\d\d-\d\dT", value)]
    assert len(stamps) >= 2, record
    for stamp in stamps:
        moment = datetime.fromisoformat(stamp)
        assert re.search(r"\.\d{6}", stamp), stamp
        assert moment.utcoffset() == datetime.now(UTC).utcoffset(), stamp
    assert hashlib.sha256(SPEC.encode()).hexdigest() in list(_strings(record))
    assert "version" in json.dumps(record)
    commits = [value for value in _strings(record) if re.fullmatch(r"[0-9a-f]{40}", value)]
    assert commits or '"commit": null' in json.dumps(record)
    assert '"dirty"' in json.dumps(record)
    assert "gpt-5.2-codex" in list(_strings(record))
    hashes = {order["provenance"]["compile_hash"] for order in good.first.orders.values()}
    assert hashes <= set(_strings(record))


@pytest.mark.rows("PK23", "PK26", "PK27", "PK32", "PT05", "PV59")
def test_the_same_answer_and_inputs_give_the_same_work_orders_apart_from_the_run_id(good):
    def stable(compiled):
        text = json.dumps(compiled.orders, sort_keys=True)
        return text.replace(compiled.run_dir.name, "RUN")

    assert stable(good.first) == stable(good.again)
    provenances = [order["provenance"] for order in good.first.orders.values()]
    assert len({p["manifest_sha256"] for p in provenances}) == 1
    assert len({p["compile_hash"] for p in provenances}) == 1
    assert re.fullmatch(r"[0-9a-f]{64}", provenances[0]["manifest_sha256"])
    assert re.fullmatch(r"[0-9a-f]{16}", provenances[0]["compile_hash"])
    first, again = (c.artifact("prompt_attempt_1.txt") for c in (good.first, good.again))
    assert first == again


@pytest.mark.rows("PK28", "PK29", "PV55", "X07")
def test_exemption_and_provenance_are_computed_whatever_the_model_claims(good):
    orders = good.first.orders
    assert [orders[f"WO-0{n}"]["verify_exempt"] for n in (1, 2, 3)] == [True, False, False]
    assert [orders[f"WO-0{n}"]["provenance"]["bootstrap"] for n in (1, 2, 3)] == [True, False, False]
    assert "LIED" not in json.dumps(orders)


@pytest.mark.rows("PV52", "PV38", "FM02")
def test_written_work_orders_are_normalised_and_load_in_the_factory(good):
    from factory.schemas import load_work_order

    third = good.first.orders["WO-03"]
    assert third["allowed_files"] == ["src/f3.txt"]
    assert third["notes"] == "spaced"
    for path in sorted(good.first.output.glob("WO-*.json")):
        assert load_work_order(path).id == path.stem


@pytest.mark.rows("PC13")
def test_print_summary_names_every_order_on_stdout(good):
    for name in ("WO-01", "WO-02", "WO-03"):
        assert name in good.first.outcome.stdout
    assert "Title of 3" in good.first.outcome.stdout


@pytest.mark.rows("S16", "PC11", "S17")
def test_piped_output_has_no_escape_and_nothing_anywhere_has_the_key(good):
    for compiled in (good.first, good.again):
        assert "\x1b" not in compiled.outcome.said
        assert KEY not in compiled.outcome.said
    for path in files_below(good.desk.root):
        assert KEY.encode() not in path.read_bytes(), path


@pytest.mark.rows("PK24", "PT03")
def test_another_spec_or_template_is_another_compile(good, desk):
    def compile_hash(spec, *args):
        compiled = compile_spec(desk, [Answer(TEXT)], *args, spec=spec)
        assert compiled.outcome.exit_code == 0, compiled.outcome
        return compiled.orders["WO-01"]["provenance"]["compile_hash"], compiled

    known = good.first.orders["WO-01"]["provenance"]["compile_hash"]
    template = desk.write("template.md", "TEMPLATE-MARKER\n{{PRODUCT_SPEC}}\nend\n")
    of_spec, _ = compile_hash(SPEC + "More.\n")
    of_template, compiled = compile_hash(SPEC, "--template", template)
    assert len({known, of_spec, of_template}) == 3
    sent = text_of(compiled.requests[0])
    assert "TEMPLATE-MARKER" in sent
    assert SPEC.strip() in sent


# --- the hopeless one --------------------------------------------------------------------


def _hopeless() -> list[str]:
    def bad(marker, **changes):
        return json.dumps(a_plan(an_order(1, title=marker), an_order(2, title=marker, **changes)))

    return [
        bad("FIRST-ANSWER", id="WO-07"),
        "SECOND-ANSWER is prose and no plan at all",
        bad("THIRD-ANSWER", acceptance_commands=["true && false"]),
        bad("FOURTH-ANSWER", preconditions=[{"kind": "file_exists", "path": "nowhere.txt"}]),
        bad("FIFTH-ANSWER", allowed_files=["src/*.txt"], postconditions=[]),
    ]


@dataclass
class Hopeless:
    compiled: Compile
    early: dict[str, Any]
    outdir: Path


@pytest.fixture(scope="module")
def hopeless(tmp_path_factory) -> Hopeless:
    desk = Desk(tmp_path_factory.mktemp("hopeless") / "desk")
    early: dict[str, Any] = {}

    def look(_record):
        (run_dir,) = (desk.artifacts / "planner").iterdir()
        early.setdefault("run_json", read_json(run_dir / "run.json"))

    outdir = desk.root / "export"
    compiled = compile_spec(
        desk, peeking(look, [Answer(text) for text in _hopeless()]), "--outdir", outdir, spec=SPEC
    )
    return Hopeless(compiled, early, outdir)


@pytest.mark.rows("PD04", "PK02", "PC06")
def test_five_answers_are_asked_for_and_not_one_more(hopeless):
    assert len(posts_of(hopeless)) == 5
    assert hopeless.compiled.outcome.exit_code == 2, hopeless.compiled.outcome


@pytest.mark.rows("PK04", "PK05", "PV02")
def test_each_revision_carries_the_codes_and_the_answer_before(hopeless):
    sent = [text_of(record) for record in posts_of(hopeless)]
    expected = [
        ("[E001]", "FIRST-ANSWER"),
        ("[E000]", "SECOND-ANSWER"),
        ("[E003]", "THIRD-ANSWER"),
        ("[E101]", "FOURTH-ANSWER"),
    ]
    for prompt, (code, marker) in zip(sent[1:], expected, strict=True):
        assert code in prompt
        assert marker in prompt
    assert all("SPEC-MARKER-7" in prompt for prompt in sent), "a revision keeps the spec and the rules"


@pytest.mark.rows("PK06")
def test_unparseable_output_comes_back_with_its_text_and_the_parse_error(hopeless):
    sent = text_of(posts_of(hopeless)[2])
    assert "SECOND-ANSWER is prose and no plan at all" in sent
    assert "JSON" in sent


@pytest.mark.rows("PK15", "PK16", "PK14")
def test_each_attempt_leaves_its_own_codes(hopeless):
    codes = [hopeless.compiled.attempt_codes(number) for number in range(1, 6)]
    assert codes[0] == {"E001"}
    assert codes[1] == {"E000"}
    assert codes[2] == {"E003"}
    assert codes[3] == {"E101"}
    assert "E004" in codes[4]
    there = {path.name for path in hopeless.compiled.compile_dir.iterdir()}
    for number in range(1, 6):
        assert f"prompt_attempt_{number}.txt" in there
        assert f"llm_raw_response_attempt_{number}.txt" in there
    assert not [name for name in there if "attempt_6" in name or "attempt_0" in name]
    assert "manifest_raw_attempt_3.json" in there


@pytest.mark.rows("PK08", "PK19", "PK20")
def test_the_end_of_it_is_on_disk_with_its_codes(hopeless):
    assert hopeless.compiled.summary["success"] is False
    assert "E004" in codes_in(hopeless.compiled.summary)
    findings = findings_in(hopeless.compiled.artifact("validation_errors.json"))
    assert "E004" in {finding["code"] for finding in findings}
    for finding in findings:
        assert {"code", "wo_id", "message", "field"} <= finding.keys()


@pytest.mark.rows("PK09", "X03")
def test_a_failed_compile_leaves_no_work_order_anywhere(hopeless):
    root = hopeless.compiled.run_dir
    assert list(root.rglob("WO-*.json")) == []
    assert list(root.rglob("WORK_ORDERS_MANIFEST.json")) == []
    assert not hopeless.outdir.exists() or list(hopeless.outdir.iterdir()) == []


@pytest.mark.rows("PK22")
def test_run_json_is_completed_with_the_failure(hopeless):
    record = hopeless.compiled.run_json
    assert record != hopeless.early["run_json"]
    assert {k: record[k] for k in ("run_id",)} == {"run_id": hopeless.early["run_json"]["run_id"]}
    assert re.search(r"fail|FAIL|false|invalid", json.dumps(record))


def test_the_user_is_told_which_rules_the_last_answer_broke(hopeless):
    assert "E004" in hopeless.compiled.outcome.stderr
    assert "Traceback" not in hopeless.compiled.outcome.said


def posts_of(hopeless: Hopeless) -> list[Any]:
    return [record for record in hopeless.compiled.requests if record.method == "POST"]


def _numbers(value, path=""):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, f"{path}.{key}")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


def _strings(value):
    if isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, str):
        yield value
