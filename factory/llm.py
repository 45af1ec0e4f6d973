"""The factory's model: Chat Completions, one question and one whole answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from factory.defaults import (
    DEFAULT_LLM_MODEL,
    DEFAULT_LLM_TEMPERATURE,
    DEFAULT_TIMEOUT_SECONDS,
    MAX_JSON_PAYLOAD_BYTES,
)
from shared.answers import json_object_in
from shared.llm import AnswerCut, AnswerRefused, EndpointError, LLMError, Reply, Request
from shared.openai_api import (
    Endpoint,
    OnWait,
    RequestRefused,
    RetryPolicy,
    error_said,
    open_client,
    shortened,
    with_retries,
)
from shared.wire import TOO_LARGE, Call, TooLarge, ask, clean_text, clipped, read_object, usage_of

if TYPE_CHECKING:
    from shared.openai_api import Client


def parse_proposal_json(raw: str) -> dict[str, Any]:
    """The JSON object a model's answer is, of at most 10 MB. Raises `JsonError`."""
    return json_object_in(raw, max_bytes=MAX_JSON_PAYLOAD_BYTES)


@dataclass(frozen=True)
class ChatSettings:
    """What stays the same from call to call."""

    endpoint: Endpoint
    model: str = DEFAULT_LLM_MODEL
    temperature: float = DEFAULT_LLM_TEMPERATURE
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """Bound of one call in all, retries and waiting included."""
    retry: RetryPolicy = RetryPolicy()  # noqa: RUF009  it is frozen


class ChatLLM:
    """An `LLM` on Chat Completions.

    `on_wait` gets every reason for asking again, in the caller's thread. `poll` is called several
    times a second, and what it raises ends the call. `sleep` replaces the waiting between tries.

    What an endpoint refuses with 400 is left out from then on, for as long as this object lives: the
    temperature (reasoning models), the strict schema (then `json_object`, then no format at all).
    """

    def __init__(
        self,
        settings: ChatSettings,
        *,
        on_wait: OnWait = lambda *_: None,
        poll: Callable[[], None] = lambda: None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._settings = settings
        self._on_wait = on_wait
        self._poll = poll
        self._sleep = sleep
        self._formats = ["json_schema", "json_object"]
        self._with_temperature = True
        self._client: Client | None = None

    def __call__(self, request: Request) -> Reply:
        """The model's answer. Raises `LLMError`."""
        started = time.monotonic()
        reply = ask(
            lambda call: self._answer(call, request), timeout=self._settings.timeout_seconds, poll=self._poll
        )
        return replace(reply, seconds=time.monotonic() - started)

    def _answer(self, call: Call, request: Request) -> Reply:
        try:
            body = self._send(call, request)
        except TooLarge as error:
            return Reply(clipped(error.head.decode("utf-8", "replace")), finish=TOO_LARGE)
        try:
            return self._reply_in(body)
        except LLMError as error:
            error.usage = usage_of(body.get("usage"))
            raise

    def _send(self, call: Call, request: Request) -> dict[str, Any]:
        """The body that came. What a 400 names is given up, which costs no try."""
        while True:
            try:
                return with_retries(
                    partial(self._post, call, request),
                    self._settings.retry,
                    endpoint=self._settings.endpoint,
                    on_wait=partial(call.tell, self._on_wait),
                    sleep=self._sleep or call.sleep,
                )
            except RequestRefused as refused:
                if not self._give_up_what_is_named(refused, request):
                    raise

    def _post(self, call: Call, request: Request) -> dict[str, Any]:
        if self._client is None:
            self._client = open_client(self._settings.endpoint)
        completions = self._client.chat.completions
        with completions.with_streaming_response.create(**self._body(request)) as response:
            return read_object(response.iter_bytes(), self._settings.endpoint, call)

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._settings.model,
            "messages": [{"role": "user", "content": clean_text(request.prompt)}],
        }
        if self._with_temperature:
            body["temperature"] = self._settings.temperature
        if request.schema is not None and self._formats:
            body["response_format"] = {"type": self._formats[0]}
            if self._formats[0] == "json_schema":
                name = f"{request.role}_answer"
                body["response_format"]["json_schema"] = {
                    "name": name,
                    "strict": True,
                    "schema": request.schema,
                }
        return body

    def _give_up_what_is_named(self, refused: RequestRefused, request: Request) -> bool:
        """Leave out from now on what the endpoint refuses; False when that is nothing we can spare."""
        sent = self._body(request)
        if "temperature" in sent and refused.names(("temperature",)):
            self._with_temperature = False
            return True
        if "response_format" in sent and refused.names(_FORMAT_WORDS):
            self._formats.pop(0)
            return True
        return False

    def _reply_in(self, body: dict[str, Any]) -> Reply:
        endpoint = self._settings.endpoint
        choices = body.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or not isinstance(message, dict):
            if body.get("error"):  # some gateways report it with status 200
                raise error_said(body, endpoint)
            raise EndpointError(
                f"{endpoint.address} answered without a choice: check OPENAI_BASE_URL and the model's name"
            )
        if choice.get("error"):
            raise error_said(choice, endpoint)
        finish = choice.get("finish_reason")
        if refusal := _text_of(message.get("refusal")):
            raise AnswerRefused(f"the model refused to answer: {shortened(refusal, endpoint)}")
        if finish == "content_filter":
            raise AnswerRefused("a content filter of the endpoint stopped the answer: reword the work order")
        if finish == "length":
            raise AnswerCut(
                "the answer was cut off at the endpoint's output limit (this is no JSON error):"
                " write fewer or smaller files"
            )
        return Reply(
            text=_text_of(message.get("content")),
            reasoning=_text_of(message.get("reasoning_content") or message.get("reasoning")),
            usage=usage_of(body.get("usage")),
            model=_text_of(body.get("model")) or None,
            response_id=_text_of(body.get("id")) or None,
            finish=_text_of(finish) or None,
        )


_FORMAT_WORDS = (
    "response_format",
    "text.format",
    "json_schema",
    "json_object",
    "schema",
    "structured output",
)


def _text_of(content: object) -> str:
    """A message's content: text, or a list of parts that hold text."""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return clipped(clean_text("".join(text for text in texts if isinstance(text, str))))
