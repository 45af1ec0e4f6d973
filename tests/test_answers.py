"""What counts as one JSON object in a model's answer, and what a model is told otherwise."""

from __future__ import annotations

import json
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.answers import json_object_in
from shared.files import JsonError

LIMIT = 10 * 1024 * 1024

WHOLE = '{"a": "```\\n{}\\n```"}'
VALUE = {"a": "```\n{}\n```"}


@pytest.mark.parametrize(
    "text",
    [
        WHOLE,
        f"\n\t {WHOLE} \r\n",
        f"\ufeff{WHOLE}",
        f"```json\n{WHOLE}\n```",
        f"```\n{WHOLE}\n```\n",
        f"```JSON\r\n{WHOLE}\r\n```",
        f"```{WHOLE}```",
        f"````json\n{WHOLE}\n````",
        f"<think>perhaps {{}} or ```</think>{WHOLE}",
        f"<think>\nlines\n</think>\n\n```json\n{WHOLE}\n```",
        f"\ufeff \n<think></think>\n{WHOLE}",
    ],
)
def test_one_object_is_found_in_its_usual_wrappings(text):
    assert json_object_in(text, max_bytes=LIMIT) == VALUE


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the answer is empty"),
        (" \n\t", "the answer is empty"),
        ("```json\n```", "the answer is empty"),
        ("<think>done</think>", "the answer is empty"),
        ("<think>still {} thinking", "ends inside <think>"),
        ("I cannot do that.", "begins with 'I cannot do that.'"),
        ('Here it is: {"a": 1}', "no text before or after"),
        ('Here it is:\n```json\n{"a": 1}\n```', "no text before or after"),
        ('{"a": 1}\nHope this helps!', "no text before or after"),
        ('```json\n{"a": 1}\n```\nHope this helps!', "something follows it"),
        ('```json\n{"a": 1}\n```\n```json\n{"a": 2}\n```', "no text before or after"),
        ('{"a": 1} {"a": 2}', "no text before or after"),
        ('{"a": 1}<think>more</think>', "no text before or after"),
        ('[{"a": 1}]', "JSON array"),
        ('"a"', "begins with"),
        ("null", "begins with"),
        ('{"a": "cut he', "not complete"),
        ('{"a": {"b": 1}', "not complete"),
        ('{"a": [1, 2', "not complete"),
        ('```json\n{"a": 1', "not closed"),
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ('{"a": {"b": 1, "b": 1}}', "duplicate key 'b'"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON"),
        ('{"a": "\\ud800"}', "lone surrogate"),
        ('{"a": "\ud800"}', "lone surrogate"),
        ("\ud800", "begins with"),
        ("{'a': 1}", "one valid JSON object"),
        ('{"a": 1,}', "one valid JSON object"),
        ('{"a": 1 // one\n}', "one valid JSON object"),
        ('{"a": "line\nbreak"}', "one valid JSON object"),
        ('{"a":' * 300 + "1" + "}" * 300, "nested deeper"),
        ('{"a":' * 200_000, "nested deeper"),
        ('{"a": ' + "9" * 5000 + "}", "limit"),
    ],
)
def test_anything_else_is_refused_with_words_for_the_model(text, told):
    with pytest.raises(JsonError) as caught:
        json_object_in(text, max_bytes=LIMIT)
    assert told in str(caught.value)
    assert len(str(caught.value)) < 400
    str(caught.value).encode()


@pytest.mark.parametrize("char", ["a", "é", "\U0001f600"])
def test_the_limit_counts_bytes_of_utf_8(char):
    text = json.dumps({"a": char * 100}, ensure_ascii=False)
    size = len(text.encode())
    assert json_object_in(text, max_bytes=size) == {"a": char * 100}
    with pytest.raises(JsonError, match=f"larger than {size - 1} bytes"):
        json_object_in(text, max_bytes=size - 1)


@pytest.mark.parametrize("text", ["```json\n{" + " " * 1_000_000, "<think>" * 200_000, "`" * 1_000_000])
def test_a_hostile_wrapping_costs_no_more_than_its_length(text):
    started = time.monotonic()
    with pytest.raises(JsonError):
        json_object_in(text, max_bytes=LIMIT)
    assert time.monotonic() - started < 5  # a quadratic reader takes minutes


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text(), json_values, max_size=4),
    st.booleans(),
    st.sampled_from(["", "```", "```json"]),
)
def test_every_object_survives_every_wrapping(value, ascii_only, fence):
    text = json.dumps(value, ensure_ascii=ascii_only)
    wrapped = f"<think>hm</think>\n{fence}\n{text}\n{fence[:3]}"
    assert json_object_in(wrapped, max_bytes=LIMIT) == value


@given(st.text())
def test_any_text_is_an_object_or_a_json_error(text):
    with suppress(JsonError):
        assert isinstance(json_object_in(text, max_bytes=LIMIT), dict)


@given(st.integers(min_value=1, max_value=len(WHOLE) - 1))
def test_an_object_that_was_cut_is_never_completed(length):
    with pytest.raises(JsonError):
        json_object_in(WHOLE[:length], max_bytes=LIMIT)
