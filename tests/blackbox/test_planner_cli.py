"""The planner's command line: flags, places, refusals."""

from __future__ import annotations

import json
import os

import pytest
from loopback import Answer, LoopbackEndpoint

from blackbox.harness import (
    a_plan,
    an_order,
    compile_spec,
    differences,
    exists,
    files_below,
    put,
    snapshot,
    text_of,
    untouched,
)

GOOD = json.dumps(a_plan(an_order(1)))


@pytest.mark.rows("PC03", "PC09")
def test_every_documented_flag_is_taken_and_the_listing_reaches_the_model(desk):
    repo = desk.repo({"src/ferry_times.py": "X = 1\n", "LISTED.md": "x\n"})
    template = desk.write("t.md", "TEMPLATE {{PRODUCT_SPEC}}\n")
    before = snapshot(repo)
    compiled = compile_spec(
        desk,
        [Answer(GOOD)],
        "--outdir",
        desk.root / "out",
        "--template",
        template,
        "--repo",
        repo,
        "--overwrite",
        "--print-summary",
        "--verbose",
        "--no-color",
    )
    assert compiled.outcome.exit_code == 0, compiled.outcome
    assert differences(before, snapshot(repo)) == []


@pytest.mark.rows("PC09", "PT04")
def test_the_shipped_prompt_shows_the_model_the_files_of_the_repository(desk):
    repo = desk.repo({"src/ferry_times.py": "X = 1\n", ".gitignore": "secret.env\n", "secret.env": "x\n"})
    compiled = compile_spec(desk, [Answer(GOOD)], "--repo", repo)
    assert compiled.outcome.exit_code == 0, compiled.outcome
    prompt = text_of(compiled.requests[0])
    assert "src/ferry_times.py" in prompt
    assert "{{" not in prompt


@pytest.mark.rows("PC12", "PC11")
def test_quiet_says_less_and_verbose_no_less(desk):
    said = {}
    for flag in ("--quiet", "--no-color", "--verbose"):
        compiled = compile_spec(
            desk,
            [Answer("prose", reasoning="r"), Answer(GOOD)],
            flag,
            how={"env": {"FORCE_COLOR": "1" if flag == "--no-color" else None}},
        )
        assert compiled.outcome.exit_code == 0, compiled.outcome
        assert "\x1b" not in compiled.outcome.said
        said[flag] = len(compiled.outcome.said)
    assert said["--quiet"] < said["--no-color"] <= said["--verbose"]


@pytest.mark.rows("S09")
def test_the_artifact_root_is_the_flag_then_the_environment_then_here(desk):
    spec = desk.write("spec.md", "x\n")
    from_env = desk.root / "from-env"
    with LoopbackEndpoint([Answer(GOOD)], repeat_last=True) as endpoint:

        def run(*args, **env):
            outcome = desk.run("planner", "compile", "--spec", spec, *args, endpoint=endpoint, env=env)
            assert outcome.exit_code == 0, outcome

        run(ARTIFACTS_DIR=str(from_env))
        run()
        run("--artifacts-dir", desk.root / "flag", ARTIFACTS_DIR=str(desk.root / "not-here"))
    for root in (from_env, desk.cwd / "artifacts", desk.root / "flag"):
        assert len(list((root / "planner").glob("*/output/WO-01.json"))) == 1, root
    assert not (desk.root / "not-here").exists()


@pytest.mark.rows("PI03", "PI04", "PI06", "PC05")
def test_an_export_is_never_overwritten_unasked_and_leaves_no_stale_order(desk):
    outdir = desk.root / "export"
    three = json.dumps(a_plan(an_order(1), an_order(2), an_order(3)))
    assert compile_spec(desk, [Answer(three)], "--outdir", outdir).outcome.exit_code == 0
    (outdir / "notes.txt").write_text("mine\n")

    with untouched(outdir):
        refused = compile_spec(desk, [Answer(GOOD)], "--outdir", outdir)
    assert refused.outcome.exit_code == 1, refused.outcome
    assert refused.requests == [], "refused before anything is paid for"
    assert "--overwrite" in refused.outcome.stderr

    replaced = compile_spec(desk, [Answer(GOOD)], "--outdir", outdir, "--overwrite")
    assert replaced.outcome.exit_code == 0, replaced.outcome
    assert {path.name for path in outdir.iterdir()} == {
        "WO-01.json",
        "WORK_ORDERS_MANIFEST.json",
        "notes.txt",
    }
    assert (outdir / "WO-01.json").read_bytes() == (replaced.output / "WO-01.json").read_bytes()


@pytest.mark.rows("PI03", "PK09")
def test_a_failed_compile_with_overwrite_leaves_the_earlier_export_alone(desk):
    outdir = desk.root / "export"
    assert compile_spec(desk, [Answer(GOOD)], "--outdir", outdir).outcome.exit_code == 0
    with untouched(outdir):
        failed = compile_spec(desk, [Answer("prose")], "--outdir", outdir, "--overwrite", repeat_last=True)
    assert failed.outcome.exit_code == 4, failed.outcome


@pytest.mark.rows("PC14")
@pytest.mark.parametrize("key", [None, "", "  "], ids=["unset", "empty", "blank"])
def test_without_a_key_nothing_is_asked_and_nothing_is_planned(desk, key):
    compiled = compile_spec(desk, [Answer(GOOD)], how={"env": {"OPENAI_API_KEY": key}})
    assert compiled.outcome.exit_code == 3, compiled.outcome
    assert compiled.requests == []
    assert "OPENAI_API_KEY" in compiled.outcome.stderr
    assert [path for path in files_below(desk.artifacts) if path.name.startswith("WO-")] == []


# Arguments of the command, with {…} filled from the desk; exit codes; what the message must name.
REFUSED = {
    "no command": ([], {64, 0}, ""),
    "unknown command": (["conjure"], {64}, "conjure"),
    "no spec": (["compile"], {64}, "--spec"),
    "unknown flag": (["compile", "--spec", "{spec}", "--frobnicate"], {64}, "--frobnicate"),
    "a value is missing": (["compile", "--spec"], {64}, "--spec"),
    "a stray argument": (["compile", "--spec", "{spec}", "stray"], {64}, "stray"),
    "spec is missing": (["compile", "--spec", "{root}/none.md"], {1}, "none.md"),
    "spec is a directory": (["compile", "--spec", "{root}/home"], {1}, "home"),
    "spec is not text": (["compile", "--spec", "{binary}"], {1}, "binary"),
    "spec is a pipe": (["compile", "--spec", "{fifo}"], {1}, "fifo"),
    "template is missing": (["compile", "--spec", "{spec}", "--template", "{root}/none.md"], {1}, "none.md"),
    "template lacks its placeholder": (
        ["compile", "--spec", "{spec}", "--template", "{spec}"],
        {1},
        "{{PRODUCT_SPEC}}",
    ),
    "repository is missing": (["compile", "--spec", "{spec}", "--repo", "{root}/none"], {1}, "none"),
    "repository is a file": (["compile", "--spec", "{spec}", "--repo", "{spec}"], {1}, "spec.md"),
    "artifacts directory is a file": (
        ["compile", "--spec", "{spec}", "--artifacts-dir", "{spec}"],
        {1},
        "spec.md",
    ),
    "artifacts directory cannot be made": (
        ["compile", "--spec", "{spec}", "--artifacts-dir", "/proc/none"],
        {1},
        "/proc/none",
    ),
    "outdir is a file": (["compile", "--spec", "{spec}", "--outdir", "{spec}"], {1}, "spec.md"),
}


@pytest.mark.rows("PC02", "PC05", "PT01")
@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_call_gets_one_clear_line_and_no_request(desk, name):
    argv, codes, needle = REFUSED[name]
    places = {
        "root": str(desk.root),
        "spec": str(desk.write("spec.md", "# Spec\n")),
        "binary": str(desk.write("binary", b"\xff\xfe\x00\x80")),
        "fifo": str(desk.root / "fifo"),
    }
    os.mkfifo(places["fifo"])
    filled = [arg.format(**places) for arg in argv]
    with LoopbackEndpoint([Answer(GOOD)]) as endpoint:
        outcome = desk.run("planner", *filled, endpoint=endpoint)
    assert outcome.exit_code in codes, outcome
    assert endpoint.requests == [], outcome
    assert needle in outcome.said, outcome
    assert "Traceback" not in outcome.said, outcome
    assert [path for path in files_below(desk.root) if path.name.startswith("WO-")] == []


@pytest.mark.rows("S01", "PC01")
@pytest.mark.parametrize(
    "argv",
    [
        ["planner", "--help"],
        ["planner", "compile", "--help"],
        ["factory", "--help"],
        ["factory", "run", "--help"],
        ["llmch", "--help"],
    ],
    ids=" ".join,
)
def test_every_command_explains_itself(desk, argv):
    outcome = desk.run(*argv, env={"OPENAI_API_KEY": None})
    assert outcome.exit_code == 0, outcome
    assert len(outcome.stdout) > 100
    assert "\\b" not in outcome.stdout, "the marker for click is no text for people"


def test_a_json_module_in_the_current_directory_is_not_ours(desk):
    (desk.cwd / "json.py").write_text("raise SystemExit('hijacked')\n")
    (desk.cwd / "click.py").write_text("raise SystemExit('hijacked')\n")
    compiled = compile_spec(desk, [Answer(GOOD)])
    assert compiled.outcome.exit_code == 0, compiled.outcome


@pytest.mark.rows("PC13", "S16")
def test_any_text_can_be_said_in_any_locale(desk):
    title = "Fähre 渡し船 \u202e ✓"
    plan = json.dumps(a_plan(an_order(1, title=title)))
    locale = {"LC_ALL": "C", "LANG": None, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    compiled = compile_spec(
        desk,
        [Answer(plan, reasoning="渡し")],
        "--print-summary",
        "--verbose",
        spec="Spëc 渡し\n",
        how={"env": locale},
    )
    assert compiled.outcome.exit_code == 0, compiled.outcome
    assert compiled.orders["WO-01"]["title"] == title
    assert "Spëc 渡し" in text_of(compiled.requests[0])


@pytest.mark.rows("PC09", "PV36")
def test_a_plain_directory_can_be_planned_for(desk):
    plain = desk.root / "plain"
    put(plain / "src/here.txt", "x\n")
    plan = json.dumps(a_plan(an_order(1, preconditions=[exists("src/here.txt")])))
    with untouched(plain):
        compiled = compile_spec(desk, [Answer(plan)], "--repo", plain)
    assert compiled.outcome.exit_code == 0, compiled.outcome


@pytest.mark.rows("PC09")
def test_odd_names_in_the_repository_are_no_trouble(desk):
    names = ["with space.txt", "ünï.txt", "new\nline.txt", 'quote".txt', "-dash.txt"]
    repo = desk.repo(dict.fromkeys(names, "x\n"))
    put(repo / os.fsdecode(b"not-utf8-\xff.txt"), "x\n")
    desk.commit_all(repo)
    (repo / "dangling").symlink_to("nowhere")
    wanted = [exists("with space.txt"), exists("ünï.txt"), exists('quote".txt'), exists("-dash.txt")]
    plan = json.dumps(a_plan(an_order(1, preconditions=wanted)))
    compiled = compile_spec(desk, [Answer(plan)], "--repo", repo)
    assert compiled.outcome.exit_code == 0, compiled.outcome


@pytest.mark.rows("PC10", "PI05")
def test_an_export_into_the_repository_itself_is_the_users_business(desk):
    repo = desk.repo()
    compiled = compile_spec(desk, [Answer(GOOD)], "--repo", repo, "--outdir", repo / "orders")
    assert compiled.outcome.exit_code == 0, compiled.outcome
    assert (repo / "orders/WO-01.json").exists()
