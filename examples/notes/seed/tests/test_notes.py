import json

import pytest

from notes.cli import main


@pytest.fixture
def notes(tmp_path, capsys):
    """Run a command on a file of its own: exit code, stdout, stderr."""

    def run(*argv):
        code = main(["--file", str(tmp_path / "notes.json"), *argv])
        out, err = capsys.readouterr()
        return code, out, err

    run.path = tmp_path / "notes.json"
    return run


def test_a_note_is_added_and_listed(notes):
    assert notes("add", "buy", "milk")[0] == 0
    code, out, _ = notes("list")
    assert code == 0
    assert out.endswith("  buy milk\n")
    assert out.startswith("   1  ")


def test_ids_count_up(notes):
    notes("add", "one")
    notes("add", "two")
    assert [note["id"] for note in json.loads(notes.path.read_text())] == [1, 2]


def test_a_deleted_note_is_gone(notes):
    notes("add", "one")
    assert notes("delete", "1") == (0, "deleted 1\n", "")
    assert notes("list")[1] == ""


def test_deleting_what_is_not_there_is_one_line_and_exit_1(notes):
    assert notes("delete", "7") == (1, "", "notes: no note 7\n")


def test_a_broken_file_is_one_line_and_exit_1(notes):
    notes.path.write_text("{")
    code, out, err = notes("list")
    assert (code, out) == (1, "")
    assert err.startswith("notes: cannot read ")
    assert err.count("\n") == 1


def test_a_missing_command_is_a_usage_error(notes):
    with pytest.raises(SystemExit) as caught:
        notes()
    assert caught.value.code == 2
