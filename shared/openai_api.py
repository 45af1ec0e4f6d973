"""One way to open the OpenAI SDK: where the endpoint is, what is tried again, what an error says.

Both clients stand on this room. The SDK builds the requests; its answers are read here as bytes, with
a bound, and parsed here, because its own parsing has no bound and returns a page of HTML as a `str`.
Nothing the SDK or its transport raises leaves as such: it becomes an `LLMError` of one line.
"""

from __future__ import annotations

import email.utils
import math
import re
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias, TypeVar
from urllib.parse import urlsplit

from shared.llm import EndpointError, LLMError, QuotaError

if TYPE_CHECKING:
    import httpx2
    import openai

    Client: TypeAlias = openai.OpenAI

DEFAULT_BASE_URL = "https://api.openai.com/v1"
_MAX_ERROR_BODY_BYTES = 64 * 1024
_MAX_QUOTED_CHARS = 300

# (reason, seconds, number of the next try, tries in all)
OnWait = Callable[[str, float, int, int], None]
T = TypeVar("T")


class MissingKey(EndpointError):
    """There is no usable API key. Found before anything is sent."""

    def __init__(self, message: str) -> None:
        super().__init__(message, final=True)


class RequestRefused(EndpointError):
    """The endpoint did not accept the request itself (400, 422)."""

    def __init__(self, message: str, *, status: int, param: str, detail: str) -> None:
        super().__init__(message, status=status)
        self.param = param
        self.detail = detail

    def names(self, words: Iterable[str]) -> bool:
        """Whether it says one of `words`: in `param` when it names one, else in what it says.

        Reading prose is the last resort: many servers know no `param`. Whoever refuses `text`
        refuses `text.format` with it.
        """
        said = (self.param or self.detail).lower()
        return any(word in said or word.partition(".")[0] == said for word in words)


# --- where -------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Endpoint:
    """Where the model is and the key for it. Neither shows in `repr`, only the `address`."""

    base_url: str
    api_key: str
    connect_timeout: float = 5.0
    read_timeout: float = 600.0
    """Seconds of silence. Keep-alives reset it, so a total deadline is the caller's to hold."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], **timeouts: float) -> Endpoint:
        """`OPENAI_BASE_URL` (empty is unset) and `OPENAI_API_KEY`.

        Raises `MissingKey`, or `EndpointError` for an address that is none.
        """
        key = environment.get("OPENAI_API_KEY", "").strip()
        if not key:
            raise MissingKey(
                "OPENAI_API_KEY is not set: export it first (a local endpoint that needs none takes any word)"
            )
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise MissingKey("OPENAI_API_KEY holds a character that no key has: copy it again")
        base_url = environment.get("OPENAI_BASE_URL", "").strip() or DEFAULT_BASE_URL
        _check_address(base_url)
        return cls(base_url, key, **timeouts)

    @property
    def address(self) -> str:
        """The base URL as it may be shown: without user, password and query."""
        parts = urlsplit(self.base_url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"

    def __repr__(self) -> str:
        return f"Endpoint({self.address})"

    def redact(self, text: str) -> str:
        """`text` without the key and without a password that the base URL carries."""
        for secret in (self.api_key, urlsplit(self.base_url).password or ""):
            if len(secret) >= 8:
                text = text.replace(secret, "[key]")
            elif secret:  # a short dummy key ("x") must not turn every word that holds it into holes
                text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "[key]", text)
        return text


def _check_address(base_url: str) -> None:
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not base_url.isprintable() or " " in base_url:
        raise EndpointError(
            "OPENAI_BASE_URL is not the address of an endpoint: it looks like https://host/v1", final=True
        )


def load_sdk() -> None:
    """Import the SDK now, for processes that will be forked from this one."""
    import openai  # noqa: F401  loading it is the point


def open_client(endpoint: Endpoint) -> Client:
    """The SDK's client for an endpoint, without retries of its own. Imports the SDK: half a second.

    Its connections are closed when it is no longer used, at the latest when the process ends.
    """
    import httpx2
    import openai

    timeout = httpx2.Timeout(endpoint.read_timeout, connect=endpoint.connect_timeout)
    http = openai.DefaultHttpxClient(timeout=timeout, event_hooks={"response": [_bound_error_body]})
    client = openai.OpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        timeout=timeout,
        max_retries=0,  # `with_retries` says aloud what it waits for
        http_client=http,
    )
    weakref.finalize(client, http.close)
    return client


def _bound_error_body(response: httpx2.Response) -> None:
    # The SDK reads the body of an error whole before anyone else sees it.
    if response.status_code >= 400:
        import httpx2

        class Head(httpx2.SyncByteStream):
            def __init__(self, whole: httpx2.SyncByteStream) -> None:
                self._whole = whole

            def __iter__(self) -> Iterator[bytes]:
                left = _MAX_ERROR_BODY_BYTES
                for chunk in self._whole:
                    yield chunk[:left]
                    left -= len(chunk)
                    if left <= 0:
                        return

            def close(self) -> None:
                self._whole.close()

        assert isinstance(response.stream, httpx2.SyncByteStream)
        response.stream = Head(response.stream)


# --- trying again ------------------------------------------------------------------------


@dataclass(frozen=True)
class RetryPolicy:
    """How often and when a request is sent again. Times are seconds."""

    tries: int = 3
    """In all, the first one included."""
    first_wait: float = 0.5
    longest_wait: float = 8.0
    longest_demand: float = 120.0
    """An endpoint that asks for a longer pause is not waited for."""

    def wait_after(self, number: int) -> float:
        """The pause after try `number`: twice as long each time.

        Without jitter: it spreads a crowd of clients, and this is one client.
        """
        return float(min(self.first_wait * 2 ** (number - 1), self.longest_wait))


def with_retries(
    call: Callable[[], T],
    policy: RetryPolicy,
    *,
    endpoint: Endpoint,
    on_wait: OnWait,
    sleep: Callable[[float], None],
    now: Callable[[], float] = time.time,
) -> T:
    """The result of `call`, tried again where that can help; every wait is said before it begins.

    Tried again: 408, 409, 429, 5xx, connection errors, silence, and what `x-should-retry` says;
    never an exhausted quota. `Retry-After` is obeyed up to the policy's `longest_demand`.
    Raises `LLMError` and nothing of the SDK's.
    """
    for number in range(1, policy.tries + 1):
        try:
            return call()
        except transport_errors() as error:
            fault = fault_of(error, endpoint, now())
        if fault.may_pass and (fault.demand or 0) > policy.longest_demand:
            raise fault.as_too_long(policy.longest_demand)
        if not fault.may_pass or number == policy.tries:
            raise fault.as_error(tries=number)
        seconds = fault.demand or policy.wait_after(number)
        on_wait(fault.what, seconds, number + 1, policy.tries)
        sleep(seconds)
    raise ValueError("a policy of no tries")


def transport_errors() -> tuple[type[Exception], ...]:
    """Everything the SDK and its transport raise. Import this late: it imports the SDK."""
    import httpx2
    import openai

    # A body is read through the transport's own response, so its exceptions come here unwrapped.
    return openai.OpenAIError, httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL


# --- what went wrong ---------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """One failed try: `what` happened in a line, whether it may pass, what pause was asked for."""

    what: str
    next_step: str
    may_pass: bool
    sent: bool = True
    """Whether the request reached the endpoint, as far as one can tell."""
    demand: float | None = None
    until: float | None = None
    status: int | None = None
    code: str = ""
    param: str = ""
    detail: str = ""

    def as_error(self, *, tries: int = 1) -> LLMError:
        """The error that leaves: what happened, how often, what to do next."""
        if self.code in _NO_QUOTA:
            return QuotaError(f"{self.what}: the account has nothing left; add credit or use another key")
        if self.status in (400, 422):
            message = f"{self.what}: {self.next_step}"
            return RequestRefused(message, status=self.status, param=self.param, detail=self.detail)
        often = f" (tried {tries} times)" if tries > 1 else ""
        final = self.status in _FINAL_STATUSES
        return EndpointError(f"{self.what}{often}: {self.next_step}", status=self.status, final=final)

    def as_too_long(self, longest: float) -> LLMError:
        """The error for a pause that is not waited for. Final: asking earlier was declined."""
        assert self.demand is not None
        assert self.until is not None
        moment = datetime.fromtimestamp(self.until, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return EndpointError(
            f"{self.what}: it asks to wait {self.demand:.0f} s, longer than {longest:g} s;"
            f" run again after {moment}",
            status=self.status,
            final=True,
        )


def translate(error: Exception, endpoint: Endpoint) -> LLMError:
    """An exception of the SDK or its transport as the error that leaves this room."""
    return fault_of(error, endpoint, time.time()).as_error()


_NO_QUOTA = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
_FINAL_STATUSES = frozenset({401, 402, 403, 404})
_NEXT_STEPS = {
    401: "check OPENAI_API_KEY",
    402: "add credit or use another key",
    403: "this key may not use this model or address",
    404: "check OPENAI_BASE_URL (it usually ends in /v1) and the model's name",
    405: "check OPENAI_BASE_URL: this endpoint does not offer this interface",
    413: "the prompt is too large for this endpoint",
    429: "wait a while, or ask for a higher rate limit",
    501: "this endpoint does not offer this interface",
}
_NOT_ACCEPTED = "the request was not accepted; check the model's name and the size of the input"
_NOT_WELL = "the endpoint is not well; try again later"


def fault_of(error: Exception, endpoint: Endpoint, now: float) -> Fault:
    """What an exception of the SDK or its transport means."""
    import httpx2
    import openai

    if isinstance(error, openai.APIStatusError):
        return _fault_of_status(error, endpoint, now)
    cause = error.__cause__ if isinstance(error, openai.APIConnectionError) else error
    words = _words(cause, endpoint)
    at = endpoint.address
    kinds: tuple[tuple[tuple[type[Exception], ...], Fault], ...] = (
        (
            (httpx2.ConnectTimeout, httpx2.ConnectError, httpx2.PoolTimeout, httpx2.ProxyError),
            Fault(
                f"no connection to {at} ({words})", "check OPENAI_BASE_URL and the network", True, sent=False
            ),
        ),
        (
            (httpx2.UnsupportedProtocol, httpx2.InvalidURL, httpx2.LocalProtocolError),
            Fault(f"no request could be sent to {at} ({words})", "check OPENAI_BASE_URL", False, sent=False),
        ),
        (
            (httpx2.TimeoutException,),
            Fault(f"{at} was silent for {endpoint.read_timeout:g} s", _NOT_WELL, True),
        ),
        (
            (httpx2.TooManyRedirects,),
            Fault(f"{at} sends every request elsewhere", "check OPENAI_BASE_URL", False),
        ),
        (
            (httpx2.HTTPError,),  # cut, reset, not HTTP, not what its Content-Encoding says
            Fault(f"the connection to {at} broke ({words})", "check the network", True),
        ),
    )
    unknown = Fault(f"no usable answer from {at} ({words})", _NOT_WELL, False)
    return next((fault for errors, fault in kinds if isinstance(cause, errors)), unknown)


def _fault_of_status(error: openai.APIStatusError, endpoint: Endpoint, now: float) -> Fault:
    status = error.status_code
    said = Said.of(error.body)
    what = f"{endpoint.address} answered {status}"
    if said.message:
        what += f" ({shortened(said.message, endpoint)})"
    wish = error.response.headers.get("x-should-retry")
    may_pass = status in (408, 409, 429) or status >= 500 if wish not in ("true", "false") else wish == "true"
    demand = _pause_asked_for(error.response.headers, now)
    server = _NOT_WELL if status >= 500 or status in (408, 409) else _NOT_ACCEPTED
    return Fault(
        what,
        _NEXT_STEPS.get(status, server),
        may_pass=may_pass and said.code not in _NO_QUOTA,
        demand=demand,
        until=None if demand is None else now + demand,
        status=status,
        code=said.code,
        param=said.param,
        detail=endpoint.redact(said.message),
    )


@dataclass(frozen=True)
class Said:
    """What an endpoint says about an error, in whichever of the usual forms it said it."""

    message: str = ""
    code: str = ""
    param: str = ""
    status: int | None = None

    @classmethod
    def of(cls, body: object) -> Said:
        """From an error object, flat or in an `error`, from FastAPI's `detail`, or from plain text."""
        if isinstance(body, str):
            return cls(body)
        if not isinstance(body, dict):
            return cls()
        inner = body.get("error")
        if isinstance(inner, dict | str):
            return cls.of(inner)
        detail = body.get("detail")
        if isinstance(detail, list):  # validation errors; their `input` would repeat the whole prompt
            parts = [item for item in detail if isinstance(item, dict)]
            message = "; ".join(f"{_dotted(part.get('loc'))}: {part.get('msg')}" for part in parts)
        else:
            message = _text(body.get("message")) or _text(detail)
        code = body.get("code")
        # `insufficient_quota` stands in the code, in the type, or in both.
        kind = _text(body.get("type"))
        return cls(
            message,
            code=kind if kind in _NO_QUOTA else _text(code),
            param=_text(body.get("param")),
            status=code if isinstance(code, int) and 400 <= code < 600 else None,
        )


def error_said(body: object, endpoint: Endpoint) -> LLMError:
    """The error for one that came inside a 200: an `error` event, an `error` in a body, a failed response."""
    said = Said.of(body)
    words = shortened(said.message or said.code, endpoint) or "it does not say why"
    if said.code in _NO_QUOTA:
        return QuotaError(f"{endpoint.address} failed ({words}): the account has nothing left; add credit")
    name = f"{said.code}: " if said.code and said.code not in words else ""
    return EndpointError(f"{endpoint.address} failed ({name}{words}): {_NOT_WELL}", status=said.status)


_A_CENTURY = 100 * 365 * 86400.0  # beyond it no date can be named


def _pause_asked_for(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that `retry-after-ms` or `Retry-After` (a number or an HTTP date) asks to wait."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        return seconds if math.isfinite(seconds) and 0 < seconds < _A_CENTURY else None
    try:
        moment = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        seconds = moment.timestamp() - now
    except (ValueError, OverflowError):
        return None
    return seconds if seconds > 0 else None


def _dotted(location: object) -> str:
    return ".".join(map(str, location)) if isinstance(location, list) else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _words(error: BaseException | None, endpoint: Endpoint) -> str:
    return shortened(str(error) or type(error).__name__, endpoint)


def shortened(text: str, endpoint: Endpoint) -> str:
    """What an endpoint wrote, fit for one line: white space folded, 300 characters, without the key."""
    line = " ".join(endpoint.redact(text).split())
    return line if len(line) <= _MAX_QUOTED_CHARS else line[:_MAX_QUOTED_CHARS] + "…"
