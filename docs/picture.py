"""Draw docs/demo.svg from what `llmch demo` really says: `python docs/picture.py`.

It plays the demo on a terminal, keeps the passages named below, and says how many lines lie between them.
The place of this checkout is shown as `~/llmch`; everything else is as it was said.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = "expenses"
COLUMNS = 104

# What is kept: from the first line that matches the one pattern to the next that matches the other.
PASSAGES = (
    (r"^llmch demo", r"^The model.s answers"),
    (r"^\$ llmch plan", r"^planner run"),
    (r"^attempt 1 of", r"^next: "),
    (r"^\$ llmch run-all", r"^  order:"),
    (r"^attempt 1 of", r"^PASS"),
    (r"^WO-07", r"^  order:"),
    (r"^attempt 1 of", r"^  \| stdout:"),
    (r"AssertionError: assert", r"AssertionError: assert"),
    (r"^  \| \d+ failed", r"^PASS"),
    (r"^all \d+ work orders", r"Start of"),
)

CELL_WIDTH, LINE_HEIGHT, MARGIN, FONT_SIZE = 7.83, 18, 16, 13
GROUND, INK = "#0d1117", "#c9d1d9"
COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "36": "#79c0ff", "2": "#8b949e"}
_ESCAPE = re.compile(r"\x1b\[([\d;]*)m")


def main() -> None:
    lines = list(wrapped(passages(played())))
    (ROOT / "docs/demo.svg").write_text(drawn(lines), "utf-8")


def played() -> list[str]:
    """What the demo says on a terminal, with its colours."""
    ours, theirs = os.openpty()
    said = bytearray()
    with tempfile.TemporaryDirectory() as temporary:
        demo = subprocess.Popen(
            [sys.executable, "-P", "-m", "llmch.demo", EXAMPLE],
            cwd=temporary,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        # The end of the other side is an error on Linux and an empty read elsewhere.
        with suppress(OSError):
            while data := os.read(ours, 65536):
                said += data
        if demo.wait() != 0:
            sys.exit(said.decode("utf-8", "replace"))
    os.close(ours)
    return said.decode().replace(str(ROOT), "~/llmch").splitlines()


def passages(lines: list[str]) -> Iterator[str]:
    """The passages that are kept, and between them how much is not."""
    bare = [_ESCAPE.sub("", line) for line in lines]
    behind = 0
    for first, last in PASSAGES:
        start = next(at for at in range(behind, len(bare)) if re.search(first, bare[at]))
        end = next(at for at in range(start, len(bare)) if re.search(last, bare[at])) + 1
        left_out = [line for line in bare[behind:start] if line.strip()]
        if left_out:
            yield f"\x1b[2m⋮ {len(left_out)} line{'s' if len(left_out) > 1 else ''}\x1b[0m"
        elif start > behind:
            yield ""
        yield from lines[start:end]
        behind = end


def wrapped(lines: Iterator[str]) -> Iterator[list[tuple[str, str]]]:
    """Lines as a terminal of so many columns shows them, each as (colour code, character)."""
    for line in lines:
        cells: list[tuple[str, str]] = []
        colour = ""
        for at, part in enumerate(_ESCAPE.split(line)):
            if at % 2:
                colour = "" if part in ("", "0") else part
            else:
                cells += [(colour, char) for char in part]
        for at in range(0, max(len(cells), 1), COLUMNS):
            yield cells[at : at + COLUMNS]


def drawn(lines: list[list[tuple[str, str]]]) -> str:
    """The picture."""
    width = round(COLUMNS * CELL_WIDTH + 2 * MARGIN)
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN
    font = f'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="{FONT_SIZE}"'
    body = "\n".join(_line(cells, number) for number, cells in enumerate(lines) if cells)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="{GROUND}"/>\n'
        f'<g {font} fill="{INK}" xml:space="preserve">\n{body}\n</g>\n</svg>\n'
    )


def _line(cells: list[tuple[str, str]], number: int) -> str:
    runs: list[tuple[str, str]] = []
    for colour, char in cells:
        if runs and runs[-1][0] == colour:
            runs[-1] = (colour, runs[-1][1] + char)
        else:
            runs.append((colour, char))
    spans = "".join(_span(colour, text) for colour, text in runs)
    y = MARGIN + (number + 1) * LINE_HEIGHT - 5
    # The length is given, so that a font of another width does not move the columns.
    length = round(len(cells) * CELL_WIDTH, 1)
    return f'<text x="{MARGIN}" y="{y}" textLength="{length}" lengthAdjust="spacing">{spans}</text>'


def _span(colour: str, text: str) -> str:
    if not colour:
        return f"<tspan>{escape(text)}</tspan>"
    style = 'font-weight="bold"' if colour == "1" else f'fill="{COLOURS[colour]}"'
    return f"<tspan {style}>{escape(text)}</tspan>"


if __name__ == "__main__":
    main()
