"""The demo: a stage of its own, the children on it (stand-ins, then the real ones), nothing left behind."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from factory.run import run_one
from factory.settings import RunSettings
from llmch.demo import DemoError, Example, find_example, set_stage, shipped_examples
from planner.compiler import Settings, compile_plan, read_inputs
from shared.llm import Recorded, Scripted
from shared.process import Interrupt

ROOT = Path(__file__).resolve().parent.parent
STAND_IN = """\
import json, os, subprocess, sys
said = {"argv": sys.argv[1:], "env": dict(os.environ), "stdin": sys.stdin.read(), "cwd": os.getcwd()}
with open(os.environ["SAID"], "a") as file:
    file.write(json.dumps(said) + "\\n")
print("child", %r, flush=True)
if os.environ.get("WAIT"):
    import signal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("waiting", flush=True)
    signal.pause()
if %r == "factory":
    subprocess.run(["git", "checkout", "-q", "-b", "work"], cwd="small", check=True)
    subprocess.run(["git", "commit", "-q", "--allow-empty", "-m", "WO-01: work"], cwd="small", check=True)
    if not os.environ.get("FORGET_PUSH"):
        subprocess.run(["git", "push", "-q", "origin", "work"], cwd="small", check=True)
sys.exit(int(os.environ.get("EXIT_" + %r, "0")))
"""


@pytest.fixture
def example(tmp_path):
    directory = tmp_path / "small"
    (directory / "seed" / "src" / "__pycache__").mkdir(parents=True)
    (directory / "seed" / "src" / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"")
    (directory / "seed" / "src" / "a.py").write_bytes(b"A = 1\r\n")
    script = directory / "seed" / "run.sh"
    script.write_text("true\n")
    script.chmod(0o755)
    (directory / "spec.md").write_text("# A small thing\n\nMake it.\n")
    for tool in ("plan", "orders"):
        header = {"format": "llmch-transcript", "version": 1, "origin": "scripted", "note": ""}
        (directory / "transcript" / tool).mkdir(parents=True)
        (directory / "transcript" / tool / "transcript.json").write_text(json.dumps(header))
    return Example("small", directory, is_shipped=False)


@pytest.fixture
def world(tmp_path):
    """The environment a demo starts in: stand-in children, a hostile git configuration, a key."""
    for name in ("planner", "factory"):
        (tmp_path / "stand_ins" / name).mkdir(parents=True)
        (tmp_path / "stand_ins" / name / "__init__.py").touch()
        (tmp_path / "stand_ins" / name / "__main__.py").write_text(STAND_IN % (name, name, name))
    home = tmp_path / "home"
    (home / "hooks").mkdir(parents=True)
    (home / "hooks" / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (home / "hooks" / "pre-commit").chmod(0o755)
    (home / "ignored").write_text("*.py\n")
    (home / ".gitconfig").write_text(
        f"[core]\n autocrlf = true\n hooksPath = {home}/hooks\n excludesFile = {home}/ignored\n"
        "[commit]\n gpgSign = true\n[user]\n signingKey = none\n"
        f"[init]\n templateDir = {home}/hooks\n defaultBranch = trunk\n"
    )
    (tmp_path / "tmp").mkdir()
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(tmp_path / "tmp"),
        "PYTHONPATH": str(tmp_path / "stand_ins"),
        "SAID": str(tmp_path / "said"),
        "OPENAI_API_KEY": "sk-not-for-the-demo",
        "OPENAI_BASE_URL": "http://127.0.0.1:9",
        "LANGSMITH_TRACING": "true",
        "LLMCH_SOMETHING": "1",
        "GIT_DIR": "/elsewhere/.git",
        "ARTIFACTS_DIR": "/elsewhere",
    }


def demo(*arguments, world, cwd, **changes):
    return subprocess.run(
        [sys.executable, "-P", "-m", "llmch.demo", *map(str, arguments)],
        cwd=cwd, env={**world, **changes}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def said(world):
    path = Path(world["SAID"])
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def git(repository, *arguments):
    done = subprocess.run(
        ["git", *arguments], cwd=repository, capture_output=True, text=True, check=True,
        env={"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull},
    )  # fmt: skip
    return done.stdout


# --- the play ----------------------------------------------------------------------------


def test_planner_and_factory_run_on_the_stage_with_replayed_answers(example, world, tmp_path):
    done = demo(example.directory, world=world, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan, orders = said(world)
    transcript = example.directory / "transcript"
    assert plan["argv"] == [
        "compile", "--spec", "spec.md", "--repo", "small", "--outdir", "orders",
        "--llm", f"replay:{transcript}/plan",
    ]  # fmt: skip
    assert orders["argv"] == [
        "run-all", "--workdir", "orders", "--repo", "small", "--llm", f"replay:{transcript}/orders",
    ]  # fmt: skip
    for child in (plan, orders):
        assert child["stdin"] == ""
        assert Path(child["cwd"]).parent == tmp_path / "tmp"


def test_the_children_get_no_key_and_no_setting_of_somebody_elses(example, world, tmp_path):
    demo(example.directory, world=world, cwd=tmp_path)
    for child in said(world):
        names = child["env"].keys()
        assert not [name for name in names if name.startswith(("OPENAI_", "LANGSMITH_", "LLMCH_"))]
        assert "GIT_DIR" not in names
        assert child["env"]["GIT_AUTHOR_NAME"] == "llmch demo"
        assert child["env"]["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)
        assert child["env"]["ARTIFACTS_DIR"] == os.path.join(child["cwd"], "artifacts")


def test_it_says_at_the_start_and_at_the_end_that_the_answers_are_replayed(example, world, tmp_path):
    done = demo(example.directory, world=world, cwd=tmp_path)
    lines = done.stderr.splitlines()
    assert "replayed from" in lines[1]
    assert "origin: scripted" in lines[1]
    assert lines[-2:] == [lines[1], f"To look at what was made: llmch demo {example.directory} --keep DIR"]
    assert "\x1b" not in done.stdout + done.stderr, "colour without a terminal"


def test_it_shows_the_log_of_the_branch_and_that_the_remote_has_it(example, world, tmp_path):
    done = demo(example.directory, world=world, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert [line.partition(" ")[2] for line in lines[2:4]] == ["WO-01: work", "Start of small"]
    assert lines[4].endswith("\trefs/heads/work")
    assert lines[4].startswith(lines[2].partition(" ")[0])


def test_a_branch_that_the_remote_does_not_have_is_a_failure(example, world, tmp_path):
    done = demo(example.directory, world=world, cwd=tmp_path, FORGET_PUSH="1")
    assert done.returncode == 1
    assert "the remote does not have" in done.stderr


@pytest.mark.parametrize(
    ("exits", "code"),
    [([0, 0], 0), ([2], 2), ([3], 3), ([0, 1], 1), ([0, 130], 130)],
)
def test_the_exit_code_is_that_of_the_first_child_that_failed(example, world, tmp_path, exits, code):
    changes = {f"EXIT_{name}": str(code) for name, code in zip(("planner", "factory"), exits, strict=False)}
    done = demo(example.directory, world=world, cwd=tmp_path, **changes)
    assert (done.returncode, len(said(world))) == (code, len(exits))


def test_nothing_is_left_behind(example, world, tmp_path):
    demo(example.directory, world=world, cwd=tmp_path)
    demo(example.directory, world=world, cwd=tmp_path, EXIT_planner="2")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_signal_is_passed_on_waited_for_and_cleaned_up_after(example, world, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "llmch.demo", str(example.directory)],
        cwd=tmp_path, env={**world, "WAIT": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "child planner\n"
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143
        assert "Traceback" not in process.stderr.read()
    assert len(said(world)) == 1
    assert list((tmp_path / "tmp").iterdir()) == []


# --- with the real planner and the real factory ------------------------------------------


def an_order(number, files, command, **changes):
    return {
        "id": f"WO-{number:02d}",
        "title": f"Part {number}",
        "intent": "Add a part.",
        "preconditions": [],
        "postconditions": [{"kind": "file_exists", "path": path} for path in files],
        "allowed_files": list(files),
        "forbidden": [],
        "acceptance_commands": [command],
        "context_files": [],
        "notes": None,
        **changes,
    }


def a_proposal(files):
    empty = hashlib.sha256(b"").hexdigest()
    writes = [{"path": path, "base_sha256": empty, "content": content} for path, content in files.items()]
    return json.dumps({"summary": "as asked", "writes": writes})


GOOD_PLAN = [
    an_order(1, ["scripts/verify.sh"], "bash -n scripts/verify.sh"),
    an_order(2, ["part.py"], 'python -c "from part import run; assert run() == 2"'),
]
PLANS = [
    json.dumps({"work_orders": [GOOD_PLAN[0], {**GOOD_PLAN[1], "acceptance_commands": ["true && true"]}]}),
    json.dumps({"work_orders": GOOD_PLAN}),
]
PROPOSALS = [
    a_proposal({"scripts/verify.sh": "set -e\npython -m compileall -q .\n"}),
    a_proposal({"part.py": "def run():\n    return 1\n"}),
    a_proposal({"part.py": "def run():\n    return 2\n"}),
]


@pytest.fixture
def recorded_example(tmp_path):
    """A small example made as the shipped ones are: real tools, scripted answers, everything recorded."""
    directory = tmp_path / "tiny"
    directory.mkdir()
    (directory / "spec.md").write_text("# Tiny\n\nA part that runs.\n")
    (tmp_path / "recording").mkdir()
    stage = set_stage(Example("tiny", directory, is_shipped=False), tmp_path / "recording")
    orders, artifacts = stage.directory / "orders", stage.directory / "artifacts"
    transcript = directory / "transcript"
    planned = compile_plan(
        inputs=read_inputs(stage.directory / "spec.md", repo=stage.repository),
        llm=Recorded(Scripted(PLANS), transcript / "plan", origin="scripted"),
        artifacts_root=artifacts, settings=Settings(), outdir=orders,
    )  # fmt: skip
    assert planned.success, planned
    settings = RunSettings(
        repo=stage.repository,
        artifacts_root=artifacts,
        environment=stage.environment,
        branch="factory/record",
    )
    model = Recorded(Scripted(PROPOSALS), transcript / "orders", origin="scripted")
    for order in sorted(orders.glob("WO-*.json")):
        assert run_one(settings, order, lambda _event: None, Interrupt(), llm=model) == 0
    return directory


def test_the_whole_way_is_played_again_from_its_transcript(recorded_example, world, tmp_path):
    kept = tmp_path / "kept"
    real = {key: value for key, value in world.items() if key != "PYTHONPATH"}
    done = demo(recorded_example, "--keep", kept, world=real, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    subjects = git(kept / "tiny", "log", "--format=%s").splitlines()
    assert [subject.partition(":")[0] for subject in subjects[:2]] == ["WO-02", "WO-01"]
    assert subjects[-1] == "Start of tiny"
    assert "E003" in done.stderr, "the refused plan is shown"
    assert "acceptance_failed" in done.stderr, "the refused proposal is shown"
    assert git(kept / "tiny", "status", "--porcelain") == ""


@pytest.fixture
def played(world, tmp_path):
    """Play a shipped example to its end; gives what was said and the directory with everything in it."""

    def play(example):
        kept = tmp_path / "kept"
        real = {key: value for key, value in world.items() if key != "PYTHONPATH"}
        done = demo(example.name, "--keep", kept, world=real, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "(origin: scripted)" in done.stderr
        orders = sorted((kept / "orders").glob("WO-*.json"))
        assert 6 <= len(orders) <= 12
        assert int(git(kept / example.name, "rev-list", "--count", "HEAD")) == 1 + len(orders)
        assert git(kept / example.name, "status", "--porcelain") == ""
        return done, kept

    return play


@pytest.mark.parametrize("example", shipped_examples()[1:], ids=lambda example: example.name)
def test_a_shipped_example_plays_to_its_end(example, played):
    played(example)


def test_the_first_example_shows_the_gates_at_work(played):
    _, kept = played(shipped_examples()[0])
    (refused,) = kept.glob("artifacts/planner/*/compile/validation_errors_attempt_1.json")
    (accepted,) = kept.glob("artifacts/planner/*/compile/validation_errors_attempt_2.json")
    assert {finding["code"] for finding in json.loads(refused.read_bytes())} == {"E003", "E104"}
    assert json.loads(accepted.read_bytes()) == []
    (brief,) = kept.glob("artifacts/factory/*/attempt_*/failure_brief.json")
    assert json.loads(brief.read_bytes())["stage"] == "verify_failed"
    summary = json.loads((brief.parent.parent / "run_summary.json").read_bytes())
    assert [attempt["verdict"] for attempt in summary["attempts"]] == ["FAIL", "PASS"]


# --- the stage ---------------------------------------------------------------------------


def test_keep_leaves_a_repository_with_the_seed_as_its_one_commit(example, world, tmp_path):
    kept = tmp_path / "new" / "kept"
    done = demo(example.directory, "--keep", kept, world=world, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(kept) in done.stderr
    repository = kept / "small"
    assert git(repository, "log", "--format=%s", "main") == "Start of small\n"
    listed = [line.split() for line in git(repository, "ls-tree", "-r", "main").splitlines()]
    assert [(mode, path) for mode, _, _, path in listed] == [("100755", "run.sh"), ("100644", "src/a.py")]
    assert git(repository, "cat-file", "-s", "main:src/a.py") == "7\n", "the line end was converted"
    assert git(repository, "ls-remote", "origin", "main").partition("\t")[0] == git(
        repository, "rev-parse", "main"
    ).rstrip("\n")


def test_an_example_without_a_seed_starts_from_an_empty_commit(tmp_path):
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "spec.md").write_text("# Bare\n")
    (tmp_path / "stage").mkdir()
    stage = set_stage(Example("bare", tmp_path / "bare", is_shipped=False), tmp_path / "stage")
    assert git(stage.repository, "ls-tree", "-r", "main") == ""
    assert git(stage.repository, "rev-list", "--count", "main") == "1\n"


def test_keep_does_not_take_a_directory_that_holds_something(example, world, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "mine").touch()
    done = demo(example.directory, "--keep", kept, world=world, cwd=tmp_path)
    assert done.returncode == 1
    assert "is not empty" in done.stderr
    assert [path.name for path in kept.iterdir()] == ["mine"]
    assert said(world) == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["no-such-example"], 1, "no example 'no-such-example'"),
        (["--no-such-flag"], 64, "unrecognized arguments"),
        (["a", "b"], 64, "unrecognized arguments"),
        (["--keep"], 64, "expected one argument"),
    ],
)
def test_bad_arguments_get_one_clear_line(world, tmp_path, arguments, code, words):
    done = demo(*arguments, world=world, cwd=tmp_path)
    assert done.returncode == code
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_an_example_without_a_transcript_is_said_and_nothing_is_started(example, world, tmp_path):
    (example.directory / "transcript" / "orders" / "transcript.json").unlink()
    done = demo(example.directory, world=world, cwd=tmp_path)
    assert done.returncode == 1
    assert "holds no transcript" in done.stderr
    assert said(world) == []


# --- what is shipped ---------------------------------------------------------------------


def test_every_directory_of_examples_with_a_spec_is_shipped():
    specs = sorted((ROOT / "examples").glob("*/spec.md"))
    assert [example.spec for example in shipped_examples()] == specs


def test_list_names_every_example_on_stdout(world, tmp_path):
    done = demo("--list", world=world, cwd=tmp_path)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [e.name for e in shipped_examples()]


def test_a_name_wins_over_nothing_and_a_directory_is_taken_by_its_path(example):
    assert find_example(str(example.directory)) == example
    with pytest.raises(DemoError, match="no example 'x'"):
        find_example("x")
