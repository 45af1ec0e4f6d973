"""How fast a start is: `llmch --help`, and what each tool's own help takes, against bare Python."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial

from benchmarks.timing import medians, ratio_row

ROUNDS = 15
BARE = ("-c", "pass")
STARTS = {
    "llmch --help": ("-m", "llmch", "--help"),
    "llmch plan --help": ("-m", "llmch", "plan", "--help"),
    "llmch run --help": ("-m", "llmch", "run", "--help"),
}


def rows() -> Iterator[str]:
    """A line for each start."""
    candidates = {"bare": BARE, **STARTS}
    with tempfile.TemporaryDirectory() as elsewhere:
        measured = medians(
            {name: partial(_start, argv, elsewhere) for name, argv in candidates.items()}, ROUNDS
        )
    for name in STARTS:
        yield ratio_row(name, measured[name], "python -c pass", measured["bare"])


def _start(arguments: tuple[str, ...], cwd: str) -> None:
    subprocess.run([sys.executable, *arguments], cwd=cwd, env=_environment(), check=True, capture_output=True)


def _environment() -> dict[str, str]:
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return {**os.environ, "PYTHONPATH": home}
