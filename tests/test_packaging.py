"""What a fresh machine gets: the pins, the wheel, the two commands."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from llmch import __version__

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

# --- the pins ----------------------------------------------------------------------------


def pins(file):
    """Name -> (version, hashes) of a requirement file; nothing else may stand in one."""
    text = (ROOT / file).read_text(encoding="utf-8").replace("\\\n", " ")
    pin = r"(?P<name>[a-z0-9-]+)==(?P<version>[\w.+!]+)(?: ; [^;]+?)?"
    hashes = r"(?P<hashes>(?: +--hash=sha256:[0-9a-f]{64})+)"
    found = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        match = re.fullmatch(pin + hashes, line)
        assert match, f"not a pinned requirement: {line[:200]}"
        found[match["name"]] = (match["version"], match["hashes"].split())
    return found


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-dev.txt"])
def test_a_requirement_file_is_pins_with_hashes_and_names_no_index_no_host_no_path(file):
    assert pins(file)
    text = (ROOT / file).read_text(encoding="utf-8")
    assert re.findall(r"https?:|file:|index|find-links|/|@|\\\w", text) == []


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("requirements.txt", [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]),
        ("requirements-dev.txt", PROJECT["dependency-groups"]["dev"]),
    ],
)
def test_everything_that_is_asked_for_is_pinned(file, wanted):
    names = {re.match(r"[A-Za-z0-9-]+", requirement)[0].lower() for requirement in wanted}
    assert names - pins(file).keys() == set()


def test_tests_run_on_the_versions_that_users_get():
    developers = pins("requirements-dev.txt")
    assert {name: pin for name, pin in pins("requirements.txt").items() if developers.get(name) != pin} == {}


def test_the_build_backend_of_the_lock_is_the_one_that_builds():
    assert PROJECT["dependency-groups"]["build"] == PROJECT["build-system"]["requires"]


# --- the wheel ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)],
        cwd=ROOT, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    (built,) = directory.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        yield archive


def files_under(directory):
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / directory).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_wheel_holds_the_packages_with_their_prompts_and_the_examples_and_nothing_else(wheel):
    ours = {name for name in wheel.namelist() if ".dist-info/" not in name}
    packaged = {name for package in PACKAGES for name in files_under(package)}
    assert ours == packaged | {f"llmch/{name}" for name in files_under("examples")}
    assert [name for name in ours if name.endswith(".md")]


def test_the_wheel_names_its_command_its_version_and_its_licence(wheel):
    home = f"llmch-{__version__}.dist-info"
    assert "llmch = llmch.__main__:main" in wheel.read(f"{home}/entry_points.txt").decode()
    assert b"Apache License" in wheel.read(f"{home}/licenses/LICENSE")
    metadata = wheel.read(f"{home}/METADATA").decode()
    assert f"\nVersion: {__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata


def test_an_unpacked_wheel_finds_the_examples_inside_itself(wheel, tmp_path):
    wheel.extractall(tmp_path / "site")
    program = "from llmch import demo; print(*(example.directory for example in demo.shipped_examples()))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path, env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    inside = sorted((tmp_path / "site" / "llmch" / "examples").glob("*/spec.md"))
    assert done.stdout.split() == [str(spec.parent) for spec in inside]
    assert len(inside) == len(list((ROOT / "examples").glob("*/spec.md")))


# --- the two commands --------------------------------------------------------------------


def test_the_first_screen_of_the_readme_has_exactly_the_two_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```sh\n(.*?)```", readme, re.DOTALL)
    commands = [line.partition("#")[0].strip() for line in block[1].splitlines()]
    assert commands == ["make demo", "make test"]
    assert readme[: block.end()].count("\n") < 40


def make(checkout, *arguments, path):
    return subprocess.run(
        ["make", *arguments],
        cwd=checkout, env={"PATH": path, "HOME": str(checkout)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path):
    """A checkout with what make reads, and a Python on its PATH that is too old."""
    place = tmp_path / "a checkout"
    place.mkdir()
    for file in ("Makefile", "pyproject.toml", "requirements.txt", "requirements-dev.txt"):
        shutil.copy(ROOT / file, place)
    for name in ("python3", "python3.14", "python3.13", "python3.12", "python3.11", "old"):
        program(place / "bin" / name, 'case "$1" in --version) echo Python 3.9.2;; *) exit 1;; esac')
    return place


def search_path(checkout):
    return os.pathsep.join((str(checkout / "bin"), os.environ["PATH"]))


def with_environment(checkout, python=""):
    program(checkout / ".venv-demo/bin/python", "exit 0")
    program(checkout / ".venv-demo/bin/llmch", 'echo "ran $*"')
    (checkout / ".venv-demo/.ready").write_text(f"{checkout.resolve()}\n{python}\n")


@pytest.mark.parametrize("target", ["demo", "test"])
@pytest.mark.parametrize(("arguments", "name"), [([], "python3"), (["PYTHON=old"], "old")])
def test_a_python_that_is_too_old_is_refused_in_one_line(checkout, target, arguments, name):
    done = make(checkout, target, *arguments, path=search_path(checkout))
    assert done.returncode != 0
    first = done.stderr.splitlines()[0]
    assert first.startswith(f"llmch needs Python 3.11 or newer, and {name} is Python 3.9.2: ")
    assert not list(checkout.glob(".venv*"))


def test_an_environment_that_is_up_to_date_is_not_made_again(checkout):
    with_environment(checkout)
    done = make(checkout, "demo", "ARGS=--list", path=search_path(checkout))
    assert (done.returncode, done.stdout) == (0, "ran demo --list\n"), done.stderr


def touch_later(path):
    later = path.stat().st_mtime + 3600
    os.utime(path, (later, later))


@pytest.mark.parametrize(
    ("change", "arguments"),
    [
        pytest.param(lambda place: touch_later(place / "requirements.txt"), [], id="other requirements"),
        pytest.param(lambda place: touch_later(place / "pyproject.toml"), [], id="other project"),
        pytest.param(lambda _: None, ["PYTHON=old"], id="another interpreter asked for"),
        pytest.param(lambda place: (place / ".venv-demo/bin/python").unlink(), [], id="interpreter gone"),
        pytest.param(lambda place: (place / ".venv-demo/.ready").unlink(), [], id="never finished"),
    ],
)
def test_an_environment_that_does_not_fit_is_made_again(checkout, change, arguments):
    with_environment(checkout)
    change(checkout)
    done = make(checkout, "demo", *arguments, path=search_path(checkout))
    assert "llmch needs Python 3.11 or newer" in done.stderr, "it was taken as it is"


def test_an_environment_does_not_move_with_its_checkout(checkout):
    with_environment(checkout)
    moved = checkout.rename(checkout.parent / "moved")
    done = make(moved, "demo", path=search_path(moved))
    assert "llmch needs Python 3.11 or newer" in done.stderr, "it was taken as it is"


def test_continuous_integration_calls_the_very_command_of_the_readme():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.search(r"^make test\b", script.read_text(encoding="utf-8"), re.MULTILINE)
