"""shared/files: whole files or none, hashes, strict JSON."""

import hashlib
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.files import (
    EMPTY_SHA256,
    JsonError,
    canonical_json_bytes,
    loads_strict,
    read_json,
    read_regular,
    save_json,
    sha256_bytes,
    sha256_file,
    sha256_json,
    write_all,
    write_atomic,
    write_text,
)


def test_a_rewritten_file_keeps_its_mode(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("old")
    script.chmod(0o755)
    write_atomic(script, b"new")
    assert script.read_bytes() == b"new"
    assert stat.S_IMODE(script.stat().st_mode) == 0o755


def test_a_new_file_follows_the_umask(tmp_path):
    earlier = os.umask(0o027)
    try:
        write_atomic(tmp_path / "a", b"")
    finally:
        os.umask(earlier)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_write_makes_its_directories_and_leaves_no_temporary(tmp_path):
    write_all([(tmp_path / "a/b/c.txt", b"1"), (tmp_path / "a/d.txt", b"2")])
    files = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file())
    assert files == ["a/b/c.txt", "a/d.txt"]


def test_a_file_is_replaced_not_changed_in_place(tmp_path):
    target = tmp_path / "a"
    target.write_bytes(b"old")
    before = target.stat().st_ino
    write_atomic(target, b"new")
    assert target.stat().st_ino != before


def test_a_write_that_fails_leaves_no_temporary_and_the_old_file(tmp_path):
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "inside").write_text("kept")
    with pytest.raises(OSError, match="dir"):
        write_all([(tmp_path / "dir", b"a file where a directory stands")])
    assert [p.name for p in tmp_path.iterdir()] == ["dir"]
    assert (tmp_path / "dir" / "inside").read_text() == "kept"


def test_hashes_agree_with_hashlib(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    assert (
        sha256_file(tmp_path / "a")
        == sha256_bytes(b"x" * 100_000)
        == hashlib.sha256(b"x" * 100_000).hexdigest()
    )
    assert hashlib.sha256().hexdigest() == EMPTY_SHA256


def test_a_json_hash_does_not_see_key_order():
    assert sha256_json({"b": 1, "a": [1, 2]}) == sha256_json({"a": [1, 2], "b": 1})
    assert canonical_json_bytes({"b": "é", "a": 1}) == '{"a":1,"b":"é"}'.encode()


def test_saved_json_reads_back_with_one_final_newline(tmp_path):
    save_json(tmp_path / "a.json", {"b": "é", "a": None})
    assert (tmp_path / "a.json").read_text("utf-8") == '{\n  "b": "é",\n  "a": null\n}\n'
    assert read_json(tmp_path / "a.json", max_bytes=100) == {"b": "é", "a": None}


def test_what_is_saved_can_be_read_again_whatever_a_path_is_called(tmp_path):
    odd = os.fsdecode(b"/srv/b\xfccher")
    save_json(tmp_path / "run.json", {"repo": odd, odd: ["\\", odd]})
    readable = "/srv/b\\udcfccher"
    assert read_json(tmp_path / "run.json", max_bytes=1000) == {"repo": readable, readable: ["\\", readable]}


def test_a_lone_surrogate_can_be_kept_in_an_artifact(tmp_path):
    write_text(tmp_path / "a.txt", "x\ud800y")
    assert (tmp_path / "a.txt").read_bytes() == b"x\\ud800y"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 2}', "duplicate key 'a'"),
        ('{"a": {"b": 1, "b": 1}}', "duplicate key 'b'"),
        ("[NaN]", "NaN"),
        ("[Infinity]", "Infinity"),
        ("[-Infinity]", "-Infinity"),
        ("{} {}", "Extra data"),
        ("", "Expecting value"),
        ('{"a": "\\ud800"}', "surrogate"),
        ("[" * 100_000, "nested"),
        ("[" * 300 + "]" * 300, "nested"),
        ("9" * 5000, "digits"),
        (b"\xff", "UTF-8"),
        ("\ufeff{}", "BOM"),
    ],
)
def test_what_is_not_one_strict_json_value_is_refused(text, reason):
    with pytest.raises(JsonError, match=reason):
        loads_strict(text)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**20), 10**20)
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
        ),
    )
)
def test_every_json_value_survives_the_canonical_form(value):
    assert loads_strict(canonical_json_bytes(value)) == value


def test_reading_is_bounded_and_refuses_what_is_no_file(tmp_path):
    (tmp_path / "big.json").write_text('"' + "x" * 100 + '"')
    with pytest.raises(JsonError, match="larger than 50 bytes"):
        read_json(tmp_path / "big.json", max_bytes=50)
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, "/dev/zero"):
        with pytest.raises(OSError, match=r"regular file|directory"):
            read_regular(path, max_bytes=10)
