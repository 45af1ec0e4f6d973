"""Both tools where little is as it should be: odd paths, a full disk, Ctrl-C at once, kill -9, no git."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import make_repo, run_git
from loopback import Answer, LoopbackEndpoint
from plans import order, plan

from factory.defaults import Exit
from factory.ending import ending_of
from factory.git import GitError
from shared.console import Console
from shared.events import EventLog, Waiting
from shared.process import end_those_below

NOT_UTF8 = os.fsdecode(b"b\xfccher")


@pytest.fixture
def tool(tmp_path):
    """Start `python -m factory|planner` beside a directory for its artifacts."""

    def start(*arguments, endpoint=None, **environment):
        told = {"OPENAI_API_KEY": "k", "ARTIFACTS_DIR": str(tmp_path / "artifacts"), **environment}
        if endpoint is not None:
            told["OPENAI_BASE_URL"] = endpoint.base_url
        return subprocess.Popen(
            [sys.executable, "-P", "-m", *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, **told},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


def told_by(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, (out + err).decode("utf-8", "replace")


def run_json(tmp_path, tool):
    (path,) = (tmp_path / "artifacts" / tool).glob("*/run.json")
    return json.loads(path.read_text())


# --- paths that are no text --------------------------------------------------------------


def test_a_repository_whose_path_is_not_utf8_gets_its_commit_and_its_records(
    tmp_path, tool, an_order, a_proposal
):
    repo = make_repo(tmp_path / NOT_UTF8)
    (tmp_path / "WO-01.json").write_text(json.dumps(an_order(verify_exempt=True)))
    with LoopbackEndpoint([Answer(json.dumps(a_proposal()))]) as endpoint:
        arguments = ("--repo", repo, "--work-order", tmp_path / "WO-01.json", "--allow-verify-exempt")
        code, said = told_by(tool("factory", "run", *arguments, endpoint=endpoint))
    assert code == Exit.PASS, said
    assert run_git(repo, "show", "--format=", "--name-only", "HEAD") == "src/hello.py"
    assert run_json(tmp_path, "factory")["verdict"] == "PASS"
    assert not (repo / ".git" / "llmch").exists()


def test_a_spec_whose_name_is_not_utf8_can_be_planned(tmp_path, tool):
    spec = tmp_path / f"{NOT_UTF8}.md"
    spec.write_text("a product\n")
    with LoopbackEndpoint([Answer(json.dumps(plan(order())))]) as endpoint:
        code, said = told_by(tool("planner", "compile", "--spec", spec, endpoint=endpoint))
    assert code == 0, said
    assert run_json(tmp_path, "planner")["status"] == "success"


# --- signals before there is anything to put in order -----------------------------------------


@pytest.mark.parametrize("tool_name", ["factory", "planner"])
def test_ctrl_c_while_a_tool_loads_its_modules_ends_it_without_a_traceback(tmp_path, tool_name):
    (tmp_path / "click.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(60)\n")
    with subprocess.Popen(
        [sys.executable, "-P", "-m", tool_name, "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"loading\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, b"")


# --- kill -9 -----------------------------------------------------------------------------------


def test_the_next_run_ends_the_commands_of_one_that_was_killed(tmp_path, tool, an_order, a_proposal):
    repo = make_repo(tmp_path / "project")
    pids = tmp_path / "pids"
    script = f"setsid sleep 1000 & echo $! $$ > {pids}.draft; mv {pids}.draft {pids}; wait"
    waits = an_order(verify_exempt=True, acceptance_commands=[f'bash -c "{script}"'])
    goes = an_order(verify_exempt=True, acceptance_commands=["true"])
    path = tmp_path / "WO-01.json"
    arguments = ("factory", "run", "--repo", repo, "--work-order", path, "--allow-verify-exempt")
    with LoopbackEndpoint([Answer(json.dumps(a_proposal()))], repeat_last=True) as endpoint:
        path.write_text(json.dumps(waits))
        killed = tool(*arguments, endpoint=endpoint)
        deadline = time.monotonic() + 60
        while not pids.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        left = [int(pid) for pid in pids.read_text().split()]
        killed.kill()
        killed.communicate()
        path.write_text(json.dumps(goes))
        code, said = told_by(tool(*arguments, endpoint=endpoint))
    assert code == Exit.PASS, said
    assert not [pid for pid in left if is_running(pid)]


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_only_processes_with_a_tmpdir_below_the_place_are_ended(tmp_path):
    def sleeping(tmpdir):
        return subprocess.Popen(["sleep", "1000"], env={**os.environ, "TMPDIR": str(tmpdir)})

    inside, beside = sleeping(tmp_path / "room" / "tmp"), sleeping(tmp_path / "room-2" / "tmp")
    try:
        time.sleep(0.1)  # until then it may still be Python, with our own environment
        end_those_below(str(tmp_path / "room"))
        assert inside.wait(timeout=10) == -signal.SIGKILL
        assert beside.poll() is None
    finally:
        for process in (inside, beside):
            process.kill()
            process.wait()


# --- full disks, no git ------------------------------------------------------------------------


def test_a_log_on_a_full_disk_ends_and_nobody_else_does(tmp_path):
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    log = EventLog(tmp_path)
    log(Waiting("one"))
    log(Waiting("two"))
    log.close()


def test_records_that_cannot_be_completed_do_not_hide_the_verdict(tmp_path, tool, an_order, a_proposal):
    repo = make_repo(tmp_path / "project")
    path = tmp_path / "WO-01.json"
    damage = f"bash -c 'cd {tmp_path}/artifacts/factory/*/ && mkdir run_summary.json'"
    path.write_text(json.dumps(an_order(verify_exempt=True, acceptance_commands=[damage])))
    with LoopbackEndpoint([Answer(json.dumps(a_proposal()))]) as endpoint:
        arguments = ("--repo", repo, "--work-order", path, "--allow-verify-exempt")
        code, said = told_by(tool("factory", "run", *arguments, endpoint=endpoint))
    last = said.strip().splitlines()[-1]
    assert code == Exit.CRASH
    assert last.startswith("error: PASS WO-01: "), said
    assert "could not be completed: Is a directory" in last


def test_a_run_that_cannot_begin_its_records_leaves_no_directory(tmp_path, an_order):
    repo = make_repo(tmp_path / "project")
    path, artifacts = tmp_path / "WO-01.json", tmp_path / "artifacts"
    path.write_text(json.dumps(an_order(intent="long " * 1000)))
    command = (
        f"{sys.executable} -P -m factory run --repo {repo} --work-order {path} --artifacts-dir {artifacts}"
    )
    run = subprocess.run(
        ["bash", "-c", f"ulimit -f 2; exec {command}"],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"},
        capture_output=True,
    )
    said = run.stderr.decode()
    assert (run.returncode, said.count("\n")) == (Exit.FAIL, 1), said
    assert "cannot keep artifacts in" in said
    assert list((artifacts / "factory").iterdir()) == []


@pytest.mark.parametrize(
    "error", [GitError("git status: cannot start git"), AttributeError("x"), KeyError("x")]
)
def test_whatever_ends_a_command_is_one_line(error):
    def work():
        raise error

    story = io.StringIO()
    code = ending_of(work, Console(colour=False, story=story), debug=False)
    assert code in (Exit.FAIL, Exit.CRASH)
    assert story.getvalue().count("\n") == 1
    assert str(error) in story.getvalue()


def test_a_directory_that_is_no_repository_is_refused_even_where_there_is_no_git(tmp_path, tool, an_order):
    path = tmp_path / "WO-01.json"
    path.write_text(json.dumps(an_order()))
    (tmp_path / "empty").mkdir()
    given = ("--repo", tmp_path / "empty", "--work-order", path)
    code, said = told_by(tool("factory", "run", *given, PATH=str(tmp_path / "empty")))
    assert (code, said.count("\n")) == (Exit.FAIL, 1)
    assert "cannot start git" in said
