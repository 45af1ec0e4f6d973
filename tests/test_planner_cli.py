"""The planner as its users have it: a process, an endpoint on the loopback, files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import make_repo, run_git
from loopback import Answer, LoopbackEndpoint, Stall, Status
from plans import absent, exists, order, plan, requires

from planner.io import write_work_orders
from planner.validation import RULES

KEY = "sk-test-0123456789-never-to-be-seen"
GOOD = plan(order(1, title="First part"), order(2, title="Second part", preconditions=exists("part_1.py")))
BAD = plan(order(1), order(3))


class Desk:
    """A place to start the planner from."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.artifacts = root / "artifacts"
        self.spec = root / "spec.md"
        self.spec.write_text("# Spec\nTwo parts.\n")
        self.env = {**os.environ, "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}

    def start(self, *argv, env=None, cwd=None, endpoint=None):
        changed = {**self.env, **({"OPENAI_BASE_URL": endpoint.base_url} if endpoint else {}), **(env or {})}
        return subprocess.Popen(
            [sys.executable, "-m", "planner", *map(str, argv)],
            cwd=cwd or self.root,
            env={name: value for name, value in changed.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="backslashreplace",
        )

    def run(self, *argv, **how):
        process = self.start(*argv, **how)
        out, err = process.communicate(timeout=90)
        assert "Traceback" not in err, err
        return Ended(process.returncode, out, err)

    def compile(self, answers, *flags, **how):
        """Compile against an endpoint that gives these answers; the endpoint is kept as `seen`."""
        steps = [
            Answer(json.dumps(a)) if isinstance(a, dict) else Answer(a) if isinstance(a, str) else a
            for a in answers
        ]
        with LoopbackEndpoint(steps) as endpoint:
            ended = self.run("compile", "--spec", self.spec, *flags, endpoint=endpoint, **how)
        self.seen = endpoint.posts
        return ended

    @property
    def run_dir(self) -> Path:
        (found,) = (self.artifacts / "planner").iterdir()
        return found

    @property
    def record(self):
        return json.loads((self.run_dir / "run.json").read_text())


class Ended:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


# --- endings -------------------------------------------------------------------------------


def test_a_plan_is_written_and_its_directory_is_the_answer_on_stdout(desk):
    ended = desk.compile([GOOD])
    output = desk.run_dir / "output"
    assert (ended.code, ended.out) == (0, f"{output}\n")
    assert sorted(path.name for path in output.iterdir()) == [
        "WO-01.json",
        "WO-02.json",
        "WORK_ORDERS_MANIFEST.json",
    ]
    assert f"next: llmch run-all --repo REPOSITORY --workdir {output}" in ended.err


def test_a_summary_names_every_order(desk):
    ended = desk.compile([GOOD], "--print-summary", "--outdir", desk.root / "plan")
    assert ended.out.splitlines() == ["WO-01  First part", "WO-02  Second part", str(desk.root / "plan")]


def test_a_plan_that_stays_wrong_is_exit_2_after_five_requests(desk):
    ended = desk.compile([BAD] * 5)
    assert (ended.code, ended.out, len(desk.seen)) == (2, "", 5)
    assert "error: the plan still has 1 error after 5 attempts; the first: [E001] WO-03 id: " in ended.err
    assert str(desk.run_dir / "compile" / "validation_errors.json") in ended.err
    assert "what they mean: llmch explain E001" in ended.err


def test_an_answer_that_stays_prose_is_exit_4(desk):
    ended = desk.compile(["Here you are."] * 5)
    assert (ended.code, len(desk.seen)) == (4, 5)
    assert "error: the model's answer is still not JSON after 5 attempts: " in ended.err


def test_a_request_that_is_refused_is_exit_3_and_not_repeated(desk):
    ended = desk.compile([Status(401, {"error": {"message": f"bad key {KEY}"}})] * 9)
    assert (ended.code, len(desk.seen)) == (3, 1)
    assert desk.record["status"] == "endpoint_error"
    assert desk.record["finished_at"] is not None


def test_an_endpoint_that_nobody_listens_at_is_exit_3(desk):
    ended = desk.run("compile", "--spec", desk.spec)
    assert ended.code == 3
    assert "OPENAI_BASE_URL" in ended.err
    assert json.loads((desk.run_dir / "compile" / "compile_summary.json").read_text())["success"] is False


def test_a_request_says_what_the_documents_say_it_does(desk):
    desk.compile([GOOD])
    body = desk.seen[0].body
    assert (body["model"], body["reasoning"]["effort"], body["max_output_tokens"]) == (
        "gpt-5.2-codex",
        "medium",
        64000,
    )
    assert desk.seen[0].path == "/v1/responses"


def test_flags_reach_the_request_and_the_record(desk):
    flags = (
        "--model",
        "m1",
        "--reasoning-effort",
        "low",
        "--max-output-tokens",
        "77",
        "--timeout-seconds",
        "50",
    )
    desk.compile([GOOD], *flags)
    body, config = desk.seen[0].body, desk.record["config"]
    assert (body["model"], body["reasoning"]["effort"], body["max_output_tokens"]) == ("m1", "low", 77)
    assert (config["model"], config["reasoning_effort"], config["max_output_tokens"]) == ("m1", "low", 77)
    assert config["timeout_seconds"] == 50


def test_the_key_is_in_no_artifact_and_on_no_stream(desk):
    echo = Status(400, {"error": {"message": f"your key {KEY} is odd"}})
    for answers in ([GOOD], [echo] * 9):
        ended = desk.compile(answers, "--verbose", "--record", desk.root / "transcript")
        assert KEY not in ended.out + ended.err
    files = [path for path in desk.root.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


# --- refusals ------------------------------------------------------------------------------


def refusals(desk):
    root = desk.root
    (root / "latin.md").write_bytes(b"caf\xe9")
    (root / "empty.md").write_text("\n")
    (root / "no_place.md").write_text("no place for a spec")
    (root / "file").write_text("x")
    os.mkfifo(root / "pipe")
    (root / "plan").mkdir()
    (root / "plan" / "WO-01.json").write_text("mine")
    run_git(root, "init", "-q", "--bare", "bare.git")
    spec = ("--spec", desk.spec)
    return {
        "missing spec": (("--spec", "none.md"), 1, "none.md cannot be read"),
        "spec is a directory": (("--spec", "."), 1, "cannot be read"),
        "spec is a pipe": (("--spec", "pipe"), 1, "not a regular file"),
        "spec is not UTF-8": (("--spec", "latin.md"), 1, "not UTF-8 at byte 3"),
        "spec is empty": (("--spec", "empty.md"), 1, "is empty"),
        "template without a place": ((*spec, "--template", "no_place.md"), 1, "no {{PRODUCT_SPEC}}"),
        "template is missing": ((*spec, "--template", "none.md"), 1, "none.md cannot be read"),
        "repository is missing": ((*spec, "--repo", "none"), 1, "--repo none does not exist"),
        "repository is a file": ((*spec, "--repo", "file"), 1, "--repo file is not a directory"),
        "repository is bare": ((*spec, "--repo", "bare.git"), 1, "is a bare repository"),
        "plan is there": ((*spec, "--outdir", "plan"), 1, "holds a plan already"),
        "outdir is a file": ((*spec, "--outdir", "file"), 1, "--outdir file is not a directory"),
        "artifacts root is a file": ((*spec, "--artifacts-dir", "file"), 1, "--artifacts-dir"),
        "artifacts root is below a file": ((*spec, "--artifacts-dir", "file/a/b"), 1, "is not a directory"),
        "no transcript": ((*spec, "--llm", "replay:none"), 3, "cannot read transcript"),
        "no spec": ((), 64, "Missing option '--spec'"),
        "unknown flag": ((*spec, "--bogus"), 64, "No such option"),
        "unknown model source": ((*spec, "--llm", "magic"), 64, "neither `openai` nor `replay:DIR`"),
        "replay of nothing": ((*spec, "--llm", "replay:"), 64, "neither"),
        "no tokens": ((*spec, "--max-output-tokens", "0"), 64, "--max-output-tokens"),
        "no time": ((*spec, "--timeout-seconds", "0"), 64, "positive"),
        "endless time": ((*spec, "--timeout-seconds", "nan"), 64, "positive"),
        "no model": ((*spec, "--model", ""), 64, "--model"),
        "both levels": ((*spec, "--quiet", "--verbose"), 64, "exclude each other"),
        "a word too many": ((*spec, "more"), 64, "unexpected"),
    }


def test_every_refusal_is_one_line_with_its_exit_code_before_any_request(desk):
    with LoopbackEndpoint([Answer(json.dumps(GOOD))], repeat_last=True) as endpoint:
        for name, (flags, code, said) in refusals(desk).items():
            before = sorted(desk.root.rglob("*"))
            ended = desk.run("compile", *flags, endpoint=endpoint)
            assert (ended.code, ended.out) == (code, ""), (name, ended.err)
            (line,) = ended.err.splitlines()
            assert line.startswith("error: "), name
            assert said in line, name
            assert sorted(desk.root.rglob("*")) == before, name
    assert endpoint.requests == []
    assert (desk.root / "plan" / "WO-01.json").read_text() == "mine"


@pytest.mark.parametrize("key", [None, "", "  "])
def test_without_a_key_nothing_is_asked_and_nothing_is_written(desk, key):
    before = sorted(desk.root.rglob("*"))
    ended = desk.compile([GOOD], env={"OPENAI_API_KEY": key})
    assert (ended.code, desk.seen) == (3, [])
    assert "OPENAI_API_KEY is not set" in ended.err
    assert sorted(desk.root.rglob("*")) == before


def test_what_can_be_checked_for_nothing_is_checked_before_the_key(desk):
    ended = desk.run("compile", "--spec", "none.md", env={"OPENAI_API_KEY": None})
    assert ended.code == 1


def test_a_disk_that_takes_no_records_is_one_line_and_no_request(desk):
    (desk.root / "artifacts").mkdir()
    (desk.root / "artifacts" / "planner").write_text("in the way")
    ended = desk.compile([GOOD])
    assert (ended.code, desk.seen) == (1, [])
    assert len(ended.err.splitlines()) == 1


# --- signals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_during_the_call_ends_the_run_with_its_records_complete(desk, signum, code):
    with LoopbackEndpoint([Stall()]) as endpoint:
        process = desk.start("compile", "--spec", desk.spec, endpoint=endpoint)
        deadline = time.monotonic() + 60
        while not endpoint.posts and time.monotonic() < deadline:
            time.sleep(0.02)
        early = desk.record
        process.send_signal(signum)
        _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in err
    assert f"error: interrupted by {signum.name}" in err
    assert early["status"] == "running"
    assert (desk.record["status"], desk.record["exit_code"]) == ("interrupted", code)
    assert not list(desk.root.rglob("WO-*"))


# --- on the terminal -----------------------------------------------------------------------


def test_what_the_model_thinks_is_on_stderr_while_the_answer_is_still_coming(desk):
    gate = threading.Event()
    answer = Answer(json.dumps(GOOD), reasoning="PONDERING the parts", before_end=gate)
    with LoopbackEndpoint([answer]) as endpoint:
        process = desk.start("compile", "--spec", desk.spec, endpoint=endpoint)
        seen = ""
        while "PONDERING" not in seen:
            piece = process.stderr.read(1)
            assert piece, seen
            seen += piece
        assert not gate.is_set()
        assert process.poll() is None
        gate.set()
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert "PONDERING the parts" in (desk.run_dir / "compile" / "llm_reasoning_attempt_1.txt").read_text()


def test_quiet_says_the_verdict_and_errors_only(desk):
    warned = plan(order(1, acceptance_commands=['python -c "import nowhere_at_all"']))
    ended = desk.compile([BAD, warned], "--quiet")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"{desk.run_dir / 'output'}\n"


def test_verbose_says_at_least_what_normal_says(desk):
    normal = desk.compile([BAD, GOOD]).err.splitlines()
    verbose = desk.compile([BAD, GOOD], "--verbose").err.splitlines()
    assert len(verbose) > len(normal) > 5
    assert any("[E001]" in line for line in normal)


def test_a_wait_for_the_endpoint_is_said_aloud(desk):
    ended = desk.compile([Status(503), GOOD])
    assert ended.code == 0
    assert "asking again in 0.5 s (try 2 of 3)" in ended.err


def test_colour_only_where_it_is_wanted(desk):
    assert "\x1b" not in desk.compile([BAD, GOOD]).err
    assert "\x1b" in desk.compile([GOOD], env={"FORCE_COLOR": "1"}).err
    assert "\x1b" not in desk.compile([GOOD], "--no-color", env={"FORCE_COLOR": "1"}).err


def test_escapes_from_a_model_arrive_as_characters(desk):
    hostile = plan(order(1, title="\x1b[2Jboo"), order(3, title="x"))
    fine = plan(order(1, title="\x1b[2Jboo"))
    ended = desk.compile([hostile, fine], "--print-summary")
    assert "\x1b" not in ended.out + ended.err


@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_a_poor_locale_is_no_reason_to_fail(desk, locale):
    answer = plan(order(1, title="Größe ändern — 日本"))
    desk.spec.write_text("# Größe\n", encoding="utf-8")
    env = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = desk.compile([answer], "--print-summary", env=env)
    assert ended.code == 0
    assert "WO-01" in ended.out


def test_artifacts_that_would_make_the_repository_untidy_are_warned_of(desk):
    repo = make_repo(desk.root / "project")
    ended = desk.compile([GOOD], "--repo", ".", "--outdir", desk.root / "plan", cwd=repo)
    assert ended.code == 0
    assert "artifacts lies inside the repository and git does not ignore it" in ended.err


# --- the repository ------------------------------------------------------------------------


def test_what_the_repository_holds_decides_which_preconditions_hold_and_is_in_the_prompt(desk):
    repo = make_repo(desk.root / "project")
    (repo / "peculiar_name.py").write_text("x = 1\n")
    run_git(repo, "add", ".")
    run_git(repo, "commit", "-q", "-m", "peculiar")
    leaning = plan(order(1, preconditions=exists("peculiar_name.py")))
    assert desk.compile([leaning], "--repo", repo, "--quiet").code == 0
    assert "peculiar_name.py" in json.dumps(desk.seen[0].body)
    assert desk.compile([leaning] * 5, "--quiet").code == 2
    assert "peculiar_name.py" not in json.dumps(desk.seen[0].body)


def test_the_script_a_repository_has_is_not_made_again(desk):
    repo = make_repo(desk.root / "project")
    (repo / "scripts").mkdir()
    (repo / "scripts" / "verify.sh").write_text("true\n")
    run_git(repo, "add", ".")
    run_git(repo, "commit", "-q", "-m", "verify")
    first = order(1, allowed_files=["scripts/verify.sh"], preconditions=absent("scripts/verify.sh"))
    answer = plan(first, order(2, title="Kept"), verify_contract=requires(*exists("scripts/verify.sh")))
    ended = desk.compile([answer], "--repo", repo, "--print-summary")
    assert ended.out.splitlines()[0] == "WO-01  Kept"
    assert "WO-01 was left out" in ended.err
    assert f"next: llmch run-all --repo {repo} --workdir " in ended.err


# --- transcripts ---------------------------------------------------------------------------


def test_what_was_recorded_can_be_played_without_a_key_or_an_endpoint(desk):
    tape = desk.root / "tape"
    desk.compile([BAD, GOOD], "--record", tape, "--outdir", desk.root / "one")
    no_model = {"OPENAI_API_KEY": None, "OPENAI_BASE_URL": None}
    flags = ("compile", "--spec", desk.spec, "--llm", f"replay:{tape}")
    ended = desk.run(*flags, "--outdir", desk.root / "two", env=no_model)
    assert ended.code == 0
    assert f"model: none is asked; answers from replay:{tape} (origin: recorded)" in ended.err

    def orders(name):
        found = [json.loads(path.read_text()) for path in sorted((desk.root / name).glob("WO-*.json"))]
        return [{**one, "provenance": None} for one in found]

    assert orders("one") == orders("two")


def test_a_transcript_that_does_not_fit_is_said_and_never_made_up(desk):
    tape = desk.root / "tape"
    desk.compile([GOOD], "--record", tape)
    desk.spec.write_text("# Another spec\n")
    ended = desk.run("compile", "--spec", desk.spec, "--llm", f"replay:{tape}")
    assert ended.code == 3
    assert "differs from the one in" in ended.err


# --- validate ------------------------------------------------------------------------------


@pytest.fixture
def plan_dir(tmp_path):
    directory = tmp_path / "plan"
    contract = requires(*exists("part_2.py"))
    write_work_orders(directory, GOOD["work_orders"], {**GOOD, "verify_contract": contract})
    return directory


def rewrite(path: Path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_sound_plan_has_no_findings(desk, plan_dir):
    ended = desk.run("validate", plan_dir, env={"OPENAI_API_KEY": None})
    assert (ended.code, ended.out) == (0, "")
    assert "2 work orders, 0 errors, 0 warnings" in ended.err


def test_findings_are_a_line_each_with_code_order_and_field(desk, plan_dir):
    rewrite(plan_dir / "WO-02.json", postconditions=exists("other.py"), preconditions=exists("never.py"))
    ended = desk.run("validate", plan_dir)
    assert ended.code == 1
    starts = [line.partition(": ")[0] for line in ended.out.splitlines()]
    assert starts == [
        "E106 verify_contract.requires[0]",
        "E101 WO-02 preconditions[0]",
        "E103 WO-02 postconditions[0]",
        "E104 WO-02 allowed_files[0]",
    ]


def test_findings_as_json_are_for_programs(desk, plan_dir):
    rewrite(plan_dir / "WO-02.json", preconditions=exists("never.py"))
    record = json.loads(desk.run("validate", plan_dir, "--json").out)
    assert record["work_orders"] == ["WO-01", "WO-02"]
    assert [(e["code"], e["wo_id"], e["field"]) for e in record["errors"]] == [
        ("E101", "WO-02", "preconditions[0]")
    ]
    assert record["warnings"] == []


def test_a_warning_alone_is_no_failure(desk, plan_dir):
    rewrite(plan_dir / "WO-02.json", acceptance_commands=['python -c "import nowhere_at_all"'])
    ended = desk.run("validate", plan_dir)
    assert (ended.code, ended.out[:4]) == (0, "W101")


def test_a_repository_counts_when_it_is_named(desk, plan_dir):
    repo = make_repo(desk.root / "project")
    rewrite(plan_dir / "WO-01.json", preconditions=exists("README.md"))
    assert desk.run("validate", plan_dir, "--repo", repo).code == 0
    assert desk.run("validate", plan_dir).code == 1


def test_orders_are_judged_in_the_sequence_of_their_numbers(desk, tmp_path):
    directory = tmp_path / "long"
    chain = [order(n, preconditions=exists(f"part_{n - 1}.py") if n > 1 else []) for n in range(1, 102)]
    write_work_orders(directory, chain, {})
    assert desk.run("validate", directory).code == 0


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda d: (d / "WO-01.json").unlink(), "E001"),
        (lambda d: (d / "WO-02.json").rename(d / "WO-03.json"), "E001"),
        (lambda d: (d / "WO-02.json").unlink(), "E001 WO-02 id: WORK_ORDERS_MANIFEST.json lists it"),
        (lambda d: (d / "WO-002.json").write_text((d / "WO-02.json").read_text()), "E001"),
        (
            lambda d: (d / "WO-02.json").write_text("{"),
            "E000 WO-02: WO-02.json cannot be read: not strict JSON",
        ),
        (lambda d: (d / "WO-02.json").write_text('{"id": "WO-02", "id": "x"}'), "duplicate key"),
        (lambda d: (d / "WO-02.json").write_text("[" * 5000), "E000 WO-02: WO-02.json cannot be read"),
        (lambda d: (d / "WO-02.json").write_bytes(b"\xff"), "not UTF-8"),
        (lambda d: (d / "WO-02.json").write_text("[]"), "E000"),
        (lambda d: (d / "WO-03.json").mkdir(), "E000 WO-03: WO-03.json cannot be read"),
        (lambda d: (d / "WO-03.json").symlink_to("nowhere"), "E000 WO-03: WO-03.json cannot be read"),
        (lambda d: (d / "WO-x.json").write_text("{}"), "E005"),
        (
            lambda d: (d / "WORK_ORDERS_MANIFEST.json").write_text("[]"),
            "E000 plan: WORK_ORDERS_MANIFEST.json",
        ),
        (lambda d: (d / "WORK_ORDERS_MANIFEST.json").write_text("{"), "E000 plan: WORK_ORDERS_MANIFEST.json"),
        (lambda d: rewrite(d / "WORK_ORDERS_MANIFEST.json", verify_contract=7), "E000"),
        (lambda d: rewrite(d / "WORK_ORDERS_MANIFEST.json", work_orders=[7]), None),
    ],
)
def test_a_directory_that_is_no_whole_plan_has_findings(desk, plan_dir, spoil, said):
    spoil(plan_dir)
    ended = desk.run("validate", plan_dir)
    assert ended.code == (1 if said else 0)
    assert (said or "") in ended.out


@pytest.mark.parametrize("name", ["none", "file", "empty"])
def test_a_directory_without_a_plan_is_one_line(desk, name):
    (desk.root / "file").write_text("x")
    (desk.root / "empty").mkdir()
    ended = desk.run("validate", name)
    assert (ended.code, ended.out, len(ended.err.splitlines())) == (1, "", 1)
    assert name in ended.err


def test_a_line_break_in_a_finding_does_not_make_two_lines(desk, plan_dir):
    rewrite(plan_dir / "WO-02.json", allowed_files=["a\nb"])
    lines = desk.run("validate", plan_dir).out.splitlines()
    assert all(line[:4] in RULES for line in lines)


# --- explain, schema, the start ------------------------------------------------------------


@pytest.mark.parametrize("code", RULES)
def test_every_code_explains_itself(desk, code):
    ended = desk.run("explain", code.lower())
    assert ended.code == 0
    assert ended.out.startswith(f"{code} (")
    assert RULES[code].title in ended.out


def test_without_a_code_all_of_them_are_listed(desk):
    assert [line[:4] for line in desk.run("explain").out.splitlines()] == list(RULES)


def test_an_unknown_code_names_those_there_are(desk):
    ended = desk.run("explain", "E999")
    assert ended.code == 64
    assert all(code in ended.err for code in RULES)


def test_the_schema_is_json_schema_of_a_work_order(desk):
    schema = json.loads(desk.run("schema").out)
    assert schema["properties"]["acceptance_commands"]["minItems"] == 1


HEAVY = ("openai", "langgraph", "httpx2", "rich")


@pytest.mark.parametrize(
    "argv", [["--help"], ["compile", "--help"], ["explain", "E101"], ["schema"], ["validate", "plan"]]
)
def test_only_a_compile_pays_for_the_endpoint(desk, plan_dir, argv):  # noqa: ARG001  the plan is in place
    assert loaded_by(argv, desk, *HEAVY) == "[]"


def loaded_by(argv, desk, *names):
    """Which of these libraries a command line has loaded when it is done."""
    run = f"import sys; from planner.cli import main; main({argv!r})"
    code = f"{run}; print([name for name in {names!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=desk.root, env=desk.env, capture_output=True, text=True
    )
    return done.stdout.splitlines()[-1]


def test_help_does_not_even_load_the_model_of_a_work_order(desk):
    assert loaded_by(["--help"], desk, "pydantic") == "[]"


def test_modules_in_the_current_directory_never_run_inside_the_planner(desk):
    trap = desk.root / "trap"
    trap.mkdir()
    for name in (
        "json",
        "click",
        "shlex",
        "ast",
        "pydantic",
        "openai",
        "ulid",
        "shared",
        "rich",
        "dataclasses",
    ):
        (trap / f"{name}.py").write_text(f"open({str(desk.root / 'sprung')!r}, 'w'); raise SystemExit(99)")
    assert desk.run("explain", "E101", cwd=trap).code == 0
    assert desk.compile([GOOD], cwd=trap).code == 0
    assert not (desk.root / "sprung").exists()


def test_a_reader_that_goes_away_is_no_error(desk):
    process = desk.start("explain")
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert (process.wait(30), err) == (0, "")


@pytest.mark.parametrize(("flags", "is_shown"), [([], False), (["--debug"], True)])
def test_a_bug_is_said_in_one_line_and_shown_whole_on_demand(desk, flags, is_shown):
    code = "import sys; from planner.cli import last_words; sys.excepthook = last_words; {}['oops']"
    done = subprocess.run(
        [sys.executable, "-c", code, *flags],
        check=False, cwd=desk.root, env=desk.env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert ("Traceback" in done.stderr) == is_shown
    assert done.stderr.splitlines()[-1] == (
        "error: this is a bug in the planner: KeyError: 'oops' (--debug shows where)"
    )
    assert len(done.stderr.splitlines()) == 1 or is_shown
