"""Plans on disk: work orders first, the manifest last, never two plans mixed."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from planner.defaults import MANIFEST_FILE, WORK_ORDER_GLOB
from shared.files import write_all, write_atomic

_ID = re.compile(r"WO-\d{2,}")
_FILES_AT_ONCE = 200  # each is held open until all are synced, and a process may hold 256 on some systems


class OverwriteRefused(FileExistsError):
    """A directory holds a plan already, or cannot hold anything. The text says what to do next."""


def check_overwrite(outdir: str | Path, overwrite: bool = False) -> None:
    """Raise `OverwriteRefused` when a plan cannot or may not be written to `outdir`. Changes nothing."""
    directory = Path(outdir)
    check_writable(directory, "--outdir")
    if not overwrite and (found := plan_files(directory)):
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise OverwriteRefused(
            f"--outdir {directory} holds a plan already ({found[0].name}{more}); "
            "name another directory, or replace it with --overwrite"
        )


def check_writable(directory: Path, flag: str) -> None:
    """Raise `OverwriteRefused` when `directory` cannot be written to, or cannot be made. Changes nothing."""
    if os.path.lexists(directory) and not directory.is_dir():
        raise OverwriteRefused(f"{flag} {directory} is not a directory; name another one")
    nearest = next(path for path in (directory, *directory.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise OverwriteRefused(f"{flag} {directory}: {nearest} is not a directory; name another one")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise OverwriteRefused(f"{flag} {directory}: {nearest} cannot be written to; name another one")


def plan_files(directory: Path) -> list[Path]:
    """The files of a plan in `directory`: work orders by number, then the manifest where there is one."""
    orders = sorted(directory.glob(WORK_ORDER_GLOB), key=order_number)
    manifest = directory / MANIFEST_FILE
    return [*orders, *([manifest] if os.path.lexists(manifest) else [])]


def order_number(path: Path) -> tuple[int, str]:
    """Sorts WO-2 before WO-10; a name without a number comes first, so that it is seen."""
    digits = re.fullmatch(r"WO-(\d{1,18})\.json", path.name)
    return (int(digits[1]) if digits else -1, path.name)


def write_work_orders(
    outdir: str | Path, work_orders: Sequence[Mapping[str, Any]], manifest: Mapping[str, Any]
) -> list[Path]:
    """Write a plan into `outdir`, in place of any that is there; return the files in that order.

    Whoever reads `outdir` at any moment, also after a kill, finds the old plan, the new plan, or one
    that neither has a manifest nor begins with WO-01. All is on disk before the old plan is touched.
    Raises `ValueError` for an id that cannot name a file, `OSError` when something cannot be written.
    """
    directory = Path(outdir)
    names = [_file_name(order) for order in work_orders]
    directory.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".llmch-plan-", dir=directory))
    try:
        files = ((staging / name, _text(order)) for name, order in zip(names, work_orders, strict=True))
        while batch := list(islice(files, _FILES_AT_ONCE)):
            write_all(batch)
        write_atomic(staging / MANIFEST_FILE, _text(manifest))
        _remove_plan(directory)
        # The first order last: before that, no sequence begins here.
        for name in [*reversed(names), MANIFEST_FILE]:
            os.replace(staging / name, directory / name)
    finally:
        with suppress(OSError):
            shutil.rmtree(staging)
    return [directory / name for name in [*names, MANIFEST_FILE]]


def _remove_plan(directory: Path) -> None:
    """The manifest first, then from WO-01 upwards: what is left at any moment is no plan to begin with."""
    (directory / MANIFEST_FILE).unlink(missing_ok=True)
    for path in plan_files(directory):
        path.unlink(missing_ok=True)


def _file_name(order: Mapping[str, Any]) -> str:
    identity = order.get("id")
    if not isinstance(identity, str) or not _ID.fullmatch(identity):
        raise ValueError(f"{identity!r} cannot name a work order file; ids are WO-01, WO-02, …")
    return f"{identity}.json"


def _text(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace")
