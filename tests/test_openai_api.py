"""The one way to the SDK: where it goes, what is tried again, what an error says. Real SDK, real sockets."""

from __future__ import annotations

import email.utils
import gzip
import itertools
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field

import pytest
from loopback import Answer, CutAfter, Drop, LoopbackEndpoint, Raw, Status, Step

from shared.llm import EndpointError, LLMError, QuotaError, Usage
from shared.openai_api import (
    Endpoint,
    MissingKey,
    RequestRefused,
    RetryPolicy,
    open_client,
    translate,
    transport_errors,
    with_retries,
)
from shared.wire import (
    MAX_ANSWER_BYTES,
    Call,
    Garbled,
    TooLarge,
    ask,
    clean_text,
    clipped,
    read_events,
    read_object,
    usage_of,
)

KEY = "sk-test-0123456789"
NOW = 1_760_000_000.0
ANSWER = Answer("{}")


@dataclass
class Exchange:
    """One request through the retry policy, and everything that could be seen of it."""

    steps: list[Step]
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    waits: list[tuple[str, float, int, int]] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    requests: int = 0
    error: LLMError | None = None

    def __post_init__(self) -> None:
        with LoopbackEndpoint(self.steps) as server:
            endpoint = Endpoint(server.base_url, KEY)
            try:
                with_retries(
                    lambda: post(endpoint),
                    self.policy,
                    endpoint=endpoint,
                    on_wait=lambda *wait: self.waits.append(wait),
                    sleep=self.slept.append,
                    now=lambda: NOW,
                )
            except LLMError as error:
                self.error = error
            self.requests = len(server.requests)


def post(endpoint):
    client = open_client(endpoint)
    with client.chat.completions.with_streaming_response.create(model="m", messages=[]) as response:
        return read_object(response.iter_bytes(), endpoint, Call())


def refusal(code=None, **error):
    return {"error": {"message": "because", "code": code, **error}}


# --- what is tried again -----------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        *(Status(code) for code in (408, 409, 429, 500, 502, 503, 504, 529)),
        Status(429, refusal("rate_limit_exceeded", type="requests")),
        Status(503, "<html><h1>Bad gateway</h1></html>", {"content-type": "text/html"}),
        Status(400, headers={"x-should-retry": "true"}),
        Drop("close"),
        Drop("reset"),
        CutAfter(ending="close"),
        CutAfter(ending="reset"),
    ],
    ids=str,
)
def test_a_passing_fault_is_survived_and_every_wait_is_said_before_it_begins(fault):
    seen = Exchange([fault, fault, ANSWER])
    assert seen.error is None
    assert seen.requests == 3
    assert seen.slept == [0.5, 1.0]
    assert [(seconds, number, of) for _, seconds, number, of in seen.waits] == [(0.5, 2, 3), (1.0, 3, 3)]
    assert all(reason for reason, *_ in seen.waits)


@pytest.mark.parametrize(
    ("fault", "kind", "final", "requests", "told"),
    [
        (Status(429), EndpointError, False, 3, "429"),
        (Status(500), EndpointError, False, 3, "tried 3 times"),
        (Status(503), EndpointError, False, 3, "try again later"),
        (Drop("close"), EndpointError, False, 3, "tried 3 times"),
        (Drop("reset"), EndpointError, False, 3, "check the network"),
        (Status(503, headers={"x-should-retry": "false"}), EndpointError, False, 1, "503"),
        (Status(429, headers={"x-should-retry": "false"}), EndpointError, False, 1, "429"),
        (Status(429, refusal("insufficient_quota")), QuotaError, True, 1, "add credit"),
        (Status(429, refusal(type="insufficient_quota")), QuotaError, True, 1, "add credit"),
        (
            Status(429, refusal("insufficient_quota"), {"x-should-retry": "true"}),
            QuotaError,
            True,
            1,
            "add credit",
        ),
        (Status(400, refusal()), RequestRefused, False, 1, "because"),
        (Status(422, refusal()), RequestRefused, False, 1, "because"),
        (Status(401, refusal("invalid_api_key")), EndpointError, True, 1, "OPENAI_API_KEY"),
        (Status(402, refusal()), EndpointError, True, 1, "add credit"),
        (Status(403, refusal()), EndpointError, True, 1, "may not use"),
        (Status(404, refusal("model_not_found")), EndpointError, True, 1, "model's name"),
        (Status(404, "404 page not found"), EndpointError, True, 1, "usually ends in /v1"),
        (Status(405), EndpointError, False, 1, "does not offer"),
        (Status(413), EndpointError, False, 1, "too large"),
        (Raw(b"<html>hello</html>", {"content-type": "text/html"}), Garbled, False, 1, "usually ends in /v1"),
        (Raw(b'{"choices": ['), Garbled, False, 1, "not a JSON object"),
        (Raw(b'{"a": "\xff"}'), Garbled, False, 1, "not a JSON object"),
        (Raw(b'["a"]'), Garbled, False, 1, "not a JSON object"),
        (Raw(b'{"a":' * 5000), Garbled, False, 1, "not a JSON object"),
        (Raw(b'{"a": ' + b"9" * 5000 + b"}"), Garbled, False, 1, "not a JSON object"),
        (Raw(b""), Garbled, False, 1, "(nothing)"),
        (Raw(b"{}", {"content-encoding": "gzip"}), EndpointError, False, 3, "broke"),
    ],
    ids=str,
)
def test_any_other_fault_is_one_clear_line_after_as_many_requests(fault, kind, final, requests, told):
    seen = Exchange([fault] * requests)
    assert type(seen.error) is kind
    assert seen.error.final is final
    assert told in str(seen.error)
    assert "\n" not in str(seen.error)
    assert "127.0.0.1" in str(seen.error)
    assert seen.requests == requests
    assert len(seen.slept) == requests - 1


def test_an_address_that_points_to_itself_is_named():
    seen = Exchange([Status(307, headers={"location": "/v1/chat/completions"})] * 30)
    assert "sends every request elsewhere: check OPENAI_BASE_URL" in str(seen.error)
    assert seen.slept == []


def test_silence_is_tried_again_and_then_named():
    with socket.create_server(("127.0.0.1", 0)) as listening:  # accepts, and never says a word
        endpoint = Endpoint(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", KEY, read_timeout=0.1)
        slept = []
        with pytest.raises(EndpointError, match=r"silent for 0.1 s \(tried 3 times\)"):
            with_retries(
                lambda: post(endpoint),
                RetryPolicy(),
                endpoint=endpoint,
                on_wait=_say_nothing,
                sleep=slept.append,
            )
        assert slept == [0.5, 1.0]


def test_nobody_at_the_address_is_tried_again_and_then_named():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", KEY)
    slept = []
    with pytest.raises(EndpointError, match=r"no connection to .*check OPENAI_BASE_URL") as caught:
        with_retries(
            lambda: post(endpoint), RetryPolicy(), endpoint=endpoint, on_wait=_say_nothing, sleep=slept.append
        )
    assert slept == [0.5, 1.0]
    assert not caught.value.final


def _say_nothing(*_):
    pass


# --- how long is waited ------------------------------------------------------------------


def test_each_pause_is_at_least_half_as_long_again_as_the_one_before_up_to_a_cap():
    pauses = [RetryPolicy(tries=9).wait_after(number) for number in range(1, 9)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]
    assert all(later >= 1.5 * earlier for earlier, later in itertools.pairwise(pauses[:5]))


def http_date(seconds):
    return email.utils.formatdate(NOW + seconds, usegmt=True)


@pytest.mark.parametrize(
    ("headers", "slept"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "120"}, 120.0),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": http_date(30)}, 30.0),
        # What names no pause leaves our own.
        ({"retry-after": http_date(-30)}, 0.5),
        ({"retry-after": "0"}, 0.5),
        ({"retry-after": "-5"}, 0.5),
        ({"retry-after": "nan"}, 0.5),
        ({"retry-after": "inf"}, 0.5),
        ({"retry-after": "soon"}, 0.5),
        ({"retry-after": ""}, 0.5),
        ({"retry-after": "Tue, 99 Foo 2026 25:61:61 GMT"}, 0.5),
    ],
)
def test_a_pause_that_the_endpoint_asks_for_is_kept_and_said(headers, slept):
    seen = Exchange([Status(429, headers=headers), ANSWER])
    assert seen.error is None
    assert seen.slept == [slept]
    assert [seconds for _, seconds, _, _ in seen.waits] == [slept]


@pytest.mark.parametrize("headers", [{"retry-after": "3600"}, {"retry-after": http_date(3600)}])
def test_a_pause_beyond_two_minutes_is_refused_at_once_naming_the_time(headers):
    seen = Exchange([Status(429, headers=headers), ANSWER])
    assert seen.requests == 1
    assert seen.slept == []
    assert seen.error.final
    assert "3600 s" in str(seen.error)
    assert "2025-10-09 09:53:20 UTC" in str(seen.error)


def test_what_the_sleep_raises_ends_the_call():
    class Interrupted(BaseException):
        pass

    def interrupted(_):
        raise Interrupted

    with LoopbackEndpoint([Status(503), ANSWER]) as server:
        endpoint = Endpoint(server.base_url, KEY)
        with pytest.raises(Interrupted):
            with_retries(
                lambda: post(endpoint),
                RetryPolicy(),
                endpoint=endpoint,
                on_wait=_say_nothing,
                sleep=interrupted,
            )
        assert len(server.requests) == 1


# --- what an error says ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"error": {"message": "the reason"}}, "the reason"),
        ({"message": "the reason"}, "the reason"),
        ({"error": "the reason"}, "the reason"),
        ({"detail": "the reason"}, "the reason"),
        (
            {"detail": [{"loc": ["body", "model"], "msg": "the reason", "input": "PROMPT"}]},
            "body.model: the reason",
        ),
        ("the reason", "the reason"),
        ({"error": {"message": "line one\nthe reason\ttab"}}, "line one the reason tab"),
        ({"error": {"message": ["no", "text"]}}, "answered 418: "),
        ({"error": None}, "answered 418: "),
        ({}, "answered 418: "),
    ],
    ids=str,
)
def test_the_endpoints_own_words_are_quoted_in_whatever_form_they_come(body, told):
    error = Exchange([Status(418, body)]).error
    assert told in str(error)
    assert "PROMPT" not in str(error)


def test_long_words_are_shortened():
    error = Exchange([Status(400, {"error": {"message": "x" * 100_000}})]).error
    assert len(str(error)) < 500


def test_an_endless_error_body_is_not_read_to_its_end():
    sent = threading.Event()

    def endless(handler, _):
        handler.send_response(500)
        handler.send_header("content-type", "text/plain")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        try:
            for _ in range(10_000):
                handler.chunk(b"x" * 65536)
        except OSError:
            return
        sent.set()

    error = Exchange([endless] * 3).error
    assert "500" in str(error)
    assert not sent.is_set()


@pytest.mark.parametrize("code", [400, 401, 429, 500])
def test_the_key_is_not_in_any_message_though_the_endpoint_echoes_it(code):
    seen = Exchange([Status(code, {"error": {"message": f"bad key {KEY}, Bearer {KEY}"}})] * 3)
    assert KEY not in str(seen.error)
    assert KEY not in repr(seen.error)
    assert KEY not in repr(seen.waits)
    assert "[key]" in str(seen.error)
    assert seen.error.__cause__ is None
    assert getattr(seen.error, "detail", "").count(KEY) == 0


@pytest.mark.parametrize(
    ("key", "text", "shown"),
    [
        ("x", "x marks the box: x.", "[key] marks the box: [key]."),
        ("none", "none of these, nonetheless", "[key] of these, nonetheless"),
        ("sk-12345678", "(sk-12345678abc)", "([key]abc)"),
    ],
)
def test_a_short_dummy_key_does_not_riddle_the_message(key, text, shown):
    assert Endpoint("http://h/v1", key).redact(text) == shown


@pytest.mark.parametrize("error", [KeyError("x"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")])
def test_an_exception_of_no_known_kind_becomes_an_endpoint_error_too(error):
    assert isinstance(translate(error, Endpoint("http://h/v1", KEY)), EndpointError)


def test_every_exception_class_of_the_sdk_is_caught():
    import httpx2
    import openai

    unused = {"InvalidWebhookSignatureError", "CookieConflict"}
    for module in (openai, httpx2):
        for name in sorted(set(module.__all__) - unused):
            kind = getattr(module, name)
            if isinstance(kind, type) and issubclass(kind, Exception):
                assert issubclass(kind, transport_errors()), name


# --- where it goes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "base_url"),
    [
        ({}, "https://api.openai.com/v1"),
        ({"OPENAI_BASE_URL": ""}, "https://api.openai.com/v1"),
        ({"OPENAI_BASE_URL": "  "}, "https://api.openai.com/v1"),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, "http://127.0.0.1:1/v1"),
    ],
)
def test_the_address_comes_from_the_environment_and_empty_is_unset(environment, base_url):
    endpoint = Endpoint.from_environment({"OPENAI_API_KEY": f" {KEY}\n", **environment})
    assert endpoint == Endpoint(base_url, KEY)
    assert str(open_client(endpoint).base_url).rstrip("/") == base_url


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, "OPENAI_API_KEY is not set: export it"),
        ({"OPENAI_API_KEY": ""}, "OPENAI_API_KEY is not set"),
        ({"OPENAI_API_KEY": " \n"}, "OPENAI_API_KEY is not set"),
        ({"OPENAI_API_KEY": "sk-secret\nsk-other"}, "OPENAI_API_KEY holds a character"),
        ({"OPENAI_API_KEY": "sk-sécret"}, "OPENAI_API_KEY holds a character"),
        ({"OPENAI_API_KEY": "sk secret"}, "OPENAI_API_KEY holds a character"),
    ],
)
def test_a_missing_or_impossible_key_is_found_before_anything_is_sent(environment, told):
    with pytest.raises(MissingKey) as caught:
        Endpoint.from_environment(environment)
    assert told in str(caught.value)
    assert "cret" not in str(caught.value)
    assert caught.value.final
    assert isinstance(caught.value, EndpointError)


@pytest.mark.parametrize(
    "address",
    [
        "localhost:8080",
        "ftp://host/v1",
        "http://",
        "http://host:port/v1",
        "//host/v1",
        "http://[::1/v1",
        "http://a b/",
    ],
)
def test_an_address_that_is_none_is_found_before_anything_is_sent(address):
    with pytest.raises(EndpointError, match="OPENAI_BASE_URL is not the address") as caught:
        Endpoint.from_environment({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": address})
    assert caught.value.final


def test_neither_key_nor_password_shows_in_an_endpoint():
    endpoint = Endpoint("https://user:hunter22@host:8443/v1/?code=hunter22", KEY)
    assert repr(endpoint) == str(endpoint) == "Endpoint(https://host:8443/v1)"
    assert endpoint.redact("hunter22") == "[key]"


def test_the_request_carries_the_key_as_bearer_and_asks_for_no_retries_of_its_own():
    with LoopbackEndpoint([Status(500), ANSWER]) as server:
        with pytest.raises(transport_errors()):
            post(Endpoint(server.base_url, KEY))
        assert [seen.headers["authorization"] for seen in server.requests] == [f"Bearer {KEY}"]


def test_the_sdk_is_not_imported_before_a_client_is_opened():
    program = (
        "import sys, shared.openai_api, shared.wire; print('openai' in sys.modules, 'httpx2' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.split() == ["False", "False"]


# --- a call in flight --------------------------------------------------------------------


def test_what_a_call_tells_is_heard_in_the_thread_that_asked_and_in_order():
    heard = []

    def work(call):
        for word in ("one", "two", "three"):
            call.tell(lambda said: heard.append((said, threading.current_thread())), word)
        return "done"

    assert ask(work, timeout=5, poll=lambda: None) == "done"
    assert heard == [(word, threading.current_thread()) for word in ("one", "two", "three")]


def test_what_was_told_before_an_error_is_heard_before_it():
    heard = []

    def work(call):
        call.tell(heard.append, "waiting")
        raise EndpointError("gone")

    with pytest.raises(EndpointError, match="gone"):
        ask(work, timeout=5, poll=lambda: None)
    assert heard == ["waiting"]


def test_a_call_that_nobody_waits_for_ends_at_its_next_sleep_and_is_not_heard_any_more():
    heard, ended = [], threading.Event()

    def work(call):
        try:
            call.sleep(600)
        finally:
            call.tell(heard.append, "too late")
            ended.set()

    with pytest.raises(EndpointError, match=r"no complete answer within 0\.05 s"):
        ask(work, timeout=0.05, poll=lambda: None)
    assert ended.wait(10)
    assert heard == []


def test_what_the_poll_raises_ends_the_wait():
    ended = threading.Event()

    def work(call):
        try:
            call.sleep(600)
        finally:
            ended.set()

    def poll():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(work, timeout=600, poll=poll)
    assert ended.wait(10)


# --- reading what came -------------------------------------------------------------------

ENDPOINT = Endpoint("http://h/v1", KEY)


@pytest.mark.parametrize(
    "wire",
    [
        b'data: {"n": 1}\n\ndata: {"n": 2}\n\n',
        b'data:{"n": 1}\r\n\r\ndata: {"n": 2}\r\n\r\n',
        b': hello\n\nevent: a\nid: 7\ndata: {"n": 1}\n\n: keep-alive\n\n\nretry: 5\ndata: {"n": 2}\n\n',
        b'data: {"n":\ndata: 1}\n\ndata: {"n": 2}\n\ndata: [DONE]\n\ndata: {"n": 3}\n\n',
        b'data: {"n": 1}\n\ndata: {"n": 2}\n\ndata: {"n": 3}\n',
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_are_read_however_the_bytes_are_cut(wire, size):
    chunks = [wire[start : start + size] for start in range(0, len(wire), size)]
    assert list(read_events(chunks, ENDPOINT, Call())) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("data", [b"{", b"[1]", b'{"a": "\xff"}', b"null"])
def test_an_event_that_is_no_object_is_named(data):
    with pytest.raises(Garbled):
        list(read_events([b"data: " + data + b"\n\n"], ENDPOINT, Call()))


@pytest.mark.parametrize("read", [read_events, read_object])
@pytest.mark.parametrize("unit", [b"x" * 1_000_000, b"data: " + b"x" * 1_000_000 + b"\n"])
def test_what_never_ends_is_read_no_further_than_an_answer_can_be_long(read, unit):
    taken = itertools.count()

    def endless():
        while True:
            next(taken)
            yield unit

    with pytest.raises(TooLarge) as caught:
        list(read(endless(), ENDPOINT, Call()))
    assert len(caught.value.head) > MAX_ANSWER_BYTES
    assert next(taken) < 70


def test_reading_stops_when_nobody_waits_any_more():
    call = Call()
    call.abandon()
    with pytest.raises(EndpointError, match="nobody waits"):
        read_object([b"{", b"}"], ENDPOINT, call)
    with pytest.raises(EndpointError, match="nobody waits"):
        list(read_events([b": keep-alive\n\n"], ENDPOINT, call))


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain", "plain"),
        ("é \U0001f600", "é \U0001f600"),
        ("\ud83d" + "\ude00", "\U0001f600"),
        ("half \ud83d of one", "half \\ud83d of one"),
        ("\ude00\ud83d", "\\ude00\\ud83d"),
    ],
)
def test_text_can_be_written_after_cleaning(text, clean):
    assert clean_text(text) == clean
    clean_text(text).encode()


@pytest.mark.parametrize("char", ["a", "é", "€", "\U0001f600"])
@pytest.mark.parametrize("limit", range(8, 13))
def test_text_over_the_limit_stays_just_over_it(char, limit):
    for length in range(20):
        text = char * length
        kept = clipped(text, limit)
        if len(text.encode()) <= limit:
            assert kept == text
        else:
            assert text.startswith(kept)
            assert limit < len(kept.encode()) <= limit + 4


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (None, None),
        ({}, None),
        ("many", None),
        ({"total_tokens": 5}, None),
        ({"input_tokens": 5}, Usage(input=5)),
        ({"prompt_tokens": 5, "completion_tokens": 7}, Usage(5, 0, 7, 0)),
        (
            {
                "input_tokens": 9,
                "input_tokens_details": {"cached_tokens": 3},
                "output_tokens": 8,
                "output_tokens_details": {"reasoning_tokens": 2},
            },
            Usage(9, 3, 8, 2),
        ),
        (
            {
                "prompt_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 3},
                "completion_tokens": 8,
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            Usage(9, 3, 8, 2),
        ),
        ({"prompt_tokens": 9, "prompt_tokens_details": None, "completion_tokens": None}, Usage(input=9)),
        ({"input_tokens": -4, "output_tokens": 3.5, "prompt_tokens": True}, None),
    ],
    ids=str,
)
def test_tokens_are_counted_as_either_interface_names_them(usage, counted):
    assert usage_of(usage) == counted


def test_a_packed_body_is_unpacked():
    packed = gzip.compress(b'{"choices": []}')
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert Exchange([Raw(packed, headers)]).error is None
