"""Medians of interleaved runs: whatever else the machine does hits all candidates alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def medians(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each candidate, which are called in turn, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name, candidate in candidates.items():
            started = time.perf_counter()
            candidate()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def ratio_row(what: str, seconds: float, to: str, base: float) -> str:
    """A line: how many times as long as the base it takes."""
    return f"{what:<44} {seconds / base:6.1f} x  {to}  ({seconds * 1000:.1f} ms : {base * 1000:.1f} ms)"
