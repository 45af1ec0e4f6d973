"""What a model wrote, read strictly: one JSON object, or words that tell the model what to do."""

from __future__ import annotations

import json
import re
from typing import Any

from shared.files import JsonError, loads_strict

_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)
_FENCE = re.compile(r"(`{3,})[\w+-]*[ \t]*\r?\n?")
_SHOWN_CHARS = 60


def json_object_in(text: str, *, max_bytes: int) -> dict[str, Any]:
    """The one JSON object that `text` is. Raises `JsonError`; its message is fit to show a model.

    Around the object may stand white space, a byte order mark, one `<think>…</think>` before it and
    one code fence. Nothing else: prose next to an object, fenced or not, is refused, because which
    of two things is meant would be a guess. The object itself is strict JSON: no duplicate keys, no
    NaN, no lone surrogates, nothing cut off is completed.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        raise JsonError(f"the answer is larger than {max_bytes} bytes: answer with a smaller JSON object")
    body = _unwrapped(text)
    _check_begins_as_object(body)
    try:
        value = loads_strict(body)
    except JsonError as error:
        raise JsonError(f"{error}: {_advice(body)}") from None
    assert isinstance(value, dict)
    return value


def _unwrapped(text: str) -> str:
    body = text.strip().removeprefix("\ufeff").lstrip()
    if body.startswith("<think>"):
        thoughts = _THOUGHTS.match(body)
        if thoughts is None:
            raise JsonError(
                "the answer ends inside <think>: close it and answer with the JSON object after it"
            )
        body = body[thoughts.end() :].lstrip()
    fence = _FENCE.match(body)
    # The closing fence has to end the text; a fence inside a JSON string is then never taken for it.
    if fence and body.endswith(fence[1]) and len(body) >= fence.end() + len(fence[1]):
        return body[fence.end() : -len(fence[1])].strip()
    return body


def _check_begins_as_object(body: str) -> None:
    if body.startswith("{"):
        return
    if not body:
        raise JsonError("the answer is empty: answer with one JSON object")
    if body.startswith("```"):
        raise JsonError(
            "the code fence around the answer is not closed, or something follows it: "
            "answer with the whole JSON object and nothing after it"
        )
    if body.startswith("["):
        raise JsonError("the answer is a JSON array: answer with one JSON object, {...}")
    start = " ".join(body[:_SHOWN_CHARS].split())
    raise JsonError(
        f"the answer begins with {start!r}: answer with one JSON object, no text before or after it"
    )


def _advice(body: str) -> str:
    try:
        _, end = json.JSONDecoder().raw_decode(body)
    except (ValueError, RecursionError) as error:
        at_the_end = isinstance(error, json.JSONDecodeError) and error.pos >= len(body)
        if at_the_end or not body.endswith("}"):
            return "the object is not complete; answer with the whole of it, in fewer words if it was cut off"
        return "answer with one valid JSON object"
    if end < len(body):
        return "answer with one JSON object, no text before or after it"
    return "answer with one strict JSON object"
