"""The planner's client against a real server with the real SDK: every trap is an error or a recovery."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace

import pytest
from loopback import (
    Answer,
    CutAfter,
    Drop,
    Events,
    LoopbackEndpoint,
    Raw,
    Seen,
    Stall,
    Status,
    Step,
    response_body,
    response_events,
)

from planner.openai_client import ResponsesLLM, ResponsesSettings
from shared.answers import json_object_in
from shared.files import JsonError
from shared.llm import AnswerCut, AnswerRefused, EndpointError, LLMError, QuotaError, Reply, Request, Usage
from shared.openai_api import Endpoint, RequestRefused
from shared.wire import MAX_ANSWER_BYTES, TOO_LARGE, Garbled

KEY = "sk-test-0123456789"
PLAN = '{"work_orders": []}'
SCHEMA = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
REQUEST = Request("plan", "make a plan", "plan", 1, schema=SCHEMA)
ONE_CALL = Usage(100, 10, 50, 20)


@dataclass
class Talk:
    """One question to an endpoint that takes these steps, and everything that could be seen of it."""

    steps: list[Step]
    polls: list[Step] = field(default_factory=list)
    settings: dict = field(default_factory=dict)
    request: Request = REQUEST
    questions: int = 1
    read_timeout: float = 60
    replies: list[Reply] = field(default_factory=list)
    error: LLMError | None = None
    requests: list[Seen] = field(default_factory=list)
    waits: list[tuple[str, float, int, int]] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        with LoopbackEndpoint(self.steps, polls=self.polls) as server:
            endpoint = Endpoint(server.base_url, KEY, read_timeout=self.read_timeout)
            llm = ResponsesLLM(
                ResponsesSettings(endpoint, **self.settings),
                on_thinking=self.thoughts.append,
                on_wait=lambda *wait: self.waits.append(wait),
                sleep=self.slept.append,
            )
            try:
                for _ in range(self.questions):
                    self.replies.append(llm(self.request))
            except LLMError as error:
                self.error = error
            self.requests = list(server.requests)

    @property
    def reply(self) -> Reply:
        assert self.error is None, self.error
        return self.replies[-1]

    @property
    def ways(self) -> str:
        """The requests in a word: s(tream), b(ackground), p(lain), g(et)."""
        return "".join(_way(seen) for seen in self.requests)


def _way(seen):
    if seen.method == "GET":
        return "g"
    return "s" if seen.body.get("stream") else "b" if seen.body.get("background") else "p"


# --- what is asked -----------------------------------------------------------------------


def test_the_request_is_streamed_and_carries_model_effort_budget_and_schema():
    seen = Talk([Answer(PLAN)]).requests[0]
    assert (seen.method, seen.path) == ("POST", "/v1/responses")
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.body == {
        "model": "gpt-5.2-codex",
        "reasoning": {"effort": "medium", "summary": "auto"},
        "max_output_tokens": 64000,
        "input": "make a plan",
        "stream": True,
        "text": {"format": {"type": "json_schema", "name": "plan_answer", "strict": True, "schema": SCHEMA}},
    }


def test_settings_and_a_request_without_a_schema_are_sent_as_they_are():
    settings = {"model": "other", "effort": "high", "max_output_tokens": 7}
    body = Talk([Answer(PLAN)], settings=settings, request=replace(REQUEST, schema=None)).requests[0].body
    assert body == {
        "model": "other",
        "reasoning": {"effort": "high", "summary": "auto"},
        "max_output_tokens": 7,
        "input": "make a plan",
        "stream": True,
    }


def test_a_prompt_with_half_a_surrogate_pair_can_be_sent():
    talk = Talk([Answer(PLAN)], request=replace(REQUEST, prompt="file \udcff.py"))
    assert talk.reply.text == PLAN
    assert talk.requests[0].body["input"] == "file \\udcff.py"


# --- what comes back ---------------------------------------------------------------------


def test_a_reply_has_text_reasoning_usage_and_origin():
    reply = Talk([Answer(PLAN, reasoning="first this, then that")]).reply
    assert 0 < reply.seconds < 60
    assert replace(reply, seconds=0) == Reply(
        PLAN,
        reasoning="first this, then that",
        usage=ONE_CALL,
        model="gpt-5.2-codex",
        response_id="resp_1",
        finish="completed",
    )


def test_reasoning_is_heard_while_the_stream_is_still_open():
    heard, still_open = threading.Event(), threading.Event()
    with LoopbackEndpoint([Answer(PLAN, reasoning="a thought", before_end=heard)]) as server:

        def on_thinking(text):
            assert text == "a thought"
            if not heard.is_set():
                still_open.set()
            heard.set()

        ResponsesLLM(ResponsesSettings(Endpoint(server.base_url, KEY)), on_thinking=on_thinking)(REQUEST)
    assert still_open.is_set()


def test_reasoning_arrives_in_the_pieces_it_came_in_and_parts_are_parted():
    events = [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.reasoning_summary_part.added"},
        {"type": "response.reasoning_summary_text.delta", "delta": "one "},
        {"type": "response.reasoning_summary_text.delta", "delta": "thought"},
        {"type": "response.reasoning_summary_part.added"},
        {"type": "response.reasoning_summary_text.delta", "delta": "another"},
        {"type": "response.output_text.delta", "delta": PLAN},
        {"type": "response.completed", "response": {"output": []}},
    ]
    talk = Talk([Events(events)])
    assert talk.thoughts == ["one ", "thought", "\n\n", "another"]
    assert talk.reply.reasoning == "one thought\n\nanother"


def message(text, **more):
    return {"type": "message", "content": [{"type": "output_text", "text": text}], **more}


@pytest.mark.parametrize(
    "events",
    [
        pytest.param(
            [e for e in response_events(Answer(PLAN), {}, "r") if "delta" not in e["type"]], id="no deltas"
        ),
        pytest.param(response_events(Answer(PLAN, empty_output=True), {}, "r"), id="output left empty"),
        pytest.param(
            [
                {"type": "response.output_text.delta", "delta": PLAN},
                {
                    "type": "response.completed",
                    "response": {"output": [{"type": "reasoning", "summary": []}]},
                },
            ],
            id="only reasoning in the output",
        ),
        pytest.param(
            [{"type": "response.output_text.delta", "delta": PLAN}, {"type": "response.completed"}],
            id="no response in the last event",
        ),
        pytest.param(
            [
                {"type": "response.queued"},
                {"type": "response.something.new", "delta": "noise"},
                {"no": "type"},
                {"type": "response.output_text.delta", "delta": None},
                {"type": "response.output_text.delta", "delta": PLAN},
                {"type": "response.completed", "response": {"output": None, "usage": [], "id": 7}},
            ],
            id="unknown events and fields of wrong types",
        ),
        pytest.param(
            [
                b": keep-alive\n\n",
                {"type": "response.output_text.delta", "delta": PLAN},
                b": keep-alive\n\n",
                {"type": "response.completed", "response": {"output": []}},
                b"data: [DONE]\n\n",
            ],
            id="comments and [DONE]",
        ),
        pytest.param(
            [
                {
                    "type": "response.completed",
                    "response": {
                        "output": [
                            message("First I look around.", phase="commentary"),
                            message(PLAN, phase="final_answer"),
                        ]
                    },
                }
            ],
            id="a comment before the final answer",
        ),
        pytest.param(
            [
                {"type": "response.output_text.delta", "delta": PLAN},
                {"type": "response.completed", "response": {"output": [message("")]}},
            ],
            id="an empty message in the output",
        ),
    ],
)
def test_the_text_is_found_however_the_stream_spells_it(events):
    talk = Talk([Events(events)])
    assert talk.reply.text == PLAN
    assert talk.ways == "s"


def test_a_surrogate_pair_split_between_two_deltas_is_one_character():
    events = [
        b'data: {"type": "response.output_text.delta", "delta": "\\ud83d"}\n\n',
        b'data: {"type": "response.output_text.delta", "delta": "\\ude00 \\ud800"}\n\n',
        {"type": "response.completed", "response": {"output": []}},
    ]
    assert Talk([Events(events)]).reply.text == "\U0001f600 \\ud800"


@pytest.mark.parametrize("usage", [None, {"none": True}])
def test_usage_is_the_endpoints_or_none(usage):
    expected = ONE_CALL if usage is None else None
    assert Talk([Answer(PLAN, usage=usage)]).reply.usage == expected


def test_an_empty_answer_is_a_reply():
    assert Talk([Answer("")]).reply.text == ""


def test_a_server_that_does_not_stream_is_understood():
    body = response_body(Answer(PLAN, reasoning="so"), {"model": "m"}, "resp_9")
    talk = Talk([lambda handler, _: handler.reply_json(body)])
    assert (talk.reply.text, talk.reply.reasoning, talk.reply.response_id) == (PLAN, "so", "resp_9")
    assert talk.ways == "s"


# --- faults of the wire: outcome and number of requests ----------------------------------

RESPONSE_ERROR = {"code": "server_error", "message": "the model fell over"}
QUOTA = {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}


@pytest.mark.parametrize("code", [408, 409, 429, 500, 502, 503, 504])
def test_the_streamed_request_is_tried_again_as_a_stream(code):
    talk = Talk([Status(code), Status(code), Answer(PLAN)])
    assert talk.reply.text == PLAN
    assert talk.ways == "sss"
    assert talk.slept == [0.5, 1.0]
    assert [(number, of) for _, _, number, of in talk.waits] == [(2, 3), (3, 3)]


BROKEN_STREAMS = [
    pytest.param(CutAfter(0, ending="end"), id="ended before its first event"),
    pytest.param(CutAfter(0, ending="close"), id="closed before its first event"),
    pytest.param(CutAfter(6, ending="end"), id="ended without a terminal event"),
    pytest.param(CutAfter(6, ending="close"), id="closed in the middle"),
    pytest.param(CutAfter(6, ending="reset"), id="reset in the middle"),
    pytest.param(Events([b'data: {"type": "response.crea\n\n']), id="broken JSON"),
    pytest.param(Events([b'data: {"type": "\xff\xfe"}\n\n']), id="broken UTF-8"),
    pytest.param(Events([b"data: [1, 2]\n\n"]), id="an event that is no object"),
    pytest.param(Events([b"data: [DONE]\n\n"]), id="nothing but [DONE]"),
    pytest.param(Events([b": hello\n\n"] * 3), id="nothing but comments"),
    pytest.param(
        Events([b'data: {"type": "response.completed"}']), id="a terminal event without its blank line"
    ),
]


@pytest.mark.parametrize("fault", BROKEN_STREAMS)
def test_a_broken_stream_is_asked_for_again_in_the_background_and_polled(fault):
    talk = Talk([fault, Answer(PLAN, reasoning="so", polls=2)])
    assert talk.reply.text == PLAN
    assert talk.reply.usage == ONE_CALL
    assert talk.ways == "sbggg"
    assert talk.waits[0][1:] == (0.0, 2, 2)
    assert "asking again in the background" in talk.waits[0][0]
    assert talk.thoughts[-1] == "so"
    assert talk.requests[1].body["text"] == talk.requests[0].body["text"]


def test_a_stalled_stream_is_asked_for_again_in_the_background():
    talk = Talk([Stall(events=4), Answer(PLAN)], read_timeout=0.3)
    assert talk.reply.text == PLAN
    assert talk.ways == "sbgg"
    assert "was silent for 0.3 s" in talk.waits[0][0]


@pytest.mark.parametrize("ending", ["close", "reset"])
def test_a_connection_lost_before_the_stream_began_counts_as_a_try_and_goes_to_the_background(ending):
    talk = Talk([Drop(ending), Drop(ending), Answer(PLAN, polls=0)])
    assert talk.reply.text == PLAN
    assert talk.ways == "sbbg"
    assert talk.slept[:2] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("steps", "polls", "ways", "kind", "told"),
    [
        # HTTP errors
        ([Status(503)] * 3, [], "sss", EndpointError, "503"),
        ([Status(429)] * 3, [], "sss", EndpointError, "429"),
        ([Status(429, QUOTA)], [], "s", QuotaError, "add credit"),
        ([Status(429, headers={"retry-after": "3600"})], [], "s", EndpointError, "3600 s"),
        ([Status(400)], [], "s", RequestRefused, "not accepted"),
        ([Status(401)], [], "s", EndpointError, "OPENAI_API_KEY"),
        ([Status(403)], [], "s", EndpointError, "may not use"),
        ([Status(404)], [], "s", EndpointError, "model's name"),
        ([Status(422)], [], "s", RequestRefused, "not accepted"),
        # connections
        ([Drop()] * 3, [], "sbb", EndpointError, "broke"),
        ([CutAfter(3), *[Drop()] * 3], [], "sbbb", EndpointError, "broke"),
        ([CutAfter(3), *[Status(502)] * 3], [], "sbbb", EndpointError, "502"),
        ([CutAfter(3), CutAfter(), CutAfter(), CutAfter()], [], "sbbb", EndpointError, "broke"),
        # what comes instead of a response
        ([Raw(b"<html>", {"content-type": "text/html"})], [], "s", Garbled, "usually ends in /v1"),
        ([Raw(b"{", {"content-type": "application/json"})], [], "s", Garbled, "not a JSON object"),
        ([Raw(b"{}")], [], "s", EndpointError, "no response"),
        ([Raw(b'{"error": {"message": "busy", "code": 502}}')], [], "s", EndpointError, "busy"),
        (
            [CutAfter(3), Raw(b"<html>", {"content-type": "text/html"})],
            [],
            "sb",
            Garbled,
            "not a JSON object",
        ),
        ([CutAfter(3), Raw(b'{"status": "queued"}')], [], "sb", EndpointError, "without an id"),
        # error events
        (
            [Events([{"type": "error", "code": "server_error", "message": "flat"}])],
            [],
            "s",
            EndpointError,
            "flat",
        ),
        ([Events([{"type": "error", "error": {"message": "nested"}}])], [], "s", EndpointError, "nested"),
        ([Events([{"error": {"message": "untyped"}}])], [], "s", EndpointError, "untyped"),
        ([Events([{"error": "only words"}])], [], "s", EndpointError, "only words"),
        ([Events([{"type": "error"}])], [], "s", EndpointError, "does not say why"),
        ([Events([{"type": "error", **QUOTA}])], [], "s", QuotaError, "add credit"),
        (
            [Events([*response_events(Answer(PLAN), {}, "r")[:6], {"type": "error", "message": "late"}])],
            [],
            "s",
            EndpointError,
            "late",
        ),
        # responses that did not go well
        ([Answer(status="failed", error=RESPONSE_ERROR)], [], "s", EndpointError, "the model fell over"),
        ([Answer(status="failed", error=QUOTA["error"])], [], "s", QuotaError, "add credit"),
        ([Answer(status="cancelled")], [], "s", EndpointError, "again later"),
        (
            [CutAfter(3), Answer(status="failed", error=RESPONSE_ERROR)],
            [],
            "sbgg",
            EndpointError,
            "fell over",
        ),
        ([CutAfter(3), Answer(status="cancelled")], [], "sbgg", EndpointError, "cancelled"),
        ([Answer(refusal="I will not.")], [], "s", AnswerRefused, "I will not."),
        ([CutAfter(3), Answer(refusal="I will not.")], [], "sbgg", AnswerRefused, "I will not."),
        (
            [Answer("{", status="incomplete", reason="content_filter")],
            [],
            "s",
            AnswerRefused,
            "content filter",
        ),
        ([Answer("{", status="incomplete")] * 2, [], "ss", AnswerCut, "twice the budget"),
        ([Answer("{", status="incomplete", reason=None)] * 2, [], "ss", AnswerCut, "twice the budget"),
        # polling
        ([CutAfter(3), Answer(PLAN)], [Status(503)] * 3, "sbggg", EndpointError, "503"),
        ([CutAfter(3), Answer(PLAN)], [Status(401)], "sbg", EndpointError, "OPENAI_API_KEY"),
        ([CutAfter(3), Answer(PLAN)], [Status(404)] * 99, "sb" + "g" * 16, EndpointError, "may keep none"),
        ([CutAfter(3), Answer(PLAN)], [Raw(b"{")], "sbg", Garbled, "not a JSON object"),
    ],
)
def test_a_fault_is_one_clear_error_after_a_bounded_number_of_requests(steps, polls, ways, kind, told):
    talk = Talk(steps, polls)
    assert type(talk.error) is kind
    assert talk.ways == ways
    assert told in str(talk.error)
    assert "\n" not in str(talk.error)
    assert KEY not in str(talk.error)


@pytest.mark.parametrize(
    ("polls", "ways"),
    [
        ([Status(404)], "sbggg"),
        ([Status(404)] * 10, "sb" + "g" * 12),
        ([Status(503), Status(429)], "sbgggg"),
        ([Drop(), Drop()], "sbgggg"),
        ([Status(404), Status(503), Status(404)], "sb" + "g" * 5),
    ],
)
def test_polling_survives_what_passes(polls, ways):
    talk = Talk([CutAfter(3), Answer(PLAN)], polls)
    assert talk.reply.text == PLAN
    assert talk.ways == ways


def test_polls_come_less_often_the_longer_it_takes():
    settings = {"poll_seconds": 2.0, "longest_poll_seconds": 10.0}
    slept = Talk([CutAfter(3), Answer(PLAN, polls=20)], settings=settings).slept
    assert slept[0] == 2.0
    assert slept == sorted(slept)
    assert slept[-1] == 10.0


# --- the doubled budget ------------------------------------------------------------------


@pytest.mark.parametrize("first", [[], [CutAfter(3)]], ids=["streamed", "in the background"])
def test_a_cut_answer_is_asked_for_once_more_with_exactly_twice_the_budget(first):
    talk = Talk([*first, Answer('{"work', status="incomplete"), Answer(PLAN)])
    assert talk.reply.text == PLAN
    budgets = [seen.body["max_output_tokens"] for seen in talk.requests if seen.method == "POST"]
    assert budgets == [*[64000] * len(first), 64000, 128000]
    assert talk.reply.usage == ONE_CALL + ONE_CALL
    assert ("the answer was cut off at 64000 output tokens; asking with 128000", 0.0, 2, 2) in talk.waits


def test_the_next_question_starts_with_the_ordinary_budget():
    cut = Answer("{", status="incomplete")
    talk = Talk([cut, Answer(PLAN), Answer(PLAN)], questions=2)
    assert [seen.body["max_output_tokens"] for seen in talk.requests] == [64000, 128000, 64000]


@pytest.mark.parametrize(
    ("steps", "usage"),
    [
        ([Answer("{", status="incomplete")] * 2, ONE_CALL + ONE_CALL),
        ([Answer("{", status="incomplete"), Status(401)], ONE_CALL),
        ([Answer(refusal="no")], ONE_CALL),
        ([Answer(status="failed")], ONE_CALL),
        ([Status(401)], None),
    ],
)
def test_a_failed_call_names_what_it_used(steps, usage):
    assert Talk(steps).error.usage == usage


# --- what an endpoint does not know ------------------------------------------------------


def refuses(message, param=None, code=400):
    return Status(code, {"error": {"message": message, "param": param}})


NO_FORMAT = [
    refuses("Invalid schema", "text.format.schema"),
    refuses("not supported", "text"),
    refuses("Unsupported parameter: 'text.format'"),
    refuses("json_schema is not available for this model"),
    refuses("unknown field response_format"),
    refuses("Structured outputs are not enabled"),
    Status(422, {"detail": [{"loc": ["body", "text", "format"], "msg": "text.format: extra field"}]}),
]


@pytest.mark.parametrize("fault", NO_FORMAT)
def test_a_schema_that_is_refused_is_left_out_at_once_and_for_the_run(fault):
    talk = Talk([fault, Answer(PLAN), Answer(PLAN)], questions=2)
    assert talk.reply.text == PLAN
    assert ["text" in seen.body for seen in talk.requests] == [True, False, False]
    assert talk.slept == talk.waits == []


@pytest.mark.parametrize(
    ("fault", "left"),
    [
        (refuses("Your organization must be verified to generate reasoning summaries"), {"effort": "medium"}),
        (refuses("not supported", "reasoning.summary"), {"effort": "medium"}),
        (refuses("Unsupported parameter: 'reasoning.effort' is not supported"), None),
        (refuses("bad", "reasoning"), None),
    ],
)
def test_reasoning_that_is_refused_is_left_out_as_far_as_needed(fault, left):
    talk = Talk([fault, Answer(PLAN), Answer(PLAN)], questions=2)
    assert talk.reply.text == PLAN
    assert [seen.body.get("reasoning") for seen in talk.requests[1:]] == [left, left]
    assert "text" in talk.requests[-1].body


def test_a_stream_that_is_refused_becomes_a_background_response_for_the_run():
    verify = refuses("Your organization must be verified to stream this model.", "stream")
    talk = Talk([verify, Answer(PLAN, polls=0), Answer(PLAN, polls=0)], questions=2)
    assert talk.reply.text == PLAN
    assert talk.ways == "sbgbg"


def test_where_there_is_no_background_a_broken_stream_is_asked_for_plainly():
    talk = Talk([CutAfter(3), refuses("Unsupported parameter: 'background'"), Answer(PLAN)])
    assert talk.reply.text == PLAN
    assert talk.ways == "sbp"


def test_a_background_that_is_ignored_is_taken_as_the_answer_that_it_is():
    body = response_body(Answer(PLAN), {}, "resp_1")
    talk = Talk([CutAfter(3), lambda handler, _: handler.reply_json(body)])
    assert talk.reply.text == PLAN
    assert talk.ways == "sb"


def test_everything_can_be_refused_once_and_costs_no_try():
    names = ["text.format", "reasoning.summary", "reasoning.effort", "stream", "background"]
    talk = Talk([*(refuses("no", name) for name in names), Status(503), Status(503), Answer(PLAN)])
    assert talk.reply.text == PLAN
    assert talk.ways == "ssssbppp"
    assert set(talk.requests[-1].body) == {"model", "input", "max_output_tokens"}


def test_the_same_refusal_twice_is_an_error():
    talk = Talk([refuses("no", "text.format")] * 2)
    assert type(talk.error) is RequestRefused
    assert len(talk.requests) == 2


# --- bounds ------------------------------------------------------------------------------


def deltas_without_end(handler, _):
    handler.begin("text/event-stream")
    delta = b'data: {"type": "response.output_text.delta", "delta": "%s"}\n\n' % (b"x" * 1_000_000)
    try:
        for _ in range(200):
            handler.chunk(delta)
    except OSError:
        handler.close_connection = True


def one_event_without_end(handler, _):
    handler.begin("text/event-stream")
    handler.chunk(b'data: {"type": "response.output_text.delta", "delta": "')
    try:
        for _ in range(200):
            handler.chunk(b"x" * 1_000_000)
    except OSError:
        handler.close_connection = True


HUGE = '{"a": "' + "é" * (6 * 1024 * 1024) + '"}'


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([deltas_without_end], id="deltas without end"),
        pytest.param([one_event_without_end], id="one event without end"),
        pytest.param([Answer(HUGE, piece=1_000_000)], id="12 MB streamed"),
        pytest.param([Events([response_events(Answer(HUGE), {}, "r")[-1]])], id="12 MB in the last event"),
        pytest.param([CutAfter(3), Answer(HUGE)], id="12 MB in the background"),
    ],
)
def test_an_answer_over_10_mb_is_cut_just_beyond_the_limit_and_refused_by_its_size(steps):
    talk = Talk(steps)
    size = len(talk.reply.text.encode())
    assert MAX_ANSWER_BYTES < size < MAX_ANSWER_BYTES + 2_000_000
    with pytest.raises(JsonError, match="larger than"):
        json_object_in(talk.reply.text, max_bytes=MAX_ANSWER_BYTES)


def test_an_answer_that_was_not_read_to_its_end_says_so():
    assert Talk([deltas_without_end]).reply.finish == TOO_LARGE


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Stall(drip=0.02), id="keep-alives for ever"),
        pytest.param(Stall(drip=0.02, events=4), id="keep-alives in the middle of a stream"),
        pytest.param(Stall(headers=False), id="no status line"),
        pytest.param(Stall(events=4), id="silence in the middle of a stream"),
    ],
)
def test_one_deadline_holds_against_an_endpoint_that_never_ends(fault):
    started = time.monotonic()
    talk = Talk([fault], settings={"timeout_seconds": 0.5})
    assert isinstance(talk.error, EndpointError)
    assert "within 0.5 s" in str(talk.error)
    assert time.monotonic() - started < 30
    assert len(talk.requests) == 1


def test_the_deadline_holds_over_polling_too():
    with LoopbackEndpoint([CutAfter(3), Answer(PLAN, polls=10**9)]) as server:
        settings = ResponsesSettings(Endpoint(server.base_url, KEY), timeout_seconds=0.5, poll_seconds=0.01)
        with pytest.raises(EndpointError, match=r"within 0\.5 s"):
            ResponsesLLM(settings)(REQUEST)


@pytest.mark.parametrize(
    "fault", [Stall(), Stall(drip=0.02), Status(503)], ids=["silence", "keep-alives", "503"]
)
def test_what_the_poll_raises_ends_the_call_also_during_a_pause(fault):
    class Interrupted(BaseException):
        pass

    with LoopbackEndpoint([fault], repeat_last=True) as server:

        def poll():
            if server.requests:
                raise Interrupted

        with pytest.raises(Interrupted):
            ResponsesLLM(ResponsesSettings(Endpoint(server.base_url, KEY)), poll=poll)(REQUEST)


def test_without_a_server_the_error_names_the_address():
    with LoopbackEndpoint() as server:
        base_url = server.base_url
    llm = ResponsesLLM(ResponsesSettings(Endpoint(base_url, KEY)), sleep=lambda _: None)
    with pytest.raises(EndpointError, match=r"no connection to http://127\.0\.0\.1") as caught:
        llm(REQUEST)
    assert "tried 3 times" in str(caught.value)
