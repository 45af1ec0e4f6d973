"""What every test stands on: a clean environment, a real repository, orders and proposals to hand."""

from __future__ import annotations

import os
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from factory.tree_files import remove_tree
from shared.files import EMPTY_SHA256, sha256_bytes


@pytest.fixture(scope="session")
def _empty_home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch, _empty_home):
    """No test sees the user's git config, ignore file, keys or settings."""
    for name in list(os.environ):
        if name.startswith(("GIT_", "OPENAI_", "LLMCH_", "LANGSMITH_", "LANGCHAIN_")):
            monkeypatch.delenv(name)
    for name in ("ARTIFACTS_DIR", "EMAIL", "SSH_ASKPASS", "DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(_empty_home))
    # git reads its ignore and attributes files from here even when GIT_CONFIG_GLOBAL points elsewhere
    monkeypatch.setenv("XDG_CONFIG_HOME", str(_empty_home / ".config"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)


def run_git(cwd: Path, *args: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> str:
    """The user's own git, as the user would call it: stdout as text, and no failure is swallowed."""
    done = subprocess.run(
        ["git", *args],
        check=False,
        cwd=cwd,
        input=stdin,
        capture_output=True,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == 0, f"git {args} in {cwd}: {done.stderr.decode('utf-8', 'replace')}"
    return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")


def make_repo(path: Path, *init: str) -> Path:
    """A repository on `main` with an identity of its own and one commit, which holds README.md."""
    path.mkdir(parents=True)
    run_git(path, "init", "-q", "-b", "main", *init)
    with open(path / ".git" / "config", "a") as config:
        config.write("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    (path / "README.md").write_text("# a project\n")
    run_git(path, "add", "README.md")
    run_git(path, "commit", "-q", "-m", "begin")
    return path


@pytest.fixture
def common_ground() -> Iterator[Path]:
    """A directory whose parents let every user in, as pytest's own do not; removed whatever is in it."""
    place = Path(
        os.path.realpath(tempfile.mkdtemp(prefix="llmch-test-", dir=os.environ.get("TMPDIR", "/tmp")))
    )
    place.chmod(0o755)
    yield place
    remove_tree(place)


def as_nobody(place: Path, work: Callable[[], None]) -> int:
    """Run `work` in a process that permissions bind, with `place` its own; its exit status."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            if os.getuid() == 0:
                for path in (*place.rglob("*"), place):
                    os.chown(path, 65534, 65534, follow_symlinks=False)
                os.setgid(65534)
                os.setuid(65534)
            os.environ["HOME"] = os.environ["XDG_CONFIG_HOME"] = str(place)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
            raise
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def repo(tmp_path) -> Path:
    """A fresh repository on `main` with one commit (README.md) and a local identity."""
    return make_repo(tmp_path / "project")


@pytest.fixture
def git(repo) -> Callable[..., str]:
    """`git("log", …)` in `repo`, or in `cwd=…`: stdout as text."""

    def call(*args: str, cwd: Path = repo, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> str:
        return run_git(cwd, *args, stdin=stdin, env=env)

    return call


@pytest.fixture
def an_order() -> Callable[..., dict[str, Any]]:
    """`an_order(allowed_files=[…], …)`: the JSON of a valid work order; name only what the test is about."""

    def build(**changes: Any) -> dict[str, Any]:
        order = {
            "id": "WO-01",
            "title": "Add a greeting",
            "intent": "Write src/hello.py with a function that greets.",
            "preconditions": [],
            "postconditions": [{"kind": "file_exists", "path": "src/hello.py"}],
            "allowed_files": ["src/hello.py"],
            "forbidden": [],
            "acceptance_commands": ["python -m compileall -q src"],
            "context_files": [],
            "notes": None,
            "verify_exempt": False,
        }
        if "allowed_files" in changes and "postconditions" not in changes:
            changes["postconditions"] = [
                {"kind": "file_exists", "path": path} for path in changes["allowed_files"]
            ]
        return {**order, **changes}

    return build


@pytest.fixture
def a_proposal() -> Callable[..., dict[str, Any]]:
    """`a_proposal({"src/hello.py": "text"}, repo)`: the JSON of a valid proposal.

    Base hashes are taken from the files in `repo` where they exist; without `repo` every file is new.
    """

    def build(
        writes: Mapping[str, str] | None = None, repo: Path | None = None, summary: str = "as asked"
    ) -> dict[str, Any]:
        def base(path: str) -> str:
            file = repo / path if repo else None
            return sha256_bytes(file.read_bytes()) if file and file.is_file() else EMPTY_SHA256

        wanted = writes or {"src/hello.py": "def hello() -> str:\n    return 'hello'\n"}
        return {
            "summary": summary,
            "writes": [
                {"path": path, "base_sha256": base(path), "content": content}
                for path, content in wanted.items()
            ],
        }

    return build
