"""shared/process: bounded, alone, and nobody left behind."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from shared.process import (
    OUTPUT_CAP_BYTES,
    Command,
    Interrupt,
    Interrupted,
    allowed_environment,
    in_child,
    local_runner,
    run_captured,
    signals_as_flag,
)

# A grandchild in a session of its own, which outlives its parent by itself.
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(1000)
    os._exit(0)
os.wait()
time.sleep(0.3)
"""


@pytest.fixture
def run(tmp_path):
    """Run a command with this interpreter's environment and give back how it ended and what it said."""

    def start(*argv, timeout=30, interrupt=None):
        out, err = tmp_path / "out", tmp_path / "err"
        command = Command(argv, tmp_path, {"PATH": os.environ["PATH"]}, timeout, out, err)
        completed = local_runner(interrupt or Interrupt())(command)
        return completed, out.read_bytes(), err.read_bytes()

    return start


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_output_and_exit_code_come_back(run):
    completed, out, err = run("bash", "-c", "echo out; echo err >&2; exit 7")
    assert (completed.exit_code, out, err) == (7, b"out\n", b"err\n")


def test_no_shell_reads_the_words(run):
    _, out, _ = run("printf", "%s|", "$HOME", "*", ";", "a b")
    assert out == b"$HOME|*|;|a b|"


@pytest.mark.parametrize("argv", [("no-such-program-anywhere",), ("/",), ("bad\0name",)])
def test_a_command_that_cannot_start_is_an_outcome(run, argv):
    completed, _, err = run(*argv)
    assert completed.exit_code == -1
    assert b"cannot start" in err


def test_a_command_ended_by_a_signal_says_so(run):
    completed, _, _ = run("bash", "-c", "kill -9 $$")
    assert completed.exit_code == -signal.SIGKILL


def test_standard_input_is_closed(run):
    completed, out, _ = run("cat")
    assert (completed.exit_code, out) == (0, b"")


def test_a_timeout_ends_the_whole_group(run):
    completed, out, err = run("bash", "-c", "sleep 1000 & echo $!; sleep 1000", timeout=0.5)
    assert completed.timed_out
    assert completed.exit_code == -1
    assert b"timed out" in err
    assert not alive(int(out))


def test_a_child_that_holds_the_pipe_is_not_waited_for(run):
    started = time.monotonic()
    completed, out, _ = run("bash", "-c", "sleep 1000 & echo $!")
    assert completed.exit_code == 0
    assert not alive(int(out))
    assert time.monotonic() - started < 60  # only a hang takes longer


@pytest.mark.skipif(sys.platform != "linux", reason="a child subreaper is a Linux thing")
def test_a_daemon_in_a_session_of_its_own_is_ended_too(run):
    completed, out, _ = run(sys.executable, "-c", DAEMON)
    assert completed.exit_code == 0
    assert not alive(int(out))


def test_a_child_of_ours_that_is_no_orphan_survives(run):
    ours = subprocess.Popen(["sleep", "1000"])
    try:
        run("true")
        assert ours.poll() is None
    finally:
        ours.kill()
        ours.wait()


def test_a_flood_keeps_its_head_and_its_tail(run):
    completed, out, _ = run("bash", "-c", "echo first; head -c 60000000 /dev/zero; echo last")
    assert completed.exit_code == 0
    assert len(out) < OUTPUT_CAP_BYTES + 200_000
    assert out.startswith(b"first\n")
    assert out.endswith(b"last\n")
    assert b"bytes left out here" in out


def test_an_interrupt_ends_the_command_and_passes_through(run):
    interrupt = Interrupt()
    timer = threading.Timer(0.3, lambda: setattr(interrupt, "signum", signal.SIGTERM))
    timer.start()
    with pytest.raises(Interrupted) as caught:
        run("sleep", "1000", interrupt=interrupt)
    timer.join()
    assert caught.value.exit_code == 143


def test_signals_only_set_a_flag_and_the_earlier_handler_comes_back():
    before = signal.getsignal(signal.SIGINT)
    with signals_as_flag() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.signum == signal.SIGINT
        with pytest.raises(Interrupted):
            interrupt.check()
    assert signal.getsignal(signal.SIGINT) is before


def test_no_key_and_no_token_reaches_a_child():
    kept = {"PATH": "/bin", "LC_ALL": "C", "MINE": "m"}
    source = {**kept, "OPENAI_API_KEY": "k", "GITHUB_TOKEN": "t", "GIT_DIR": "d", "AWS_X": "x"}
    assert allowed_environment(source, extra=["MINE"], TMPDIR="/t") == {**kept, "TMPDIR": "/t"}


def test_our_own_questions_are_answered_whole(tmp_path):
    big = b"x" * 3_000_000
    assert run_captured(["cat"], cwd=tmp_path, stdin=big, timeout=60).stdout == big


def test_our_own_questions_have_a_bound(tmp_path):
    answer = run_captured(["sleep", "1000"], cwd=tmp_path, timeout=0.3)
    assert answer.exit_code == -1
    assert "took longer" in answer.complaint


def test_what_a_poll_raises_ends_the_question(tmp_path):
    def poll():
        raise Interrupted(signal.SIGINT)

    with pytest.raises(Interrupted):
        run_captured(["sleep", "1000"], cwd=tmp_path, timeout=500, on_wait=poll)


@pytest.mark.parametrize(("end", "code"), [(lambda: 3, 3), (lambda: os.kill(os.getpid(), 9), 137)])
def test_a_forked_child_gives_its_exit_code(end, code):
    assert in_child(end, Interrupt()) == code


def test_a_signal_is_passed_on_to_the_forked_child_and_its_end_awaited():
    interrupt = Interrupt()
    timer = threading.Timer(0.3, lambda: setattr(interrupt, "signum", signal.SIGTERM))
    timer.start()

    def work():
        with signals_as_flag() as flag:
            while flag.signum is None:
                time.sleep(0.01)
        return 43

    assert in_child(work, interrupt) == 43
    timer.join()
