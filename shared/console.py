"""The terminal, for both tools: three levels, colour only where it is wanted, nothing raw.

stderr tells the story, stdout carries the answer. Text from models, work orders and commands passes
`printable` first: a terminal escape in it arrives as visible characters.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TextIO

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Level(IntEnum):
    """How much is said. `QUIET` leaves verdicts, warnings that matter and errors."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


def printable(text: str) -> str:
    """`text` with every control character (but newline and tab) made visible as an escape."""
    return "".join(c if c in "\n\t" or _harmless(c) else c.encode("unicode_escape").decode() for c in text)


def _harmless(char: str) -> bool:
    code = ord(char)
    if code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000:
        return False
    # Bidirectional overrides reorder what a reader sees; line and paragraph separators break lines.
    return code not in _DECEIVING


_DECEIVING = frozenset((0x061C, 0x200E, 0x200F, 0x2028, 0x2029, 0xFEFF)) | frozenset(
    (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
)


def wants_colour(stream: TextIO | None, environment: Mapping[str, str]) -> bool:
    """`NO_COLOR` forbids, `FORCE_COLOR` demands, else a terminal that is not `dumb` gets colour."""
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR"):
        return True
    return stream is not None and stream.isatty() and environment.get("TERM") != "dumb"


@dataclass
class Console:
    """Says things at a level. `story` and `answer` are the two streams."""

    level: Level = Level.NORMAL
    colour: bool | None = None
    """None: decided from the stream and the environment."""
    story: TextIO | None = field(default_factory=lambda: sys.stderr)
    answer: TextIO | None = field(default_factory=lambda: sys.stdout)

    def __post_init__(self) -> None:
        if self.colour is None:
            self.colour = wants_colour(self.story, os.environ)
        self._mid_line = False

    # --- the story ---

    def header(self, text: str) -> None:
        """The title of a run."""
        self._say(Level.NORMAL, self._style("bold", printable(text)))

    def kv(self, key: str, value: object) -> None:
        """A named fact under the header."""
        self._say(Level.NORMAL, f"  {self._style('dim', key + ':')} {printable(str(value))}")

    def attempt_start(self, attempt: int, of: int) -> None:
        """An attempt begins."""
        self._say(Level.NORMAL, self._style("cyan", f"attempt {attempt} of {of}"))

    def step(self, name: str, ok: bool, detail: str = "") -> None:
        """A step has ended; `ok` is whether it ended well."""
        mark = self._style("green", "ok  ") if ok else self._style("red", "fail")
        self._say(
            Level.NORMAL,
            f"  {mark} {printable(name)}" + (f"  {printable(detail)}" if detail else ""),
        )

    def detail(self, text: str) -> None:
        """Something for `--verbose` only."""
        self._say(Level.VERBOSE, "    " + printable(text))

    def info(self, text: str) -> None:
        """A plain line."""
        self._say(Level.NORMAL, printable(text))

    def error_block(self, title: str, text: str) -> None:
        """A failure and what was seen of it, indented."""
        self._say(Level.NORMAL, self._style("red", f"  {printable(title)}"))
        for line in printable(text).splitlines():
            self._say(Level.NORMAL, f"  | {line}")

    def rollback_notice(self, baseline: str) -> None:
        """The scratch tree went back to the baseline; the repository was never touched."""
        self._say(Level.NORMAL, self._style("yellow", f"  rolled back to {baseline[:12]}"))

    def fragment(self, text: str) -> None:
        """A piece of running text (a reasoning summary), shown as it arrives."""
        if self.level < Level.NORMAL or not text:
            return
        self._write(self.story, self._style("dim", printable(text)))
        self._mid_line = not text.endswith("\n")

    def warning(self, text: str) -> None:
        """Shown at every level."""
        self._say(Level.QUIET, self._style("yellow", "warning: ") + printable(text))

    def error(self, text: str) -> None:
        """Shown at every level: what is wrong, where, and what to do next."""
        self._say(Level.QUIET, self._style("red", "error: ") + printable(text))

    # --- the answer ---

    def verdict(self, text: str, ok: bool) -> None:
        """The outcome, on stdout, at every level."""
        self._end_line()
        colour = wants_colour(self.answer, os.environ) and self.colour is not False
        shown = printable(text)
        if colour:
            shown = f"\x1b[{_STYLES['green' if ok else 'red']}m{shown}\x1b[0m"
        self._write(self.answer, shown + "\n")

    def result(self, text: str) -> None:
        """A line of the answer that was asked for, on stdout, at every level."""
        self._end_line()
        self._write(self.answer, printable(text) + "\n")

    # --- how ---

    def _say(self, level: Level, text: str) -> None:
        if self.level >= level:
            self._end_line()
            self._write(self.story, text + "\n")

    def _end_line(self) -> None:
        if self._mid_line:
            self._mid_line = False
            self._write(self.story, "\n")

    def _style(self, name: str, text: str) -> str:
        return f"\x1b[{_STYLES[name]}m{text}\x1b[0m" if self.colour else text

    @staticmethod
    def _write(stream: TextIO | None, text: str) -> None:
        if stream is None:  # started without one (`>&-`)
            return
        try:
            try:
                stream.write(text)
            except UnicodeEncodeError:  # LC_ALL=C: any text must be sayable in any locale
                encoding = stream.encoding or "ascii"
                stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            stream.flush()
        except OSError:
            _lose(stream)


def _lose(stream: TextIO) -> None:
    """Nobody reads this stream any more (`| head`, a full disk): what a run does must not depend on it.

    It leads nowhere from now on, or the interpreter would stumble over it once more at its exit.
    """
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
