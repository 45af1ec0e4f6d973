"""The factory's client against a real server with the real SDK: every trap is an error or a recovery."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace

import pytest
from loopback import Answer, CutAfter, Drop, LoopbackEndpoint, Raw, Seen, Stall, Status, Step, chat_body

from factory.defaults import MAX_JSON_PAYLOAD_BYTES
from factory.llm import ChatLLM, ChatSettings, parse_proposal_json
from shared.files import JsonError
from shared.llm import AnswerCut, AnswerRefused, EndpointError, LLMError, QuotaError, Reply, Request, Usage
from shared.openai_api import Endpoint, RequestRefused
from shared.wire import TOO_LARGE, Garbled

KEY = "sk-test-0123456789"
PROPOSAL = '{"summary": "s", "writes": []}'
SCHEMA = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
REQUEST = Request("se", "write it", "WO-01", 1, schema=SCHEMA)
ONE_CALL = Usage(100, 10, 50, 20)


@dataclass
class Talk:
    """Questions to an endpoint that takes these steps, and everything that could be seen of them."""

    steps: list[Step]
    settings: dict = field(default_factory=dict)
    request: Request = REQUEST
    questions: int = 1
    replies: list[Reply] = field(default_factory=list)
    error: LLMError | None = None
    requests: list[Seen] = field(default_factory=list)
    waits: list[tuple[str, float, int, int]] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        with LoopbackEndpoint(self.steps) as server:
            llm = ChatLLM(
                ChatSettings(Endpoint(server.base_url, KEY), **self.settings),
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


def body(**changes):
    """A step that answers with a chat body in which these fields differ."""
    return lambda handler, seen: handler.reply_json(
        {**chat_body(Answer(PROPOSAL), seen.body, "chatcmpl-1"), **changes}
    )


def choice(finish_reason="stop", **message):
    message = {"role": "assistant", "content": PROPOSAL, **message}
    return body(choices=[{"index": 0, "message": message, "finish_reason": finish_reason}])


# --- what is asked -----------------------------------------------------------------------


def test_the_request_is_one_message_with_model_temperature_and_schema():
    seen = Talk([Answer(PROPOSAL)]).requests[0]
    assert (seen.method, seen.path) == ("POST", "/v1/chat/completions")
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.body == {
        "model": "gpt-5.2",
        "messages": [{"role": "user", "content": "write it"}],
        "temperature": 0,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "se_answer", "strict": True, "schema": SCHEMA},
        },
    }


def test_settings_and_a_request_without_a_schema_are_sent_as_they_are():
    settings = {"model": "other", "temperature": 0.7}
    seen = Talk([Answer(PROPOSAL)], settings, replace(REQUEST, schema=None)).requests[0]
    assert seen.body == {
        "model": "other",
        "messages": [{"role": "user", "content": "write it"}],
        "temperature": 0.7,
    }


def test_a_prompt_with_half_a_surrogate_pair_can_be_sent():
    talk = Talk([Answer(PROPOSAL)], request=replace(REQUEST, prompt="file \udcff.py"))
    assert talk.reply.text == PROPOSAL
    assert talk.requests[0].body["messages"][0]["content"] == "file \\udcff.py"


# --- what comes back ---------------------------------------------------------------------


def test_a_reply_has_text_reasoning_usage_and_origin():
    reply = Talk([Answer(PROPOSAL, reasoning="so")]).reply
    assert 0 < reply.seconds < 60
    assert replace(reply, seconds=0) == Reply(
        PROPOSAL,
        reasoning="so",
        usage=ONE_CALL,
        model="gpt-5.2",
        response_id="chatcmpl-1",
        finish="stop",
    )


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (
            choice(content=[{"type": "text", "text": PROPOSAL[:9]}, {"type": "text", "text": PROPOSAL[9:]}]),
            PROPOSAL,
        ),
        (choice(content=["a", {"type": "image"}, None, {"text": "b"}]), "ab"),
        (choice(content=None), ""),
        (choice(content=7), ""),
        (choice(finish_reason=None), PROPOSAL),
        (choice(refusal=None), PROPOSAL),
        (choice(refusal=""), PROPOSAL),
        (body(usage=None, id=None, model=None), PROPOSAL),
        (body(error=None), PROPOSAL),
        (Answer("half \ud83d of one"), "half \\ud83d of one"),
    ],
)
def test_the_text_is_found_though_servers_differ(step, text):
    assert Talk([step]).reply.text == text


@pytest.mark.parametrize("usage", [None, {"none": True}])
def test_usage_is_the_endpoints_or_none(usage):
    assert Talk([Answer(PROPOSAL, usage=usage)]).reply.usage == (ONE_CALL if usage is None else None)


# --- faults of the wire: outcome and number of requests ----------------------------------

QUOTA = {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}


@pytest.mark.parametrize(
    "fault",
    [*(Status(code) for code in (408, 409, 429, 500, 502, 503, 504)), Drop(), Drop("reset"), CutAfter()],
    ids=str,
)
def test_what_passes_is_survived(fault):
    talk = Talk([fault, fault, Answer(PROPOSAL)])
    assert talk.reply.text == PROPOSAL
    assert talk.slept == [0.5, 1.0]
    assert [(number, of) for _, _, number, of in talk.waits] == [(2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("fault", "requests", "kind", "told"),
    [
        (Status(503), 3, EndpointError, "tried 3 times"),
        (Drop(), 3, EndpointError, "broke"),
        (Status(429, QUOTA), 1, QuotaError, "add credit"),
        (Status(400), 1, RequestRefused, "not accepted"),
        (Status(401), 1, EndpointError, "OPENAI_API_KEY"),
        (Status(404), 1, EndpointError, "usually ends in /v1"),
        (Raw(b"<html>", {"content-type": "text/html"}), 1, Garbled, "<html>"),
        (Raw(b'{"choices": [{"mess'), 1, Garbled, "not a JSON object"),
        (Raw(b'{"choices": "\xff"}'), 1, Garbled, "not a JSON object"),
        (Raw(b"{}"), 1, EndpointError, "without a choice"),
        (body(choices=[]), 1, EndpointError, "without a choice"),
        (body(choices=None), 1, EndpointError, "without a choice"),
        (body(choices=["a"]), 1, EndpointError, "without a choice"),
        (body(choices=[{"message": None}]), 1, EndpointError, "without a choice"),
        (Raw(b'{"error": {"message": "no room", "code": 502}}'), 1, EndpointError, "no room"),
        (Raw(json.dumps(QUOTA).encode()), 1, QuotaError, "add credit"),
        (body(choices=[{"message": {}, "error": {"message": "no room"}}]), 1, EndpointError, "no room"),
        (Answer(PROPOSAL, status="incomplete"), 1, AnswerCut, "no JSON error"),
        (Answer("", status="incomplete"), 1, AnswerCut, "cut off"),
        (Answer("{", status="incomplete", reason="content_filter"), 1, AnswerRefused, "content filter"),
        (Answer(refusal="I will not."), 1, AnswerRefused, "I will not."),
        (choice(refusal="I will not."), 1, AnswerRefused, "I will not."),
    ],
)
def test_a_fault_is_one_clear_error_after_a_bounded_number_of_requests(fault, requests, kind, told):
    talk = Talk([fault] * requests)
    assert type(talk.error) is kind
    assert len(talk.requests) == requests
    assert told in str(talk.error)
    assert "\n" not in str(talk.error)
    assert KEY not in str(talk.error)


@pytest.mark.parametrize(
    "answer", [Answer("{", status="incomplete"), Answer(refusal="no"), Answer("", status="incomplete")]
)
def test_a_cut_or_refused_answer_names_what_it_used(answer):
    assert Talk([answer]).error.usage == ONE_CALL


# --- what an endpoint does not know ------------------------------------------------------


def refuses(message, param=None, code=400):
    return Status(code, {"error": {"message": message, "param": param, "code": "unsupported_value"}})


@pytest.mark.parametrize(
    "fault",
    [
        refuses("Unsupported value", "temperature"),
        refuses("Unsupported value: 'temperature' does not support 0 with this model."),
        Status(422, {"detail": [{"loc": ["body", "temperature"], "msg": "extra field"}]}),
    ],
)
def test_a_temperature_that_is_refused_is_left_out_for_the_run_and_costs_no_try(fault):
    talk = Talk([fault, Status(503), Status(503), Answer(PROPOSAL), Answer(PROPOSAL)], questions=2)
    assert talk.reply.text == PROPOSAL
    assert ["temperature" in seen.body for seen in talk.requests] == [True, False, False, False, False]
    assert all("response_format" in seen.body for seen in talk.requests)


@pytest.mark.parametrize(
    "fault",
    [
        refuses("no", "response_format"),
        refuses("Invalid parameter: 'response_format' of type 'json_schema' is not supported"),
        refuses("response_format.type must be text"),
        refuses("this model has no structured outputs"),
        refuses("invalid schema", code=422),
    ],
)
def test_a_format_that_is_refused_is_loosened_step_by_step_for_the_run(fault):
    talk = Talk([fault, fault, Answer(PROPOSAL), Answer(PROPOSAL)], questions=2)
    assert talk.reply.text == PROPOSAL
    formats = [seen.body.get("response_format", {}).get("type") for seen in talk.requests]
    assert formats == ["json_schema", "json_object", None, None]
    assert talk.slept == talk.waits == []


def test_json_object_is_kept_where_it_is_enough():
    talk = Talk([refuses("no", "response_format"), Answer(PROPOSAL), Answer(PROPOSAL)], questions=2)
    assert [seen.body["response_format"]["type"] for seen in talk.requests[1:]] == ["json_object"] * 2
    assert all("json_schema" not in seen.body["response_format"] for seen in talk.requests[1:])


def test_everything_can_be_refused_once():
    faults = [refuses("no", name) for name in ("response_format", "temperature", "response_format")]
    talk = Talk([*faults, Answer(PROPOSAL)])
    assert talk.reply.text == PROPOSAL
    assert set(talk.requests[-1].body) == {"model", "messages"}


@pytest.mark.parametrize("param", ["temperature", "response_format", "model", None])
def test_what_is_refused_for_good_is_an_error_after_a_bounded_number_of_requests(param):
    talk = Talk([refuses("no", param)] * 9)
    assert type(talk.error) is RequestRefused
    assert len(talk.requests) <= 3


# --- bounds ------------------------------------------------------------------------------


def body_without_end(handler, _):
    handler.begin("application/json")
    handler.chunk(b'{"choices": [{"message": {"content": "')
    try:
        for _ in range(200):
            handler.chunk(b"x" * 1_000_000)
    except OSError:
        handler.close_connection = True


HUGE = '{"a": "' + "é" * (6 * 1024 * 1024) + '"}'


@pytest.mark.parametrize("step", [Answer(HUGE), body_without_end], ids=["12 MB", "without end"])
def test_an_answer_over_10_mb_is_cut_just_beyond_the_limit_and_refused_by_its_size(step):
    talk = Talk([step])
    size = len(talk.reply.text.encode())
    assert MAX_JSON_PAYLOAD_BYTES < size <= MAX_JSON_PAYLOAD_BYTES + 4
    with pytest.raises(JsonError, match="larger than"):
        parse_proposal_json(talk.reply.text)


def test_an_answer_that_was_not_read_to_its_end_says_so():
    assert Talk([body_without_end]).reply.finish == TOO_LARGE


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Stall(drip=0.02), id="white space for ever"),
        pytest.param(Stall(), id="silence after the headers"),
        pytest.param(Stall(headers=False), id="no status line"),
    ],
)
def test_one_deadline_holds_against_an_endpoint_that_never_ends(fault):
    started = time.monotonic()
    talk = Talk([fault], {"timeout_seconds": 0.5})
    assert isinstance(talk.error, EndpointError)
    assert "within 0.5 s" in str(talk.error)
    assert time.monotonic() - started < 30
    assert len(talk.requests) == 1


def test_keep_alives_before_an_answer_do_no_harm():
    assert Talk([Stall(0.1, Answer(PROPOSAL), drip=0.02)]).reply.text == PROPOSAL


def test_what_the_poll_raises_ends_the_call():
    class Interrupted(BaseException):
        pass

    with LoopbackEndpoint([Stall()]) as server:

        def poll():
            if server.requests:
                raise Interrupted

        with pytest.raises(Interrupted):
            ChatLLM(ChatSettings(Endpoint(server.base_url, KEY)), poll=poll)(REQUEST)


def test_a_proposal_is_read_as_strictly_as_any_answer():
    assert parse_proposal_json(f"```json\n{PROPOSAL}\n```") == {"summary": "s", "writes": []}
    with pytest.raises(JsonError, match="duplicate key"):
        parse_proposal_json('{"summary": "a", "summary": "b", "writes": []}')
