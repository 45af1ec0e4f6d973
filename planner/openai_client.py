"""The planner's model: the Responses API, streamed, and in the background when a stream breaks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from planner import defaults
from planner.responses import Gathered, Outcome
from shared.llm import AnswerCut, AnswerRefused, EndpointError, LLMError, Reply, Request, Usage
from shared.openai_api import (
    Endpoint,
    OnWait,
    RequestRefused,
    RetryPolicy,
    error_said,
    fault_of,
    open_client,
    shortened,
    transport_errors,
    with_retries,
)
from shared.wire import (
    TOO_LARGE,
    Call,
    Garbled,
    TooLarge,
    ask,
    clean_text,
    clipped,
    read_events,
    read_object,
)

if TYPE_CHECKING:
    from shared.openai_api import Client

# Azure forgets a background response for a while just after it was made; a server without background
# responses never knows it.
_MAX_POLLS_UNKNOWN = 15
_POLL_GROWTH = 1.25


_RETRY = RetryPolicy(
    tries=defaults.TRANSPORT_RETRIES,
    first_wait=defaults.BACKOFF_BASE_SECONDS,
    longest_wait=defaults.BACKOFF_CAP_SECONDS,
)


@dataclass(frozen=True)
class ResponsesSettings:
    """What stays the same from call to call. Times are seconds."""

    endpoint: Endpoint
    model: str = defaults.DEFAULT_MODEL
    effort: str = defaults.DEFAULT_REASONING_EFFORT
    max_output_tokens: int = defaults.DEFAULT_MAX_OUTPUT_TOKENS
    timeout_seconds: float = defaults.DEFAULT_TIMEOUT_SECONDS
    """Bound of one call in all: retries, waiting and the second, doubled try included."""
    poll_seconds: float = defaults.POLL_INTERVAL_SECONDS
    longest_poll_seconds: float = defaults.POLL_INTERVAL_CAP_SECONDS
    retry: RetryPolicy = _RETRY


class ResponsesLLM:
    """An `LLM` on the Responses API.

    `on_thinking` gets the reasoning summary as it arrives, `on_wait` every reason for asking again;
    both are called in the caller's thread. `poll` is called several times a second, and what it
    raises ends the call. `sleep` replaces the waiting between tries and polls.

    A stream that breaks is asked for again in the background and polled. A plain streamed response
    cannot be picked up where it broke, so that answer is paid for twice; the retries are bounded.
    What an endpoint refuses with 400 (structured output, reasoning, streaming, background) is left
    out from then on, for as long as this object lives.
    """

    def __init__(
        self,
        settings: ResponsesSettings,
        *,
        on_thinking: Callable[[str], None] = lambda _: None,
        on_wait: OnWait = lambda *_: None,
        poll: Callable[[], None] = lambda: None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._settings = settings
        self._on_thinking = on_thinking
        self._on_wait = on_wait
        self._poll = poll
        self._sleep = sleep
        self._given_up: set[str] = set()
        self._client: Client | None = None

    def __call__(self, request: Request) -> Reply:
        """The model's answer. Raises `LLMError`."""
        started = time.monotonic()
        reply = ask(
            lambda call: self._answer(call, request), timeout=self._settings.timeout_seconds, poll=self._poll
        )
        return replace(reply, seconds=time.monotonic() - started)

    def _answer(self, call: Call, request: Request) -> Reply:
        """The answer, asked for once more with exactly twice the budget when it was cut."""
        budget = self._settings.max_output_tokens
        first = self._ask(call, request, budget)
        if not first.cut:
            return self._judged(first, first.usage)
        doubled = budget * defaults.INCOMPLETE_BUDGET_FACTOR
        reason = f"the answer was cut off at {budget} output tokens; asking with {doubled}"
        call.tell(self._on_wait, reason, 0.0, 2, 2)
        try:
            second = self._ask(call, request, doubled)
        except LLMError as error:
            error.usage = first.usage
            raise
        used = [usage for usage in (first.usage, second.usage) if usage is not None]
        return self._judged(second, sum(used[1:], used[0]) if used else None)

    def _judged(self, outcome: Outcome, usage: Usage | None) -> Reply:
        """The outcome as a reply, or raised as the error that it is."""
        error: LLMError | None
        if outcome.refusal:
            said = shortened(outcome.refusal, self._endpoint)
            error = AnswerRefused(f"the model refused to answer: {said}")
        else:
            error = self._error_of(outcome)
        if error is not None:
            error.usage = usage
            raise error
        return Reply(
            text=outcome.text,
            reasoning=outcome.reasoning,
            usage=usage,
            model=outcome.model,
            response_id=outcome.response_id,
            finish=outcome.status,
        )

    def _error_of(self, outcome: Outcome) -> LLMError | None:
        at = self._endpoint.address
        match outcome.status:
            case "completed" | "too_large":
                return None
            case "incomplete" if outcome.cut:
                return AnswerCut(
                    "the answer was cut off at the output limit, with twice the budget as well:"
                    " split the spec, or allow more output tokens"
                )
            case "incomplete":
                return AnswerRefused("a content filter of the endpoint stopped the answer: reword the spec")
            case "unknown":
                return EndpointError(f"{at} answered with JSON that is no response: check OPENAI_BASE_URL")
            case status if outcome.error is None:
                return EndpointError(f"{at} ended the response as {status}: try again later")
            case _:
                return error_said(outcome.error, self._endpoint)

    # --- one request and its answer ---

    def _ask(self, call: Call, request: Request, budget: int) -> Outcome:
        question = _Question(call, request, budget, streamed="stream" not in self._given_up)
        try:
            try:
                outcome = self._send(question)
            except StreamBroke as broke:
                call.tell(self._on_wait, f"{broke}; asking again in the background", 0.0, 2, 2)
                question.streamed = False
                outcome = self._send(question)
            outcome = self._finished(outcome, call)
            if outcome.reasoning and not question.streamed:
                call.tell(self._on_thinking, outcome.reasoning)
            return outcome
        except TooLarge as error:
            return Outcome(TOO_LARGE, text=clipped(error.head.decode("utf-8", "replace")))

    def _send(self, question: _Question) -> Outcome:
        """What the request brought, which may be unfinished. What a 400 names is given up: no try lost."""
        while True:
            try:
                return self._retried(question.call, lambda: self._post(question))
            except RequestRefused as refused:
                if not self._give_up_what_is_named(refused, question):
                    raise

    def _post(self, question: _Question) -> Outcome:
        try:
            with self._opened().responses.with_streaming_response.create(**self._body(question)) as response:
                # Some servers answer a request for a stream with the whole response, some with a page.
                kind = response.headers.get("content-type", "")
                if question.streamed and "json" not in kind and "html" not in kind:
                    return self._gathered(response, question.call)
                return Outcome.of(read_object(response.iter_bytes(), self._endpoint, question.call))
        except transport_errors() as error:
            fault = fault_of(error, self._endpoint, time.time())
            if fault.sent and fault.status is None:
                # A connection lost after the request went out is a stream that broke before its first
                # byte: the next try goes to the background.
                question.streamed = False
            raise

    def _body(self, question: _Question) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._settings.model,
            "input": clean_text(question.request.prompt),
            "max_output_tokens": question.budget,
        }
        if "reasoning" not in self._given_up:
            body["reasoning"] = {"effort": self._settings.effort}
            if "reasoning.summary" not in self._given_up:
                body["reasoning"]["summary"] = "auto"
        if question.request.schema is not None and "text.format" not in self._given_up:
            name = f"{question.request.role}_answer"
            schema = question.request.schema
            body["text"] = {"format": {"type": "json_schema", "name": name, "strict": True, "schema": schema}}
        if question.streamed:
            body["stream"] = True
        elif "background" not in self._given_up:
            body["background"] = True
        return body

    def _give_up_what_is_named(self, refused: RequestRefused, question: _Question) -> bool:
        """Leave out from now on what the endpoint refuses; False when that is nothing we can spare."""
        sent = self._body(question)
        sent_names = {
            "text.format": "text" in sent,
            "reasoning.summary": "summary" in sent.get("reasoning", {}),
            "reasoning": "reasoning" in sent,
            "stream": "stream" in sent,
            "background": "background" in sent,
        }
        for name, words in _SPARED_WHEN_NAMED.items():
            if sent_names[name] and refused.names(words):
                self._given_up.add(name)
                question.streamed = question.streamed and name != "stream"
                return True
        return False

    def _gathered(self, response: Any, call: Call) -> Outcome:
        """The outcome of a stream. Raises `StreamBroke` when it does not come to its end."""
        gathered = Gathered()
        try:
            for event in read_events(response.iter_bytes(), self._endpoint, call):
                if event.get("type") == "error" or ("type" not in event and event.get("error")):
                    raise error_said(event, self._endpoint)
                if thought := gathered.take(event):
                    call.tell(self._on_thinking, thought)
                if gathered.outcome is not None:
                    return gathered.outcome
        except transport_errors() as error:
            raise StreamBroke(fault_of(error, self._endpoint, time.time()).what) from None
        except Garbled:
            raise StreamBroke(f"{self._endpoint.address} sent a garbled event") from None
        if not gathered.began:
            raise StreamBroke(f"{self._endpoint.address} sent no event")
        raise StreamBroke(f"{self._endpoint.address} ended the stream before the answer")

    def _finished(self, outcome: Outcome, call: Call) -> Outcome:
        """The outcome of a background response, waited for."""
        pause, unknown = self._settings.poll_seconds, 0
        while outcome.status in ("queued", "in_progress"):
            if not outcome.response_id:
                raise EndpointError(f"{self._endpoint.address} began a background response without an id")
            self._pause(call)(pause)
            pause = min(pause * _POLL_GROWTH, self._settings.longest_poll_seconds)
            try:
                outcome = self._retried(call, partial(self._poll_once, outcome.response_id, call))
                unknown = 0
            except EndpointError as error:
                if error.status != 404:
                    raise
                unknown += 1
                if unknown > _MAX_POLLS_UNKNOWN:
                    raise EndpointError(
                        f"{self._endpoint.address} does not know its own background response"
                        f" {outcome.response_id} (404, asked {unknown} times): it may keep none",
                        status=404,
                    ) from None
        return outcome

    def _poll_once(self, response_id: str, call: Call) -> Outcome:
        with self._opened().responses.with_streaming_response.retrieve(response_id) as response:
            return Outcome.of(read_object(response.iter_bytes(), self._endpoint, call))

    # --- means ---

    @property
    def _endpoint(self) -> Endpoint:
        return self._settings.endpoint

    def _opened(self) -> Client:
        if self._client is None:
            self._client = open_client(self._endpoint)
        return self._client

    def _pause(self, call: Call) -> Callable[[float], None]:
        return self._sleep or call.sleep

    def _retried(self, call: Call, work: Callable[[], Outcome]) -> Outcome:
        return with_retries(
            work,
            self._settings.retry,
            endpoint=self._endpoint,
            on_wait=partial(call.tell, self._on_wait),
            sleep=self._pause(call),
        )


# What can be left out, in the order in which it is looked for, and the words of a refusal of it.
_SPARED_WHEN_NAMED = {
    "text.format": ("text.format", "response_format", "json_schema", "schema", "structured output"),
    "reasoning.summary": ("summar",),
    "reasoning": ("reasoning",),
    "stream": ("stream",),
    "background": ("background",),
}


class StreamBroke(Exception):
    """A stream did not come to its end; the text says how."""


@dataclass
class _Question:
    """One request with one budget, and whether it still goes out as a stream."""

    call: Call
    request: Request
    budget: int
    streamed: bool
