"""Files below a directory that somebody else may have prepared."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from factory.tree_files import (
    LinkInTheWay,
    NotAFile,
    TreeFiles,
    TreeNames,
    read_file,
    remove_tree,
    write_files,
)


@pytest.fixture
def tree(tmp_path) -> Path:
    """A file, a directory, and every kind of thing that is neither; a secret outside."""
    root = tmp_path / "tree"
    (root / "dir/sub").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git/config").write_text("[core]\n")
    (root / "file").write_bytes(b"0123456789")
    (root / "dir/file").write_bytes(b"inner")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_bytes(b"secret")
    (root / "link").symlink_to("file")
    (root / "to-git").symlink_to(".git/config")
    (root / "linkdir").symlink_to("dir")
    (root / "out").symlink_to("../outside")
    (root / "out-file").symlink_to(tmp_path / "outside/secret")
    (root / "dangling").symlink_to("nowhere")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "fifo")
    return root


def files_below(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# --- reading ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("file", b"0123456789"),
        ("dir/file", b"inner"),
        ("gone", None),
        ("gone/below", None),
        ("dir/gone", None),
    ],
)
def test_a_regular_file_is_read_and_nothing_is_none(path, content, tree):
    assert read_file(tree, path, 100) == content


@pytest.mark.parametrize("bound", [0, 3, 10, 11])
def test_no_more_is_read_than_asked_for(bound, tree):
    assert read_file(tree, "file", bound) == b"0123456789"[:bound]


NO_FILES = {
    "dir": "dir is a directory, not a file",
    "link": "link is a symbolic link, not a file",
    "dangling": "dangling is a symbolic link",
    "loop": "loop is a symbolic link",
    "fifo": "fifo is a FIFO, not a file",
    "linkdir/file": "linkdir is a symbolic link, not a directory",
    "out/secret": "out is a symbolic link, not a directory",
    "dir/../file": "is no path of a file below a directory",
    "./file": "is no path of a file",
    "file/below": "file is a file, not a directory",
    "fifo/below": "fifo is a FIFO, not a directory",
}


@pytest.mark.parametrize(("path", "says"), NO_FILES.items())
def test_what_is_no_file_is_named_and_nothing_is_followed(path, says, tree):
    with pytest.raises(NotAFile, match=says) as error:
        read_file(tree, path, 100)
    assert isinstance(error.value, LinkInTheWay) == ("link" in says)


# --- writing ---------------------------------------------------------------------------------


def test_all_files_are_written_with_their_parents_and_no_temporary_is_left(tree):
    inode = (tree / "file").stat().st_ino
    write_files(tree, [("file", b"new"), ("a/b/c", b""), ("a/b/d", b"\0\xff"), ("dir/file", b"x")])
    assert (tree / "file").stat().st_ino != inode, "replaced, and not written over"
    found = files_below(tree)
    assert {name: found[name] for name in ("file", "a/b/c", "a/b/d", "dir/file")} == {
        "file": b"new", "a/b/c": b"", "a/b/d": b"\0\xff", "dir/file": b"x",
    }  # fmt: skip
    assert [name for name in found if ".llmch" in name] == []


def test_an_existing_file_keeps_its_mode_and_a_new_one_follows_the_umask(tree):
    (tree / "file").chmod(0o751)
    earlier = os.umask(0o027)
    try:
        write_files(tree, [("file", b"x"), ("new", b"x")])
    finally:
        os.umask(earlier)
    assert stat.S_IMODE((tree / "file").stat().st_mode) == 0o751
    assert stat.S_IMODE((tree / "new").stat().st_mode) == 0o640


@pytest.mark.parametrize("path", sorted(NO_FILES))
def test_a_path_that_is_no_file_stops_the_whole_write(path, tree):
    before = files_below(tree.parent)
    with pytest.raises(OSError):  # noqa: PT011  the kind differs with what stands there
        write_files(tree, [("file", b"new"), ("dir/new", b"x"), (path, b"x")])
    assert files_below(tree.parent) == before


def test_many_files_need_no_more_descriptors_than_a_few(tree):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        write_files(tree, [(f"many/{number}", b"x") for number in range(200)], durable=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(list((tree / "many").iterdir())) == 200


# --- conditions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "is_file", "is_name"),
    [
        ("file", True, True), ("dir/file", True, True), ("link", True, True), ("linkdir/file", True, True),
        ("dir", False, True), ("linkdir", False, True), ("out/secret", False, True),
        ("out-file", False, True),
        ("dangling", False, True), ("loop", False, True), ("fifo", False, True), ("gone", False, False),
        ("file/below", False, False), ("../outside/secret", False, True), (".git/config", False, True),
        ("to-git", False, True), ("nul\0byte", False, False), ("x" * 5000, False, False),
    ],
)  # fmt: skip
def test_a_file_is_there_when_links_that_stay_inside_lead_to_one(path, is_file, is_name, tree):
    assert (path in TreeFiles(tree)) == is_file
    assert (path in TreeNames(tree)) == is_name


def test_a_live_tree_is_looked_at_each_time(tree):
    files = TreeFiles(tree)
    assert "later" not in files
    (tree / "later").touch()
    assert "later" in files


# --- removing ----------------------------------------------------------------------------------


def test_a_tree_is_removed_and_what_its_links_lead_to_stays(tree, tmp_path):
    (tree / "deep/er/still").mkdir(parents=True)
    remove_tree(tree)
    remove_tree(tree)
    assert not tree.exists()
    assert (tmp_path / "outside/secret").read_bytes() == b"secret"


def test_only_a_directory_is_removed_as_one(tree):
    for name in ("file", "linkdir"):
        with pytest.raises(NotAFile):
            remove_tree(tree / name)
    assert (tree / "dir/file").exists()
