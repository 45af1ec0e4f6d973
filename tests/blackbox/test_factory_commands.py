"""What is run to judge a proposal, in what surroundings, and how it may end."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from loopback import Answer

from blackbox.harness import (
    GOOD,
    KEY,
    a_proposal,
    a_task,
    a_write,
    exists,
    factory,
    fails,
    passes,
    put,
    text_of,
    untouched,
)

ONCE = ("--max-attempts", "1")


def answers(*proposals):
    return [
        Answer(json.dumps(a_proposal(*(a_write(path, text) for path, text in files.items()))))
        for files in proposals
    ]


def ran(run, number, name="verify_result.json"):
    found: list[tuple[str, int]] = []

    def walk(value):
        if isinstance(value, dict):
            if "exit_code" in value:
                command = value.get("command")
                found.append((command if isinstance(command, str) else " ".join(command), value["exit_code"]))
            else:
                for item in value.values():
                    walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(run.artifact(number, name))
    return found


# --- verification ------------------------------------------------------------------------


@pytest.mark.rows("FP02", "S25")
def test_without_a_verifier_all_of_the_fallback_counts(desk):
    repo = desk.repo(verify=None)
    test, bad = "def test_it():\n    import calc\n    assert calc.two() == 2\n", "def two():\n    return 3\n"
    good = "def two():\n    return 2\n"
    task = a_task(
        allowed_files=["calc.py", "test_calc.py"],
        postconditions=[exists("calc.py")],
        acceptance_commands=["true"],
    )
    run = passes(
        factory(
            desk,
            repo,
            task,
            answers(
                {"calc.py": "def two(:\n", "test_calc.py": test},
                {"calc.py": bad, "test_calc.py": test},
                {"calc.py": good},
                {"calc.py": good, "test_calc.py": test},
            ),
        )
    )
    assert run.stages == ["verify_failed", "verify_failed", "verify_failed", None]
    assert "compileall" in run.brief(1)["command"]
    assert "pytest" in run.brief(2)["command"]
    assert "assert 3 == 2" in run.brief(2)["primary_error_excerpt"]
    assert run.brief(3)["exit_code"] == 5, "no tests is no proof"
    commands = [command for command, _ in ran(run, 4)]
    assert len(commands) == 3
    for word, command in zip(("compileall", "pip", "pytest"), commands, strict=True):
        assert word in command
    assert {path.name for path in repo.iterdir()} == {".git", "README.md", "calc.py", "test_calc.py"}


@pytest.mark.rows("FP03", "FP04", "FP21", "FC26", "X07")
def test_an_exempt_order_is_only_compiled(desk):
    repo = desk.repo(verify="exit 9\n")
    task = a_task(
        allowed_files=["a.py"],
        postconditions=[exists("a.py")],
        acceptance_commands=["true"],
        verify_exempt=True,
    )
    run = passes(
        factory(
            desk, repo, task, answers({"a.py": "def f(:\n"}, {"a.py": "X = 1\n"}), "--allow-verify-exempt"
        )
    )
    assert run.stages == ["verify_failed", None]
    ((command, code),) = ran(run, 2)
    assert "compileall" in command
    assert "verify.sh" not in command
    assert code == 0


@pytest.mark.rows("FP01")
def test_the_verifier_of_the_proposal_is_the_one_that_runs(desk):
    repo = desk.repo(verify=None)
    task = a_task(
        allowed_files=["scripts/verify.sh"],
        postconditions=[exists("scripts/verify.sh")],
        acceptance_commands=["true"],
    )
    run = passes(
        factory(
            desk,
            repo,
            task,
            answers(
                {"scripts/verify.sh": "exit 4\n"},
                {"scripts/verify.sh": "echo mine\n"},
            ),
        )
    )
    assert run.stages == ["verify_failed", None]
    assert run.artifact(2, "verify_1_stdout.txt") == "mine\n"


# --- surroundings ------------------------------------------------------------------------


@pytest.mark.rows("FP10", "FP11", "FP12", "S17", "FU04", "S19")
def test_commands_run_in_the_tree_with_a_small_clean_environment(desk):
    repo = desk.repo({"README.md": "here\n"})
    look = (
        "import os, sys, json; print(json.dumps({'env': dict(os.environ), 'here': sorted(os.listdir()), "
        "'stdin': sys.stdin.read(), 'text': open('a.txt').read()}))"
    )
    env = {
        "PYTEST_ADDOPTS": "--maxfail=3",
        "MY_TOKEN": "t0ken",
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "GIT_DIR": "/nonexistent",
        "PYTHONPATH": "/nonexistent",
        "LD_PRELOAD": "",
    }
    run = passes(
        factory(
            desk, repo, a_task(acceptance_commands=[f'python -c "{look}"']), [Answer(GOOD)], how={"env": env}
        )
    )
    seen = json.loads(run.artifact(1, "acceptance_1_stdout.txt"))
    assert seen["text"] == "content\n"
    assert {"README.md", "a.txt", "scripts"} <= set(seen["here"])
    assert seen["stdin"] == ""
    assert seen["env"]["PYTHONDONTWRITEBYTECODE"] == "1"
    assert "-p no:cacheprovider" in seen["env"]["PYTEST_ADDOPTS"]
    assert "--maxfail=3" in seen["env"]["PYTEST_ADDOPTS"]
    for secret in (KEY, "t0ken", "s3cret"):
        assert secret not in json.dumps(seen["env"])
    assert not [name for name in seen["env"] if name.startswith("GIT_DIR")]


@pytest.mark.rows("FP10", "S25")
def test_commands_may_use_what_the_repository_and_the_machine_offer(desk):
    repo = desk.repo({"calc/__init__.py": "X = 1\n", "tools/run.sh": "#!/bin/sh\necho ran\n"})
    (repo / "tools/run.sh").chmod(0o755)
    desk.commit_all(repo)
    commands = [
        "python -c 'import calc; assert calc.X == 1'",
        "python -m calc.__init__",
        "./tools/run.sh",
        "tools/run.sh",
        "bash tools/run.sh",
        "git status --short",
        "grep -r content a.txt",
        "sh -c 'test -w . && echo x > made && rm made'",
    ]
    run = passes(factory(desk, repo, a_task(acceptance_commands=commands), [Answer(GOOD)]))
    assert [code for _, code in ran(run, 1, "acceptance_result.json")] == [0] * len(commands)


@pytest.mark.rows("FP03")
def test_a_path_without_python_still_compiles(desk):
    programs = desk.root / "programs"
    programs.mkdir()
    for name in ("git", "bash", "sh", "env", "test", "true"):
        found = shutil.which(name)
        assert found
        (programs / name).symlink_to(found)
    run = factory(
        desk,
        desk.repo(verify="exit 9\n"),
        a_task(verify_exempt=True),
        [Answer(GOOD)],
        "--allow-verify-exempt",
        how={"env": {"PATH": str(programs)}},
    )
    passes(run)


@pytest.mark.rows("FB11", "S20", "FC34")
def test_what_a_passing_command_leaves_behind_does_not_reach_the_checkout(desk):
    repo = desk.repo({".gitignore": "*.pyc\n.cache/\n", "README.md": "x\n"})
    put(repo / ".cache/kept", "mine\n")
    litter = (
        "import os; os.makedirs('.cache/new'); open('m.pyc','w'); open('left.txt','w');"
        "open('a.txt','w').write('EVIL');"
        "open('README.md','w').write('EVIL')"
    )
    run = passes(factory(desk, repo, a_task(acceptance_commands=[f'python -c "{litter}"']), [Answer(GOOD)]))
    assert (repo / "a.txt").read_text() == "content\n", "the commit is made of the proposal's bytes"
    assert desk.git(repo, "show", "HEAD:a.txt") == "content"
    assert (repo / "README.md").read_text() == "x\n"
    assert (repo / ".cache/kept").read_text() == "mine\n"
    assert sorted(p.name for p in repo.iterdir()) == [
        ".cache",
        ".git",
        ".gitignore",
        "README.md",
        "a.txt",
        "scripts",
    ]
    assert [p.name for p in (repo / ".cache").iterdir()] == ["kept"]
    drift = run.summary["attempts"][0]["repo_drift"]
    assert {"left.txt", "README.md"} <= set(drift)


@pytest.mark.rows("FF05", "FW04")
def test_drift_names_odd_files_as_they_are(desk):
    names = ["with space.txt", "ünï.txt", 'quote"d.txt', "tab\there.txt", "a -> b.txt"]
    code = "import sys; [open(name, 'w').write('x') for name in sys.argv[1:]]"
    command = f'python -c "{code}" ' + " ".join("'" + name + "'" for name in names)
    run = passes(factory(desk, desk.repo(), a_task(acceptance_commands=[command]), [Answer(GOOD)]))
    assert sorted(run.summary["attempts"][0]["repo_drift"]) == sorted(names)


def test_a_command_that_rewrites_history_in_its_tree_changes_nothing_of_the_users(desk):
    repo = desk.repo()
    code = (
        "import subprocess as s; r=lambda *a: s.run(['git','-c','user.name=x','-c','user.email=x',*a]);"
        "r('commit','--allow-empty','-qm','rogue'); r('branch','rogue'); r('config','user.name','rogue');"
        "r('tag','rogue'); r('update-ref','refs/heads/main','HEAD')"
    )
    before = (repo / ".git/config").read_bytes()
    baseline = desk.git(repo, "rev-parse", "main")
    run = factory(desk, repo, a_task(acceptance_commands=[f'python -c "{code}"']), [Answer(GOOD)], *ONCE)
    assert (repo / ".git/config").read_bytes() == before
    assert desk.git(repo, "rev-parse", "main") == baseline
    assert desk.git(repo, "tag") == ""
    assert "rogue" not in desk.git(repo, "branch", "--list")
    assert "rogue" not in desk.git(repo, "log", "--all", "--format=%s")
    assert run.outcome.exit_code in (0, 1)


# --- how a command may end ---------------------------------------------------------------


@pytest.mark.rows("FP13", "X02", "FU04")
def test_a_command_that_hangs_with_children_is_ended_in_bounded_time(desk):
    repo = desk.repo()
    mark = f"6{os.getpid()}{time.monotonic_ns() % 10**6}"
    task = a_task(acceptance_commands=[f"bash -c 'setsid sleep {mark} & sleep {mark} & echo started; wait'"])
    with untouched(repo):
        run = fails(factory(desk, repo, task, [Answer(GOOD)], *ONCE, "--timeout-seconds", "2"))
    assert run.outcome.seconds < 30
    assert run.stages == ["acceptance_failed"]
    assert "started" in run.artifact(1, "acceptance_1_stdout.txt")
    assert ran(run, 1, "acceptance_result.json")[0][1] == -1
    assert "timed out" in run.brief(1)["primary_error_excerpt"]
    assert alive(mark) == []


@pytest.mark.rows("FP13")
def test_children_that_outlive_a_passing_command_are_ended_and_not_waited_for(desk):
    mark = f"7{os.getpid()}{time.monotonic_ns() % 10**6}"
    task = a_task(acceptance_commands=[f"bash -c '(setsid sleep {mark} &) ; sleep {mark} & exit 0'"])
    run = passes(factory(desk, desk.repo(), task, [Answer(GOOD)]))
    assert run.outcome.seconds < 30
    assert alive(mark) == []


def alive(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"sleep\0{mark}".encode() in line:
                found.append(entry.name)
    return found


NOT_STARTED = {
    "no such program": ("no-such-program --flag", -1, "no-such-program"),
    "not executable": ("./README.md", -1, "README.md"),
    "an open quote": ("echo 'never closed", None, "never closed"),
}


@pytest.mark.rows("FP14", "FP15")
@pytest.mark.parametrize("name", NOT_STARTED)
def test_a_command_that_cannot_start_is_a_brief_and_never_a_crash(desk, name):
    command, code, needle = NOT_STARTED[name]
    repo = desk.repo()
    with untouched(repo):
        run = fails(factory(desk, repo, a_task(acceptance_commands=[command]), [Answer(GOOD)], *ONCE))
    (stage,) = run.stages
    assert stage == "acceptance_failed" or (code is None and stage == "exception")
    brief = run.brief(1)
    assert code is None or brief["exit_code"] == code
    assert needle in f"{brief['command']} {brief['primary_error_excerpt']}"


# What the command does is the proposal's own text, so that one run sees them all.
ENDINGS = {
    "killed by a signal": ("kill -9 $$", -9, ""),
    "output that is not UTF-8": (r"printf '\377\376OUT'; printf '\200ERR' >&2; exit 5", 5, "ERR"),
    "control characters": (r"printf 'nul\000\033[31m\007'; exit 6", 6, "nul"),
    "the highest code": ("exit 255", 255, ""),
    "nothing said": ("exit 1", 1, ""),
}


@pytest.mark.rows("FP20", "FP09", "FG09")
def test_however_a_command_ends_it_is_a_brief_and_never_a_crash(desk):
    scripts = [f"{text}\n" for text, _, _ in ENDINGS.values()]
    run = passes(
        factory(
            desk,
            desk.repo(),
            a_task(acceptance_commands=["bash a.txt"]),
            answers(*({"a.txt": script} for script in [*scripts, "exit 0\n"])),
            "--max-attempts",
            str(len(ENDINGS) + 1),
        )
    )
    assert run.stages == ["acceptance_failed"] * len(ENDINGS) + [None]
    for number, (name, (_, code, needle)) in enumerate(ENDINGS.items(), start=1):
        assert run.brief(number)["exit_code"] == code, name
        assert needle in run.brief(number)["primary_error_excerpt"], name
    assert not {"\x1b", "\x07", "\x00"} & set(run.outcome.said)


@pytest.mark.rows("FP17", "FP18", "FP19", "FM09")
def test_the_excerpt_keeps_head_and_tail_of_both_streams_and_the_files_keep_all(desk):
    code = (
        "import sys; w = lambda s, n: s.write(n + '-HEAD ' + 'x' * 9000 + ' ' + n + '-TAIL'); "
        "w(sys.stdout, 'OUT'); w(sys.stderr, 'ERR'); sys.exit(1)"
    )
    task = a_task(acceptance_commands=[f'python -c "{code}"'])
    run = fails(factory(desk, desk.repo(), task, [Answer(GOOD)], "--max-attempts", "2", repeat_last=True))
    excerpt = run.brief(1)["primary_error_excerpt"]
    for marker in ("OUT-HEAD", "OUT-TAIL", "ERR-HEAD", "ERR-TAIL"):
        assert marker in excerpt, marker
    assert len(excerpt) <= 2000 + 200
    assert len(run.artifact(1, "acceptance_1_stdout.txt")) > 9000
    assert len(run.artifact(1, "acceptance_1_stderr.txt")) > 9000
    assert "ERR-TAIL" in text_of(run.requests[1])


def test_endless_output_is_bounded_on_disk(desk):
    code = "import sys; [sys.stdout.write('x' * 10**6) for _ in range(60)]; sys.exit(1)"
    run = fails(
        factory(desk, desk.repo(), a_task(acceptance_commands=[f'python -c "{code}"']), [Answer(GOOD)], *ONCE)
    )
    assert (run.attempt(1) / "acceptance_1_stdout.txt").stat().st_size < 30 * 1024 * 1024


def test_the_checkouts_own_modules_do_not_run_inside_the_factory(desk):
    hijack = "raise SystemExit('hijacked')\n"
    repo = desk.repo({"json.py": hijack, "click.py": hijack, "openai.py": hijack, "sitecustomize.py": hijack})
    passes(factory(desk, repo, a_task(), [Answer(GOOD)], how={"cwd": repo}))
