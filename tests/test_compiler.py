"""The compile loop with scripted answers: what is asked, what is kept, what is written."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from plans import absent, exists, order, plan, requires

from planner.compiler import Ending, PlanInputs, Settings, compile_hash, compile_plan, read_inputs
from planner.io import OverwriteRefused, check_overwrite, plan_files, write_work_orders
from planner.prompt_template import load_template
from planner.validation import RULES
from shared.events import (
    AttemptStarted,
    Bus,
    Event,
    ModelWaiting,
    PlanAccepted,
    PlanRefused,
    RunEnded,
    Warned,
)
from shared.files import sha256_json
from shared.llm import AnswerCut, AnswerRefused, EndpointError, Reply, Request, Scripted, Usage
from shared.process import Interrupt, Interrupted
from shared.run_context import read_run_json
from shared.work_order import load_work_order

SCRIPT = "scripts/verify.sh"
GOOD = plan(order(1), order(2, preconditions=exists("part_1.py")))
BAD = plan(order(1), order(3))


@dataclass
class Bench:
    """A compile with scripted answers, and what it left."""

    root: Path
    said: list[Event] = field(default_factory=list)
    spec: str = "# THE SPEC\nA program in two parts.\n"

    def run(self, *answers: Any, repo_files=None, **how: Any):
        texts = [json.dumps(answer) if isinstance(answer, (dict, list)) else answer for answer in answers]
        self.llm = how.pop("llm", None) or Scripted(texts)
        inputs = PlanInputs(Path("spec.md"), self.spec.encode(), load_template(), None, repo_files)
        inputs = how.pop("inputs", inputs)
        self.result = compile_plan(
            inputs=inputs, llm=self.llm, artifacts_root=self.root, emit=Bus(self.said.append), **how
        )
        return self.result

    @property
    def run_dir(self) -> Path:
        (found,) = (self.root / "planner").iterdir()
        return found

    def compile_json(self, name: str) -> Any:
        return json.loads((self.run_dir / "compile" / name).read_text())

    def compile_files(self) -> list[str]:
        return sorted(path.name for path in (self.run_dir / "compile").iterdir())

    def written(self) -> dict[str, dict[str, Any]]:
        return {
            path.stem: json.loads(path.read_text()) for path in sorted((self.run_dir / "output").glob("WO-*"))
        }

    @property
    def record(self) -> dict[str, Any]:
        return read_run_json(self.run_dir)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "artifacts")


def codes(findings):
    return sorted({finding["code"] for finding in findings})


# --- the loop ------------------------------------------------------------------------------


def test_a_valid_first_answer_is_asked_for_once_and_written(bench):
    result = bench.run(GOOD)
    assert (result.success, result.exit_code, result.attempts) == (True, 0, 1)
    assert [request.role for request in bench.llm.asked] == ["plan"]
    assert list(bench.written()) == ["WO-01", "WO-02"]
    assert (bench.run_dir / "output" / "WORK_ORDERS_MANIFEST.json").is_file()


def test_a_refused_plan_is_asked_for_again_with_everything_the_model_needs(bench):
    bench.run(BAD, GOOD, repo_files=frozenset({"kept/file.py"}))
    first, second = bench.llm.asked
    assert (second.role, second.attempt) == ("revise", 2)
    assert second.prompt.startswith(first.prompt.rstrip())
    assert "THE SPEC" in first.prompt
    assert "kept/file.py" in first.prompt
    rest = second.prompt[len(first.prompt.rstrip()) :]
    assert "- [E001] WO-03 id: " in rest
    assert json.dumps(BAD) in rest


def test_all_findings_of_a_plan_are_told_at_once(bench):
    bad = plan(
        order(1, acceptance_commands=["a | b", "bash scripts/verify.sh"]),
        order(2, preconditions=exists("never.py"), allowed_files=["x.py"], postconditions=exists("y.py")),
        order(4, context_files="a"),
    )
    bench.run(bad, GOOD)
    told = {code for code in RULES if f"[{code}]" in bench.llm.asked[1].prompt}
    assert told == {"E001", "E003", "E005", "E101", "E103", "E104", "E105"}


def test_five_answers_are_asked_for_and_no_sixth(bench):
    result = bench.run(BAD, BAD, BAD, BAD, BAD, GOOD)
    assert (len(bench.llm.asked), result.attempts) == (5, 5)
    assert (result.ending, result.exit_code) == (Ending.INVALID, 2)


def test_the_fifth_answer_can_still_succeed(bench):
    assert bench.run(BAD, "prose", BAD, "", GOOD).exit_code == 0
    assert bench.compile_json("compile_summary.json")["attempts"] == 5


@pytest.mark.parametrize(
    ("last_two", "exit_code"), [([BAD, "prose"], 4), (["prose", BAD], 2), (["{", "[]"], 2), (["[1]", "{"], 4)]
)
def test_the_last_attempt_decides_which_failure_it_was(bench, last_two, exit_code):
    assert bench.run(BAD, "prose", BAD, *last_two).exit_code == exit_code


def test_a_warning_neither_blocks_nor_comes_back(bench):
    warned = plan(order(1, acceptance_commands=['python -c "import nowhere_to_be_found"']))
    assert bench.run(warned).exit_code == 0
    assert codes(bench.compile_json("validation_errors_attempt_1.json")) == ["W101"]
    assert codes(bench.compile_json("compile_summary.json")["warnings"]) == ["W101"]
    assert any(isinstance(event, Warned) and "W101" in event.text for event in bench.said)


BROKEN_ANSWERS = {
    "empty": "",
    "prose": "Here is your plan.",
    "prose around an object": f"Sure! {json.dumps(GOOD)} Done.",
    "cut off": json.dumps(GOOD)[:-20],
    "NaN": '{"work_orders": [NaN]}',
    "duplicate key": '{"work_orders": [], "work_orders": []}',
    "lone surrogate": '{"work_orders": ["\\ud800"]}',
    "deep": '{"work_orders": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "huge": '{"work_orders": ["' + "x" * (12 * 1024 * 1024) + '"]}',
    "surrogate in the raw text": "\ud800 {",
    "array": "[1, 2]",
    "number": "17",
}


@pytest.mark.parametrize("text", BROKEN_ANSWERS.values(), ids=BROKEN_ANSWERS)
def test_an_answer_that_is_no_plan_is_told_to_the_model_with_its_own_text(bench, text):
    result = bench.run(text, GOOD)
    assert result.exit_code == 0
    prompt = bench.llm.asked[1].prompt
    assert "[E000]" in prompt
    assert text[:40].encode("utf-8", "backslashreplace").decode() in prompt
    assert len(prompt.encode()) < 1024 * 1024
    assert codes(bench.compile_json("validation_errors_attempt_1.json")) == ["E000"]


@pytest.mark.parametrize("text", ["```json\n{}\n```", "<think>hm {</think>\n{}"])
def test_a_fence_or_a_thought_around_the_object_is_read_past(bench, text):
    assert bench.run(text.replace("{}", json.dumps(GOOD))).attempts == 1


NESTED = [None, 0, True, "text", [], {}, [[]], [{}], [None], {"a": {"b": []}}]


@pytest.mark.parametrize("value", NESTED, ids=json.dumps)
@pytest.mark.parametrize(
    "where", ["order", *order(1), "verify_contract", "condition", "contract entry", "id in order"]
)
def test_a_malformed_value_anywhere_becomes_codes_and_a_revision_never_a_crash(bench, value, where):
    first = order(1)
    bad = plan(first, order(2))
    if where == "order":
        bad["work_orders"][0] = value
    elif where == "verify_contract":
        bad["verify_contract"] = value
    elif where == "condition":
        first["preconditions"] = [value]
        first["postconditions"] = [value, *exists("part_1.py")]
    elif where == "contract entry":
        bad["verify_contract"] = {"requires": [value]}
    elif where == "id in order":
        first["provenance"] = value
    else:
        first[where] = value
    result = bench.run(bad, GOOD, repo_files=frozenset({SCRIPT}))
    assert result.success
    assert set(codes(bench.compile_json("validation_errors_attempt_1.json"))) <= set(RULES)


def test_an_endpoint_that_fails_ends_the_compile_at_once(bench):
    result = bench.run(BAD, EndpointError("no connection"), GOOD)
    assert (result.ending, result.exit_code, len(bench.llm.asked)) == (Ending.ENDPOINT, 3, 2)
    assert result.problem == "no connection"
    assert bench.record["status"] == "endpoint_error"
    assert bench.record["error"] == "no connection"
    assert bench.compile_json("compile_summary.json")["success"] is False
    assert bench.compile_json("llm_call_attempt_2.json")["error"] == "no connection"
    assert "llm_raw_response_attempt_2.txt" not in bench.compile_files()


@pytest.mark.parametrize("error", [AnswerCut("cut"), AnswerRefused("no")])
def test_an_answer_that_cannot_be_had_is_the_endpoints_failure(bench, error):
    assert bench.run(error, GOOD).exit_code == 3


def test_what_a_failed_call_used_is_counted_all_the_same(bench):
    cut = AnswerCut("cut")
    cut.usage = Usage(10, 0, 20, 5)
    bench.run(Reply("{", usage=Usage(1, 0, 2, 0)), cut)
    assert bench.record["usage"] == {
        "input": 11, "cached": 0, "output": 22, "reasoning": 5, "calls": 2, "uncounted": 0,
    }  # fmt: skip


# --- endings -------------------------------------------------------------------------------


class Pressing:
    """An LLM during whose `number`-th call somebody presses Ctrl-C, as an endpoint client takes it."""

    def __init__(self, interrupt: Interrupt, signum: int, number: int) -> None:
        self.interrupt, self.signum, self.left = interrupt, signum, number

    def __call__(self, _: Request) -> Reply:
        self.left -= 1
        if self.left == 0:
            self.interrupt.signum = self.signum
            self.interrupt.check()
        return Reply(json.dumps(BAD))


@pytest.mark.parametrize(("signum", "exit_code"), [(2, 130), (15, 143), (1, 129)])
@pytest.mark.parametrize("number", [1, 3])
def test_an_interruption_is_on_record_and_has_its_own_exit_code(bench, signum, exit_code, number):
    interrupt = Interrupt()
    result = bench.run(llm=Pressing(interrupt, signum, number), interrupt=interrupt)
    assert (result.ending, result.exit_code, result.attempts) == (Ending.INTERRUPTED, exit_code, number)
    assert bench.record["status"] == "interrupted"
    assert bench.record["exit_code"] == exit_code
    assert bench.record["finished_at"] is not None
    assert bench.compile_json("compile_summary.json")["success"] is False
    assert not list(bench.root.rglob("WO-*"))


def test_a_signal_between_attempts_is_seen_before_the_next_request(bench):
    interrupt = Interrupt()

    class Late(Scripted):
        def __call__(self, request):
            reply = super().__call__(request)
            interrupt.signum = 2
            return reply

    result = bench.run(llm=Late([json.dumps(BAD), json.dumps(GOOD)]), interrupt=interrupt)
    assert (result.exit_code, len(bench.run_dir.name)) == (130, 26)


def test_a_plan_that_was_accepted_is_written_whole_although_a_signal_came(bench):
    interrupt = Interrupt()

    class Late(Scripted):
        def __call__(self, request):
            interrupt.signum = 15
            return super().__call__(request)

    assert bench.run(llm=Late([json.dumps(GOOD)]), interrupt=interrupt).exit_code == 0
    assert list(bench.written()) == ["WO-01", "WO-02"]


def test_a_crash_is_on_record_and_passes_on(bench):
    class Broken:
        def __call__(self, _):
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        bench.run(llm=Broken())
    record = bench.record
    assert (record["status"], record["exit_code"], record["error"]) == (
        "crashed",
        1,
        "ZeroDivisionError: a bug",
    )
    assert "a bug" in record["traceback"]
    assert record["finished_at"] is not None


# --- artifacts -----------------------------------------------------------------------------


def test_an_attempt_leaves_one_set_of_artifacts_and_no_more(bench):
    bench.run(Reply(json.dumps(BAD), reasoning="thought"), "prose", GOOD)
    sets = {
        1: ["llm_call", "llm_raw_response", "llm_reasoning", "manifest_raw", "prompt", "validation_errors"],
        2: ["llm_call", "llm_raw_response", "llm_reasoning", "prompt", "validation_errors"],
        3: ["llm_call", "llm_raw_response", "llm_reasoning", "manifest_raw", "prompt", "validation_errors"],
    }
    expected = {f"{name}_attempt_{n}" for n, names in sets.items() for name in names} | {"compile_summary"}
    assert {name.partition(".")[0] for name in bench.compile_files()} == expected
    folder = bench.run_dir / "compile"
    assert [(folder / f"prompt_attempt_{n}.txt").read_text() for n in (1, 2, 3)] == [
        request.prompt for request in bench.llm.asked
    ]
    assert (folder / "llm_raw_response_attempt_2.txt").read_text() == "prose"
    assert (folder / "llm_reasoning_attempt_1.txt").read_text() == "thought"
    assert bench.compile_json("manifest_raw_attempt_1.json") == BAD
    assert bench.compile_json("validation_errors_attempt_3.json") == []


def test_the_raw_answer_is_kept_byte_for_byte(bench):
    text = "\ufeff" + json.dumps(GOOD) + "\r\n\n"
    bench.run(text)
    kept = (bench.run_dir / "compile" / "llm_raw_response_attempt_1.txt").read_bytes()
    assert kept == text.encode()


@pytest.mark.parametrize("last", [BAD, "prose"], ids=["invalid", "not JSON"])
def test_a_failed_compile_leaves_its_errors_and_no_work_order_anywhere(bench, last):
    result = bench.run(*[last] * 5)
    assert not list(bench.root.rglob("WO-*"))
    assert not (bench.run_dir / "output").exists()
    errors = bench.compile_json("validation_errors.json")
    assert errors
    assert all(set(error) == {"code", "wo_id", "message", "field"} for error in errors)
    summary = bench.compile_json("compile_summary.json")
    assert (summary["success"], summary["attempts"], summary["errors"]) == (False, 5, errors)
    assert bench.record["success"] is False
    assert bench.record["exit_code"] == result.exit_code
    assert bench.record["error"] == result.problem
    assert "output_dir" in bench.record


class Watching:
    """An LLM that looks at what is on disk while it is asked."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.seen = bench, {}

    def __call__(self, request):
        self.seen = {
            "record": self.bench.record,
            "prompt": (self.bench.run_dir / "compile" / "prompt_attempt_1.txt").read_text() == request.prompt,
            "output": (self.bench.run_dir / "output").exists(),
        }
        return Reply(json.dumps(GOOD))


def test_before_the_first_request_the_run_is_on_record_and_the_prompt_is_kept(bench):
    llm = Watching(bench)
    bench.run(llm=llm)
    early = llm.seen["record"]
    assert (early["status"], early["finished_at"], early["exit_code"]) == ("running", None, None)
    assert llm.seen["prompt"]
    assert not llm.seen["output"]
    late = bench.record
    assert late != early
    assert (late["status"], late["exit_code"], late["attempts"]) == ("success", 0, 1)
    assert late["started_at"] == early["started_at"] < late["finished_at"]


def test_run_json_says_what_went_in_and_what_it_cost(bench):
    reply = Reply(json.dumps(GOOD), usage=Usage(100, 20, 50, 30), model="m-1", response_id="r-1", seconds=1.5)
    settings = Settings(model="m", reasoning_effort="high", llm="replay:DIR", llm_origin="scripted")
    result = bench.run(reply, settings=settings, repo_files=frozenset({"a.py"}))
    record = bench.record
    assert record["run_id"] == result.run_id == bench.run_dir.name
    assert record["config"]["model"] == "m"
    assert record["config"]["reasoning_effort"] == "high"
    assert set(record["input_hashes"]) == {"spec_sha256", "template_sha256", "repo_files_sha256"}
    assert set(record["tool_version"]) == {"version", "commit", "dirty"}
    assert record["llm"] == {"source": "replay:DIR", "origin": "scripted", "endpoint": None}
    assert record["usage"]["output"] == 50
    assert record["provenance"]["manifest_sha256"] == result.manifest_sha256
    call = bench.compile_json("llm_call_attempt_1.json")
    assert (call["model"], call["response_id"], call["usage"]["reasoning"]) == ("m-1", "r-1", 30)
    summary = bench.compile_json("compile_summary.json")
    assert summary["defaults"]["MAX_COMPILE_ATTEMPTS"] == 5
    assert summary["defaults"]["SHELL_OPERATOR_TOKENS"] == ["&&", ";", "<", "<<", ">", ">>", "|", "||"]
    assert summary["timing"]["model_seconds"] == [1.5]


def test_runs_never_touch_each_other(bench):
    bench.run(GOOD)
    before = {path: path.read_bytes() for path in bench.root.rglob("*") if path.is_file()}
    bench.run(GOOD)
    assert all(path.read_bytes() == data for path, data in before.items())
    assert len(list((bench.root / "planner").iterdir())) == 2


def test_every_ending_is_in_the_event_log(bench):
    bench.run(BAD, GOOD)
    lines = (bench.run_dir / "events.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds == [
        "run_started",
        *("attempt_started", "model_asked", "model_answered", "plan_refused"),
        *("attempt_started", "model_asked", "model_answered"),
        "plan_accepted",
        "run_ended",
    ]
    assert [event.exit_code for event in bench.said if isinstance(event, RunEnded)] == [0]
    assert len([event for event in bench.said if isinstance(event, AttemptStarted)]) == 2


def test_what_the_model_client_tells_the_bus_is_in_the_log_of_the_run_and_of_no_other(tmp_path):
    bus = Bus()

    def waiting(_):
        bus(ModelWaiting("503", 0.1, 2, 3))
        return Reply(json.dumps(GOOD))

    inputs = PlanInputs(Path("s"), b"spec", load_template())
    for _ in range(2):
        result = compile_plan(inputs=inputs, llm=waiting, artifacts_root=tmp_path, emit=bus)
        log = (result.run_dir / "events.jsonl").read_text()
        assert log.count('"model_waiting"') == 1


# --- provenance and exemption --------------------------------------------------------------


def lying(number: int, says: Any, **changes: Any) -> dict[str, Any]:
    return order(
        number, verify_exempt=says, provenance={"planner_run_id": "mine", "bootstrap": says}, **changes
    )


@pytest.mark.parametrize("says", [True, False])
def test_exemption_and_provenance_are_never_the_models(bench, says):
    answer = plan(
        lying(1, says),
        lying(2, says, allowed_files=[SCRIPT]),
        lying(3, says),
        verify_contract=requires(*exists(SCRIPT)),
    )
    result = bench.run(answer)
    written = bench.written()
    assert [o["verify_exempt"] for o in written.values()] == [True, False, False]
    for one in written.values():
        assert one["provenance"] == {
            "planner_run_id": result.run_id,
            "compile_hash": result.compile_hash,
            "manifest_sha256": result.manifest_sha256,
            "bootstrap": one["verify_exempt"],
        }


@pytest.mark.parametrize("contract", [None, ...])
def test_without_a_contract_nothing_is_exempt(bench, contract):
    answer = plan(lying(1, True), **({} if contract is ... else {"verify_contract": contract}))
    bench.run(answer)
    assert bench.written()["WO-01"]["verify_exempt"] is False


def test_the_manifest_hash_is_that_of_the_plan_before_provenance(bench):
    result = bench.run(GOOD)
    stripped = [{k: v for k, v in o.items() if k != "provenance"} for o in bench.written().values()]
    assert result.manifest_sha256 == sha256_json({"verify_contract": None, "work_orders": stripped})


def test_equal_answers_give_equal_orders_apart_from_the_run(tmp_path):
    def plain(bench):
        bench.run(GOOD)
        text = json.dumps(bench.written())
        return text.replace(bench.result.run_id, "RUN"), bench.result.compile_hash

    assert plain(Bench(tmp_path / "a")) == plain(Bench(tmp_path / "b"))


@pytest.mark.parametrize(
    "change", [(b"ab", b"c", "m", "e"), (b"a", b"bd", "m", "e"), (b"a", b"bc", "n", "e")]
)
def test_the_compile_hash_follows_each_of_its_inputs_and_their_borders(change):
    base = compile_hash(b"a", b"bc", "m", "e")
    assert len(base) == 16
    assert int(base, 16) >= 0
    assert base == compile_hash(b"a", b"bc", "m", "e")
    assert compile_hash(*change) != base
    assert compile_hash(b"a", b"bc", "m", "f") != base


def test_the_manifest_holds_the_orders_as_they_are_written(bench):
    bench.run(plan(order(1, allowed_files=["./a//b.py"]), verify_contract=None))
    manifest = json.loads((bench.run_dir / "output" / "WORK_ORDERS_MANIFEST.json").read_text())
    assert manifest["work_orders"] == list(bench.written().values())
    assert manifest["work_orders"][0]["allowed_files"] == ["a/b.py"]
    assert manifest["verify_contract"] is None
    assert manifest["planner_run_id"] == bench.result.run_id


def test_what_is_written_is_what_the_factory_reads(bench):
    bench.run(GOOD)
    loaded = [load_work_order(path) for path in sorted((bench.run_dir / "output").glob("WO-*.json"))]
    assert [one.id for one in loaded] == ["WO-01", "WO-02"]
    assert loaded[0].provenance.planner_run_id == bench.result.run_id


def test_a_hundred_orders_are_named_by_three_digits_from_the_hundredth(bench):
    bench.run(plan(*(order(n) for n in range(1, 102))))
    names = sorted(path.name for path in (bench.run_dir / "output").glob("WO-*"))
    assert {"WO-01.json", "WO-99.json", "WO-100.json", "WO-101.json"} <= set(names)
    assert len(names) == 101


# --- bootstrap skip ------------------------------------------------------------------------


def bootstrap(number: int = 1, **changes: Any) -> dict[str, Any]:
    return order(
        number, title="bootstrap", **{"allowed_files": [SCRIPT], "preconditions": absent(SCRIPT), **changes}
    )


CONTRACT = requires(*exists(SCRIPT))


def test_an_order_that_would_make_the_script_the_repository_has_is_dropped(bench):
    answer = plan(
        bootstrap(), order(2), order(3, preconditions=exists("part_2.py")), verify_contract=CONTRACT
    )
    result = bench.run(answer, repo_files=frozenset({SCRIPT}))
    assert (result.exit_code, result.attempts, result.skipped) == (0, 1, ("WO-01",))
    written = bench.written()
    assert [(name, o["id"], o["title"]) for name, o in written.items()] == [
        ("WO-01", "WO-01", "Part 2"),
        ("WO-02", "WO-02", "Part 3"),
    ]
    assert [o["verify_exempt"] for o in written.values()] == [False, False]
    assert bench.compile_json("compile_summary.json")["skipped_bootstrap"] == ["WO-01"]
    assert any(isinstance(event, Warned) and "WO-01 was left out" in event.text for event in bench.said)


@pytest.mark.parametrize("repo_files", [None, frozenset(), frozenset({"scripts/other.sh"})])
def test_without_the_script_in_a_repository_nothing_is_dropped(bench, repo_files):
    result = bench.run(plan(bootstrap(), order(2), verify_contract=CONTRACT), repo_files=repo_files)
    assert result.skipped == ()
    assert list(bench.written()) == ["WO-01", "WO-02"]


def test_a_dropped_order_never_leaves_a_broken_chain(bench):
    both = bootstrap(allowed_files=[SCRIPT, "setup.py"])
    answer = plan(both, order(2, preconditions=exists("setup.py")), verify_contract=CONTRACT)
    bench.run(*[answer] * 5, repo_files=frozenset({SCRIPT}))
    assert bench.result.ending is Ending.INVALID or "setup.py" in str(bench.written())


def test_a_plan_refused_for_other_reasons_is_told_which_order_was_set_aside(bench):
    bad = plan(bootstrap(), order(2, preconditions=exists("never.py")), verify_contract=CONTRACT)
    bench.run(bad, plan(order(1)), repo_files=frozenset({SCRIPT}))
    prompt = bench.llm.asked[1].prompt
    assert "- [E101] WO-02 preconditions[0]" in prompt
    assert "so WO-01 was set aside" in prompt


def test_a_plan_of_nothing_but_the_bootstrap_is_fulfilled_already(bench):
    result = bench.run(plan(bootstrap(), verify_contract=CONTRACT), repo_files=frozenset({SCRIPT}))
    assert (result.exit_code, result.work_orders, result.skipped) == (0, (), ("WO-01",))
    assert bench.written() == {}


# --- export --------------------------------------------------------------------------------


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_export_is_byte_for_byte_what_the_run_keeps(bench, tmp_path):
    outdir = tmp_path / "new" / "plan"
    result = bench.run(GOOD, outdir=outdir)
    assert contents(outdir) == contents(bench.run_dir / "output")
    assert result.exported_to == outdir
    assert [event.directory for event in bench.said if isinstance(event, PlanAccepted)] == [str(outdir)]


def test_a_plan_in_the_export_directory_stops_the_run_before_anything_happens(bench, tmp_path):
    (tmp_path / "WO-07.json").write_text("mine")
    with pytest.raises(OverwriteRefused, match=r"holds a plan already \(WO-07\.json\).*--overwrite"):
        bench.run(GOOD, outdir=tmp_path)
    assert bench.llm.asked == []
    assert not bench.root.exists()
    assert (tmp_path / "WO-07.json").read_text() == "mine"


def test_overwriting_leaves_nothing_of_a_longer_plan_and_everything_else(bench, tmp_path):
    outdir = tmp_path / "plan"
    write_work_orders(outdir, [order(n) for n in range(1, 13)], {"old": True})
    (outdir / "notes.txt").write_text("mine")
    bench.run(GOOD, outdir=outdir, overwrite=True)
    assert {*contents(outdir)} == {"WO-01.json", "WO-02.json", "WORK_ORDERS_MANIFEST.json", "notes.txt"}
    assert (outdir / "notes.txt").read_text() == "mine"


def test_a_failed_compile_leaves_an_older_export_as_it_was(bench, tmp_path):
    outdir = tmp_path / "plan"
    write_work_orders(outdir, [order(1)], {"old": True})
    before = contents(outdir)
    bench.run(*[BAD] * 5, outdir=outdir, overwrite=True)
    assert contents(outdir) == before


def test_an_export_that_fails_says_where_the_plan_is(bench, tmp_path):
    outdir = tmp_path / "plan"

    def meanwhile(_):
        write_work_orders(outdir, [order(1)], {"somebody": "else"})
        return Reply(json.dumps(GOOD))

    result = bench.run(llm=meanwhile, outdir=outdir)
    assert (result.success, result.exit_code, result.exported_to) == (True, 1, None)
    assert f"the plan is in {bench.run_dir / 'output'}" in result.problem
    assert json.loads((outdir / "WORK_ORDERS_MANIFEST.json").read_text()) == {"somebody": "else"}


def test_work_orders_are_on_disk_before_the_manifest_and_no_temporary_file_stays(tmp_path):
    write_work_orders(tmp_path, [order(n) for n in range(1, 500)], {"new": True})
    manifest = tmp_path / "WORK_ORDERS_MANIFEST.json"
    orders = [path for path in tmp_path.iterdir() if path != manifest]
    assert len(orders) == 499
    assert all(path.stat().st_mtime_ns <= manifest.stat().st_mtime_ns for path in orders)


DIES_AT_STEP = """
import json, os, signal, sys
from planner.io import write_work_orders

outdir, step, orders = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
left = iter(range(step))

def die_in_time(event, arguments):
    concerns_us = event in ("os.rename", "os.remove") and str(arguments[0]).startswith(outdir)
    if concerns_us and next(left, None) is None:
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(die_in_time)
write_work_orders(outdir, orders, {"plan": "new"})
"""


@pytest.mark.parametrize("step", range(14))
def test_a_kill_at_any_step_of_an_overwrite_never_leaves_a_plan_that_could_be_run(tmp_path, step):
    """Old plan, new plan, or something that does not begin: never a mixture that looks whole."""
    old = [order(n, title="old") for n in (1, 2, 3, 4)]
    new = [order(n, title="new") for n in (1, 2, 3)]
    write_work_orders(tmp_path, old, {"plan": "old"})
    child = [sys.executable, "-c", DIES_AT_STEP, str(tmp_path), str(step), json.dumps(new)]
    ended = subprocess.run(child, check=False, timeout=60)
    assert ended.returncode == (-9 if step < 13 else 0)
    titles = {path.name: json.loads(path.read_text()).get("title", "") for path in plan_files(tmp_path)}
    whole = {"old": [f"WO-0{n}.json" for n in (1, 2, 3, 4)], "new": [f"WO-0{n}.json" for n in (1, 2, 3)]}
    if "WO-01.json" in titles:
        age = titles["WO-01.json"]
        assert [name for name in titles if name.startswith("WO-")] == whole[age]
        assert set(titles.values()) <= {age, ""}


@pytest.mark.parametrize("name", ["WO-1", "../WO-01", "WO-01/x", "", None, 7, "wo-01"])
def test_an_id_that_cannot_name_a_file_writes_nothing(tmp_path, name):
    with pytest.raises(ValueError, match="cannot name a work order file"):
        write_work_orders(tmp_path / "plan", [order(1), {"id": name}], {})
    assert not (tmp_path / "plan").exists()


def test_what_cannot_hold_a_plan_is_refused_by_name(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OverwriteRefused, match="is not a directory; name another one"):
            check_overwrite(path, overwrite=True)
    check_overwrite(tmp_path / "new" / "deep", overwrite=False)
    assert not (tmp_path / "new").exists()


# --- inputs --------------------------------------------------------------------------------


def test_inputs_are_read_once_and_hold_what_the_repository_has(repo, tmp_path):
    spec = tmp_path / "spec.md"
    spec.write_bytes(b"\xef\xbb\xbfdo it\r\n")
    inputs = read_inputs(spec, repo=repo)
    assert inputs.repo_files == {"README.md"}
    assert inputs.spec == b"\xef\xbb\xbfdo it\r\n"
    assert "<product_spec>\ndo it" in inputs.prompt


def test_a_template_that_does_not_show_the_repository_is_said_aloud(bench, tmp_path):
    (tmp_path / "t.md").write_text("{{PRODUCT_SPEC}}")
    template = load_template(tmp_path / "t.md")
    inputs = PlanInputs(Path("s"), b"spec", template, tmp_path, frozenset({"a.py"}))
    bench.run(GOOD, inputs=inputs)
    assert any(isinstance(event, Warned) and "{{REPO_FILES}}" in event.text for event in bench.said)
    bench.said.clear()
    bench.run(GOOD, inputs=replace(inputs, repo_files=None))
    assert not any(isinstance(event, Warned) for event in bench.said)


def test_findings_are_told_as_they_happen(bench):
    bench.run(BAD, GOOD)
    (refused,) = [event for event in bench.said if isinstance(event, PlanRefused)]
    assert refused.attempt == 1
    assert refused.findings[0].startswith("[E001] WO-03 id: ")


def test_interrupted_is_no_ordinary_exception():
    assert not issubclass(Interrupted, Exception)
