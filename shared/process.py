"""The one door to child processes: no shell, own session, bounded output, nobody left behind.

Three ways in. `run` is for commands that are not trusted to end, to be quiet or to be alone: output
goes to files. `run_captured` is for our own short questions (git): output comes back as bytes.
`run_shown` is for our own programs (the demo): output goes where ours goes.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Protocol

OUTPUT_CAP_BYTES = 20 * 1024 * 1024
"""How much of one stream is kept in its file: the first and the last half of this."""

CANNOT_START = -1
"""Exit code of a command that could not be started or was ended at its timeout (REQUIREMENTS FP14)."""

_POLL_SECONDS = 0.05
_CHUNK = 64 * 1024
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PDEATHSIG = 1

ENVIRONMENT_ALLOWED = frozenset(
    [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "TERM",
        "CI",
        "NO_COLOR",
        "PYTEST_ADDOPTS",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "PYENV_ROOT",
        "PYENV_VERSION",
        "NVM_DIR",
        "NODE_PATH",
        "JAVA_HOME",
        "GOROOT",
        "GOPATH",
        "GOCACHE",
        "CARGO_HOME",
        "RUSTUP_HOME",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "SYSTEMROOT",
    ]
)


# --- signals -----------------------------------------------------------------------------


class Interrupted(BaseException):
    """A signal asked the run to end. Not an `Exception`, so that no library swallows it."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(signum).name}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP."""
        return 128 + self.signum


@dataclass
class Interrupt:
    """The flag that a signal sets and that every wait polls."""

    signum: int | None = None

    def check(self) -> None:
        """Raise `Interrupted` if a signal has come."""
        if self.signum is not None:
            raise Interrupted(self.signum)


@contextmanager
def signals_as_flag() -> Iterator[Interrupt]:
    """Inside, SIGINT, SIGTERM and SIGHUP only set the flag; the earlier handlers come back after."""
    interrupt = Interrupt()

    def on_signal(signum: int, _frame: FrameType | None) -> None:
        interrupt.signum = interrupt.signum or signum

    wanted = [s for s in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, s)]
    earlier = {}
    for name in wanted:
        number = getattr(signal, name)
        # nohup leaves SIGHUP ignored: whoever asked for that wants the run to go on.
        if name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN:
            continue
        earlier[number] = signal.signal(number, on_signal)
    try:
        yield interrupt
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


# --- environment -------------------------------------------------------------------------


def allowed_environment(
    source: Mapping[str, str], *, extra: Sequence[str] = (), **changes: str
) -> dict[str, str]:
    """The variables of `source` that a child may see: the allow-list, `LC_*`, the names in `extra`.

    No key and no token passes unless its very name stands in `extra`. `changes` are set on top.
    """
    kept = {
        name: value
        for name, value in source.items()
        if name in ENVIRONMENT_ALLOWED or name.startswith("LC_") or name in extra
    }
    return {**kept, **changes}


# --- commands that are not trusted -------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """One child process to run. `timeout` is in seconds; the two files get its output, capped."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    timeout: float
    stdout: Path
    stderr: Path


@dataclass(frozen=True)
class Completed:
    """How a command ended. `exit_code` is negative for a signal, -1 if never started or timed out."""

    exit_code: int
    seconds: float
    timed_out: bool = False
    problem: str | None = None
    """Why it could not be started, or that it ran out of time; None when it ended by itself."""


class Runner(Protocol):
    """Runs a command to its end. A sandbox is a `Runner` made from a `Runner`."""

    def __call__(self, command: Command) -> Completed:
        """How the command ended. A command that cannot start is an outcome, not an error."""
        ...


def local_runner(interrupt: Interrupt) -> Runner:
    """A runner on this machine without a box. It raises `Interrupted` when the flag is set."""

    def run(command: Command) -> Completed:
        return _run(command, interrupt)

    return run


def _run(command: Command, interrupt: Interrupt) -> Completed:
    started = time.monotonic()
    adopt_orphans()
    before = frozenset(_children())
    with open(command.stdout, "wb") as out, open(command.stderr, "wb") as err:
        try:
            child = subprocess.Popen(
                list(command.argv),
                cwd=command.cwd,
                env=dict(command.env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # ValueError: an embedded NUL
            reason = f"cannot start {command.argv[0]!r}: {error}"
            err.write((reason + "\n").encode("utf-8", "backslashreplace"))
            return Completed(CANNOT_START, time.monotonic() - started, problem=reason)
        drains = [_Drain(child.stdout, out), _Drain(child.stderr, err)]
        try:
            timed_out = _wait(child, drains, started + command.timeout, interrupt)
        finally:
            end_group(child)
            _end_orphans(before)
            for drain in drains:
                drain.finish()
        problem = None
        if timed_out:
            problem = f"timed out after {command.timeout:g} s and was ended"
            err.write(f"\n[llmch: {problem}]\n".encode())
        code = CANNOT_START if timed_out else child.returncode
        return Completed(code, time.monotonic() - started, timed_out, problem)


@dataclass
class _Drain:
    """One output stream on its way to a file: the head as it comes, the tail kept in memory."""

    source: IO[bytes] | None
    sink: IO[bytes]
    written: int = 0
    dropped: int = 0
    tail: deque[bytes] = field(default_factory=deque)
    tail_size: int = 0
    open: bool = True

    def __post_init__(self) -> None:
        assert self.source is not None
        os.set_blocking(self.source.fileno(), False)

    def fileno(self) -> int:
        assert self.source is not None
        return self.source.fileno()

    def pump(self) -> bool:
        """Take what is there now. False when there was nothing (yet, or ever again)."""
        try:
            data = os.read(self.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.open = False
            return False
        room = OUTPUT_CAP_BYTES // 2 - self.written
        if room > 0:
            self.sink.write(data[:room])
            self.written += len(data[:room])
            data = data[room:]
        if data:
            self.tail.append(data)
            self.tail_size += len(data)
            while self.tail_size - len(self.tail[0]) >= OUTPUT_CAP_BYTES // 2:
                self.dropped += len(self.tail[0])
                self.tail_size -= len(self.tail.popleft())
        return True

    def finish(self) -> None:
        # Whoever else holds the pipe is not waited for: what is there now is taken, and no more
        # than the cap of it, since a survivor could go on writing for ever.
        for _ in range(OUTPUT_CAP_BYTES // _CHUNK):
            if not self.open or not self.pump():
                break
        if self.dropped:
            self.sink.write(f"\n[llmch: {self.dropped} bytes left out here]\n".encode())
        for data in self.tail:
            self.sink.write(data)
        assert self.source is not None
        self.source.close()


def _wait(
    child: subprocess.Popen[bytes], drains: list[_Drain], deadline: float, interrupt: Interrupt
) -> bool:
    """Pump output until the child itself has ended; True when the deadline came first."""
    with selectors.DefaultSelector() as selector:
        for drain in drains:
            selector.register(drain, selectors.EVENT_READ, drain)
        # A pidfd wakes the wait at the very end of the child; without one (macOS) we look often.
        pidfd = os.pidfd_open(child.pid) if hasattr(os, "pidfd_open") else None
        if pidfd is not None:
            selector.register(pidfd, selectors.EVENT_READ, None)
        try:
            while child.poll() is None:
                interrupt.check()
                left = deadline - time.monotonic()
                if left <= 0:
                    return True
                for key, _ in selector.select(min(left, _POLL_SECONDS)):
                    drain = key.data
                    if drain is not None and not drain.pump() and not drain.open:
                        selector.unregister(drain)
        finally:
            if pidfd is not None:
                os.close(pidfd)
    return False


def end_group(child: subprocess.Popen[bytes]) -> None:
    """Kill the child's whole session group and reap the child. Does nothing to one already gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def adopt_orphans() -> None:
    """Make orphans of our descendants our own children (Linux), so that they can be ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_orphans(before: frozenset[int]) -> None:
    """Kill and reap the children that came to us by adoption since `before` was taken.

    What a killed orphan leaves behind comes to us next, so this goes round until nobody is left.
    """
    for _ in range(1000):
        adopted = [pid for pid in _children() if pid not in before]
        if not adopted:
            return
        for pid in adopted:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in adopted:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    if sys.platform != "linux":
        return []
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def end_those_below(place: str) -> None:
    """Kill every process that was started with a `TMPDIR` below the directory `place` (Linux).

    For the commands of a run that was killed, which would go on for ever. Nobody else may have such
    a `TMPDIR`.
    """
    if sys.platform != "linux":
        return
    mark = os.fsencode(f"TMPDIR={place}/")
    for _ in range(100):  # what one of them starts while we look is found the next time
        found = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _is_marked(pid, mark)]
        if not found:
            return
        for pid in found:
            with suppress(OSError):
                _kill_marked(pid, mark)
        time.sleep(_POLL_SECONDS / 10)


def _kill_marked(pid: int, mark: bytes) -> None:
    # The number may be somebody else's by now, but not once we hold the process and have looked again.
    held = os.pidfd_open(pid)
    try:
        if _is_marked(pid, mark):
            signal.pidfd_send_signal(held, signal.SIGKILL)
    finally:
        os.close(held)


def _is_marked(pid: int, mark: bytes) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it has ended, or belongs to somebody else
        return False
    return pid != os.getpid() and any(entry.startswith(mark) for entry in environment.split(b"\0"))


# --- our own work in a child -------------------------------------------------------------


def in_child(work: Callable[[], int], interrupt: Interrupt) -> int:
    """Run `work` in a forked process and return its exit code.

    The child starts with everything this process has imported, which is the point. It ends when this
    process dies (Linux). A signal that reaches this process is passed on once, and the child's end
    is waited for: `interrupt` is not raised here. A child that a signal ended gives 128 + the signal.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # it may be gone, or never have been there
            stream.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
                if os.getppid() != parent:  # it died before we asked to be told
                    os._exit(2)
            code = work()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            os._exit(code)
    passed_on = False
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code
        if interrupt.signum is not None and not passed_on:
            passed_on = True
            os.kill(pid, interrupt.signum)
        time.sleep(_POLL_SECONDS / 10)


# --- our own questions -------------------------------------------------------------------


@dataclass(frozen=True)
class Captured:
    """The whole output of one of our own commands."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """stdout as text, without the final newline; bytes that are not UTF-8 survive as surrogates."""
        return self.stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    @property
    def complaint(self) -> str:
        """stderr (or, when empty, stdout) as text for a message."""
        return (self.stderr.strip() or self.stdout.strip()).decode("utf-8", "replace")


def run_captured(
    argv: Sequence[str],
    *,
    cwd: str | Path,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout: float,
    on_wait: Callable[[], None] | None = None,
    keep_open: Sequence[int] = (),
) -> Captured:
    """Run one of our own commands to its end and return its output.

    It runs in a session of its own, so that Ctrl-C at the terminal reaches us and not git in the
    middle of a write. A command that cannot start or takes longer than `timeout` seconds gets exit
    code -1 and says so in `stderr`. `on_wait` is called several times a second; what it raises ends
    the command and passes through. The descriptors in `keep_open` are the command's too: a lock on
    one of them is held until the command has ended, even when we are killed before it.
    """
    try:
        child = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=tuple(keep_open),
        )
    except (OSError, ValueError) as error:
        return Captured(CANNOT_START, b"", f"cannot start {argv[0]}: {error}".encode())
    deadline = time.monotonic() + timeout
    pending: bytes | None = stdin
    try:
        while True:
            left = deadline - time.monotonic()
            step = left if on_wait is None else min(left, 0.1)
            try:
                out, err = child.communicate(pending, timeout=max(step, 0))
                return Captured(child.returncode, out, err)
            except subprocess.TimeoutExpired:
                pending = None  # communicate keeps what it has not sent yet
                if on_wait is not None:
                    on_wait()
                if time.monotonic() >= deadline:
                    message = f"{argv[0]} took longer than {timeout:g} s and was ended"
                    return Captured(CANNOT_START, b"", message.encode())
    finally:
        if child.poll() is None:
            end_group(child)
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def run_shown(argv: Sequence[str], *, cwd: str | Path, env: Mapping[str, str], interrupt: Interrupt) -> int:
    """Run one of our own programs on our terminal, without stdin, and return its exit code.

    It stays in our process group, so that Ctrl-C reaches it too. A signal that came to us alone is
    passed on, and the program is waited for: how it ends is its own business. Raises `OSError`.
    """
    child = subprocess.Popen(list(argv), cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL)
    passed_on = False
    while True:
        try:
            code = child.wait(timeout=_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if interrupt.signum is not None and not passed_on:
                passed_on = True
                child.send_signal(interrupt.signum)
        else:
            return code if code >= 0 else 128 - code
