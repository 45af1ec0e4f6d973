"""One suite that every model adapter meets, the real ones included; then what each promises of its own."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, replace

import pytest
from loopback import Answer, LoopbackEndpoint, Status

from factory.llm import ChatLLM, ChatSettings
from planner.openai_client import ResponsesLLM, ResponsesSettings
from shared.files import read_json, save_json
from shared.llm import (
    AnswerCut,
    AnswerRefused,
    EndpointError,
    LLMError,
    Metered,
    QuotaError,
    Recorded,
    Replayed,
    Reply,
    Request,
    Scripted,
    TranscriptError,
    Usage,
    in_thread,
)
from shared.openai_api import Endpoint, MissingKey, RequestRefused

KEY = "sk-test-0123456789"
USAGE = Usage(100, 10, 50, 20)
REFUSED, CUT, DOWN = "refused", "cut", "down"
ERRORS = {
    REFUSED: AnswerRefused("the model refused: I will not."),
    CUT: AnswerCut("the answer was cut off"),
    DOWN: EndpointError("the endpoint answered 401", status=401, final=True),
}


def question(number, role="se"):
    return Request(role, f"question {number}", "WO-01", number)


# --- the adapters, each opened on the same script ----------------------------------------


@contextmanager
def scripted(script, _):
    yield Scripted([ERRORS.get(item, item) for item in script])


@contextmanager
def metered(script, path):
    with scripted(script, path) as llm:
        yield Metered(llm)


@contextmanager
def recorded(script, path):
    with scripted(script, path) as llm:
        yield Recorded(llm, path / "transcript", origin="scripted")


@contextmanager
def replayed(script, path):
    with recorded(script, path) as llm:
        for number, _ in enumerate(script, start=1):
            try:
                llm(question(number))
            except LLMError:
                continue
    yield Replayed(path / "transcript")


@contextmanager
def chat(script, _):
    wire = {
        REFUSED: [Answer(refusal="I will not.")],
        CUT: [Answer("{", status="incomplete")],
        DOWN: [Status(401)],
    }
    steps = [step for item in script for step in wire.get(item, [Answer(item)])]
    with LoopbackEndpoint(steps) as server:
        yield ChatLLM(ChatSettings(Endpoint(server.base_url, KEY)), sleep=lambda _: None)


@contextmanager
def responses(script, _):
    wire = {
        REFUSED: [Answer(refusal="I will not.")],
        CUT: [Answer("{", status="incomplete")] * 2,
        DOWN: [Status(401)],
    }
    steps = [step for item in script for step in wire.get(item, [Answer(item)])]
    with LoopbackEndpoint(steps) as server:
        yield ResponsesLLM(ResponsesSettings(Endpoint(server.base_url, KEY)), sleep=lambda _: None)


@contextmanager
def recorded_chat(script, path):
    with chat(script, path) as llm:
        yield Recorded(Metered(llm), path / "transcript")


ADAPTERS = [scripted, metered, recorded, replayed, chat, responses, recorded_chat]


@pytest.fixture(params=ADAPTERS, ids=lambda adapter: adapter.__name__)
def opened(request, tmp_path):
    return lambda *script: request.param(list(script), tmp_path)


def test_questions_are_answered_in_order(opened):
    with opened("one", "two", "three") as llm:
        assert [llm(question(number)).text for number in (1, 2, 3)] == ["one", "two", "three"]


def test_a_reply_can_be_kept_as_json(opened):
    with opened("é \U0001f600 \x00 \x1b[31m") as llm:
        kept = llm(question(1)).as_json()
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept
    assert kept["text"] == "é \U0001f600 \x00 \x1b[31m"


@pytest.mark.parametrize("text", ["", " \n", "x" * 1_000_000, '{"a": "b"}', "```json\n{}\n```"])
def test_text_arrives_as_it_was_written(opened, text):
    with opened(text) as llm:
        assert llm(question(1)).text == text


@pytest.mark.parametrize(
    ("item", "kind"), [(REFUSED, AnswerRefused), (CUT, AnswerCut), (DOWN, EndpointError)]
)
def test_an_error_is_of_its_kind_in_one_line_and_the_next_question_is_answered(opened, item, kind):
    with opened(item, "fine") as llm:
        with pytest.raises(kind) as caught:
            llm(question(1))
        assert str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.final is (item == DOWN)
        assert llm(question(2)).text == "fine"


def test_a_question_without_an_answer_is_an_error_never_a_made_up_answer(opened):
    with opened("one") as llm:
        llm(question(1))
        with pytest.raises(LLMError):
            llm(question(2))


def test_usage_is_counted_or_none(opened):
    with opened("one") as llm:
        assert llm(question(1)).usage in (None, USAGE)


# --- requests ----------------------------------------------------------------------------


def test_a_request_does_not_change():
    with pytest.raises(FrozenInstanceError):
        question(1).prompt = "other"


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"schema": {"type": "object"}}, True),
        ({"stable": "question 1"}, True),
        ({"prompt": "other", "stable": "question 1"}, True),
        ({"prompt": "other"}, False),
        ({"stable": "other"}, False),
        ({"role": "plan"}, False),
        ({"subject": "WO-02"}, False),
        ({"attempt": 2}, False),
    ],
)
def test_a_digest_is_the_identity_of_what_is_asked(change, same):
    assert (replace(question(1), **change).digest == question(1).digest) is same


# --- Scripted ----------------------------------------------------------------------------


def test_a_script_remembers_what_it_was_asked_and_gives_replies_as_they_are():
    reply = Reply("text", usage=USAGE, model="m")
    llm = Scripted([reply])
    assert llm(question(1)) is reply
    assert llm.asked == [question(1)]
    with pytest.raises(TranscriptError, match="no answer number 2") as caught:
        llm(question(2))
    assert caught.value.final


# --- Metered -----------------------------------------------------------------------------


def test_what_was_used_is_added_up_over_replies_and_failures():
    refused = AnswerRefused("no")
    refused.usage = USAGE
    llm = Metered(Scripted([Reply("a", usage=USAGE), refused, Reply("b"), EndpointError("gone")]))
    for number in range(1, 5):
        try:
            llm(question(number))
        except LLMError:
            continue
    assert llm.usage == USAGE + USAGE
    assert (llm.calls, llm.uncounted) == (4, 2)


# --- Recorded and Replayed ---------------------------------------------------------------


def test_the_question_is_on_disk_before_it_is_asked_and_the_reply_before_it_is_used(tmp_path):
    def inner(request):
        kept = read_json(tmp_path / "call-0001.json", max_bytes=10_000)
        assert (kept["prompt"], kept["digest"], kept["reply"]) == (request.prompt, request.digest, None)
        return Reply("answer", usage=USAGE)

    Recorded(inner, tmp_path)(question(1))
    kept = read_json(tmp_path / "call-0001.json", max_bytes=10_000)
    assert kept["reply"]["text"] == "answer"
    assert kept["reply"]["usage"] == USAGE.as_json()
    assert read_json(tmp_path / "transcript.json", max_bytes=10_000)["origin"] == "recorded"


def test_a_replay_gives_back_everything_a_reply_had(tmp_path):
    reply = Reply("text", "thoughts", USAGE, "m", "resp_1", "completed", 1.5)
    Recorded(Scripted([reply]), tmp_path)(question(1))
    assert Replayed(tmp_path)(question(1)) == reply


def test_the_order_of_a_replay_is_free_and_each_answer_is_given_once(tmp_path):
    llm = Recorded(Scripted(["one", "two", "again"]), tmp_path)
    for number in (1, 2, 1):
        llm(question(number))
    again = Replayed(tmp_path)
    assert [again(question(number)).text for number in (2, 1, 1)] == ["two", "one", "again"]
    with pytest.raises(TranscriptError, match="no recorded answer"):
        again(question(1))


@pytest.mark.parametrize(
    "error",
    [
        AnswerCut("cut"),
        AnswerRefused("refused"),
        EndpointError("gone", status=503),
        EndpointError("wrong key", status=401, final=True),
        QuotaError("nothing left"),
    ],
)
def test_a_recorded_failure_fails_the_same_way_when_it_is_replayed(tmp_path, error):
    error.usage = USAGE
    with pytest.raises(LLMError):
        Recorded(Scripted([error]), tmp_path)(question(1))
    with pytest.raises(LLMError) as caught:
        Replayed(tmp_path)(question(1))
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)
    assert caught.value.final == error.final
    assert caught.value.usage == USAGE
    assert getattr(caught.value, "status", None) == getattr(error, "status", None)


@pytest.mark.parametrize(
    "error",
    [MissingKey("no key"), RequestRefused("no", status=400, param="", detail="")],
    ids=lambda error: type(error).__name__,
)
def test_a_failure_of_a_narrower_kind_is_replayed_as_the_endpoint_error_it_is(tmp_path, error):
    with pytest.raises(EndpointError):
        Recorded(Scripted([error]), tmp_path)(question(1))
    with pytest.raises(EndpointError, match=str(error)) as caught:
        Replayed(tmp_path)(question(1))
    assert caught.value.final == error.final


def test_a_call_that_was_killed_before_its_reply_has_no_answer(tmp_path):
    class Killed(BaseException):
        pass

    def inner(_):
        raise Killed

    with pytest.raises(Killed):
        Recorded(inner, tmp_path)(question(1))
    with pytest.raises(TranscriptError):
        Replayed(tmp_path)(question(1))


def test_a_transcript_is_continued_and_nothing_in_it_is_written_over(tmp_path):
    first = Recorded(Scripted(["one", "two"]), tmp_path, note="first")
    first(question(1))
    first(question(2))
    (tmp_path / "call-0001.json").unlink()
    Recorded(Scripted(["three"]), tmp_path, note="second")(question(3))
    replayed_again = Replayed(tmp_path)
    assert [replayed_again(question(number)).text for number in (2, 3)] == ["two", "three"]
    assert read_json(tmp_path / "transcript.json", max_bytes=10_000)["note"] == "first"


def test_half_a_surrogate_pair_does_not_make_a_transcript_unreadable(tmp_path):
    odd = replace(question(1), prompt="file \udcff.py")
    Recorded(Scripted([Reply("half \ud800", reasoning="\udc00")]), tmp_path)(odd)
    reply = Replayed(tmp_path)(odd)
    assert (reply.text, reply.reasoning) == ("half \\ud800", "\\udc00")


def test_a_changed_question_is_refused_naming_the_line(tmp_path):
    Recorded(Scripted(["x"]), tmp_path)(replace(question(1), prompt="same\nold line\n"))
    with pytest.raises(TranscriptError, match="line 2 is 'new line', recorded was 'old line'"):
        Replayed(tmp_path)(replace(question(1), prompt="same\nnew line\n"))


HEADER = {"format": "llmch-transcript", "version": 1, "origin": "recorded", "note": ""}


@pytest.mark.parametrize(
    "header",
    [None, "{", "[]", "{}", '{"format": "llmch-transcript", "version": 2}', '{"format": 1, "format": 2}'],
)
def test_what_is_no_transcript_is_refused_with_its_name(tmp_path, header):
    if header is not None:
        (tmp_path / "transcript.json").write_text(header)
    with pytest.raises(TranscriptError, match=tmp_path.name):
        Replayed(tmp_path)


@pytest.mark.parametrize(
    "broken",
    [
        {"reply": {}},
        {"reply": {"text": None}},
        {"reply": {"text": "a", "reasoning": 7}},
        {"reply": {"text": "a", "other": 1}},
        {"reply": {"text": "a", "usage": 7}},
        {"reply": {"text": "a", "usage": {"input": 1, "other": 2}}},
        {"reply": None, "error": {}},
        {"reply": None, "error": {"kind": "SystemExit", "message": "x"}},
        {"reply": None, "error": {"kind": "AnswerCut", "message": "x", "usage": 7}},
        {"reply": None},
        {},
    ],
    ids=str,
)
def test_a_call_of_another_form_is_a_transcript_error(tmp_path, broken):
    save_json(tmp_path / "transcript.json", HEADER)
    asked = question(1)
    save_json(tmp_path / "call-0001.json", {"digest": asked.digest, "prompt": asked.prompt, **broken})
    with pytest.raises(TranscriptError):
        Replayed(tmp_path)(asked)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"digest": NaN}'])
def test_an_unreadable_call_is_refused_with_its_name(tmp_path, content):
    save_json(tmp_path / "transcript.json", HEADER)
    (tmp_path / "call-0001.json").write_bytes(content)
    with pytest.raises(TranscriptError, match=r"call-0001\.json"):
        Replayed(tmp_path)


def test_the_key_is_in_no_file_of_a_transcript(tmp_path):
    echo = Status(401, {"error": {"message": f"bad key {KEY}"}})
    with LoopbackEndpoint([Answer("fine"), echo]) as server:
        llm = Recorded(ChatLLM(ChatSettings(Endpoint(server.base_url, KEY))), tmp_path)
        llm(question(1))
        with pytest.raises(EndpointError):
            llm(question(2))
    assert len(list(tmp_path.iterdir())) == 3
    for path in tmp_path.iterdir():
        assert KEY not in path.read_text()


# --- in_thread ---------------------------------------------------------------------------


def test_work_in_a_thread_returns_or_raises_as_if_it_were_here():
    assert in_thread(lambda: 7, timeout=5, poll=lambda: None) == 7
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda: 1 // 0, timeout=5, poll=lambda: None)


def test_work_that_takes_too_long_is_left_and_the_time_named():
    release = threading.Event()
    started = time.monotonic()
    with pytest.raises(EndpointError, match=r"within 0\.1 s"):
        in_thread(lambda: release.wait(30), timeout=0.1, poll=lambda: None)
    assert time.monotonic() - started < 20
    release.set()


@pytest.mark.parametrize(
    "damage",
    [
        {"text": 5},
        {"seconds": "long"},
        {"usage": [1]},
        {"usage": {"input": "many"}},
        {"usage": {"output": None}},
        {"voice": "low"},
    ],
    ids=str,
)
def test_a_reply_of_another_form_is_an_error_of_the_transcript(tmp_path, damage):
    Recorded(Scripted([Reply("fine")]), tmp_path)(question(1))
    path = tmp_path / "call-0001.json"
    call = json.loads(path.read_text())
    path.write_text(json.dumps({**call, "reply": {**call["reply"], **damage}}))
    with pytest.raises(TranscriptError, match="has another form"):
        Replayed(tmp_path)(question(1))
