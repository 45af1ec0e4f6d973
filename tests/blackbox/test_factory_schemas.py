"""The models that a caller builds and the factory accepts."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from blackbox.harness import EMPTY, a_task, absent, exists

BAD_PATHS = [
    "/etc/x",
    "../x",
    "a/../../x",
    "a\\b",
    "a\x00b",
    "a\nb",
    ".",
    "",
    "C:/x",
    "a*",
    "a?",
    "[a]",
    ".git/x",
    "sub/.GIT/x",
    ":x",
    "\ud800",
    "x" * 300,
]


@pytest.mark.rows("FM03", "FM11")
def test_paths_are_checked_and_come_back_normalised():
    from factory.schemas import Condition, WorkOrder

    assert Condition(kind="file_exists", path="./a//b/../c").path == "a/c"
    assert WorkOrder(**a_task(allowed_files=["./a.txt"])).allowed_files[0] == "a.txt"
    for path in BAD_PATHS:
        with pytest.raises(ValidationError):
            Condition(kind="file_exists", path=path)
        with pytest.raises(ValidationError):
            WorkOrder(**a_task(allowed_files=[path]))


@pytest.mark.rows("FM02", "FM04", "FM10")
def test_a_work_order_has_its_defaults_and_its_limits():
    from factory.schemas import WorkOrder
    from shared.work_order import WorkOrder as Shared

    assert WorkOrder is Shared
    order = {
        key: value
        for key, value in a_task().items()
        if key not in ("preconditions", "postconditions", "notes")
    }
    loaded = WorkOrder(**order, provenance={"planner_run_id": "x"}, unknown=1)
    assert (list(loaded.preconditions), list(loaded.postconditions), loaded.verify_exempt) == ([], [], False)
    WorkOrder(**a_task(context_files=[f"c{n}" for n in range(10)]))
    for bad in (
        {"context_files": [f"c{n}" for n in range(11)]},
        {"acceptance_commands": []},
        {"postconditions": [absent("a.txt")]},
        {"preconditions": [{"kind": "x", "path": "a"}]},
    ):
        with pytest.raises(ValidationError):
            WorkOrder(**a_task(**bad))
    assert WorkOrder(**a_task(preconditions=[absent("q"), exists("p")])).preconditions[0].path == "q"


@pytest.mark.rows("FM05", "FM06", "FM07")
def test_a_proposal_has_writes_within_its_limits():
    from factory.schemas import FileWrite, WriteProposal

    fits = FileWrite(path="a", base_sha256=EMPTY, content="x" * 200 * 1024)
    assert WriteProposal(summary="s", writes=[fits]).writes[0].path == "a"
    with pytest.raises(ValidationError):
        WriteProposal(summary="s", writes=[])
    with pytest.raises(ValidationError):
        WriteProposal(
            summary="s", writes=[FileWrite(path="a", base_sha256=EMPTY, content="x" * (200 * 1024 + 1))]
        )
    with pytest.raises(ValidationError):
        WriteProposal(
            summary="s",
            writes=[FileWrite(path=f"a{n}", base_sha256=EMPTY, content="x" * 180 * 1024) for n in range(3)],
        )


def test_a_brief_knows_only_the_eight_stages():
    from factory.schemas import FailureBrief

    stages = [
        "preflight",
        "exception",
        "llm_output_invalid",
        "write_scope_violation",
        "stale_context",
        "write_failed",
        "verify_failed",
        "acceptance_failed",
    ]
    for stage in stages:
        made = FailureBrief(stage=stage, primary_error_excerpt="x", constraints_reminder="y")
        assert made.model_dump(mode="json")["stage"] == stage
    with pytest.raises(ValidationError):
        FailureBrief(stage="bored", primary_error_excerpt="x", constraints_reminder="y")


@pytest.mark.parametrize(
    ("raw", "good"),
    [
        ('{"a": 1}', True),
        ('```json\n{"a": 1}\n```', True),
        ('<think>hm</think>\n{"a": 1}', True),
        ("[1]", False),
        ('{"a": 1} {"b": 2}', False),
        ('{"a": NaN}', False),
        ('{"a": 1, "a": 2}', False),
        ("", False),
    ],
)
def test_only_one_strict_json_object_is_a_proposal(raw, good):
    from factory.llm import parse_proposal_json

    if good:
        assert parse_proposal_json(raw) == {"a": 1}
    else:
        with pytest.raises(ValueError):  # noqa: PT011  the kind of ValueError is the module's own business
            parse_proposal_json(raw)
