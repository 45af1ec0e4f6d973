"""What one work order costs beyond the work itself: `factory run` against a script that just does it.

Both ask a model that answers at once on the loopback, write the same two files, run the same
verification and the same test, and commit. The trees of the two commits are compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.timing import medians, ratio_row

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from loopback import Answer, LoopbackEndpoint  # noqa: E402  the tests' endpoint serves here too

ROUNDS = 7
FLAGS = ("--branch", "work", "--no-push", "--artifacts-dir", "artifacts")

FILES = {
    "greeting.py": "def greet(name: str) -> str:\n    return f\"Hello, {name.strip() or 'world'}!\"\n",
    "tests/check_greeting.py": "from greeting import greet\n\nassert greet(' ') == 'Hello, world!'\n",
}
ORDER = {
    "id": "WO-01",
    "title": "Add a greeting",
    "intent": "Write greeting.py with greet(name), and tests/check_greeting.py which checks it.",
    "preconditions": [],
    "postconditions": [{"kind": "file_exists", "path": path} for path in FILES],
    "allowed_files": list(FILES),
    "forbidden": [],
    "acceptance_commands": ["env PYTHONPATH=. python tests/check_greeting.py"],
    "context_files": [],
}
PROPOSAL = {
    "summary": "a greeting and its check",
    "writes": [
        {"path": path, "base_sha256": hashlib.sha256(b"").hexdigest(), "content": content}
        for path, content in FILES.items()
    ],
}


def rows() -> Iterator[str]:
    """One line: the ratio of the two."""
    with (
        tempfile.TemporaryDirectory() as name,
        LoopbackEndpoint(lambda _: Answer(json.dumps(PROPOSAL))) as model,
    ):
        place = Path(name)
        (place / "order.json").write_text(json.dumps(ORDER), encoding="utf-8")
        candidates = {
            "floor": _Candidate([str(ROOT / "benchmarks" / "floor.py")], place / "floor", model.base_url),
            "factory": _Candidate(["-P", "-m", "factory", "run", *FLAGS], place / "factory", model.base_url),
        }
        measured = medians(candidates, ROUNDS)
        trees = {tree for candidate in candidates.values() for tree in candidate.trees()}
    assert len(trees) == 1, "the two did not do the same work"
    yield ratio_row(
        "one work order, instant model", measured["factory"], "plain git and Python", measured["floor"]
    )


class _Candidate:
    """A way to do the order. Each call does it in a repository of its own, made beforehand."""

    def __init__(self, command: list[str], place: Path, base_url: str) -> None:
        self.command = [
            sys.executable,
            *command,
            "--repo",
            "{}",
            "--work-order",
            str(place.parent / "order.json"),
        ]
        self.environment = _environment(base_url)
        self.done: list[Path] = []
        template = _template(place / "template")
        self.repositories = [
            Path(shutil.copytree(template, place / f"repository-{number}")) for number in range(ROUNDS + 1)
        ]

    def __call__(self) -> None:
        repo = self.repositories[len(self.done)]
        command = [word.format(repo) for word in self.command]
        done = subprocess.run(
            command, check=False, cwd=repo.parent, env=self.environment, capture_output=True
        )
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        self.done.append(repo)

    def trees(self) -> set[str]:
        """The trees of the commits that were made."""
        return {_git(repo, "rev-parse", "work^{tree}") for repo in self.done}


def _template(repo: Path) -> Path:
    (repo / "scripts").mkdir(parents=True)
    (repo / "scripts" / "verify.sh").write_text(
        "set -e\npython -m compileall -q greeting.py\n", encoding="utf-8"
    )
    (repo / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
    _git(repo, "init", "-q")
    _git(repo, "add", "--all")
    _git(repo, "commit", "-q", "-m", "start")
    return repo


def _environment(base_url: str) -> dict[str, str]:
    others = ("OPENAI_", "GIT_", "LANGSMITH_", "LANGCHAIN_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(others)}
    ours = {
        "PATH": os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"])),
        "PYTHONPATH": str(ROOT),
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": base_url,
    }
    identity = {f"GIT_{who}_{what}": "bench" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return {**kept, **ours, **identity}


def _git(repo: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=repo, env=_environment(""), check=True, capture_output=True, text=True
    )
    return done.stdout.strip()
