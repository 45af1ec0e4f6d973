"""The contract: which paths can be spelled, what a work order is, how one is read from disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from plans import absent, exists, order
from pydantic import ValidationError

from shared.work_order import (
    MAX_COMMAND_BYTES,
    MAX_WORK_ORDER_BYTES,
    Condition,
    GlobInPath,
    Provenance,
    WorkOrder,
    WorkOrderError,
    checked_path,
    load_work_order,
    normalize_path,
    problems_of,
    work_order_json_schema,
)

ROOT = Path(__file__).resolve().parent.parent

# --- paths -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a.py", "a.py"),
        ("./a//b", "a/b"),
        (" a/b.py ", "a/b.py"),
        ("a/../b", "b"),
        ("a/b/", "a/b"),
        (".gitignore", ".gitignore"),
        (".github/workflows/ci.yml", ".github/workflows/ci.yml"),
        ("git", "git"),
        ("a.git/b", "a.git/b"),
        ("git~10", "git~10"),
        ("with space/ä ö.txt", "with space/ä ö.txt"),
        ("-rf", "-rf"),
        ("~user", "~user"),
        ("ab:c", "ab:c"),
        ("...", "..."),
        ("{braces}", "{braces}"),
        ("x" * 255, "x" * 255),
        ("/".join(["y" * 255] * 16), "/".join(["y" * 255] * 16)),
    ],
)
def test_a_path_below_the_root_is_taken_in_its_one_spelling(text, path):
    assert checked_path(text) == path
    assert checked_path(path) == path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no file"),
        ("  ", "names no file"),
        (".", "names no file"),
        ("./", "names no file"),
        ("a/..", "names no file"),
        ("/a", "absolute"),
        ("//a", "absolute"),
        (" /a", "absolute"),
        ("C:\\a", "backslash"),
        ("C:/a", "absolute"),
        ("c:a", "absolute"),
        ("..", "leaves the repository"),
        ("../a", "leaves the repository"),
        ("a/../../b", "leaves the repository"),
        ("a/b/../../../c", "leaves the repository"),
        ("a\\b", "backslash"),
        ("..\\a", "backslash"),
        ("a\0", "control character"),
        ("a\0/../../b", "control character"),
        ("a\n", "control character"),
        ("\ta", "control character"),
        ("a\x7f", "control character"),
        ("a\x85", "control character"),
        ("a\u2028b", "control character"),
        ("a\ud800", "surrogate"),
        (":(glob)a", "colon"),
        (":a", "colon"),
        ("./ a", "space"),
        (".git", ".git"),
        (".git/config", ".git"),
        ("a/.git/hooks/post-commit", ".git"),
        ("a/.git", ".git"),
        (".GIT/config", ".git"),
        (".Git/config", ".git"),
        ("x/../.git/config", ".git"),
        (".git./config", ".git"),
        (".git /config", ".git"),
        (".git. . /config", ".git"),
        (".git::$INDEX_ALLOCATION/config", ".git"),
        (".git:x", ".git"),
        ("git~1/config", ".git"),
        ("GIT~1", ".git"),
        (".g\u200cit/config", ".git"),
        ("\ufeff.git/config", ".git"),
        (".gi\u202et/config", ".git"),
        ("x" * 256, "too long"),
        ("ä" * 128, "too long"),
        ("a/" * 2048 + "b", "too long"),
        ("/".join(["y" * 255] * 16) + "/z", "too long"),
    ],
)
def test_a_path_that_is_none_is_refused_with_the_reason(text, reason):
    with pytest.raises(ValueError, match=reason) as error:
        checked_path(text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 700


@pytest.mark.parametrize("text", ["*.py", "a/?", "a/[ab]", "**/x"])
def test_a_pattern_is_told_apart(text):
    with pytest.raises(GlobInPath):
        checked_path(text)


@pytest.mark.parametrize(
    ("text", "path"), [("", ""), (" ", ""), ("./a//b\n", "a/b"), ("/x/..", "/"), ("a\0/..", "a\0/..")]
)
def test_normalising_decides_nothing(text, path):
    assert normalize_path(text) == path


# --- conditions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "files", "expected"),
    [
        ("file_exists", {"a"}, True),
        ("file_exists", {"b"}, False),
        ("file_absent", {"a"}, False),
        ("file_absent", {"b"}, True),
        ("file_absent", [], True),
    ],
)
def test_a_condition_is_asked_of_any_container_of_paths(kind, files, expected):
    assert Condition(kind=kind, path="./a").holds_in(files) is expected


# --- the model -----------------------------------------------------------------------------------


def test_an_order_comes_back_with_one_spelling_of_every_path_and_lists_in_order():
    made = WorkOrder(
        **order(
            allowed_files=["./z//a.py", "b.py"],
            context_files=["x/../c"],
            preconditions=exists("./p") + absent("q//r"),
            postconditions=exists("b.py", "z/./a.py"),
            acceptance_commands=["  second", "first"],
        )
    )
    assert made.allowed_files == ["z/a.py", "b.py"]
    assert made.context_files == ["c"]
    assert [each.path for each in made.preconditions] == ["p", "q/r"]
    assert [each.path for each in made.postconditions] == ["b.py", "z/a.py"]
    assert made.acceptance_commands == ["  second", "first"]


def test_what_may_be_left_out_has_a_plain_default():
    made = WorkOrder(
        **order(
            preconditions=..., postconditions=..., forbidden=..., notes=..., verify_exempt=..., provenance=...
        )
    )
    assert (made.preconditions, made.postconditions, made.forbidden) == ([], [], [])
    assert (made.notes, made.verify_exempt, made.provenance) == (None, False, None)


def test_unknown_keys_are_somebody_elses_business():
    """FM10"""
    made = WorkOrder(
        **order(priority="high", provenance={"planner_run_id": "01J", "bootstrap": True, "by": "x"})
    )
    assert made.provenance == Provenance(planner_run_id="01J", bootstrap=True)
    assert not hasattr(made, "priority")


def test_an_order_does_not_change():
    made = WorkOrder(**order())
    with pytest.raises(ValidationError):
        made.title = "other"


def test_an_order_survives_being_written_and_read():
    made = WorkOrder(**order(provenance={"planner_run_id": "01J"}, verify_exempt=True, notes="ä"))
    assert WorkOrder.model_validate(json.loads(made.model_dump_json())) == made


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"title": ...}, "title", "is missing"),
        ({"title": 1}, "title", "must be a string, not a number"),
        ({"notes": []}, "notes", "must be a string, not a list"),
        ({"verify_exempt": "true"}, "verify_exempt", "must be true or false, not a string"),
        ({"verify_exempt": 1}, "verify_exempt", "must be true or false, not a number"),
        ({"allowed_files": "a"}, "allowed_files", "must be a list, not a string"),
        ({"allowed_files": []}, "allowed_files", "must not be empty"),
        ({"allowed_files": ["ok", "../x"]}, "allowed_files[1]", "'../x' leaves the repository"),
        ({"acceptance_commands": []}, "acceptance_commands", "must not be empty"),
        ({"acceptance_commands": [" "]}, "acceptance_commands[0]", "is blank"),
        ({"acceptance_commands": ["a\0"]}, "acceptance_commands[0]", "NUL"),
        (
            {"acceptance_commands": ["x" * (MAX_COMMAND_BYTES + 1)]},
            "acceptance_commands[0]",
            "is longer than",
        ),
        ({"context_files": ["c"] * 11}, "context_files", "has 11 entries; at most 10 are allowed"),
        ({"preconditions": [5]}, "preconditions[0]", "must be an object, not a number"),
        ({"preconditions": [{"kind": "x", "path": "a"}]}, "preconditions[0].kind", "not 'x'"),
        ({"preconditions": [{"kind": "file_exists"}]}, "preconditions[0].path", "is missing"),
        ({"postconditions": absent("a")}, "postconditions[0]", "can only be file_exists"),
        ({"intent": "a\ud800"}, "intent", "surrogate"),
        ({"id": "../../x"}, "id", "is no id"),
        ({"id": "-x"}, "id", "is no id"),
        ({"id": ""}, "id", "is no id"),
        ({"provenance": "planner"}, "provenance", "must be an object, not a string"),
        ({"provenance": {"bootstrap": "yes"}}, "provenance.bootstrap", "must be true or false"),
    ],
)
def test_what_is_wrong_is_said_with_the_field(changes, field, words):
    with pytest.raises(ValidationError) as error:
        WorkOrder(**order(**{"postconditions": [], **changes}))
    [problem] = problems_of(error.value)
    assert problem.field == field
    assert words in problem.message


# --- the file ----------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    return tmp_path / "WO-01.json"


def test_a_file_becomes_an_order(path):
    path.write_text(json.dumps(order()))
    assert load_work_order(path) == load_work_order(str(path)) == WorkOrder(**order())


def test_the_shipped_example_loads():
    """S22"""
    assert load_work_order(ROOT / "example_work_order.json").id == "WO-01"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not one strict JSON object"),
        (b"{", "not one strict JSON object"),
        (b"{} {}", "Extra data"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"id": "WO-01", "id": "WO-02"}', "duplicate key 'id'"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, "nested deeper"),
        (b"[]", "must hold a JSON object, not a list"),
        (b"null", "must hold a JSON object, not null"),
        (b'"WO-01"', "must hold a JSON object, not a string"),
        (b" " * (MAX_WORK_ORDER_BYTES + 1), "larger than"),
        (
            json.dumps(order(context_files=["../x"])).encode(),
            "context_files[0]: '../x' leaves the repository",
        ),
        (b'{"id": 1}', "id: must be a string, not a number (and 5 more); see `llmch schema`"),
    ],
)
def test_a_bad_file_gets_one_line_that_names_it(path, content, words):
    path.write_bytes(content)
    with pytest.raises(WorkOrderError) as error:
        load_work_order(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert words in message
    assert "\n" not in message
    assert "pydantic" not in message


def make_fifo(path):
    os.mkfifo(path)


@pytest.mark.parametrize("make", [lambda _: None, Path.mkdir, make_fifo])
def test_what_is_no_readable_file_is_refused_and_never_waited_for(path, make):
    make(path)
    with pytest.raises(WorkOrderError, match="cannot be read"):
        load_work_order(path)


# --- the published schema ------------------------------------------------------------------------


def test_the_schema_says_what_the_model_asks():
    schema = work_order_json_schema()
    assert set(schema["properties"]) == set(WorkOrder.model_fields)
    assert schema["required"] == [
        name for name, field in WorkOrder.model_fields.items() if field.is_required()
    ]
    promise = schema["properties"]["postconditions"]["items"]["properties"]["kind"]
    assert promise == {"const": "file_exists"}
    assert schema["properties"]["context_files"]["maxItems"] == 10
    json.dumps(schema, allow_nan=False)
