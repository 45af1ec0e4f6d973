"""A model endpoint on 127.0.0.1: a real HTTP server that answers, fails and breaks as it is told.

    with LoopbackEndpoint([Status(503), Answer('{"work_orders": []}')]) as endpoint:
        ...                                    # OPENAI_BASE_URL=endpoint.base_url
    assert [r.path for r in endpoint.requests] == ["/v1/responses", "/v1/responses"]

Each POST takes the next step; GETs of background responses have their own (`polls`, then a default).
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, Literal, Self

JSON = dict[str, Any]
Ending = Literal["end", "close", "reset"]
"""How a body that is not complete ends: in good HTTP, with a closed socket, or with a reset one."""


# --- what can be asked of it -------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """A model's answer, served in the shape the request asked for."""

    text: str = ""
    usage: JSON | None = None
    """Merged over made-up counts. `{}` keeps those, `{"none": True}` sends no usage at all."""
    reasoning: str = ""
    status: str = "completed"
    """`completed`, `incomplete` (chat: `length`), `failed`, `cancelled`."""
    reason: str | None = "max_output_tokens"
    """Why it is incomplete; `content_filter` is one in chat as well."""
    error: JSON | None = None
    """What a failed answer names."""
    refusal: str | None = None
    empty_output: bool = False
    """`completed` carries `output: []` although text came before."""
    polls: int = 1
    """How often a background response is still in progress before it is done."""
    before_end: threading.Event | None = None
    """A stream waits for this before its last event (at most 30 s)."""
    piece: int = 40
    """Characters per delta."""


@dataclass(frozen=True)
class Status:
    """An answer with this status code. A dict body is sent as JSON, text as text/plain."""

    code: int
    body: JSON | str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CutAfter:
    """The first `events` events of the streamed `answer` (else half its body), and then no more."""

    events: int = 3
    answer: Answer = field(default_factory=lambda: Answer("{}"))
    ending: Ending = "close"


@dataclass(frozen=True)
class Stall:
    """Silence for `seconds` (None: until the server is closed), then the answer where there is one.

    `drip` sends a keep-alive (an SSE comment, or a space) that often instead of nothing. With
    `headers=False` not even the status line comes before the silence is over.
    """

    seconds: float | None = None
    answer: Answer | None = None
    drip: float | None = None
    events: int = 0
    headers: bool = True


@dataclass(frozen=True)
class Raw:
    """These bytes as the body of a 200."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


@dataclass(frozen=True)
class Events:
    """A stream of exactly these events (a dict is sent as JSON, bytes as they are)."""

    events: Sequence[JSON | bytes]
    ending: Ending = "end"


@dataclass(frozen=True)
class Drop:
    """The connection is ended without a byte of an answer."""

    ending: Literal["close", "reset"] = "close"


@dataclass(frozen=True)
class Seen:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: Any
    """Parsed JSON, or None."""
    at: float
    """time.monotonic() when it had arrived."""


class Handler(BaseHTTPRequestHandler):
    """What a callable step gets: `reply_json`, `reply_events`, or anything the base class has."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or every answer waits 40 ms for the acknowledgement of its headers
    endpoint: LoopbackEndpoint

    def do_POST(self) -> None:
        self.endpoint._post(self, self._record())

    def do_GET(self) -> None:
        self.endpoint._get(self, self._record())

    def do_DELETE(self) -> None:
        self.do_GET()

    def _record(self) -> Seen:
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            body = json.loads(data)
        except ValueError:
            body = None
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(self.command, self.path, headers, body, time.monotonic())
        self.endpoint.requests.append(seen)
        return seen

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it so
        pass

    # --- ways to answer ---

    def reply(self, code: int, data: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def reply_json(self, value: Any, code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(value).encode()
        self.reply(code, data, {"content-type": "application/json", **(headers or {})})

    def begin(self, content_type: str) -> None:
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def finish_body(self, ending: Ending = "end") -> None:
        if ending == "end":
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
        else:
            self.hang_up(ending)

    def hang_up(self, ending: Ending = "close") -> None:
        self.close_connection = True
        if ending == "reset":  # lingering for no time at all: the kernel sends RST instead of FIN
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            self.connection.shutdown(socket.SHUT_RDWR)

    def reply_events(self, events: Iterable[JSON | bytes], ending: Ending = "end") -> None:
        self.begin("text/event-stream")
        for event in events:
            self.chunk(as_sse(event))
        self.finish_body(ending)


Step = Answer | Status | CutAfter | Stall | Raw | Events | Drop | Callable[[Handler, Seen], None]


# --- the server --------------------------------------------------------------------------


class LoopbackEndpoint:
    """A model endpoint that takes its steps in order. `requests` is everything that was asked of it.

    `steps` may be a callable `(record) -> step` that decides per POST. `polls` are steps for the
    GETs of background responses (any step but a stream); when they run out, the default rule
    holds: `Answer.polls` times `in_progress`, then the answer.
    """

    def __init__(
        self,
        steps: Iterable[Step] | Callable[[Seen], Step] = (),
        *,
        repeat_last: bool = False,
        polls: Iterable[Step] = (),
    ) -> None:
        self.requests: list[Seen] = []
        self.closing = threading.Event()
        self._decide = steps if callable(steps) else _in_order(steps, repeat_last)
        self._polls = list(polls)
        self._background: dict[str, tuple[Answer, JSON, Iterator[int]]] = {}
        self._ids = count(1)
        self._lock = threading.Lock()
        handler = type("BoundHandler", (Handler,), {"endpoint": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True, name="loopback"
        )

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def posts(self) -> list[Seen]:
        """The requests that took a step."""
        return [seen for seen in self.requests if seen.method == "POST"]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join(5)
        self._server.server_close()

    # --- requests ---

    def _post(self, handler: Handler, seen: Seen) -> None:
        with self._lock:
            step = self._decide(seen)
        self._serve(step, handler, seen)

    def _get(self, handler: Handler, seen: Seen) -> None:
        response_id = seen.path.partition("?")[0].rpartition("/")[2]
        with self._lock:
            step = self._polls.pop(0) if self._polls else None
        if step is not None:
            self._serve(step, handler, seen)
        elif seen.method != "GET" or response_id not in self._background:
            handler.reply_json({"error": {"message": f"no such thing: {seen.path}"}}, 404)
        else:
            answer, asked, left = self._background[response_id]
            waiting = next(left, None) is not None
            handler.reply_json(
                response_body(answer, asked, response_id, status="in_progress" if waiting else None)
            )

    def _serve(self, step: Step, handler: Handler, seen: Seen) -> None:
        asked = seen.body if isinstance(seen.body, dict) else {}
        match step:
            case Answer():
                self._answer(step, handler, seen, asked)
            case Status():
                text = step.body if isinstance(step.body, str) else None
                body = {"error": {"message": f"status {step.code}"}} if step.body is None else step.body
                data = json.dumps(body).encode() if text is None else text.encode()
                kind = "application/json" if text is None else "text/plain"
                handler.reply(step.code, data, {"content-type": kind, **step.headers})
            case CutAfter() if asked.get("stream"):
                events = self._events(step.answer, seen, asked)
                handler.reply_events(events[: step.events], step.ending)
            case CutAfter():
                data = json.dumps(self._body(step.answer, seen, asked)).encode()
                handler.begin("application/json")
                handler.chunk(data[: len(data) // 2])
                handler.finish_body(step.ending)
            case Stall():
                self._stall(step, handler, seen, asked)
            case Raw():
                handler.reply(200, step.body, step.headers)
            case Events():
                handler.reply_events(step.events, step.ending)
            case Drop():
                handler.hang_up(step.ending)
            case _:
                step(handler, seen)

    def _answer(self, answer: Answer, handler: Handler, seen: Seen, asked: JSON) -> None:
        if not asked.get("stream"):
            handler.reply_json(self._body(answer, seen, asked))
            return
        events = self._events(answer, seen, asked)
        tail = 2 if seen.path.endswith("/chat/completions") else 1
        handler.begin("text/event-stream")
        handler.chunk(b"".join(as_sse(event) for event in events[:-tail]))
        if answer.before_end is not None:
            answer.before_end.wait(30)
        for event in events[-tail:]:
            handler.chunk(as_sse(event))
        handler.finish_body()

    def _stall(self, step: Stall, handler: Handler, seen: Seen, asked: JSON) -> None:
        stream = bool(asked.get("stream"))
        events = self._events(step.answer or Answer("{}"), seen, asked) if stream else []
        if step.headers:
            handler.begin("text/event-stream" if stream else "application/json")
            for event in events[: step.events]:
                handler.chunk(as_sse(event))
        until = None if step.seconds is None else time.monotonic() + step.seconds
        while until is None or time.monotonic() < until:
            left = 60.0 if until is None else until - time.monotonic()
            if self.closing.wait(min(left, step.drip or left)):
                handler.hang_up()
                return
            if step.drip is not None:
                handler.chunk(b": keep-alive\n\n" if stream else b" ")
        if step.answer is None:
            handler.hang_up()
        elif not step.headers:
            self._answer(step.answer, handler, seen, asked)
        elif stream:
            for event in events[step.events :]:
                handler.chunk(as_sse(event))
            handler.finish_body()
        else:
            handler.chunk(json.dumps(self._body(step.answer, seen, asked)).encode())
            handler.finish_body()

    def _events(self, answer: Answer, seen: Seen, asked: JSON) -> list[JSON | bytes]:
        if seen.path.endswith("/chat/completions"):
            return chat_events(answer, asked, f"chatcmpl-{next(self._ids)}")
        return response_events(answer, asked, f"resp_{next(self._ids)}")

    def _body(self, answer: Answer, seen: Seen, asked: JSON) -> JSON:
        if seen.path.endswith("/chat/completions"):
            return chat_body(answer, asked, f"chatcmpl-{next(self._ids)}")
        response_id = f"resp_{next(self._ids)}"
        if not asked.get("background"):
            return response_body(answer, asked, response_id)
        self._background[response_id] = (answer, asked, iter(range(answer.polls)))
        return response_body(answer, asked, response_id, status="queued")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away is an everyday thing here."""


def _in_order(steps: Iterable[Step], repeat_last: bool) -> Callable[[Seen], Step]:
    waiting = list(steps)

    def decide(_: Seen) -> Step:
        if not waiting:
            return Status(500, {"error": {"message": "the loopback endpoint has no step left"}})
        return waiting[0] if repeat_last and len(waiting) == 1 else waiting.pop(0)

    return decide


# --- the shapes of the wire --------------------------------------------------------------


def as_sse(event: JSON | bytes) -> bytes:
    """One event as it stands on the wire: with its name where it has a `type` (chat has none)."""
    if isinstance(event, bytes):
        return event
    name = f"event: {event['type']}\n" if isinstance(event.get("type"), str) else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


def response_body(answer: Answer, asked: JSON, response_id: str, status: str | None = None) -> JSON:
    """A `Response` object. `status` overrides the answer's own: then there is no output yet."""
    done = status is None
    body: JSON = {
        "id": response_id,
        "object": "response",
        "created_at": 1_760_000_000,
        "status": status or answer.status,
        "model": asked.get("model"),
        "background": bool(asked.get("background")),
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }
    if not done:
        return body
    if answer.status == "incomplete":
        body["incomplete_details"] = {"reason": answer.reason}
    if answer.status == "failed":
        body["error"] = answer.error or {"code": "server_error", "message": "the model fell over"}
    if not answer.empty_output:
        body["output"] = _output_items(answer)
    body["usage"] = response_usage(answer)
    return body


def _output_items(answer: Answer) -> list[JSON]:
    items: list[JSON] = []
    if answer.reasoning:
        summary = [{"type": "summary_text", "text": answer.reasoning}]
        items.append({"type": "reasoning", "id": "rs_1", "summary": summary})
    content: list[JSON] = []
    if answer.text or answer.refusal is None:
        content.append({"type": "output_text", "text": answer.text, "annotations": []})
    if answer.refusal is not None:
        content.append({"type": "refusal", "refusal": answer.refusal})
    items.append(
        {"type": "message", "id": "msg_1", "role": "assistant", "status": answer.status, "content": content}
    )
    return items


def response_usage(answer: Answer) -> JSON | None:
    named = answer.usage or {}
    if named.get("none"):
        return None
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 10},
        "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 20},
        **named,
    }
    return {"total_tokens": usage["input_tokens"] + usage["output_tokens"], **usage}


def response_events(answer: Answer, asked: JSON, response_id: str) -> list[JSON | bytes]:
    """The events of a streamed response in the order the Responses API sends them."""
    begun = response_body(answer, asked, response_id, status="in_progress")
    events: list[JSON] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    at = 0
    if answer.reasoning:
        place = {"item_id": "rs_1", "output_index": at}
        item: JSON = {"type": "reasoning", "id": "rs_1", "summary": []}
        part = {"type": "summary_text", "text": ""}
        events.append({"type": "response.output_item.added", "output_index": at, "item": item})
        where = {**place, "summary_index": 0}
        events.append({"type": "response.reasoning_summary_part.added", **where, "part": part})
        events += [
            {"type": "response.reasoning_summary_text.delta", **where, "delta": delta}
            for delta in _pieces(answer.reasoning, answer.piece)
        ]
        text = answer.reasoning
        events.append({"type": "response.reasoning_summary_text.done", **where, "text": text})
        events.append(
            {"type": "response.reasoning_summary_part.done", **where, "part": {**part, "text": text}}
        )
        done = {**item, "summary": [{**part, "text": text}]}
        events.append({"type": "response.output_item.done", "output_index": at, "item": done})
        at += 1
    events += _message_events(answer, at)
    status = answer.status if answer.status in ("completed", "incomplete", "failed") else "failed"
    events.append({"type": f"response.{status}", "response": response_body(answer, asked, response_id)})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _message_events(answer: Answer, at: int) -> list[JSON]:
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
    events: list[JSON] = [{"type": "response.output_item.added", "output_index": at, "item": item}]
    where = {"item_id": "msg_1", "output_index": at, "content_index": 0}
    if answer.text or answer.refusal is None:
        part = {"type": "output_text", "text": "", "annotations": []}
        events.append({"type": "response.content_part.added", **where, "part": part})
        events += [
            {"type": "response.output_text.delta", **where, "delta": delta}
            for delta in _pieces(answer.text, answer.piece)
        ]
        events.append({"type": "response.output_text.done", **where, "text": answer.text})
        events.append({"type": "response.content_part.done", **where, "part": {**part, "text": answer.text}})
    if answer.refusal is not None:
        part = {"type": "refusal", "refusal": ""}
        events.append({"type": "response.content_part.added", **where, "part": part})
        events.append({"type": "response.refusal.delta", **where, "delta": answer.refusal})
        events.append({"type": "response.refusal.done", **where, "refusal": answer.refusal})
    events.append(
        {"type": "response.output_item.done", "output_index": at, "item": _output_items(answer)[-1]}
    )
    return events


def chat_usage(answer: Answer) -> JSON | None:
    usage = response_usage(answer)
    if usage is None:
        return None
    return {
        "prompt_tokens": usage["input_tokens"],
        "prompt_tokens_details": usage["input_tokens_details"],
        "completion_tokens": usage["output_tokens"],
        "completion_tokens_details": usage["output_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }


def _chat_finish(answer: Answer) -> str:
    if answer.status == "incomplete":
        return "content_filter" if answer.reason == "content_filter" else "length"
    return "stop"


def chat_body(answer: Answer, asked: JSON, response_id: str) -> JSON:
    """A `ChatCompletion` object."""
    message: JSON = {"role": "assistant", "content": answer.text, "refusal": answer.refusal}
    if answer.refusal is not None and not answer.text:
        message["content"] = None
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    choice = {"index": 0, "message": message, "finish_reason": _chat_finish(answer), "logprobs": None}
    body: JSON = {
        "id": response_id,
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": asked.get("model"),
        "choices": [choice],
    }
    usage = chat_usage(answer)
    return body if usage is None else {**body, "usage": usage}


def chat_events(answer: Answer, asked: JSON, response_id: str) -> list[JSON | bytes]:
    """The chunks of a streamed chat completion; usage only when the request asked for it."""
    head = {"id": response_id, "object": "chat.completion.chunk", "created": 1_760_000_000}
    head["model"] = asked.get("model")

    def chunk(delta: JSON, finish: str | None = None) -> JSON:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    events: list[JSON | bytes] = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": delta}) for delta in _pieces(answer.text, answer.piece)]
    if answer.refusal is not None:
        events.append(chunk({"refusal": answer.refusal}))
    events.append(chunk({}, _chat_finish(answer)))
    if (asked.get("stream_options") or {}).get("include_usage"):
        events.append({**head, "choices": [], "usage": chat_usage(answer)})
    events.append(b"data: [DONE]\n\n")
    return events


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]
