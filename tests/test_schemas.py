"""factory/schemas: what the stages hand on, and how much of it."""

import pytest
from pydantic import ValidationError

from factory.defaults import MAX_EXCERPT_CHARS, MAX_FILE_BYTES, MAX_PROPOSAL_BYTES
from factory.schemas import (
    FailureBrief,
    FileWrite,
    Stage,
    WriteProposal,
    brief,
    excerpt_of,
    excerpt_of_streams,
    proposal_schema,
)
from shared.files import EMPTY_SHA256


def a_write(path="src/a.py", content="x = 1\n", base=EMPTY_SHA256):
    return {"path": path, "base_sha256": base, "content": content}


def a_proposal(*writes):
    return {"summary": "s", "writes": list(writes)}


def test_the_stages_are_the_fixed_eight_and_two_are_not_retried():
    assert {stage.value for stage in Stage} == {
        "preflight", "llm_output_invalid", "write_scope_violation", "stale_context", "write_failed",
        "verify_failed", "acceptance_failed", "exception",
    }  # fmt: skip
    assert {stage.value for stage in Stage if not stage.retryable} == {"preflight", "write_failed"}


@pytest.mark.parametrize("stage", list(Stage))
def test_every_stage_has_a_reminder_of_its_own(stage):
    others = {other.reminder for other in Stage if other is not stage}
    assert stage.reminder
    assert stage.reminder not in others


def test_a_brief_of_an_unknown_stage_is_refused():
    with pytest.raises(ValidationError):
        FailureBrief(stage="something_else")


def test_a_brief_never_holds_more_than_its_bound():
    assert (
        len(FailureBrief(stage="exception", primary_error_excerpt="x" * 10_000).primary_error_excerpt) <= 2000
    )
    assert brief(Stage.VERIFY_FAILED, "text", command="c", exit_code=1).constraints_reminder


def test_a_long_text_keeps_its_head_and_its_tail():
    cut = excerpt_of("first " + "x" * 10_000 + " last")
    assert len(cut) <= MAX_EXCERPT_CHARS
    assert cut.startswith("first ")
    assert cut.endswith(" last")
    assert "characters left out" in cut


@pytest.mark.parametrize(
    ("stderr", "stdout"),
    [
        ("e" * 5000, "o" * 5000),
        ("e" * 5000, "o"),
        ("e", "o" * 5000),
        ("e", "o"),
        ("", "o" * 5000),
        ("e" * 900, "o" * 1100),
    ],
)
def test_both_streams_of_a_command_fit_in_the_bound(stderr, stdout):
    shown = excerpt_of_streams(stderr, stdout)
    assert len(shown) <= MAX_EXCERPT_CHARS
    assert ("stderr:" in shown) == bool(stderr)
    assert ("stdout:" in shown) == bool(stdout)
    assert shown.count("e" * min(len(stderr), 500)) >= bool(stderr)
    assert shown.count("o" * min(len(stdout), 500)) >= bool(stdout)


def test_a_silent_command_is_said_to_be_silent():
    assert excerpt_of_streams(" \n", "") == "(no output)"


def test_a_proposal_comes_back_with_its_paths_in_one_spelling():
    assert WriteProposal(**a_proposal(a_write("./src//a.py"))).writes[0].path == "src/a.py"


@pytest.mark.parametrize(
    "proposal",
    [
        {},
        a_proposal(),
        {"writes": [a_write()]},
        {"summary": "s", "writes": "none"},
        {"summary": 1, "writes": [a_write()]},
        {"summary": "s", "writes": [1]},
        {"summary": "s", "writes": [{}]},
        a_proposal(a_write("../a")),
        a_proposal(a_write("/etc/passwd")),
        a_proposal(a_write(".git/config")),
        a_proposal(a_write("src/.GIT/hooks/x")),
        a_proposal(a_write("a\x00b")),
        a_proposal(a_write("a\\b")),
        a_proposal(a_write(".")),
        a_proposal({**a_write(), "content": None}),
        a_proposal({**a_write(), "content": 7}),
        a_proposal({**a_write(), "base_sha256": None}),
        a_proposal(a_write(content="x" * (MAX_FILE_BYTES + 1))),
        a_proposal(a_write(content="é" * (MAX_FILE_BYTES // 2 + 1))),
        a_proposal(*(a_write(f"f{n}", "x" * (MAX_PROPOSAL_BYTES // 3 + 1)) for n in range(3))),
    ],
)
def test_what_is_no_proposal_is_refused(proposal):
    with pytest.raises(ValidationError):
        WriteProposal.model_validate(proposal)


def test_the_limits_themselves_are_allowed():
    assert len(FileWrite(**a_write(content="x" * MAX_FILE_BYTES)).data) == MAX_FILE_BYTES
    third = "x" * (MAX_PROPOSAL_BYTES // 3)
    assert len(WriteProposal(**a_proposal(*(a_write(f"f{n}", third) for n in range(3)))).writes) == 3


def test_content_is_kept_as_given():
    assert FileWrite(**a_write(content="a\r\nb\r\té\ufeff")).data == "a\r\nb\r\té\ufeff".encode()


def test_the_schema_asks_for_every_field_and_no_other():
    schema = proposal_schema()
    item = schema["properties"]["writes"]["items"]
    for part in (schema, item):
        assert part["additionalProperties"] is False
        assert set(part["required"]) == set(part["properties"])
    assert set(item["properties"]) == set(FileWrite.model_fields)
    assert set(schema["properties"]) == set(WriteProposal.model_fields)
