"""factory/nodes_se: what the model is shown of a repository, and what it may therefore rewrite."""

import os

import pytest

from factory.defaults import MAX_CONTEXT_BYTES, MAX_JSON_PAYLOAD_BYTES
from factory.nodes_se import read_context
from factory.scratch import scratch_tree
from factory.workspace import Repository, get_baseline_commit
from shared.files import EMPTY_SHA256, sha256_bytes
from shared.work_order import WorkOrder


@pytest.fixture
def shown(repo, git, an_order):
    """Commit files, and give what an order that names them shows of each."""

    def show(files, **order):
        for path, data in files.items():
            (repo / path).parent.mkdir(parents=True, exist_ok=True)
            (repo / path).write_bytes(data)
        git("add", "-A")
        git("commit", "-q", "-m", "files")
        with scratch_tree(Repository.open(repo, os.environ), get_baseline_commit(repo)) as tree:
            return {file.path: file for file in read_context(WorkOrder(**an_order(**order)), tree)}

    return show


def test_a_small_file_is_shown_whole_with_its_hash(shown):
    file = shown({"a.txt": b"one\r\ntwo"}, context_files=["a.txt"])["a.txt"]
    assert (file.text, file.whole, file.sha256) == ("one\r\ntwo", True, sha256_bytes(b"one\r\ntwo"))


def test_an_allowed_file_that_exists_is_shown_and_one_that_does_not_has_the_hash_of_nothing(shown):
    files = shown({"old.txt": b"old"}, allowed_files=["old.txt", "new.txt"])
    assert (files["old.txt"].text, files["old.txt"].whole) == ("old", True)
    assert (files["new.txt"].sha256, files["new.txt"].whole) == (EMPTY_SHA256, True)


def test_what_does_not_fit_is_cut_and_said_to_be_cut(shown):
    files = shown(
        {"a.txt": b"a" * (MAX_CONTEXT_BYTES - 10), "b.txt": "é".encode() * 20},
        context_files=["a.txt", "b.txt"],
    )
    assert files["a.txt"].whole
    assert not files["b.txt"].whole
    assert files["b.txt"].text == "é" * 5
    assert "may not be rewritten" in files["b.txt"].note


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"x" * (MAX_JSON_PAYLOAD_BYTES + 1)], ids=["not UTF-8", "huge"]
)
def test_what_cannot_be_shown_may_not_be_rewritten(shown, data):
    file = shown({"a.bin": data}, allowed_files=["a.bin"])["a.bin"]
    assert (file.text, file.whole) == ("", False)
    assert "may not be rewritten" in file.note
