"""What the Responses API says, read tolerantly: servers leave fields out, and streams say things twice."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from shared.llm import Usage
from shared.wire import MAX_ANSWER_BYTES, TOO_LARGE, clean_text, clipped, usage_of


@dataclass(frozen=True)
class Outcome:
    """A response object, read tolerantly: servers leave fields out."""

    status: str
    """As the endpoint says it; `unknown` for JSON that does not look like a response."""
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    reason: str = ""
    """Why it is incomplete."""
    error: object = None
    usage: Usage | None = None
    model: str | None = None
    response_id: str | None = None

    @property
    def cut(self) -> bool:
        """Whether a larger budget may help."""
        return self.status == "incomplete" and self.reason != "content_filter"

    @classmethod
    def of(cls, body: dict[str, Any], status: str | None = None) -> Outcome:
        """From a response object; `status` is what the event that carried it says."""
        items = [item for item in _list(body.get("output")) if isinstance(item, dict)]
        messages = [item for item in items if item.get("type") == "message"]
        # Some models comment before they answer, and say which message is which.
        answers = [item for item in messages if item.get("phase") == "final_answer"] or messages
        parts = [part for item in answers for part in _list(item.get("content")) if isinstance(part, dict)]
        error, details = body.get("error"), body.get("incomplete_details")
        if status is None:
            status = _str(body.get("status")) or ("failed" if error else "completed" if items else "unknown")
        return cls(
            status=status,
            text=clipped(clean_text("".join(_str(part.get("text")) for part in parts))),
            reasoning=clipped(clean_text("\n\n".join(_summaries(items)))),
            refusal=clean_text("".join(_str(part.get("refusal")) for part in parts)),
            reason=_str(details.get("reason")) if isinstance(details, dict) else "",
            error=error,
            usage=usage_of(body.get("usage")),
            model=_str(body.get("model")) or None,
            response_id=_str(body.get("id")) or None,
        )


def _summaries(items: list[dict[str, Any]]) -> list[str]:
    thoughts = [item for item in items if item.get("type") == "reasoning"]
    parts = [part for item in thoughts for part in (_list(item.get("summary")) or _list(item.get("content")))]
    return [_str(part.get("text")) for part in parts if isinstance(part, dict)]


@dataclass
class Gathered:
    """What the events of a stream have said so far; `outcome` is there with the last of them."""

    outcome: Outcome | None = None
    began: bool = False
    text: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    text_size: int = 0
    thoughts_size: int = 0

    def take(self, event: dict[str, Any]) -> str:
        """Take the next event; returns what there is new of the model's thoughts."""
        self.began = True
        kind = _str(event.get("type"))
        delta = _str(event.get("delta"))
        if kind in ("response.completed", "response.incomplete", "response.failed", "response.cancelled"):
            response = event.get("response")
            body = response if isinstance(response, dict) else {}
            status, told = kind.partition(".")[2], _str(body.get("status"))
            # Some bridges end every stream with `completed` and tell how it ended in the object only.
            if status == "completed" and told in ("incomplete", "failed", "cancelled"):
                status = told
            ended = Outcome.of(body, status)
            # `completed` may come with an empty output after real deltas.
            self.outcome = replace(
                ended,
                text=ended.text or clipped(clean_text("".join(self.text))),
                reasoning=ended.reasoning or clean_text("".join(self.thoughts)),
                refusal=ended.refusal or clean_text("".join(self.refusal)),
            )
        elif kind == "response.output_text.delta":
            self.text.append(delta)
            self.text_size += len(delta.encode("utf-8", "surrogatepass"))
            if self.text_size > MAX_ANSWER_BYTES:
                self.outcome = Outcome(TOO_LARGE, text=clipped(clean_text("".join(self.text))))
        elif kind == "response.refusal.delta":
            self.refusal.append(delta)
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            return self._thought(delta)
        elif kind == "response.reasoning_summary_part.added" and self.thoughts:
            return self._thought("\n\n")
        return ""

    def _thought(self, text: str) -> str:
        self.thoughts_size += len(text)
        if self.thoughts_size <= MAX_ANSWER_BYTES:
            self.thoughts.append(text)
        return text


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _str(value: object) -> str:
    return value if isinstance(value, str) else ""
