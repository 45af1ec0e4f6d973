"""A call in flight, and what comes back from it: read with a bound, parsed without trust."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from shared.llm import EndpointError, LLMError, Usage, in_thread
from shared.openai_api import Endpoint, shortened

MAX_ANSWER_BYTES = 10 * 1024 * 1024
"""How much of an answer's text is kept. The rest is not read; whoever parses it refuses it by size."""

TOO_LARGE = "too_large"
"""`Reply.finish` of an answer that was not read to its end: its text is over the limit."""

# JSON may spell a character in six bytes, and an answer has an envelope.
_MAX_WIRE_BYTES = 6 * MAX_ANSWER_BYTES + 1024 * 1024

T = TypeVar("T")


# --- one call in flight ------------------------------------------------------------------


@dataclass
class Call:
    """A question on its way, as its thread sees it: whether anyone still waits, and a way to speak.

    What is told reaches its callback in the thread that asked, never after that thread went on.
    """

    _abandoned: threading.Event = field(default_factory=threading.Event)
    _said: queue.SimpleQueue[Callable[[], None]] = field(default_factory=queue.SimpleQueue)

    def check(self) -> None:
        """Raise when nobody waits for this call any more."""
        if self._abandoned.is_set():
            raise EndpointError("nobody waits for this answer any more")

    def sleep(self, seconds: float) -> None:
        """Wait, but not for longer than somebody waits for this call."""
        self._abandoned.wait(seconds)
        self.check()

    def tell(self, callback: Callable[..., None], *args: Any) -> None:
        """Have `callback` called in the thread that asked."""
        self._said.put(partial(callback, *args))

    def deliver(self) -> None:
        """Call what was told since the last time."""
        while not self._said.empty():
            self._said.get()()

    def abandon(self) -> None:
        """Nobody waits any more."""
        self._abandoned.set()


def ask(work: Callable[[Call], T], *, timeout: float, poll: Callable[[], None]) -> T:
    """Run one call in a thread of its own, for at most `timeout` seconds in all, and return its result.

    `poll` is called several times a second; what it raises ends the call. Raises `LLMError`.
    """
    call = Call()

    def look() -> None:
        call.deliver()
        poll()

    try:
        result = in_thread(lambda: work(call), timeout=timeout, poll=look)
    except LLMError:
        call.deliver()  # what was waited for belongs before what went wrong
        raise
    finally:
        call.abandon()
    call.deliver()
    return result


# --- reading what came -------------------------------------------------------------------


class TooLarge(Exception):
    """More came than an answer may hold; `head` is the beginning of it, itself over the limit."""

    def __init__(self, head: bytes) -> None:
        super().__init__(f"more than {len(head)} bytes")
        self.head = head


class Garbled(EndpointError):
    """What came is not a JSON object: a web page, broken JSON, bytes that are no text."""


def read_object(chunks: Iterable[bytes], endpoint: Endpoint, call: Call) -> dict[str, Any]:
    """A whole body as a JSON object. Raises `TooLarge`, or `Garbled` when it is none."""
    data = bytearray()
    for chunk in chunks:
        call.check()
        data += chunk
        if len(data) > _MAX_WIRE_BYTES:
            raise TooLarge(bytes(data))
    return parse_object(data, endpoint)


def read_events(chunks: Iterable[bytes], endpoint: Endpoint, call: Call) -> Iterator[dict[str, Any]]:
    """The events of a server-sent stream, each a JSON object, until `[DONE]` or the end.

    Raises `TooLarge` for one event larger than any answer, `Garbled` for one that is no object.
    """
    data: list[bytes] = []
    size = 0
    for line in _lines(chunks, call):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
            size += len(line)
            if size > _MAX_WIRE_BYTES:
                raise TooLarge(b"\n".join(data))
        elif not line and data:
            event = b"\n".join(data)
            data.clear()
            size = 0
            if event.startswith(b"[DONE]"):
                return
            yield parse_object(event, endpoint)
    # An event whose blank line never came is cut off, and does not count.


def _lines(chunks: Iterable[bytes], call: Call) -> Iterator[bytes]:
    pending: list[bytes] = []
    size = 0
    for chunk in chunks:
        call.check()
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            yield b"".join((*pending, part)).removesuffix(b"\r")
            pending.clear()
            size = 0
        pending.append(rest)
        size += len(rest)
        if size > _MAX_WIRE_BYTES:
            raise TooLarge(b"".join(pending))


def parse_object(data: bytes | bytearray, endpoint: Endpoint) -> dict[str, Any]:
    """Bytes from an endpoint as a JSON object. Raises `Garbled`."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):  # broken JSON, bytes that are no UTF-8, a number without end
        value = None
    if isinstance(value, dict):
        return value
    start = shortened(data[:2000].decode("utf-8", "replace"), endpoint) or "nothing"
    raise Garbled(
        f"{endpoint.address} answered with something that is not a JSON object ({start}):"
        " check OPENAI_BASE_URL (it usually ends in /v1)"
    )


def clean_text(text: str) -> str:
    """`text` as it can be written in UTF-8: surrogate pairs joined, lone ones spelled as escapes.

    A stream may split a pair between two deltas, and a model may write half of one.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return joined.encode("utf-8", "backslashreplace").decode()
    return text


def clipped(text: str, limit: int = MAX_ANSWER_BYTES) -> str:
    """`text`, or the beginning of it that is just over `limit` bytes: enough to be refused by size."""
    if len(text) <= limit // 4:
        return text
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= limit else data[: limit + 4].decode("utf-8", "ignore")


def usage_of(usage: object) -> Usage | None:
    """Token counts of either interface; None when none are named."""
    if not isinstance(usage, dict):
        return None

    def number(holder: object, *names: str) -> int | None:
        values = [holder.get(name) for name in names] if isinstance(holder, dict) else []
        return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v >= 0), None)

    def details(*names: str) -> object:
        return next((usage[name] for name in names if isinstance(usage.get(name), dict)), None)

    asked = number(usage, "input_tokens", "prompt_tokens")
    answered = number(usage, "output_tokens", "completion_tokens")
    if asked is None and answered is None:
        return None
    return Usage(
        input=asked or 0,
        cached=number(details("input_tokens_details", "prompt_tokens_details"), "cached_tokens") or 0,
        output=answered or 0,
        reasoning=number(details("output_tokens_details", "completion_tokens_details"), "reasoning_tokens")
        or 0,
    )
