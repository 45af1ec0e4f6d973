"""What a customer has: the commands, a repository, an endpoint to point them at, and eyes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopback import LoopbackEndpoint

KEY = "sk-blackbox-5ecret-0123456789abcdef"
EMPTY = hashlib.sha256(b"").hexdigest()
ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
CODE = re.compile(r"[EW]\d{3}")
LONG_ENOUGH = 90.0
"""Seconds after which a command counts as hanging; never the point of a check."""


# --- commands ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it said."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def said(self) -> str:
        return self.stdout + self.stderr

    def __str__(self) -> str:
        shown = " ".join(self.argv[1:])
        out, err = self.stdout[-4000:], self.stderr[-4000:]
        return f"{shown}\n-> {self.exit_code}\n--- stdout\n{out}\n--- stderr\n{err}"

    __repr__ = __str__


class Running:
    """A command that has been started and may be watched, signalled and awaited."""

    def __init__(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], notes: Path) -> None:
        self.argv = tuple(argv)
        self._out = notes / f"out-{time.monotonic_ns()}"
        self._err = self._out.with_name(self._out.name.replace("out", "err"))
        self._since = time.monotonic()
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(
                self.argv,
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def stderr(self) -> str:
        return self._err.read_bytes().decode("utf-8", "backslashreplace")

    @property
    def stdout(self) -> str:
        return self._out.read_bytes().decode("utf-8", "backslashreplace")

    def until(self, seen: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Wait until `seen()` is true; fail with what the command said if it ends or time runs out."""
        deadline = time.monotonic() + seconds
        while not (found := seen()):
            ended = self.process.poll() is not None
            if (ended and not seen()) or time.monotonic() > deadline:
                raise AssertionError(f"waited in vain (ended: {ended})\n{self._outcome()}")
            time.sleep(0.01)
        return found

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def finish(self, seconds: float = LONG_ENOUGH) -> Outcome:
        """The outcome; a command that hangs is ended with its whole session and fails the check."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {seconds:g} s\n{self._outcome()}") from None
        return self._outcome()

    def kill(self) -> None:
        """kill -9 of the process alone; its children have to notice by themselves."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def _outcome(self) -> Outcome:
        code = self.process.returncode if self.process.returncode is not None else -999
        return Outcome(self.argv, code, self.stdout, self.stderr, time.monotonic() - self._since)


@dataclass
class Desk:
    """A private place on the machine: home, temporary directory, artifact root, environment."""

    root: Path
    env: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        for name in ("home", "tmp", "notes", "cwd"):
            (self.root / name).mkdir(parents=True)
        self.env = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "LANG": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "OPENAI_API_KEY": KEY,
            # A closed port: whoever asks a model without being told where to has nobody to talk to.
            "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        }

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def cwd(self) -> Path:
        return self.root / "cwd"

    def start(
        self,
        *argv: str | Path,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        endpoint: LoopbackEndpoint | None = None,
    ) -> Running:
        """Start `python -m argv…`. In `env`, None removes a variable."""
        changes: dict[str, str | None] = {**({"OPENAI_BASE_URL": endpoint.base_url} if endpoint else {})}
        changes.update(env or {})
        merged = {k: v for k, v in {**self.env, **changes}.items() if v is not None}
        command = [sys.executable, "-m", *map(str, argv)]
        return Running(command, cwd=cwd or self.cwd, env=merged, notes=self.root / "notes")

    def run(self, *argv: str | Path, **how: Any) -> Outcome:
        return self.start(*argv, **how).finish()

    def write(self, name: str, content: str | bytes | dict[str, Any] | list[Any]) -> Path:
        """A file on the desk, outside every repository."""
        path = self.root / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, (dict, list)):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def git(self, repo: Path, *args: str, check: bool = True) -> str:
        """git as the user would call it, in the user's environment."""
        done = subprocess.run(
            ["git", *args], cwd=repo, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"git {args}: {done.stderr.decode()}")
        return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    def repo(
        self,
        files: Mapping[str, str | bytes] | None = None,
        *,
        name: str = "repo",
        branch: str = "main",
        verify: str | None = "exit 0\n",
    ) -> Path:
        """A clean repository with one commit. `verify` is the text of scripts/verify.sh."""
        repo = self.root / name
        repo.mkdir()
        contents = dict(files or {"README.md": "hello\n"})
        if verify is not None:
            contents["scripts/verify.sh"] = verify
        for path, content in contents.items():
            put(repo / path, content)
        self.git(repo, "init", "-q", "-b", branch)
        self.git(repo, "add", "-A")
        self.git(repo, *AS_USER, "commit", "-q", "-m", "first")
        return repo

    def commit_all(self, repo: Path, message: str = "more") -> str:
        self.git(repo, "add", "-A")
        self.git(repo, *AS_USER, "commit", "-q", "-m", message)
        return self.git(repo, "rev-parse", "HEAD")


AS_USER = ("-c", "user.name=Ada User", "-c", "user.email=ada@example.org", "-c", "commit.gpgSign=false")


def put(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def sha(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


# --- what is on disk ---------------------------------------------------------------------


def snapshot(root: Path) -> dict[str, str]:
    """Everything below `root`, `.git` included: kind, mode and content of each name."""
    found = {".": f"dir {stat.S_IMODE(root.lstat().st_mode):o}"}
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(directory, name)
            info = path.lstat()
            mode = f"{stat.S_IMODE(info.st_mode):o}"
            if stat.S_ISLNK(info.st_mode):
                what = f"link {os.readlink(path)}"
            elif stat.S_ISDIR(info.st_mode):
                what = f"dir {mode}"
            elif stat.S_ISREG(info.st_mode):
                what = f"file {mode} {hashlib.sha256(path.read_bytes()).hexdigest()}"
            else:
                what = f"other {stat.S_IFMT(info.st_mode)} {mode}"
            found[os.path.relpath(path, root)] = what
    return found


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    names = sorted(before.keys() | after.keys())
    return [
        f"{n}: {before.get(n, 'absent')} -> {after.get(n, 'absent')}"
        for n in names
        if before.get(n) != after.get(n)
    ]


@contextmanager
def untouched(*roots: Path) -> Iterator[None]:
    """Claim: what happens inside leaves every byte, mode and name below `roots` as it was."""
    before = [snapshot(root) for root in roots]
    yield
    for root, was in zip(roots, before, strict=True):
        assert differences(was, snapshot(root)) == [], root


def files_below(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def leftovers(desk: Desk) -> list[str]:
    """Scratch trees and temporary files that a run forgot in the home or temporary directory."""
    places = [desk.root / "tmp", desk.root / "home"]
    return [
        str(p)
        for place in places
        for p in place.rglob("*")
        if p.name == ".git" or p.name.startswith(".llmch-")
    ]


# --- requests ----------------------------------------------------------------------------


def text_of(record: Any) -> str:
    """Every string in a request body, one after the other: the prompt is somewhere in it."""
    return "\n".join(strings_in(record.body))


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)


def posts(endpoint: LoopbackEndpoint) -> list[Any]:
    return [record for record in endpoint.requests if record.method == "POST"]


def peeking(look: Callable[[Any], None], steps: Iterable[Any]) -> Callable[[Any], Any]:
    """Steps for an endpoint that call `look(record)` while the request is open."""
    left = iter(list(steps))

    def step(record: Any) -> Any:
        look(record)
        return next(left)

    return step


# --- plans -------------------------------------------------------------------------------


def exists(path: Any) -> dict[str, Any]:
    return {"kind": "file_exists", "path": path}


def absent(path: Any) -> dict[str, Any]:
    return {"kind": "file_absent", "path": path}


def an_order(number: int = 1, **changes: Any) -> dict[str, Any]:
    """A valid work order of a plan that makes src/f<number>.txt. A change to `...` removes the field."""
    path = f"src/f{number}.txt"
    order = {
        "id": f"WO-{number:02d}",
        "title": f"Title of {number}",
        "intent": f"Intent of {number}",
        "preconditions": [],
        "postconditions": [exists(path)],
        "allowed_files": [path],
        "forbidden": [],
        "acceptance_commands": [f"test -f {path}"],
        "context_files": [],
        "notes": "",
    }
    order.update(changes)
    return {key: value for key, value in order.items() if value is not ...}


def bootstrap_order(number: int = 1, **changes: Any) -> dict[str, Any]:
    return an_order(
        number,
        **{
            "title": "Bootstrap the verifier",
            "allowed_files": ["scripts/verify.sh"],
            "postconditions": [exists("scripts/verify.sh")],
            "acceptance_commands": ["test -f scripts/verify.sh"],
            **changes,
        },
    )


CONTRACT = {"command": "bash scripts/verify.sh", "requires": [exists("scripts/verify.sh")]}


def a_plan(*orders: Any, **more: Any) -> dict[str, Any]:
    return {"work_orders": list(orders), **more}


def codes_in(value: Any) -> set[str]:
    """All rule codes in a findings artifact, whatever it is wrapped in."""
    return {finding["code"] for finding in findings_in(value)}


def findings_in(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        own = [value] if isinstance(value.get("code"), str) and CODE.fullmatch(value["code"]) else []
        return own + [f for item in value.values() for f in findings_in(item)]
    if isinstance(value, list):
        return [f for item in value for f in findings_in(item)]
    return []


@dataclass(frozen=True)
class Compile:
    """A run of the planner, seen from outside."""

    outcome: Outcome
    requests: list[Any]
    run_dir: Path | None

    @property
    def compile_dir(self) -> Path:
        assert self.run_dir is not None, self.outcome
        return self.run_dir / "compile"

    @property
    def output(self) -> Path:
        assert self.run_dir is not None, self.outcome
        return self.run_dir / "output"

    def artifact(self, name: str) -> Any:
        path = self.compile_dir / name
        assert path.exists(), (
            f"{name} is missing; there: {sorted(p.name for p in self.compile_dir.iterdir())}"
        )
        return read_json(path) if name.endswith(".json") else path.read_bytes().decode("utf-8", "replace")

    @property
    def summary(self) -> dict[str, Any]:
        found = list(self.run_dir.rglob("compile_summary.json")) if self.run_dir else []
        assert len(found) == 1, self.outcome
        return read_json(found[0])

    @property
    def run_json(self) -> dict[str, Any]:
        assert self.run_dir is not None, self.outcome
        return read_json(self.run_dir / "run.json")

    @property
    def orders(self) -> dict[str, dict[str, Any]]:
        return {path.stem: read_json(path) for path in sorted(self.output.glob("WO-*.json"))}

    def attempt_codes(self, number: int) -> set[str]:
        return codes_in(self.artifact(f"validation_errors_attempt_{number}.json"))


def only_dir(parent: Path) -> Path | None:
    found = sorted(p for p in parent.iterdir() if p.is_dir()) if parent.is_dir() else []
    assert len(found) <= 1, found
    return found[0] if found else None


def newest_dir(parent: Path) -> Path | None:
    found = sorted(p for p in parent.iterdir() if p.is_dir()) if parent.is_dir() else []
    return found[-1] if found else None


def compile_spec(
    desk: Desk,
    steps: Any,
    *args: str | Path,
    spec: str = "Make it so.\n",
    how: Any = None,
    repeat_last: bool = False,
    polls: Iterable[Any] = (),
) -> Compile:
    """`planner compile` against an endpoint that answers with `steps`."""
    path = desk.write("spec.md", spec)
    with LoopbackEndpoint(steps, repeat_last=repeat_last, polls=polls) as endpoint:
        outcome = desk.run(
            "planner",
            "compile",
            "--spec",
            path,
            "--artifacts-dir",
            desk.artifacts,
            *args,
            endpoint=endpoint,
            **(how or {}),
        )
        requests = list(endpoint.requests)
    return Compile(outcome, requests, newest_dir(desk.artifacts / "planner"))


# --- factory -----------------------------------------------------------------------------


def a_task(**changes: Any) -> dict[str, Any]:
    """A work order for `factory run` that lets a.txt be written."""
    return an_order(
        1,
        **{
            "allowed_files": ["a.txt"],
            "postconditions": [exists("a.txt")],
            "acceptance_commands": ["test -f a.txt"],
            **changes,
        },
    )


def a_write(path: Any, content: Any = "content\n", base: Any = EMPTY) -> dict[str, Any]:
    return {"path": path, "base_sha256": base, "content": content}


def a_proposal(*writes: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"summary": "what was done", "writes": list(writes), **changes}


GOOD = json.dumps(a_proposal(a_write("a.txt")))


@dataclass(frozen=True)
class Run:
    """A run of the factory, seen from outside."""

    outcome: Outcome
    requests: list[Any]
    run_dir: Path | None

    @property
    def summary(self) -> dict[str, Any]:
        assert self.run_dir is not None, self.outcome
        assert (self.run_dir / "run_summary.json").exists(), self.outcome
        return read_json(self.run_dir / "run_summary.json")

    @property
    def run_json(self) -> dict[str, Any]:
        assert self.run_dir is not None, self.outcome
        return read_json(self.run_dir / "run.json")

    def attempt(self, number: int) -> Path:
        assert self.run_dir is not None, self.outcome
        path = self.run_dir / f"attempt_{number}"
        assert path.is_dir(), f"no {path.name}\n{self.outcome}"
        return path

    def artifact(self, number: int, name: str) -> Any:
        path = self.attempt(number) / name
        assert path.exists(), f"{name} is missing; there: {sorted(p.name for p in path.parent.iterdir())}"
        return read_json(path) if name.endswith(".json") else path.read_bytes().decode("utf-8", "replace")

    def brief(self, number: int) -> dict[str, Any]:
        return self.artifact(number, "failure_brief.json")

    @property
    def stages(self) -> list[str | None]:
        """The stage that each attempt failed at, None for one that passed."""
        assert self.run_dir is not None, self.outcome
        found = []
        for number in range(1, len(list(self.run_dir.glob("attempt_*"))) + 1):
            brief = self.attempt(number) / "failure_brief.json"
            found.append(read_json(brief)["stage"] if brief.exists() else None)
        return found


def factory(
    desk: Desk,
    repo: Path,
    order: Any,
    steps: Any,
    *args: str | Path,
    how: Any = None,
    repeat_last: bool = False,
) -> Run:
    """`factory run` against an endpoint that answers with `steps`."""
    path = order if isinstance(order, Path) else desk.write("order.json", order)
    with LoopbackEndpoint(steps, repeat_last=repeat_last) as endpoint:
        outcome = desk.run(
            "factory",
            "run",
            "--repo",
            repo,
            "--work-order",
            path,
            "--artifacts-dir",
            desk.artifacts,
            *args,
            endpoint=endpoint,
            **(how or {}),
        )
        requests = list(endpoint.requests)
    return Run(outcome, requests, newest_dir(desk.artifacts / "factory"))


def passes(run: Run) -> Run:
    assert run.outcome.exit_code == 0, run.outcome
    assert run.summary["verdict"] == "PASS", run.outcome
    return run


def fails(run: Run, code: int = 1) -> Run:
    assert run.outcome.exit_code == code, run.outcome
    assert "Traceback" not in run.outcome.said, run.outcome
    return run
