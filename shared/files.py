"""Bytes on disk: files written whole or not at all, hashes, strict and canonical JSON."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
"""What a file that does not exist hashes to in a proposal (REQUIREMENTS Q20)."""

_MAX_JSON_DEPTH = 200
_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonError(ValueError):
    """Text that is not one strict JSON value; the message says what and where."""


# --- writing -----------------------------------------------------------------------------


def write_atomic(path: str | Path, data: bytes, *, mode: int | None = None) -> None:
    """Write `data` to `path` whole or not at all, and have it on disk on return.

    An existing file keeps its permission bits unless `mode` is given; a new one follows the umask.
    Missing parent directories are made. Raises `OSError`, and leaves no temporary file behind then.
    """
    write_all([(path, data)], modes=None if mode is None else {os.fspath(path): mode})


def write_all(files: Iterable[tuple[str | Path, bytes]], *, modes: dict[str, int] | None = None) -> None:
    """Write several files: all temporaries, one round of syncs, then all renames.

    Each file is replaced atomically; the set is not (a failing rename leaves earlier ones done).
    One round of syncs, because a sync per file costs milliseconds each.
    """
    pending: list[tuple[str, Path]] = []
    open_files: list[int] = []
    try:
        for path, data in files:
            target = Path(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".llmch-", dir=target.parent)
            pending.append((temporary, target))
            open_files.append(handle)
            os.fchmod(handle, (modes or {}).get(os.fspath(path), _mode_for(target)))
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
        for handle in open_files:
            os.fsync(handle)
        while pending:
            temporary, target = pending[0]
            os.replace(temporary, target)
            pending.pop(0)
    finally:
        for handle in open_files:
            os.close(handle)
        for temporary, _ in pending:
            with suppress(OSError):
                os.unlink(temporary)


def _mode_for(target: Path) -> int:
    # mkstemp makes files 0600; without this an executable script would lose its bit, and git sees that.
    try:
        return stat.S_IMODE(target.stat().st_mode)
    except OSError:
        umask = os.umask(0)
        os.umask(umask)
        return 0o666 & ~umask


def write_text(path: str | Path, text: str) -> None:
    """Write text as UTF-8, atomically; a lone surrogate in model text is kept readable as an escape."""
    write_atomic(path, text.encode("utf-8", "backslashreplace"))


def save_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented UTF-8 JSON with a final newline, atomically. Key order is kept.

    `read_json` takes what this wrote: a lone surrogate (a path that is not UTF-8 has them) is kept
    as the text of its escape.
    """
    write_text(path, json_text(value, indent=2) + "\n")


def json_text(value: Any, *, indent: int | None = None) -> str:
    """`value` as strict JSON, on one line unless `indent` is given. Key order is kept.

    A lone surrogate, which is no text, becomes the text of its escape.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    return _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text)


# --- hashing -----------------------------------------------------------------------------


def sha256_bytes(data: bytes) -> str:
    """Lower-case hex SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str | Path) -> str:
    """Lower-case hex SHA-256 of a file's bytes, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """SHA-256 of the canonical form: equal for equal values, whatever the key order."""
    return sha256_bytes(canonical_json_bytes(value))


def canonical_json_bytes(value: Any) -> bytes:
    """JSON with sorted keys, no spaces and no NaN, as UTF-8."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


# --- reading -----------------------------------------------------------------------------


def loads_strict(text: str | bytes) -> Any:
    """Parse exactly one JSON value. Raises `JsonError`.

    Refused although `json.loads` takes them: duplicate keys, NaN and Infinity, a lone surrogate,
    nesting beyond 200, bytes that are not UTF-8. A byte order mark is refused as the text it is.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise JsonError(f"not UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except RecursionError:
        raise JsonError(f"nested deeper than {_MAX_JSON_DEPTH}") from None
    except json.JSONDecodeError as error:
        raise JsonError(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except JsonError:
        raise
    except ValueError as error:  # an integer of more digits than Python converts
        raise JsonError(str(error)) from None
    _check_value(value)
    return value


def read_json(path: str | Path, *, max_bytes: int) -> Any:
    """Read and parse a regular file of at most `max_bytes`. Raises `OSError` or `JsonError`."""
    data = read_regular(path, max_bytes=max_bytes + 1)
    if len(data) > max_bytes:
        raise JsonError(f"larger than {max_bytes} bytes")
    return loads_strict(data)


def read_regular(path: str | Path, *, max_bytes: int) -> bytes:
    """At most `max_bytes` of a regular file (links followed). Raises `OSError` for anything else.

    Opened without blocking, so that a FIFO or a device in its place cannot hang the reader.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"not a regular file: {path}")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(max_bytes)
    finally:
        os.close(handle)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise JsonError(f"duplicate key {repeated!r}")
    return found


def _refuse_constant(name: str) -> Any:
    raise JsonError(f"{name} is not JSON")


def _check_value(root: Any) -> None:
    stack = [(root, 1)]
    while stack:
        value, depth = stack.pop()
        if depth > _MAX_JSON_DEPTH:
            raise JsonError(f"nested deeper than {_MAX_JSON_DEPTH}")
        if isinstance(value, str):
            _check_text(value)
        elif isinstance(value, list):
            stack.extend((item, depth + 1) for item in value)
        elif isinstance(value, dict):
            for key, item in value.items():
                _check_text(key)
                stack.append((item, depth + 1))


def _check_text(text: str) -> None:
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise JsonError("a lone surrogate is not text")
