"""Events to lines: how a factory run reads on the terminal."""

from __future__ import annotations

from shared.console import Console
from shared.events import (
    AttemptFailed,
    AttemptStarted,
    CommandEnded,
    Committed,
    Event,
    Listener,
    ModelAnswered,
    ModelAsked,
    ModelWaiting,
    Pushed,
    Recovered,
    RolledBack,
    RunEnded,
    RunStarted,
    StepDone,
    Waiting,
    Warned,
)


def narrator(console: Console) -> Listener:  # noqa: C901  one arm per event, each a line
    """A listener that tells the story of a run to `console`."""

    def tell(event: Event) -> None:  # noqa: C901, PLR0912  one arm per event, each a line
        match event:
            case RunStarted():
                console.header(f"{event.subject}  run {event.run_id}")
                for key, value in event.settings.items():
                    console.kv(key, value)
            case AttemptStarted():
                console.attempt_start(event.attempt, event.of)
            case ModelAsked():
                console.detail(f"asked the model, {event.prompt_bytes} bytes")
            case ModelWaiting():
                which = f"try {event.next_try} of {event.of}"
                console.info(f"  waiting {event.seconds:.1f} s before {which}: {event.reason}")
            case ModelAnswered():
                console.step("answer", ok=True, detail=f"{event.seconds:.1f} s{_tokens(event.usage)}")
            case StepDone():
                console.step(event.step, ok=event.ok, detail=event.detail)
            case CommandEnded():
                console.detail(f"exit {event.exit_code} after {event.seconds:.2f} s: {event.command}")
            case AttemptFailed():
                console.error_block(event.stage, event.excerpt)
            case RolledBack():
                console.rollback_notice(event.baseline)
            case Committed():
                console.step("commit", ok=True, detail=f"{event.commit[:12]} on {event.branch}")
            case Pushed(problem=None):
                console.step("push", ok=True, detail=f"{event.branch} to {event.remote}")
            case Pushed():
                console.warning(f"{event.branch} was not pushed to {event.remote}: {event.problem}")
            case Recovered():
                console.info(f"run {event.run_id}, which was killed: {event.what}")
            case Waiting():
                console.info(event.reason)
            case Warned():
                console.warning(event.text)
            case RunEnded():
                console.verdict(event.summary, ok=event.exit_code == 0)
            case _:
                pass

    return tell


def _tokens(usage: dict[str, int] | None) -> str:
    return "" if usage is None else f", {usage['input']} tokens in, {usage['output']} out"
