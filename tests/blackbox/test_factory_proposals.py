"""What a model may answer, and what becomes of it: many answers, one run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from loopback import Answer, Drop, Raw, Stall, Status

from blackbox.harness import (
    EMPTY,
    GOOD,
    Desk,
    Run,
    a_proposal,
    a_task,
    a_write,
    differences,
    exists,
    factory,
    fails,
    passes,
    put,
    sha,
    snapshot,
    text_of,
    untouched,
)

OLD = "old content\n"
INVALID, SCOPE, STALE = "llm_output_invalid", "write_scope_violation", "stale_context"
REFUSED = f"{INVALID} {SCOPE}"  # where the schema or the scope check may speak first


@dataclass(frozen=True)
class Case:
    """An answer and the stage (or stages) it may fail at."""

    name: str
    answer: Any
    stage: str
    rows: str = ""

    @property
    def text(self) -> str:
        return self.answer if isinstance(self.answer, str) else json.dumps(self.answer)


def writes(*items: Any, **changes: Any) -> dict[str, Any]:
    return a_proposal(*items, **changes)


def without(key: str) -> dict[str, Any]:
    return {k: v for k, v in a_proposal(a_write("a.txt")).items() if k != key}


def write_without(key: str) -> dict[str, Any]:
    return a_proposal({k: v for k, v in a_write("a.txt").items() if k != key})


LONG = "x" * (100 * 1024)
CASES = [
    Case("empty", "", INVALID, rows="FS14 FS13"),
    Case("prose", "I would rather talk.", INVALID, rows="FS14"),
    Case("truncated", GOOD[:-5], INVALID, rows="FS14"),
    Case("text after the JSON", GOOD + " and more", INVALID, rows="FS14"),
    Case("NaN", '{"summary": NaN, "writes": []}', INVALID, rows="FS14"),
    Case("duplicate keys", GOOD.replace('"summary"', '"summary": "a", "summary"'), INVALID, rows="FS14"),
    Case("a lone surrogate", GOOD.replace("content\\n", "\\ud800"), INVALID, rows="FS14"),
    Case("deeply nested", "[" * 100_000 + "]" * 100_000, INVALID, rows="FS14"),
    Case("a list", "[]", INVALID, rows="FS15"),
    Case("null", "null", INVALID, rows="FS15"),
    Case("no summary", without("summary"), INVALID, rows="FS15 FM05"),
    Case("no writes", without("writes"), INVALID, rows="FS15 FM05"),
    Case("empty writes", writes(), INVALID, rows="FS15 FM05"),
    Case("writes is an object", {**writes(), "writes": {"a.txt": "x"}}, INVALID, rows="FS15"),
    Case("a write is text", {**writes(), "writes": ["a.txt"]}, INVALID, rows="FS15"),
    *(
        Case(f"a write without {key}", write_without(key), INVALID, rows="FS15")
        for key in ("path", "content", "base_sha256")
    ),
    Case("path is a number", writes(a_write(7)), INVALID, rows="FS15"),
    Case("path is a list", writes(a_write(["a.txt"])), INVALID, rows="FS15"),
    Case("content is null", writes(a_write("a.txt", None)), INVALID, rows="FS15"),
    Case("content is an object", writes(a_write("a.txt", {"x": 1})), INVALID, rows="FS15"),
    Case("hash is a number", writes(a_write("a.txt", base=0)), INVALID, rows="FS15"),
    Case("a file over 200 KB", writes(a_write("a.txt", "x" * (200 * 1024 + 1))), INVALID, rows="FM06"),
    Case(
        "200 KB of characters are more bytes",
        writes(a_write("a.txt", "ü" * (150 * 1024))),
        INVALID,
        rows="FM06",
    ),
    Case(
        "over 500 KB in all",
        writes(*[a_write(path, LONG * 2) for path in ("a.txt", "b.txt", "sub/c.txt")]),
        INVALID,
        rows="FM07",
    ),
    Case("outside allowed_files", writes(a_write("a.txt"), a_write("other.txt")), SCOPE, rows="FT02"),
    Case("a case twin", writes(a_write("A.TXT")), SCOPE, rows="FT02"),
    Case("a path twice", writes(a_write("a.txt", "1"), a_write("a.txt", "2")), SCOPE, rows="FT01"),
    Case(
        "a path twice in two spellings",
        writes(a_write("a.txt", "1"), a_write("./sub/../a.txt", "2")),
        SCOPE,
        rows="FT01",
    ),
    Case("through a link to outside", writes(a_write("link/x.txt")), SCOPE, rows="FT04"),
    Case("onto a link to outside", writes(a_write("filelink", base=sha("outside\n"))), SCOPE, rows="FT04"),
    Case("upward", writes(a_write("../x.txt")), REFUSED, rows="FT03"),
    Case("upward in disguise", writes(a_write("sub/../../x.txt")), REFUSED, rows="FT03"),
    Case("absolute", writes(a_write("/tmp/x.txt")), REFUSED, rows="FT03"),
    Case("into .git", writes(a_write(".git/hooks/post-checkout")), REFUSED, rows="FT03"),
    Case("into .GIT", writes(a_write(".GIT/config")), REFUSED, rows="FT03"),
    Case("backslash", writes(a_write("..\\x.txt")), REFUSED, rows="FT03"),
    Case("NUL", writes(a_write("a\x00.txt")), REFUSED, rows="FT03"),
    Case("a directory", writes(a_write("sub/")), REFUSED, rows="FT03"),
    Case("wrong hash", writes(a_write("b.txt", base=sha("guess"))), STALE, rows="FT05"),
    Case("no hash for a file that is there", writes(a_write("b.txt", base=EMPTY)), STALE, rows="FT05"),
    Case(
        "a hash for a file that is not there",
        writes(a_write("a.txt", base=sha("x"))),
        STALE,
        rows="FT05 FT12",
    ),
    Case(
        "one bad hash among good ones",
        writes(a_write("a.txt"), a_write("sub/c.txt"), a_write("b.txt", base=sha("x"))),
        STALE,
        rows="FT06",
    ),
    Case("verification fails", writes(a_write("a.txt", "BADVERIFY\n")), "verify_failed", rows="FP05 FG09"),
    Case("a promise is not kept", writes(a_write("sub/c.txt")), "acceptance_failed", rows="FP06 FP07 X06"),
    Case("acceptance fails", writes(a_write("a.txt", "BADACC\n")), "acceptance_failed", rows="FP09 FG09"),
    Case(
        "claims of its own",
        {**writes(a_write("a.txt", "BADACC\n")), "verdict": "PASS", "touched_files": []},
        "acceptance_failed",
        rows="X01 FT14",
    ),
]
TASK = a_task(
    allowed_files=["a.txt", "b.txt", "sub/c.txt", "link/x.txt", "filelink"],
    postconditions=[exists("a.txt"), exists("b.txt")],
    acceptance_commands=["python -c \"assert 'BADACC' not in open('a.txt').read()\""],
)
FENCED = (
    f"```json\n{json.dumps(writes(a_write('a.txt', 'y' * (200 * 1024)), a_write('sub/c.txt', 'new')))}\n```\n"
)


@dataclass
class Many:
    desk: Desk
    repo: Path
    outside: Path
    run: Run
    changed_before_pass: list[str]
    outside_changed: list[str]


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Many:
    desk = Desk(tmp_path_factory.mktemp("many") / "desk")
    outside = desk.root / "outside"
    put(outside / "file.txt", "outside\n")
    repo = desk.repo({"b.txt": OLD}, verify="! grep -q BADVERIFY a.txt\n")
    (repo / "link").symlink_to(outside)
    (repo / "filelink").symlink_to(outside / "file.txt")
    desk.commit_all(repo)
    before, outside_before = snapshot(repo), snapshot(outside)
    changed: list[str] = []
    answers = iter([*(Answer(case.text) for case in CASES), Answer(FENCED)])

    def step(_record):
        changed[:] = [
            line
            for line in differences(before, snapshot(repo))
            if not line.startswith((".git/llmch", ".git/worktrees"))
        ]
        return next(answers)

    run = factory(desk, repo, TASK, step, "--max-attempts", str(len(CASES) + 1))
    return Many(desk, repo, outside, run, changed, differences(outside_before, snapshot(outside)))


@pytest.mark.rows("FS16", "FM06", "FM07", "FT08", "FF09", "FG09", "X01", "X04")
def test_each_answer_fails_where_it_should_and_the_good_one_passes_in_its_fence(many):
    assert many.run.outcome.exit_code == 0, many.run.outcome
    seen = dict(zip([case.name for case in CASES], many.run.stages[:-1], strict=True))
    assert {case.name: seen[case.name] for case in CASES if seen[case.name] not in case.stage.split()} == {}
    assert many.run.stages[-1] is None
    assert (many.repo / "sub/c.txt").read_text() == "new"


@pytest.mark.rows("FT04", "FT06", "X02", "FF04")
def test_no_answer_touched_the_repository_or_what_its_links_point_to(many):
    assert many.changed_before_pass == []
    assert many.outside_changed == []


@pytest.mark.rows("FG02", "FG03", "FS13", "FT10", "FT06", "X08")
def test_what_did_not_happen_leaves_no_artifact_and_what_did_leaves_one(many):
    for number, case in enumerate(CASES, start=1):
        names = {path.name for path in many.run.attempt(number).iterdir()}
        stage = many.run.stages[number - 1]
        assert {"se_prompt.txt", "raw_llm_response.json", "failure_brief.json"} <= names, case.name
        assert ("proposed_writes.json" in names) == (stage != INVALID), case.name
        assert ("write_result.json" in names) == (stage != INVALID), case.name
        assert ("verify_result.json" in names) == (stage in ("verify_failed", "acceptance_failed")), case.name
        if stage in (SCOPE, STALE):
            result = many.run.artifact(number, "write_result.json")
            assert result["write_ok"] is False, case.name
            assert result["errors"], case.name


@pytest.mark.rows("FS21", "FS07", "FS13")
def test_each_failure_is_told_to_the_model_with_its_reason(many):
    for number, case in enumerate(CASES, start=1):
        sent = text_of(many.run.requests[number])
        assert many.run.stages[number - 1] in sent, case.name
        assert many.run.brief(number)["primary_error_excerpt"], case.name
    raw = json.dumps(many.run.artifact(2, "raw_llm_response.json"))
    assert "I would rather talk." in raw


@pytest.mark.rows("FP06")
def test_a_missing_promise_skips_acceptance(many):
    number = [case.name for case in CASES].index("a promise is not kept") + 1
    names = {path.name for path in many.run.attempt(number).iterdir()}
    assert not [name for name in names if name.startswith("acceptance_") and name.endswith(".txt")]
    assert "a.txt" in many.run.brief(number)["primary_error_excerpt"]


@pytest.mark.rows("FS19")
def test_an_answer_over_ten_megabytes_is_no_proposal(desk):
    huge = json.dumps(writes(a_write("a.txt"), summary="x" * (11 * 1024 * 1024)))
    run = passes(factory(desk, desk.repo(), a_task(), [Answer(huge, piece=1 << 20), Answer(GOOD)]))
    assert run.stages == [INVALID, None]


# --- before anything is asked ------------------------------------------------------------


@pytest.mark.rows("FS01", "FS02", "FS03", "FG07", "X05", "FG02", "FF03")
@pytest.mark.parametrize(
    "condition",
    [
        {"kind": "file_exists", "path": "nowhere.txt"},
        {"kind": "file_exists", "path": "scripts"},
        {"kind": "file_absent", "path": "README.md"},
        {"kind": "file_absent", "path": "scripts"},
    ],
    ids=["missing", "a directory is no file", "present", "a directory is something"],
)
def test_a_broken_precondition_asks_nobody_and_is_not_retried(desk, condition):
    repo = desk.repo()
    with untouched(repo):
        run = fails(factory(desk, repo, a_task(preconditions=[condition]), [Answer(GOOD)]))
    assert run.requests == []
    assert run.stages == ["preflight"]
    assert "PLANNER-CONTRACT BUG" in run.brief(1)["primary_error_excerpt"]
    assert run.summary["verdict"] == "FAIL"
    assert condition["path"] in run.outcome.said


@pytest.mark.rows("FS04")
def test_conditions_that_hold_let_the_run_go_on(desk):
    repo = desk.repo()
    (repo / "readme_link").symlink_to("README.md")
    desk.commit_all(repo)
    holding = [exists("README.md"), exists("readme_link"), {"kind": "file_absent", "path": "a.txt"}]
    passes(factory(desk, repo, a_task(preconditions=holding), [Answer(GOOD)]))


# --- what is shown -----------------------------------------------------------------------


@pytest.mark.rows("FS09", "FS22")
def test_context_is_bounded_and_what_was_not_shown_whole_may_not_be_rewritten(desk):
    big = {f"big{n}.txt": f"START-{n}\n" + f"{n}" * 90_000 + f"\nEND-{n}\n" for n in range(4)}
    repo = desk.repo(big)
    order = a_task(
        context_files=sorted(big, reverse=True), allowed_files=["a.txt", "big3.txt"], postconditions=[]
    )
    blind = writes(a_write("a.txt"), a_write("big3.txt", "rewritten blindly\n", sha(big["big3.txt"])))
    run = passes(factory(desk, repo, order, [Answer(json.dumps(blind)), Answer(GOOD)]))
    sent = text_of(run.requests[0])
    assert len(sent) < 200 * 1024 + 30_000
    assert "START-0" in sent
    assert "START-1" in sent
    assert "END-3" not in sent
    assert run.stages[0] in (SCOPE, STALE, INVALID)
    assert "big3.txt" in run.brief(1)["primary_error_excerpt"]


@pytest.mark.rows("FS22")
def test_the_same_inputs_make_the_same_prompt(desk):
    repo = desk.repo({"x.txt": "x\n", "b.txt": "b\n"})
    prompts = []
    for order in (["x.txt", "b.txt"], ["b.txt", "x.txt"]):
        task = a_task(
            context_files=order,
            allowed_files=[*order, "a.txt"],
            postconditions=[],
            acceptance_commands=["false"],
        )
        run = fails(factory(desk, repo, task, [Answer(GOOD)], "--max-attempts", "1"))
        prompts.append(run.artifact(1, "se_prompt.txt"))
    assert prompts[0] == prompts[1]


@pytest.mark.rows("FS06")
def test_context_of_odd_kinds_does_not_stop_a_run(desk):
    repo = desk.repo({"binary.bin": bytes(range(256)), "empty.txt": "", "dir/file.txt": "x\n"})
    (repo / "outside_link").symlink_to("/etc/hostname")
    desk.commit_all(repo)
    task = a_task(context_files=["binary.bin", "empty.txt", "dir", "outside_link", "not/there.txt"])
    run = passes(factory(desk, repo, task, [Answer(GOOD)]))
    hostname = Path("/etc/hostname")
    if hostname.exists() and len(secret := hostname.read_text().strip()) > 6:
        assert secret not in text_of(run.requests[0]), "a link leads out of the repository"


# --- the endpoint ------------------------------------------------------------------------


@pytest.mark.rows("FS17", "FG09")
def test_an_endpoint_failure_is_a_retryable_exception(desk):
    steps = [Status(503), Status(503), Status(503), Answer(GOOD)]
    run = passes(factory(desk, desk.repo(), a_task(), steps))
    assert run.stages == ["exception", None]
    assert len(run.requests) == 4


@pytest.mark.rows("FS17", "FS18", "X02")
@pytest.mark.parametrize(
    "step",
    [
        Drop(),
        Raw(b"<html>", {"content-type": "text/html"}),
        Raw(b"{broken"),
        Stall(drip=0.3),
        Stall(headers=False),
        Answer("", refusal="I will not"),
        Answer(GOOD[:30], status="incomplete"),
    ],
    ids=["dropped", "web page", "broken body", "drips for ever", "silence", "refusal", "cut off"],
)
def test_a_bad_endpoint_ends_in_a_fail_with_a_brief_and_an_untouched_repository(desk, step):
    repo = desk.repo()
    with untouched(repo):
        run = fails(
            factory(
                desk,
                repo,
                a_task(),
                [step],
                "--max-attempts",
                "1",
                "--timeout-seconds",
                "2",
                repeat_last=True,
            )
        )
    assert run.stages[0] in ("exception", INVALID)
    assert run.outcome.seconds < 40
    assert run.summary["verdict"] == "FAIL"


@pytest.mark.rows("FS16", "FC01")
@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"message": {"content": GOOD}}]},
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": GOOD}}], "usage": None},
        {"choices": [{"message": {"content": f"<think>hm</think>\n{GOOD}"}, "finish_reason": "stop"}]},
    ],
    ids=["few fields", "no usage", "thoughts first"],
)
def test_servers_that_say_little_are_understood(desk, body):
    passes(factory(desk, desk.repo(), a_task(), [Raw(json.dumps(body).encode())]))


def test_a_server_without_structured_answers_costs_no_attempt(desk):
    refusal = Status(
        400, {"error": {"message": "response_format is not supported", "param": "response_format"}}
    )

    def step(record):
        return refusal if "response_format" in record.body else Answer(GOOD)

    assert passes(factory(desk, desk.repo(), a_task(), step)).stages == [None]


def test_a_model_that_knows_no_temperature_costs_no_attempt(desk):
    refusal = Status(
        400,
        {
            "error": {
                "message": "Unsupported value: 'temperature'",
                "param": "temperature",
                "code": "unsupported_value",
            }
        },
    )
    run = passes(factory(desk, desk.repo(), a_task(), [refusal, Answer(GOOD)]))
    assert run.stages == [None]
    assert "temperature" not in run.requests[1].body


# --- the write ---------------------------------------------------------------------------


@pytest.mark.rows("FT09", "FG08", "FT10")
@pytest.mark.parametrize(
    ("files", "path"),
    [({"a.txt": "a file\n"}, "a.txt/below.txt"), ({"taken/x.txt": "x\n"}, "taken")],
    ids=["the parent is a file", "the name is a directory"],
)
def test_a_write_that_fails_is_a_brief_and_is_not_retried(desk, files, path):
    repo = desk.repo(files)
    task = a_task(allowed_files=[path], postconditions=[], acceptance_commands=["true"])
    answer = Answer(json.dumps(writes(a_write(path))))
    with untouched(repo):
        run = fails(factory(desk, repo, task, [answer], repeat_last=True))
    assert run.stages == ["write_failed"]
    assert len(run.requests) == 1
    assert run.artifact(1, "write_result.json")["write_ok"] is False


@pytest.mark.rows("FT07", "FT08", "FM11")
def test_files_are_replaced_whole_and_odd_names_are_just_names(desk):
    names = [
        "with space.txt",
        "über/näme.txt",
        "-rf.txt",
        "quote'\".txt",
        "$HOME.txt",
        "a/b/c/d.txt",
        "tab~#.txt",
    ]
    repo = desk.repo({"plain.txt": OLD}, name="my repo")
    (desk.root / "second-name").hardlink_to(repo / "plain.txt")
    task = a_task(
        allowed_files=[*names, "./plain.txt"],
        postconditions=[exists(name) for name in [*names, "plain.txt"]],
        acceptance_commands=["true"],
    )
    answer = writes(*[a_write(name, f"{name}\n") for name in names], a_write("plain.txt", "new\n", sha(OLD)))
    run = passes(factory(desk, repo, task, [Answer(json.dumps(answer))]))
    assert run.summary["attempts"][0]["touched_files"] == sorted([*names, "plain.txt"])
    for name in names:
        assert (repo / name).read_text() == f"{name}\n"
    assert (desk.root / "second-name").read_text() == OLD, "replaced, not written into"
    assert desk.git(repo, "status", "--porcelain") == ""
    assert list(repo.rglob(".llmch*")) == []
