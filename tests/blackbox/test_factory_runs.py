"""A run that fails twice and passes, and one that only fails, looked at from every side."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from loopback import Answer

from blackbox.harness import (
    EMPTY,
    KEY,
    ULID,
    Desk,
    Run,
    a_proposal,
    a_task,
    a_write,
    differences,
    exists,
    factory,
    files_below,
    leftovers,
    peeking,
    put,
    read_json,
    sha,
    snapshot,
    text_of,
)

README = "baseline readme README-MARKER\n"
TOOL = "#!/bin/sh\nexit 0\n"
# It litters the tree it runs in, so that a rollback has something to undo and a pass something to ignore.
VERIFY = """
echo "VERIFY-OUT $(ls -A | tr '\\n' ' ')"
echo VERIFY-ERR >&2
mkdir -p junk empty; echo x > junk/litter.txt; echo x > noise.log
echo drift >> README.md
if grep -q BADVERIFY a.txt; then exit 7; fi
exit 0
"""
SHOUT = (
    "import sys; print('ACC-OUT'); sys.stderr.write('ACC-ERR'); "
    "sys.exit('GOODACC' not in open('a.txt').read())"
)
ORDER = a_task(
    id="WO-03",
    title="TITLE-MARKER",
    intent="INTENT-MARKER",
    notes="NOTES-MARKER",
    forbidden=["FORBIDDEN-MARKER"],
    allowed_files=["tool.sh", "src/new/b.py", "a.txt"],
    context_files=["z_last.txt", "README.md", "not_there.md"],
    preconditions=[exists("README.md")],
    postconditions=[exists("a.txt"), exists("src/new/b.py"), exists("tool.sh")],
    acceptance_commands=[
        "echo $HOME * 'a;b' && c",
        f'python -c "{SHOUT}"',
        "test -f src/new/b.py",
    ],
)


def proposal(text: str) -> Answer:
    writes = [
        a_write("tool.sh", TOOL + "# new\n", sha(TOOL)),
        a_write("./a.txt", text),
        a_write("src/new/b.py", "B = 1\n"),
    ]
    return Answer(json.dumps(a_proposal(*writes)))


@dataclass
class Passed:
    desk: Desk
    repo: Path
    baseline: str
    run: Run
    before: dict[str, str]
    during: list[dict[str, Any]]


@pytest.fixture(scope="module")
def passed(tmp_path_factory) -> Passed:
    desk = Desk(tmp_path_factory.mktemp("passed") / "desk")
    repo = desk.repo(
        {"README.md": README, "z_last.txt": "Z\n", "tool.sh": TOOL, ".gitignore": ".env\ncache/\n*.log\n"},
        verify=VERIFY,
    )
    (repo / "tool.sh").chmod(0o755)
    baseline = desk.commit_all(repo)
    put(repo / ".env", "SECRET=1\n")
    put(repo / "cache/deep/data.bin", b"\x00\x01")
    (repo / "cache/empty").mkdir()
    (repo / "keep_empty").mkdir()
    before = snapshot(repo)
    during: list[dict[str, Any]] = []

    def look(_record):
        (run_dir,) = (desk.artifacts / "factory").iterdir()
        number = len(during) + 1
        prompt = run_dir / f"attempt_{number}" / "se_prompt.txt"
        during.append(
            {
                "changed": differences(before, snapshot(repo)),
                "prompt": prompt.read_text() if prompt.exists() else None,
                "run_json": read_json(run_dir / "run.json"),
                "order": (run_dir / "work_order.json").exists(),
            }
        )

    steps = [proposal("BADVERIFY\n"), proposal("no marker\n"), proposal("GOODACC ünï\r\nno newline at end")]
    run = factory(desk, repo, ORDER, peeking(look, steps), "--out", desk.root / "out")
    return Passed(desk, repo, baseline, run, before, during)


@pytest.mark.rows("S01", "FC01", "FC02", "FC23", "FC19", "FG05", "FG09", "S04")
def test_the_third_attempt_passes_and_ends_the_run(passed):
    assert passed.run.outcome.exit_code == 0, passed.run.outcome
    assert passed.run.stages == ["verify_failed", "acceptance_failed", None]
    assert [record.path for record in passed.run.requests] == ["/v1/chat/completions"] * 3
    assert passed.run.summary["verdict"] == "PASS"
    assert "PASS" in passed.run.outcome.stdout


@pytest.mark.rows("FC04", "FC22", "FC20", "FC33", "FC18")
def test_defaults_and_settings_are_in_the_request_and_on_record(passed):
    body = passed.run.requests[0].body
    assert (body["model"], body["temperature"]) == ("gpt-5.2", 0)
    summary = passed.run.summary
    wanted = {
        "run_id": passed.run.run_dir.name,
        "work_order_id": "WO-03",
        "llm_model": "gpt-5.2",
        "llm_temperature": 0,
        "max_attempts": 5,
        "timeout_seconds": 600,
        "baseline_commit": passed.baseline,
        "rollback_failed": False,
    }
    assert {key: summary.get(key) for key in wanted} == wanted
    assert ULID.fullmatch(summary["run_id"])
    record = passed.run.run_json
    assert record["run_id"] == summary["run_id"]
    text = json.dumps(record)
    assert "PASS" in text
    assert "gpt-5.2" in text
    assert '"dirty"' in text
    assert len(re.findall(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", text)) >= 2


@pytest.mark.rows("FC21")
def test_the_work_order_is_kept_with_the_run(passed):
    kept = read_json(passed.run.run_dir / "work_order.json")
    assert kept["id"] == "WO-03"
    assert set(kept["allowed_files"]) == set(ORDER["allowed_files"])


@pytest.mark.rows("S14", "FS11", "FF01", "FF02", "FF04", "FC34")
def test_at_every_request_the_prompt_is_on_disk_and_the_repository_as_it_was(passed):
    assert len(passed.during) == 3
    for number, seen in enumerate(passed.during, start=1):
        # While it works, a run may keep its own notes inside .git; nothing else.
        assert [
            line for line in seen["changed"] if not line.startswith((".git/llmch", ".git/worktrees"))
        ] == []
        assert seen["prompt"] == (passed.run.attempt(number) / "se_prompt.txt").read_text()
        assert seen["order"]
        assert "PASS" not in json.dumps(seen["run_json"])
    assert passed.during[0]["run_json"] != passed.run.run_json


@pytest.mark.rows("FS05", "FS06", "FS07", "FS08", "FS20", "FS22")
def test_the_first_prompt_says_what_the_order_says_and_shows_the_context(passed):
    prompt = passed.during[0]["prompt"]
    assert prompt.strip() in text_of(passed.run.requests[0])
    for marker in (
        "TITLE-MARKER",
        "INTENT-MARKER",
        "NOTES-MARKER",
        "FORBIDDEN-MARKER",
        "README-MARKER",
        "base_sha256",
        sha(README),
        sha("Z\n"),
        "not_there.md",
        EMPTY,
    ):
        assert marker in prompt, marker
    assert prompt.index(sha(README)) < prompt.index(sha("Z\n")), "context sorted by path"
    listed = [prompt.index(path) for path in ("a.txt", "src/new/b.py", "tool.sh")]
    assert listed == sorted(listed), "allowed files sorted by path"
    assert "verify_failed" not in prompt
    assert "{{" not in prompt


@pytest.mark.rows("FS07", "FS21", "FS10", "FF02")
def test_a_retry_is_told_stage_command_exit_code_and_what_was_printed(passed):
    second, third = passed.during[1]["prompt"], passed.during[2]["prompt"]
    for marker in ("verify_failed", "scripts/verify.sh", "7", "VERIFY-ERR", "VERIFY-OUT"):
        assert marker in second, marker
    for marker in ("acceptance_failed", "ACC-ERR", "ACC-OUT", "python -c"):
        assert marker in third, marker
    assert "verify_failed" not in third, "only the last failure is told"
    for prompt in (second, third):
        assert sha(README) in prompt, "context is read anew after the rollback"
        assert "drift" not in prompt


@pytest.mark.rows("FF01", "FF02", "FG11")
def test_the_second_attempt_sees_nothing_of_the_first(passed):
    for number in (2, 3):
        seen = passed.run.artifact(number, "verify_1_stdout.txt")
        assert "VERIFY-OUT" in seen
        assert not re.search(r"\b(junk|noise|empty)\b", seen.replace("keep_empty", "")), seen


@pytest.mark.rows("FS12", "FS13", "FT10", "FT14", "FP16", "FP17", "FM09")
def test_each_attempt_leaves_its_artifacts(passed):
    for number in (1, 2, 3):
        names = {path.name for path in passed.run.attempt(number).iterdir()}
        assert {
            "se_prompt.txt",
            "raw_llm_response.json",
            "proposed_writes.json",
            "write_result.json",
            "verify_result.json",
            "verify_1_stdout.txt",
            "verify_1_stderr.txt",
        } <= names
        result = passed.run.artifact(number, "write_result.json")
        assert result["write_ok"] is True
        assert result["touched_files"] == ["a.txt", "src/new/b.py", "tool.sh"]
        assert result["errors"] == []
        assert "VERIFY-ERR" in passed.run.artifact(number, "verify_1_stderr.txt")
    (first,) = dicts_with(passed.run.artifact(1, "verify_result.json"), "exit_code")
    assert first["exit_code"] == 7
    assert "bash scripts/verify.sh" in json.dumps(first)
    assert any("second" in key or "duration" in key for key in first)


@pytest.mark.rows("FP05", "FP08", "FP09", "FG11")
def test_commands_stop_at_the_first_failure(passed):
    names = {path.name for path in passed.run.attempt(1).iterdir()}
    assert not [name for name in names if name.startswith("acceptance_") and name.endswith(".txt")]
    ran = dicts_with(passed.run.artifact(2, "acceptance_result.json"), "exit_code")
    assert [item["exit_code"] for item in ran] == [0, 1]
    brief = passed.run.brief(2)
    assert brief["exit_code"] == 1
    assert "GOODACC" in brief["command"]
    ran = dicts_with(passed.run.artifact(3, "acceptance_result.json"), "exit_code")
    assert [item["exit_code"] for item in ran] == [0, 0, 0]


@pytest.mark.rows("S19")
def test_no_shell_reads_a_command(passed):
    said = passed.run.artifact(3, "acceptance_1_stdout.txt")
    assert said == "$HOME * a;b && c\n"


@pytest.mark.rows("FF08", "FF09", "FF10", "X04", "X08", "FP01")
def test_each_failed_attempt_has_a_brief_and_the_passing_one_none(passed):
    for number in (1, 2):
        brief = passed.run.brief(number)
        assert {
            "stage",
            "command",
            "exit_code",
            "primary_error_excerpt",
            "constraints_reminder",
        } <= brief.keys()
        assert brief["constraints_reminder"]
    assert passed.run.brief(1)["command"] == "bash scripts/verify.sh"
    assert passed.run.brief(1)["exit_code"] == 7
    assert not (passed.run.attempt(3) / "failure_brief.json").exists()


@pytest.mark.rows("FG10", "FF07", "FF05", "FG04")
def test_the_summary_holds_a_record_per_attempt_and_the_drift(passed):
    attempts = passed.run.summary["attempts"]
    assert len(attempts) == 3
    for record in attempts:
        assert record["touched_files"] == ["a.txt", "src/new/b.py", "tool.sh"]
        assert "proposed_writes.json" in json.dumps(record)
    briefs = [record.get("failure_brief") for record in attempts]
    assert [brief and brief["stage"] for brief in briefs] == ["verify_failed", "acceptance_failed", None]
    drift = attempts[2]["repo_drift"]
    assert {"README.md", "junk/litter.txt"} <= set(drift)
    assert not set(drift) & {"a.txt", "src/new/b.py", "tool.sh"}


@pytest.mark.rows("FB01", "FB07", "FB08", "FB09", "FF06")
def test_the_commit_holds_exactly_the_proposal_on_a_branch_of_its_own(passed):
    git = lambda *args: passed.desk.git(passed.repo, *args)  # noqa: E731  a word for this test alone
    branch = git("symbolic-ref", "--short", "HEAD")
    assert re.fullmatch(r"factory/adhoc/" + ULID.pattern, branch)
    assert git("rev-parse", "main") == passed.baseline
    assert git("rev-list", "--count", f"{passed.baseline}..HEAD") == "1"
    assert git("rev-parse", "HEAD^") == passed.baseline
    changed = git("diff", "--name-status", passed.baseline, "HEAD").splitlines()
    assert changed == ["A\ta.txt", "A\tsrc/new/b.py", "M\ttool.sh"]
    assert "WO-03" in git("log", "-1", "--format=%B")
    summary = passed.run.summary
    assert summary["branch"] == branch
    assert summary["commit"] == git("rev-parse", "HEAD")
    assert summary["repo_tree_hash_after"] == git("rev-parse", "HEAD^{tree}")


@pytest.mark.rows("FT13", "FT11")
def test_content_arrives_as_it_was_given(passed):
    wanted = "GOODACC ünï\r\nno newline at end".encode()
    assert (passed.repo / "a.txt").read_bytes() == wanted
    shown = subprocess.run(
        ["git", "show", "HEAD:a.txt"], cwd=passed.repo, capture_output=True, check=True
    ).stdout
    assert shown == wanted


@pytest.mark.rows("FB11", "FC34", "S20")
def test_after_a_pass_nothing_but_the_proposal_has_changed_in_the_checkout(passed):
    def outside_git(names):
        return {name: what for name, what in names.items() if name.split("/")[0] != ".git"}

    changed = differences(outside_git(passed.before), outside_git(snapshot(passed.repo)))
    assert sorted(line.split(":")[0] for line in changed) == [
        "a.txt",
        "src",
        "src/new",
        "src/new/b.py",
        "tool.sh",
    ]
    assert passed.desk.git(passed.repo, "status", "--porcelain") == ""
    assert (passed.repo / "tool.sh").stat().st_mode & 0o777 == 0o755
    for name in ("config", "hooks", "info"):
        below = {k: v for k, v in passed.before.items() if k.startswith(f".git/{name}")}
        now = {k: v for k, v in snapshot(passed.repo).items() if k.startswith(f".git/{name}")}
        assert below == now
    assert passed.desk.git(passed.repo, "worktree", "list").count("\n") == 0
    assert leftovers(passed.desk) == []


@pytest.mark.rows("FC25", "FC02")
def test_out_holds_a_copy_of_the_whole_run(passed):
    copy = passed.desk.root / "out" / passed.run.run_dir.name
    here = {p.relative_to(passed.run.run_dir): p.read_bytes() for p in files_below(passed.run.run_dir)}
    there = {p.relative_to(copy): p.read_bytes() for p in files_below(copy)}
    assert there.keys() == here.keys()
    assert there[Path("run_summary.json")] == here[Path("run_summary.json")]


@pytest.mark.rows("S16", "S17")
def test_no_escape_when_piped_and_no_key_anywhere(passed):
    assert "\x1b" not in passed.run.outcome.said
    assert KEY not in passed.run.outcome.said
    for path in files_below(passed.desk.root):
        assert KEY.encode() not in path.read_bytes(), path


# --- the one that only fails -------------------------------------------------------------


@dataclass
class Failed:
    desk: Desk
    repo: Path
    run: Run
    changed: list[str]
    remote_changed: list[str]


@pytest.fixture(scope="module")
def failed(tmp_path_factory) -> Failed:
    desk = Desk(tmp_path_factory.mktemp("failed") / "desk")
    repo = desk.repo({"README.md": README, ".gitignore": "*.log\n"}, verify="exit 0\n")
    desk.git(desk.root, "init", "-q", "--bare", "remote.git")
    desk.git(repo, "remote", "add", "origin", str(desk.root / "remote.git"))
    put(repo / "old.log", "ignored\n")
    (repo / "keep_empty").mkdir()
    before, remote_before = snapshot(repo), snapshot(desk.root / "remote.git")
    litter = "import os, subprocess; os.mkdir('d'); open('d/x.log','w'); open('README.md','a').write('x');"
    commit = "subprocess.run(['git','-c','user.name=x','-c','user.email=x','commit','-qam','rogue']);"
    order = a_task(acceptance_commands=["true", f'python -c "{litter} {commit} raise SystemExit(3)"'])
    answer = Answer(json.dumps(a_proposal(a_write("a.txt"))))
    run = factory(desk, repo, order, [answer], "--max-attempts", "3", repeat_last=True)
    return Failed(
        desk,
        repo,
        run,
        differences(before, snapshot(repo)),
        differences(remote_before, snapshot(desk.root / "remote.git")),
    )


@pytest.mark.rows("FC24", "FG06", "FC19", "FE04")
def test_exhausted_attempts_are_a_fail_with_exit_1(failed):
    assert failed.run.outcome.exit_code == 1, failed.run.outcome
    assert len(failed.run.requests) == 3
    assert failed.run.stages == ["acceptance_failed"] * 3
    summary = failed.run.summary
    assert summary["verdict"] == "FAIL"
    assert summary["rollback_failed"] is False
    assert summary["max_attempts"] == 3
    assert len(summary["attempts"]) == 3
    assert "FAIL" in failed.run.outcome.stdout
    assert "FAIL" in json.dumps(failed.run.run_json)


@pytest.mark.rows("FF03", "FF11", "FB17", "X02", "FC34")
def test_after_a_fail_nothing_of_the_repository_has_changed_at_all(failed):
    assert failed.changed == []
    assert failed.remote_changed == []
    assert leftovers(failed.desk) == []


def dicts_with(value: Any, key: str) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value] if key in value else [d for item in value.values() for d in dicts_with(item, key)]
    if isinstance(value, list):
        return [d for item in value for d in dicts_with(item, key)]
    return []
