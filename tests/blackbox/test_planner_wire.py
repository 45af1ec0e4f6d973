"""The planner and its endpoint: streams, retries, budgets, broken answers, and what they cost."""

from __future__ import annotations

import json
import signal
import threading

import pytest
from loopback import Answer, CutAfter, Drop, Events, LoopbackEndpoint, Raw, Stall, Status

from blackbox.harness import KEY, a_plan, an_order, codes_in, compile_spec, files_below, text_of

GOOD = json.dumps(a_plan(an_order(1)))
RATE_LIMIT = {"error": {"message": "slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded"}}


def accepted(compiled, requests):
    assert compiled.outcome.exit_code == 0, compiled.outcome
    assert len([r for r in compiled.requests if r.method == "POST"]) == requests, compiled.outcome
    assert list(compiled.orders) == ["WO-01"]
    return compiled


@pytest.mark.rows("PO06", "PO16", "PO08", "PO13")
@pytest.mark.parametrize("codes", [(429, 502), (503, 504)])
def test_a_busy_endpoint_is_asked_three_times_with_growing_pauses(desk, codes):
    steps = [Status(code, RATE_LIMIT if code == 429 else None) for code in codes]
    compiled = accepted(compile_spec(desk, [*steps, Answer(GOOD)]), 3)
    at = [record.at for record in compiled.requests]
    # The pauses double; the rest is room for a machine that is busy with other things.
    assert at[2] - at[1] >= 1.3 * (at[1] - at[0])
    assert not (compiled.compile_dir / "prompt_attempt_2.txt").exists()
    assert str(codes[0]) in compiled.outcome.stderr, "a wait is said aloud"


@pytest.mark.rows("PO07")
@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_connection_that_drops_is_tried_again(desk, ending):
    accepted(compile_spec(desk, [Drop(ending), Drop(ending), Answer(GOOD)]), 3)


@pytest.mark.rows("PO09", "PC07", "PK31", "PK22", "PK09")
@pytest.mark.parametrize("step", [Status(503), Drop(), None], ids=["503", "dropped", "nobody listens"])
def test_an_endpoint_that_stays_away_is_exit_3_after_three_tries(desk, step):
    how = {"env": {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}} if step is None else {}
    compiled = compile_spec(desk, [step or Status(503)], how=how, repeat_last=True)
    assert compiled.outcome.exit_code == 3, compiled.outcome
    assert len(compiled.requests) == (0 if step is None else 3)
    assert "Traceback" not in compiled.outcome.said
    assert compiled.summary["success"] is False
    assert list(compiled.run_dir.rglob("WO-*.json")) == []


@pytest.mark.rows("PO10", "PC07")
@pytest.mark.parametrize(
    ("step", "most"),
    [
        (Status(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}), 1),
        (Status(400, {"error": {"message": "no such parameter", "param": "model"}}), 4),
        (Status(403), 1),
        (Status(429, {"error": {"message": "no money", "code": "insufficient_quota"}}), 1),
        (Raw(b"<html>a portal</html>", {"content-type": "text/html"}), 4),
    ],
    ids=["401", "400", "403", "no quota", "a web page"],
)
def test_what_asking_again_cannot_help_is_not_asked_again(desk, step, most):
    compiled = compile_spec(desk, [step], repeat_last=True)
    assert compiled.outcome.exit_code == 3, compiled.outcome
    assert 1 <= len(compiled.requests) <= most
    assert "Traceback" not in compiled.outcome.said
    assert "error:" in compiled.outcome.stderr


@pytest.mark.rows("S17")
def test_a_key_that_the_endpoint_echoes_is_not_repeated(desk):
    echo = Status(401, {"error": {"message": f"Incorrect API key provided: {KEY}. Check it."}})
    compiled = compile_spec(desk, [echo], "--verbose", repeat_last=True)
    assert KEY not in compiled.outcome.said
    for path in files_below(desk.root):
        assert KEY.encode() not in path.read_bytes(), path


@pytest.mark.rows("PO04", "PO05")
@pytest.mark.parametrize(
    "cut",
    [CutAfter(3, Answer(GOOD)), CutAfter(5, Answer(GOOD), "reset"), CutAfter(0, Answer(GOOD), "end")],
    ids=["closed", "reset", "ended without an event"],
)
def test_a_cut_stream_goes_on_in_the_background(desk, cut):
    compiled = compile_spec(desk, [cut, Answer(GOOD, polls=1)])
    assert compiled.outcome.exit_code == 0, compiled.outcome
    posts = [record for record in compiled.requests if record.method == "POST"]
    gets = [record for record in compiled.requests if record.method == "GET"]
    assert [bool(record.body.get("stream")) for record in posts] == [True, False]
    assert posts[1].body["background"] is True
    assert len(gets) >= 2, "polled until it was done"
    assert not (compiled.compile_dir / "prompt_attempt_2.txt").exists()


@pytest.mark.rows("PO05", "PO06")
def test_a_poll_that_fails_for_a_while_is_asked_again(desk):
    polls = [Status(503), Drop()]
    compiled = compile_spec(desk, [CutAfter(3, Answer(GOOD)), Answer(GOOD, polls=0)], polls=polls)
    assert compiled.outcome.exit_code == 0, compiled.outcome
    assert len([record for record in compiled.requests if record.method == "POST"]) == 2


@pytest.mark.rows("PO04", "PO14", "PC07", "PK31")
@pytest.mark.parametrize(
    "then",
    [Status(503), Answer("", status="failed"), Answer("", status="cancelled")],
    ids=["503", "failed", "cancelled"],
)
def test_a_background_answer_that_never_comes_is_exit_3(desk, then):
    compiled = compile_spec(desk, [CutAfter(3, Answer(GOOD)), then], repeat_last=True)
    assert compiled.outcome.exit_code == 3, compiled.outcome
    assert len([record for record in compiled.requests if record.method == "POST"]) <= 6
    assert list(compiled.run_dir.rglob("WO-*.json")) == []


@pytest.mark.rows("PO11", "PO13")
def test_an_incomplete_answer_is_asked_for_again_with_exactly_twice_the_budget(desk):
    compiled = accepted(compile_spec(desk, [Answer(GOOD[:20], status="incomplete"), Answer(GOOD)]), 2)
    assert [record.body["max_output_tokens"] for record in compiled.requests] == [64000, 128000]
    assert not (compiled.compile_dir / "prompt_attempt_2.txt").exists()


DELTA = {"type": "response.output_text.delta", "delta": GOOD}
BODY = {"id": "r", "output": [{"type": "message", "content": [{"type": "output_text", "text": GOOD}]}]}
CUT = {"id": "r", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}


@pytest.mark.rows("PO11")
@pytest.mark.parametrize("kind", ["response.incomplete", "response.completed"])
def test_an_incomplete_answer_is_recognised_by_its_object_as_well(desk, kind):
    step = Events([DELTA, {"type": kind, "response": CUT}])
    compiled = accepted(compile_spec(desk, [step, Answer(GOOD)]), 2)
    assert [record.body["max_output_tokens"] for record in compiled.requests] == [64000, 128000]


@pytest.mark.rows("PO01", "PO03", "PO05")
@pytest.mark.parametrize(
    ("steps", "polls"),
    [
        ([Events([DELTA, {"type": "response.completed", "response": {**BODY, "status": "completed"}}])], []),
        ([Events([DELTA, {"type": "response.completed"}, b"data: [DONE]\n\n"])], []),
        ([Events([{"type": "response.completed", "response": BODY}])], []),
        (
            [
                Events(
                    [b": keep-alive\n\n", {"type": "response.magic"}, DELTA, {"type": "response.completed"}]
                )
            ],
            [],
        ),
        ([Raw(json.dumps({**BODY, "status": "completed"}).encode())], []),
        ([Drop(), Drop(), Raw(json.dumps({**BODY, "status": "completed"}).encode())], []),
        (
            [CutAfter(2, Answer(GOOD)), Raw(b'{"id": "r", "status": "queued"}')],
            [
                Raw(b'{"id": "r", "status": "in_progress"}'),
                Raw(json.dumps({**BODY, "status": "completed"}).encode()),
            ],
        ),
    ],
    ids=["few events", "no object", "no delta", "noise", "no stream", "dropped twice", "few words in polls"],
)
def test_servers_that_say_little_are_understood(desk, steps, polls):
    compiled = compile_spec(desk, steps, polls=polls)
    assert compiled.outcome.exit_code == 0, compiled.outcome
    assert compiled.artifact("llm_raw_response_attempt_1.txt") == GOOD


@pytest.mark.rows("PO12", "PO14", "PC07")
@pytest.mark.parametrize(("status", "most"), [("incomplete", 2), ("failed", 3)])
def test_an_answer_that_never_completes_is_exit_3(desk, status, most):
    step = Answer(GOOD[:20], status=status, error={"code": "server_error", "message": "it broke"})
    compiled = compile_spec(desk, [step], repeat_last=True)
    assert compiled.outcome.exit_code == 3, compiled.outcome
    assert len([r for r in compiled.requests if r.method == "POST"]) <= most
    assert list(compiled.run_dir.rglob("WO-*.json")) == []


@pytest.mark.rows("PO02")
def test_reasoning_is_on_stderr_while_the_stream_is_open(desk):
    spec = desk.write("spec.md", "Make it so.\n")
    end = threading.Event()
    answer = Answer(GOOD, reasoning="pondering the ferries", before_end=end)
    with LoopbackEndpoint([answer]) as endpoint:
        running = desk.start(
            "planner", "compile", "--spec", spec, "--artifacts-dir", desk.artifacts, endpoint=endpoint
        )
        try:
            running.until(lambda: "pondering the ferries" in running.stderr)
            assert running.process.poll() is None
        finally:
            end.set()
        assert running.finish().exit_code == 0


@pytest.mark.rows("PD05", "PK30")
def test_an_answer_over_ten_megabytes_is_refused_and_asked_for_again(desk):
    huge = json.dumps(a_plan(an_order(1, notes="x" * (11 * 1024 * 1024))))
    compiled = accepted(compile_spec(desk, [Answer(huge, piece=1 << 20), Answer(GOOD)]), 2)
    assert compiled.attempt_codes(1) == {"E000"}
    assert len(text_of(compiled.requests[1])) < 5 * 1024 * 1024, "what is too large is not sent back whole"


@pytest.mark.rows("PC08", "PK06", "PK20", "PK09", "PK22")
def test_answers_that_are_never_json_end_in_exit_4_with_the_findings_on_disk(desk):
    broken = ["", "just prose", GOOD[:-9], '{"work_orders": NaN}', GOOD.replace("{", '{"a": 1, "a": 2, ', 1)]
    compiled = compile_spec(desk, [Answer(text) for text in broken])
    assert compiled.outcome.exit_code == 4, compiled.outcome
    assert len(compiled.requests) == 5
    assert [compiled.attempt_codes(n) for n in range(1, 6)] == [{"E000"}] * 5
    assert codes_in(compiled.artifact("validation_errors.json")) == {"E000"}
    assert compiled.summary["success"] is False
    assert list(compiled.run_dir.rglob("WO-*.json")) == []


@pytest.mark.rows("PC08", "PC06")
def test_the_last_answer_decides_between_exit_2_and_4(desk):
    invalid = json.dumps(a_plan(an_order(2)))
    compiled = compile_spec(desk, [Answer(invalid)] * 4 + [Answer("prose at the end")])
    assert compiled.outcome.exit_code == 4, compiled.outcome


@pytest.mark.rows("PV09", "PV20", "PV54", "PC06", "PC08")
def test_hostile_json_becomes_a_code_and_a_revision(desk):
    deep = "[" * 200_000 + "]" * 200_000
    surrogate = '{"work_orders": [{"id": "WO-01", "title": "\\ud800"}]}'
    answers = ["[1, 2]", "null", deep, surrogate, f'{{"work_orders": {10**5 * "9"}}}']
    compiled = compile_spec(desk, [Answer(text, piece=1 << 16) for text in answers])
    assert compiled.outcome.exit_code in (2, 4), compiled.outcome
    assert len(compiled.requests) == 5
    for number in range(1, 6):
        assert compiled.attempt_codes(number) & {"E000", "E005"}, number


@pytest.mark.rows("S18")
def test_terminal_escapes_of_a_model_arrive_as_visible_text(desk):
    evil = "\x1b]0;owned\x07\x1b[2J"
    plan = json.dumps(a_plan(an_order(1, title=f"t{evil}", id="WO-01\x1b[31m"), an_order(2)))
    compiled = compile_spec(desk, [Answer(plan, reasoning=evil)], "--verbose", repeat_last=True)
    assert compiled.outcome.exit_code == 2, compiled.outcome
    assert "\x1b" not in compiled.outcome.said
    assert "\x07" not in compiled.outcome.said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_planner_with_its_code_and_a_completed_record(desk, number, code):
    spec = desk.write("spec.md", "Make it so.\n")
    with LoopbackEndpoint([Stall()]) as endpoint:
        running = desk.start(
            "planner", "compile", "--spec", spec, "--artifacts-dir", desk.artifacts, endpoint=endpoint
        )
        running.until(lambda: endpoint.requests)
        (run_dir,) = (desk.artifacts / "planner").iterdir()
        early = (run_dir / "run.json").read_bytes()
        running.signal(number)
        outcome = running.finish(20)
    assert outcome.exit_code == code, outcome
    assert "Traceback" not in outcome.said
    assert (run_dir / "run.json").read_bytes() != early
    assert list(run_dir.rglob("WO-*.json")) == []


def test_token_usage_of_every_call_is_recorded(desk):
    usage = {"input_tokens": 4321, "output_tokens": 987, "total_tokens": 5308}
    compiled = accepted(compile_spec(desk, [Answer("prose", usage=usage), Answer(GOOD, usage=usage)]), 2)
    text = json.dumps(compiled.run_json)
    assert "8642" in text, "the sum of both calls"
    assert "1974" in text
