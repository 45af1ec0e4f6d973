"""The model port: `Request -> Reply`, its errors, and the adapters that need no endpoint.

Tests, the demo and a replay use the same adapters: `Scripted` answers from a list, `Recorded` keeps
what passes through it, `Replayed` answers from such a recording, `Metered` adds up what was used.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from shared.files import JsonError, read_json, save_json, sha256_bytes

Role = Literal["plan", "revise", "se"]
Origin = Literal["scripted", "recorded"]

REPLAY = "replay:"
"""How the value of `--llm` begins that names a transcript's directory."""

TRANSCRIPT_FORMAT = "llmch-transcript"
TRANSCRIPT_VERSION = 1
_MAX_CALL_BYTES = 40 * 1024 * 1024


# --- errors: LLMError > EndpointError (> QuotaError), AnswerRefused, AnswerCut, TranscriptError --


class LLMError(Exception):
    """The model gave no usable answer. The text says what happened and what to do next."""

    final = False
    """True when asking again cannot help: wrong key, no quota, a transcript that does not fit."""

    usage: Usage | None = None
    """What the failed call is known to have used: a cut or refused answer is paid for as well."""


class EndpointError(LLMError):
    """The endpoint could not be reached, refused, failed, or broke its protocol."""

    def __init__(self, message: str, *, status: int | None = None, final: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.final = final


class QuotaError(EndpointError):
    """The account behind the key has nothing left. Never retried."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=429, final=True)


class AnswerCut(LLMError):
    """The answer hit the output limit (after the one doubled try, where there is one)."""


class AnswerRefused(LLMError):
    """The model or a content filter declined; the text carries its words."""


class TranscriptError(LLMError):
    """A recording has no answer for this request, or cannot be read. Never a made-up answer."""

    final = True


# --- the port ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """One question to a model, complete: `prompt` is everything the model sees."""

    role: Role
    prompt: str
    subject: str
    """What it is about: `plan`, or a work order's id."""
    attempt: int
    """From 1, counted per subject."""
    schema: dict[str, Any] | None = None
    """A strict JSON Schema for the answer, asked of endpoints that enforce one."""
    stable: str | None = None
    """The prompt without what differs between equal runs (what a command printed: times, temporary
    paths); None when the whole prompt is stable. Only `digest` reads it."""

    @property
    def digest(self) -> str:
        """Identity across runs: SHA-256 over role, subject, attempt and the prompt's stable form."""
        head = f"{self.role}\n{self.subject}\n{self.attempt}\n"
        text = head + (self.prompt if self.stable is None else self.stable)
        return sha256_bytes(text.encode("utf-8", "backslashreplace"))


@dataclass(frozen=True)
class Usage:
    """Tokens of one call as the endpoint counted them. `output` includes `reasoning`."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            self.reasoning + other.reasoning,
        )

    def as_json(self) -> dict[str, int]:
        """The form that artifacts hold."""
        return asdict(self)


@dataclass(frozen=True)
class Reply:
    """A model's answer. `usage` is None when the endpoint named no figures; `seconds` is wall time."""

    text: str
    reasoning: str = ""
    usage: Usage | None = None
    model: str | None = None
    response_id: str | None = None
    finish: str | None = None
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The form that artifacts and transcripts hold."""
        return asdict(self)


class LLM(Protocol):
    """Answers a request, or raises an `LLMError`."""

    def __call__(self, request: Request) -> Reply:
        """The model's answer."""
        ...


T = TypeVar("T")


def in_thread(work: Callable[[], T], *, timeout: float, poll: Callable[[], None]) -> T:
    """Run `work` in a thread and return its result, or raise what it raised.

    `poll` is called several times a second; what it raises ends the wait. After `timeout` seconds
    in all `EndpointError` is raised. The thread is a daemon: an abandoned call cannot keep the
    process alive. This is how a total deadline holds against an endpoint that drips keep-alives.
    """
    results: queue.Queue[tuple[bool, Any]] = queue.Queue()

    def target() -> None:
        try:
            results.put((True, work()))
        except BaseException as error:  # noqa: BLE001  handed over to the waiting thread, which raises it
            results.put((False, error))

    threading.Thread(target=target, daemon=True, name="model call").start()
    deadline = time.monotonic() + timeout
    while True:
        poll()
        left = deadline - time.monotonic()
        if left <= 0:
            raise EndpointError(
                f"no complete answer within {timeout:g} s (--timeout-seconds gives it longer)"
            )
        try:
            done, value = results.get(timeout=min(left, 0.1))
        except queue.Empty:
            continue
        if done:
            return value  # type: ignore[no-any-return]
        raise value


# --- adapters ----------------------------------------------------------------------------


@dataclass
class Scripted:
    """Answers from a list, in order. An item may be text, a `Reply`, or an error to raise."""

    answers: Iterable[str | Reply | LLMError]
    asked: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._left = iter(self.answers)

    def __call__(self, request: Request) -> Reply:
        """The next answer. Raises `TranscriptError` when none is left."""
        self.asked.append(request)
        answer = next(self._left, None)
        if answer is None:
            raise TranscriptError(f"the script has no answer number {len(self.asked)}")
        if isinstance(answer, LLMError):
            raise answer
        return answer if isinstance(answer, Reply) else Reply(answer, model="scripted")


@dataclass
class Metered:
    """Passes requests on and keeps the sum of what replies, and errors, say was used."""

    inner: LLM
    usage: Usage = field(default_factory=Usage)
    calls: int = 0
    uncounted: int = 0
    """Calls that ended without naming any usage."""

    def as_json(self) -> dict[str, int]:
        """The sum as records hold it, with how many calls there were and how many named no figures."""
        return {**self.usage.as_json(), "calls": self.calls, "uncounted": self.uncounted}

    def __call__(self, request: Request) -> Reply:
        """The inner reply, counted."""
        self.calls += 1
        try:
            reply = self.inner(request)
        except LLMError as error:
            self._count(error.usage)
            raise
        self._count(reply.usage)
        return reply

    def _count(self, usage: Usage | None) -> None:
        if usage is None:
            self.uncounted += 1
        else:
            self.usage += usage


@dataclass
class Recorded:
    """Passes requests on and keeps each call as a file of `directory`: a transcript.

    The request is on disk before it is sent, the reply (or the error in its place) before it is
    used. A directory that already holds a transcript is continued. Raises `OSError` when it cannot
    be written.
    """

    inner: LLM
    directory: Path
    origin: Origin = "recorded"
    note: str = ""

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        header = self.directory / "transcript.json"
        if not header.exists():
            head = {"format": TRANSCRIPT_FORMAT, "version": TRANSCRIPT_VERSION}
            save_json(header, {**head, "origin": self.origin, "note": self.note})
        # The highest number, not how many: a transcript with a gap must not be written over.
        numbers = (path.stem.removeprefix("call-") for path in self.directory.glob("call-*.json"))
        self._count = max((int(number) for number in numbers if number.isdecimal()), default=0)

    def __call__(self, request: Request) -> Reply:
        """The inner reply, after both halves of the call are on disk."""
        self._count += 1
        path = self.directory / f"call-{self._count:04d}.json"
        call: dict[str, Any] = {
            "role": request.role,
            "subject": request.subject,
            "attempt": request.attempt,
            "digest": request.digest,
            "prompt": _storable(request.prompt),
        }
        save_json(path, {**call, "reply": None})
        try:
            reply = self.inner(request)
        except LLMError as error:
            save_json(path, {**call, "reply": None, "error": _error_as_json(error)})
            raise
        kept = replace(reply, text=_storable(reply.text), reasoning=_storable(reply.reasoning))
        save_json(path, {**call, "reply": kept.as_json()})
        return reply


def _storable(text: str) -> str:
    # JSON would take a lone surrogate, and our own strict reader would then refuse the whole file.
    return text.encode("utf-8", "backslashreplace").decode()


# What a recorded error is when it is replayed; a subclass that is not named here is its parent.
_ERROR_KINDS: dict[str, type[LLMError]] = {
    kind.__name__: kind for kind in (QuotaError, EndpointError, AnswerCut, AnswerRefused)
}


def _error_as_json(error: LLMError) -> dict[str, Any] | None:
    kind = next((name for name, kind in _ERROR_KINDS.items() if isinstance(error, kind)), None)
    if kind is None:
        return None
    return {
        "kind": kind,
        "message": _storable(str(error)),
        "status": error.status if isinstance(error, EndpointError) else None,
        "final": error.final,
        "usage": None if error.usage is None else error.usage.as_json(),
    }


class Replayed:
    """Answers from a transcript: the reply whose request had the same digest, each one once.

    A call that had ended in an error ends in the same one again. Raises `TranscriptError` when the
    directory holds no readable transcript, and on a request that was not recorded, naming the
    recorded one for the same attempt where there is one.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        header = self._read("transcript.json")
        if header.get("format") != TRANSCRIPT_FORMAT or header.get("version") != TRANSCRIPT_VERSION:
            raise TranscriptError(f"{directory} is not an llmch transcript of version 1")
        self.origin: str = header.get("origin", "recorded")
        names = sorted(path.name for path in directory.glob("call-*.json"))
        self._calls = [self._read(name) for name in names]

    def _read(self, name: str) -> dict[str, Any]:
        path = self.directory / name
        try:
            value = read_json(path, max_bytes=_MAX_CALL_BYTES)
        except (OSError, JsonError) as error:
            raise TranscriptError(f"cannot read transcript {path}: {error}") from None
        if not isinstance(value, dict):
            raise TranscriptError(f"cannot read transcript {path}: not a JSON object")
        return value

    def __call__(self, request: Request) -> Reply:
        """The recorded reply for this very request."""
        wanted = request.digest
        for index, call in enumerate(self._calls):
            if call.get("digest") != wanted:
                continue
            if isinstance(call.get("reply"), dict):
                return _reply_from(self._calls.pop(index)["reply"], self.directory)
            if isinstance(call.get("error"), dict):
                raise _error_from(self._calls.pop(index)["error"], self.directory)
        raise TranscriptError(self._mismatch(request))

    def _mismatch(self, request: Request) -> str:
        about = f"{request.role} request for {request.subject}, attempt {request.attempt}"
        same = (request.role, request.subject, request.attempt)
        for call in self._calls:
            if (call.get("role"), call.get("subject"), call.get("attempt")) == same:
                difference = _first_difference(str(call.get("prompt")), request.prompt)
                return f"the {about}, differs from the one in {self.directory}: {difference}"
        return f"no recorded answer for the {about}, in {self.directory}"


def _reply_from(value: dict[str, Any], directory: Path) -> Reply:
    try:
        reply = Reply(**{**value, "usage": _usage_from(value.get("usage"))})
    except TypeError as error:
        raise TranscriptError(f"a reply in {directory} has another form: {error}") from None
    if not isinstance(reply.text, str) or not isinstance(reply.reasoning, str):
        raise TranscriptError(f"a reply in {directory} has another form: its text is not text")
    if not isinstance(reply.seconds, int | float):
        raise TranscriptError(f"a reply in {directory} has another form: its seconds are no number")
    return reply


def _error_from(value: dict[str, Any], directory: Path) -> LLMError:
    kind = _ERROR_KINDS.get(str(value.get("kind")))
    if kind is None:
        return TranscriptError(f"an error in {directory} is of no known kind: {value.get('kind')!r}")
    error = kind(str(value.get("message")))
    if isinstance(error, EndpointError) and isinstance(value.get("status"), int):
        error.status = value["status"]
    error.final = value.get("final") is True
    try:
        error.usage = _usage_from(value.get("usage"))
    except TypeError as problem:
        return TranscriptError(f"an error in {directory} has another form: {problem}")
    return error


def _usage_from(value: Any) -> Usage | None:
    if value is None:
        return None
    usage = Usage(**value)
    if not all(isinstance(count, int) for count in asdict(usage).values()):
        raise TypeError("its usage is not in whole numbers")
    return usage


def _first_difference(recorded: str, asked: str) -> str:
    ours, theirs = asked.splitlines(), recorded.splitlines()
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=False), start=1):
        if mine != other:
            return f"line {number} is {mine[:100]!r}, recorded was {other[:100]!r}"
    return f"{len(ours)} lines, recorded were {len(theirs)}"
