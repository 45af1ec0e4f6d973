"""shared/run_context and shared/events: the identity and the record of a run."""

import re
from datetime import UTC, datetime

import pytest

from shared.events import Bus, CommandEnded, EventLog, ModelThinking, StepDone, event_kinds
from shared.files import loads_strict
from shared.run_context import (
    generate_ulid,
    get_tool_version,
    new_run_dir,
    read_run_json,
    resolve_artifacts_root,
    update_run_json,
    utc_now_iso,
    write_run_json,
)


def test_a_run_id_is_a_ulid_and_ids_differ():
    ids = {generate_ulid() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{26}", one) for one in ids)


def test_run_ids_sort_by_the_time_they_were_made():
    first = generate_ulid()
    while (second := generate_ulid())[:10] == first[:10]:
        pass
    assert first < second


def test_a_time_is_utc_with_microseconds_even_on_a_full_second():
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", utc_now_iso())
    assert abs((datetime.fromisoformat(utc_now_iso()) - datetime.now(UTC)).total_seconds()) < 60


def test_artifacts_go_where_the_flag_says_then_the_environment_then_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ARTIFACTS_DIR", raising=False)
    assert resolve_artifacts_root(None) == tmp_path / "artifacts"
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "env"))
    assert resolve_artifacts_root(None) == tmp_path / "env"
    assert resolve_artifacts_root("flag") == tmp_path / "flag"


def test_a_run_directory_is_never_used_twice(tmp_path):
    new_run_dir(tmp_path, "factory", "X")
    with pytest.raises(FileExistsError):
        new_run_dir(tmp_path, "factory", "X")


def test_run_json_is_merged_and_keeps_what_it_had(tmp_path):
    write_run_json(tmp_path, {"a": 1, "b": 2})
    assert update_run_json(tmp_path, b=3) == {"a": 1, "b": 3} == read_run_json(tmp_path)


def test_the_version_names_the_release():
    assert set(get_tool_version()) == {"version", "commit", "dirty"}


def test_events_are_told_in_order_and_kept_as_lines(tmp_path):
    heard = []
    log = EventLog(tmp_path)
    bus = Bus(heard.append, log)
    bus(StepDone("verify", ok=False, detail="a\x1bb\ud800"))
    bus(ModelThinking("not kept"))
    bus(CommandEnded("true", 0, 0.5))
    log.close()
    lines = [loads_strict(line) for line in (tmp_path / "events.jsonl").read_text("utf-8").splitlines()]
    assert [type(event).__name__ for event in heard] == ["StepDone", "ModelThinking", "CommandEnded"]
    assert [line["kind"] for line in lines] == ["step_done", "command_ended"]
    assert lines[1] | {"at": ""} == {
        "v": 1, "at": "", "kind": "command_ended", "command": "true", "exit_code": 0, "seconds": 0.5,
    }  # fmt: skip


def test_every_kind_of_event_has_a_name_of_its_own():
    assert {"run_started", "model_asked", "attempt_failed", "committed", "run_ended"} <= set(event_kinds())
