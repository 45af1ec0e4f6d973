"""The wrapper: verbs become children, and nothing else happens on the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmch import __version__
from llmch.__main__ import CHILDREN, HELP, child_argv, wait_for

ROOT = Path(__file__).resolve().parent.parent
STAND_IN = """\
import json, os, sys
print(json.dumps({"module": %r, "argv": sys.argv[1:], "pid": os.getpid(), "safe": sys.flags.safe_path,
                  "PYTHONPATH": os.environ.get("PYTHONPATH")}), flush=True)
if "--wait" in sys.argv:
    import signal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("waiting", flush=True)
    signal.pause()
sys.exit(int(os.environ.get("STAND_IN_EXIT", "0")))
"""


def environment(**changes):
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return {**kept, **changes}


def make_stand_ins(directory):
    """Packages `planner` and `factory` that say how they were started."""
    for name in ("planner", "factory"):
        (directory / name).mkdir(parents=True)
        (directory / name / "__init__.py").touch()
        (directory / name / "__main__.py").write_text(STAND_IN % name)
    return directory


@pytest.fixture
def stand_ins(tmp_path):
    return make_stand_ins(tmp_path / "stand_ins")


def llmch(*arguments, cwd=ROOT, python=sys.executable, options=(), **changes):
    return subprocess.run(
        [python, *options, "-m", "llmch", *arguments],
        cwd=cwd, env=environment(**changes), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


# --- verbs -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "module", "first"),
    [
        ("plan", "planner", "compile"),
        ("validate", "planner", "validate"),
        ("explain", "planner", "explain"),
        ("schema", "planner", "schema"),
        ("run", "factory", "run"),
        ("run-all", "factory", "run-all"),
    ],
)
def test_a_verb_becomes_its_child_with_everything_that_follows(stand_ins, verb, module, first):
    arguments = ["--flag", "two words", "", "$HOME;*", "naïve"]
    done = llmch(verb, *arguments, PYTHONPATH=str(stand_ins))
    said = json.loads(done.stdout)
    assert (said["module"], said["argv"]) == (module, [first, *arguments])
    assert said["safe"], "the child must not import from the current directory"


def test_demo_is_a_child_as_well():
    assert child_argv("demo", ["--list"])[1:] == ["-P", "-m", "llmch.demo", "--list"]


@pytest.mark.parametrize("verb", CHILDREN)
def test_help_names_every_verb(verb):
    assert f"\n  {verb} " in HELP


@pytest.mark.parametrize("verb", ["run", "run-all", "plan"])
@pytest.mark.parametrize(
    ("given", "arrived"),
    [
        (["--repo", "R", "--", "--llm-model", "m"], ["--repo", "R", "--llm-model", "m"]),
        (["--", "--quiet"], ["--quiet"]),
        (["--quiet", "--"], ["--quiet"]),
        (["--", "a", "--", "b"], ["a", "--", "b"]),
    ],
)
def test_the_first_double_dash_is_ours_and_the_rest_passes(verb, given, arrived):
    assert child_argv(verb, given)[5:] == arrived


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 6, 64, 130, 143])
def test_the_exit_code_is_the_childs(stand_ins, code):
    assert llmch("run", PYTHONPATH=str(stand_ins), STAND_IN_EXIT=str(code)).returncode == code


def test_the_wrapper_becomes_the_child_so_signals_are_the_childs(stand_ins):
    with subprocess.Popen(
        [sys.executable, "-m", "llmch", "run", "--wait"],
        cwd=ROOT, env=environment(PYTHONPATH=str(stand_ins)), stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        said = json.loads(process.stdout.readline())
        assert said["pid"] == process.pid
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 143


def test_where_there_is_no_exec_the_wrapper_waits_and_returns_the_childs_code():
    assert wait_for([sys.executable, "-c", "raise SystemExit(6)"], environment()) == 6


# --- words -------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_goes_to_stdout_and_is_no_error(flag):
    done = llmch(flag)
    assert (done.returncode, done.stdout, done.stderr) == (0, HELP, "")


def test_version_is_one_line():
    done = llmch("--version")
    assert (done.returncode, done.stdout) == (0, f"llmch {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "first_line"),
    [
        ([], "llmch: which verb?"),
        (["rnu"], "llmch: no such verb: 'rnu'; did you mean run?"),
        (["run_all"], "llmch: no such verb: 'run_all'; did you mean run-all?"),
        (["compile"], "llmch: no such verb: 'compile'"),
        (["--repo", "R"], "llmch: no such option: '--repo'; options come after the verb"),
        (["\x1b[31mrun"], "llmch: no such verb: '\\x1b[31mrun'"),
        ([""], "llmch: which verb?"),
    ],
)
def test_a_usage_error_is_64_on_stderr_with_the_closest_verb(arguments, first_line):
    done = llmch(*arguments)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.splitlines()[0] == first_line
    assert "usage: llmch" in done.stderr


def test_a_reader_that_goes_away_is_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "llmch", "--help"],
            cwd=ROOT, env=environment(), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60,
            check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert done.stderr == ""


# --- what is loaded, and from where ------------------------------------------------------


def imported(*arguments):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_the_wrapper_loads_nothing_that_python_has_not_loaded_before_it(flag):
    ours = imported("-m", "llmch", flag) - imported("-m", "this")
    assert ours == {"llmch"}


def test_a_repository_with_our_names_in_it_does_not_run_inside_our_process(tmp_path):
    hostile = tmp_path / "hostile"
    for name in ("planner", "factory", "shared", "click", "openai", "pydantic"):
        (hostile / name).mkdir(parents=True)
        for file in ("__init__.py", "__main__.py"):
            (hostile / name / file).write_text("open('ran', 'a').write(__name__)\n")
    for name in ("json", "difflib", "subprocess", "argparse", "typing", "re"):
        (hostile / f"{name}.py").write_text("open('ran', 'a').write(__name__)\n")
    for arguments in (["--help"], ["--version"], ["rnu"], *([verb, "--help"] for verb in CHILDREN)):
        llmch(*arguments, cwd=hostile)
    assert not (hostile / "ran").exists()


def test_an_empty_path_entry_does_not_bring_the_current_directory_back(stand_ins, tmp_path):
    # `PYTHONPATH=$PYTHONPATH:x` makes one, and it means the current directory.
    done = llmch("plan", cwd=tmp_path, PYTHONPATH=os.pathsep.join(("", str(stand_ins), "")))
    assert json.loads(done.stdout)["PYTHONPATH"] == str(stand_ins)


def test_a_checkout_that_is_not_installed_finds_its_own_packages(tmp_path):
    checkout = make_stand_ins(tmp_path / "checkout")
    shutil.copytree(ROOT / "llmch", checkout / "llmch")
    done = llmch("plan", cwd=checkout, python=sys._base_executable)
    assert json.loads(done.stdout)["PYTHONPATH"] == str(checkout)


def test_a_checkout_keeps_the_path_it_was_given_behind_its_own(tmp_path):
    checkout = make_stand_ins(tmp_path / "checkout")
    shutil.copytree(ROOT / "llmch", checkout / "llmch")
    done = llmch("plan", cwd=checkout, python=sys._base_executable, PYTHONPATH="/elsewhere")
    assert json.loads(done.stdout)["PYTHONPATH"] == os.pathsep.join((str(checkout), "/elsewhere"))


def test_an_llmch_that_children_find_by_themselves_adds_nothing_to_their_path(tmp_path, stand_ins):
    shutil.copytree(ROOT / "llmch", stand_ins / "llmch")
    done = llmch("plan", cwd=tmp_path, PYTHONPATH=str(stand_ins))
    assert json.loads(done.stdout)["PYTHONPATH"] == str(stand_ins)
