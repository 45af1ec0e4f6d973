"""Events to lines: how a compile reads on the terminal."""

from __future__ import annotations

from shared.console import Console, Level
from shared.events import (
    AttemptStarted,
    Event,
    Listener,
    ModelAnswered,
    ModelAsked,
    ModelThinking,
    ModelWaiting,
    PlanAccepted,
    PlanRefused,
    RunStarted,
    Warned,
)

_FINDINGS_SHOWN = 20


def narrator(console: Console) -> Listener:  # noqa: C901  the arms of its inner function
    """A listener that tells the story of a compile to `console`."""

    def tell(event: Event) -> None:  # noqa: C901  one arm per event, each a line
        match event:
            case RunStarted():
                console.header(f"planner run {event.run_id}")
                for key, value in event.settings.items():
                    console.kv(key, value)
            case AttemptStarted():
                console.attempt_start(event.attempt, event.of)
            case ModelAsked():
                console.detail(f"asked the model, {event.prompt_bytes} bytes")
            case ModelThinking():
                console.fragment(event.text)
            case ModelWaiting():
                again = f"asking again in {event.seconds:.1f} s (try {event.next_try} of {event.of})"
                console.info(f"  {event.reason}: {again}")
            case ModelAnswered():
                console.step("answer", ok=True, detail=f"{event.seconds:.1f} s{_tokens(event.usage)}")
            case PlanRefused():
                _tell_refusal(console, event)
            case PlanAccepted():
                count = len(event.orders)
                console.step("plan", ok=True, detail="1 work order" if count == 1 else f"{count} work orders")
            case Warned() if console.level > Level.QUIET:
                console.warning(event.text)
            case _:
                pass

    return tell


def _tell_refusal(console: Console, event: PlanRefused) -> None:
    count = len(event.findings)
    console.step("plan", ok=False, detail="1 finding" if count == 1 else f"{count} findings")
    shown = list(event.findings if console.level is Level.VERBOSE else event.findings[:_FINDINGS_SHOWN])
    if count > len(shown):
        shown.append(f"and {count - len(shown)} more (--verbose shows all)")
    console.error_block("refused", "\n".join(shown))


def _tokens(usage: dict[str, int] | None) -> str:
    return "" if usage is None else f", {usage['input']} tokens in, {usage['output']} out"
