"""What happens in a run, as typed events: told to listeners, and kept in `events.jsonl`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any, ClassVar

from shared.files import json_text
from shared.run_context import utc_now_iso

EVENTS_VERSION = 1
EVENTS_FILE = "events.jsonl"


@dataclass(frozen=True)
class Event:
    """Something that happened. The class name in snake case is its `kind` in the log."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.kind = "".join("_" + c.lower() if c.isupper() else c for c in cls.__name__).lstrip("_")


Listener = Callable[[Event], None]


@dataclass(frozen=True)
class RunStarted(Event):
    """A run of either tool has its directory."""

    tool: str
    run_id: str
    subject: str
    directory: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class AttemptStarted(Event):
    """A pass from question to verdict begins. `attempt` counts from 1."""

    subject: str
    attempt: int
    of: int


@dataclass(frozen=True)
class ModelAsked(Event):
    """A request is on disk and about to be sent."""

    role: str
    subject: str
    attempt: int
    prompt_bytes: int


@dataclass(frozen=True)
class ModelThinking(Event):
    """A piece of the model's reasoning summary arrived. Shown live, not kept in the log."""

    text: str


@dataclass(frozen=True)
class ModelWaiting(Event):
    """The endpoint is asked again after `seconds`, because of `reason`."""

    reason: str
    seconds: float
    next_try: int
    of: int


@dataclass(frozen=True)
class ModelAnswered(Event):
    """A reply is on disk. `usage` has the token counts, or is None when none were named."""

    role: str
    subject: str
    attempt: int
    seconds: float
    usage: dict[str, int] | None


@dataclass(frozen=True)
class PlanRefused(Event):
    """A proposed plan has hard findings, each `[CODE] order: message`."""

    attempt: int
    findings: Sequence[str]


@dataclass(frozen=True)
class PlanAccepted(Event):
    """A plan holds together and has been written."""

    attempt: int
    orders: Sequence[str]
    directory: str


@dataclass(frozen=True)
class StepDone(Event):
    """One step of an attempt has ended: `proposal`, `write`, `verify`, `postconditions` or `acceptance`."""

    step: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class CommandEnded(Event):
    """A verification or acceptance command has ended."""

    command: str
    exit_code: int
    seconds: float


@dataclass(frozen=True)
class AttemptFailed(Event):
    """An attempt ended with a failure brief."""

    attempt: int
    stage: str
    excerpt: str


@dataclass(frozen=True)
class RolledBack(Event):
    """The scratch tree is back at the baseline."""

    baseline: str


@dataclass(frozen=True)
class Committed(Event):
    """The working branch now ends in `commit`."""

    branch: str
    commit: str
    files: Sequence[str]


@dataclass(frozen=True)
class Pushed(Event):
    """The branch was pushed, or could not be (`problem`); the verdict does not depend on it."""

    remote: str
    branch: str
    problem: str | None


@dataclass(frozen=True)
class Recovered(Event):
    """What a dead run had left was finished or undone."""

    run_id: str
    what: str


@dataclass(frozen=True)
class Waiting(Event):
    """Another run works on this repository; this one waits for it."""

    reason: str


@dataclass(frozen=True)
class Warned(Event):
    """Something the user should know that does not change the verdict."""

    text: str


@dataclass(frozen=True)
class RunEnded(Event):
    """The run is over and its records are written."""

    verdict: str
    exit_code: int
    seconds: float
    summary: str


class Bus:
    """Tells every listener of every event, in order."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = list(listeners)

    def add(self, listener: Listener) -> None:
        """Tell `listener` of everything from now on."""
        self._listeners.append(listener)

    def remove(self, listener: Listener) -> None:
        """Tell `listener` of nothing more."""
        self._listeners.remove(listener)

    def __call__(self, event: Event) -> None:
        """Hand an event on."""
        for listener in self._listeners:
            listener(event)


class EventLog:
    """The listener that appends to `events.jsonl`, a line per event, as it happens.

    A log that cannot be written any more (a full disk) ends there; what it tells of does not, since
    no verdict may depend on it.
    """

    def __init__(self, run_dir: Path) -> None:
        self._file: IO[str] = open(  # noqa: SIM115  closed by close()
            run_dir / EVENTS_FILE, "a", encoding="utf-8", errors="backslashreplace"
        )

    def __call__(self, event: Event) -> None:
        """Append one event and hand it to the operating system at once."""
        if isinstance(event, ModelThinking) or self._file.closed:
            return
        head = {"v": EVENTS_VERSION, "at": utc_now_iso(), "kind": event.kind}
        try:
            self._file.write(json_text({**head, **asdict(event)}) + "\n")
            self._file.flush()
        except OSError:
            self.close()

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # it flushes once more what could not be written
            self._file.close()


def event_kinds() -> dict[str, tuple[str, ...]]:
    """Every kind of event with the names of its fields, for documentation."""
    return {cls.kind: tuple(f.name for f in fields(cls)) for cls in Event.__subclasses__()}
