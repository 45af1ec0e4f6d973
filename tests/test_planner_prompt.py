"""The planner's prompts, and the repository as they show it."""

from __future__ import annotations

import json
import os
import re

import pytest
from conftest import make_repo, run_git

from factory import defaults as factory_defaults
from planner import defaults
from planner.plan_schema import plan_schema
from planner.prompt_template import (
    PromptInputError,
    as_text,
    bounded,
    load_template,
    read_input,
    render,
    render_revision,
)
from planner.repo_listing import RepositoryError, describe, list_repository, would_be_untracked
from planner.validation import RULES, assess
from shared.template import placeholders


def shipped(spec="# Spec\nA program.", repo_files=None):
    return render(load_template(), spec=spec, repo_files=repo_files)


def worked_example():
    return json.loads(re.search(r"```json\n(.*?)\n```", shipped(), re.DOTALL)[1])


# --- the shipped prompt --------------------------------------------------------------------


def test_the_worked_example_in_the_prompt_passes_every_rule_without_a_warning():
    assert assess(worked_example(), set()).findings == []


def test_the_worked_example_has_exactly_the_form_that_endpoints_are_asked_to_enforce():
    schema = plan_schema()
    order_schema = schema["properties"]["work_orders"]["items"]
    assert list(worked_example()) == schema["required"]
    assert all(list(order) == order_schema["required"] for order in worked_example()["work_orders"])


def test_the_prompt_names_every_code_that_a_plan_can_be_refused_for():
    told = set(re.findall(r"\b[EW]\d{3}\b", shipped()))
    assert told == set(RULES)


@pytest.mark.parametrize(
    "repo_files", [None, frozenset(), frozenset({"a.py"}), frozenset({"scripts/verify.sh"})]
)
def test_the_shipped_prompt_has_no_placeholder_left_over(repo_files):
    assert placeholders(shipped(repo_files=repo_files)) == frozenset()


def test_the_prompt_tells_the_limits_that_the_factory_enforces():
    assert defaults.EXECUTOR_FILE_KB * 1024 == factory_defaults.MAX_FILE_BYTES
    assert defaults.EXECUTOR_ORDER_KB * 1024 == factory_defaults.MAX_PROPOSAL_BYTES
    assert defaults.EXECUTOR_CONTEXT_KB * 1024 == factory_defaults.MAX_CONTEXT_BYTES
    assert defaults.VERIFY_SCRIPT == factory_defaults.VERIFY_SCRIPT


def test_a_spec_that_speaks_of_placeholders_arrives_as_it_was_written():
    spec = "Render {{REPO_FILES}} and {{PRODUCT_SPEC}}, and \\1 \\g<0> too."
    prompt = shipped(spec, frozenset({"secret_name.py"}))
    assert spec in prompt
    assert prompt.count("secret_name.py") == 1


def test_equal_inputs_give_equal_prompts():
    files = [f"src/{name}.py" for name in "zyxabc"]
    assert shipped(repo_files=frozenset(files)) == shipped(repo_files=frozenset(reversed(files)))


def test_the_prompt_lists_the_files_of_the_repository():
    prompt = shipped(repo_files=frozenset({"pyproject.toml", "shop/cart.py"}))
    assert "<repository_files>\npyproject.toml\nshop/cart.py\n</repository_files>" in prompt


@pytest.mark.parametrize(
    ("repo_files", "said"),
    [
        (None, "`scripts/verify.sh` does not exist yet. WO-01 creates it."),
        (frozenset({"a.py"}), "It runs the tests that this repository has already, too."),
        (frozenset({"scripts/verify.sh"}), "`scripts/verify.sh` exists in this repository already."),
    ],
)
def test_the_prompt_says_whether_the_verification_script_is_still_to_be_made(repo_files, said):
    assert said in shipped(repo_files=repo_files)


# --- templates and specs -------------------------------------------------------------------


def test_a_template_of_the_users_own_replaces_the_shipped_one(tmp_path):
    path = tmp_path / "mine.md"
    path.write_text("MARK {{PRODUCT_SPEC}} {{UNKNOWN}} end")
    prompt = render(load_template(path), spec="S", repo_files=None)
    assert prompt == "MARK S {{UNKNOWN}} end"


def test_a_template_without_a_place_for_the_spec_is_refused_by_name(tmp_path):
    path = tmp_path / "mine.md"
    path.write_text("{PRODUCT_SPEC} {{REPO_FILES}}")
    with pytest.raises(PromptInputError, match=r"mine\.md has no \{\{PRODUCT_SPEC\}\}; put it where"):
        load_template(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"\xef\xbb\xbf\n", "is empty"),
        (b"caf\xe9", "is not UTF-8 at byte 3"),
        (b"\xff\xfeS\x00", "is not UTF-8 at byte 0"),
    ],
)
def test_text_that_nothing_can_be_planned_from_is_refused(data, said):
    with pytest.raises(PromptInputError, match=said):
        as_text(data, "--spec x")


def test_a_byte_order_mark_and_other_line_ends_are_no_reason_to_refuse():
    assert as_text(b"\xef\xbb\xbfone\r\ntwo", "--spec x") == "one\r\ntwo"


def test_only_a_regular_file_of_moderate_size_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "big").write_bytes(b"x" * (defaults.MAX_SPEC_BYTES + 1))
    for name, said in [
        ("pipe", "not a regular file"),
        (".", "not a regular file|Is a directory"),
        ("none", "No such file"),
        ("big", "larger than"),
    ]:
        with pytest.raises(PromptInputError, match=said):
            read_input(tmp_path / name, "--spec")


# --- asking again --------------------------------------------------------------------------


def test_a_revision_is_the_whole_first_prompt_and_then_what_was_wrong():
    first = shipped("THE SPEC", frozenset({"kept.py"}))
    revision = render_revision(first, previous='{"marker": 1}', findings=["[E103] WO-02 allowed_files: no"])
    assert revision.startswith(first.rstrip())
    rest = revision[len(first.rstrip()) :]
    assert "- [E103] WO-02 allowed_files: no\n" in rest
    assert '<previous_answer>\n{"marker": 1}\n</previous_answer>' in rest
    assert placeholders(revision) == frozenset()


def test_an_answer_that_speaks_of_placeholders_is_quoted_as_it_was():
    revision = render_revision("first", previous="{{FINDINGS}}", findings=["[E000] not JSON"])
    assert "<previous_answer>\n{{FINDINGS}}\n</previous_answer>" in revision


def test_an_enormous_answer_is_shown_by_its_ends_and_says_what_is_missing():
    shown = bounded("a" * 500 + "b" * 500, max_bytes=100)
    assert shown == "a" * 50 + "\n[… 900 bytes are left out here …]\n" + "b" * 50


def test_a_cut_in_the_middle_of_a_character_leaves_text_that_can_be_sent():
    assert bounded("é" * 100, max_bytes=51).encode()


def test_a_lone_surrogate_in_an_answer_becomes_something_that_can_be_sent():
    assert bounded("x\ud800y") == "x\\ud800y"


def test_no_end_of_findings_is_bounded_and_says_how_many_there_are():
    findings = [f"[E104] WO-{n} allowed_files: no" for n in range(1000)]
    revision = render_revision("first", previous="{}", findings=findings)
    assert revision.count("[E104]") == defaults.MAX_FINDINGS_IN_PROMPT
    assert f"and {1000 - defaults.MAX_FINDINGS_IN_PROMPT} more" in revision


# --- listing a repository ------------------------------------------------------------------


def test_the_files_of_a_git_repository_are_the_tracked_ones(repo, git):
    (repo / "src").mkdir()
    (repo / "src" / "ä b.py").write_text("x")
    git("add", "src")
    (repo / "untracked.py").write_text("x")
    assert list_repository(repo) == {"README.md", "src/ä b.py"}


def test_before_the_first_commit_the_files_are_those_it_would_hold(tmp_path):
    run_git(tmp_path, "init", "-q", "new")
    new = tmp_path / "new"
    (new / ".gitignore").write_text("*.log\n")
    (new / "a.py").write_text("x")
    (new / "b.log").write_text("x")
    assert list_repository(new) == {".gitignore", "a.py"}


def test_a_plain_directory_is_walked_without_its_git_directories(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c.py").write_text("x")
    (tmp_path / "a" / ".git").mkdir()
    (tmp_path / "a" / ".git" / "config").write_text("x")
    (tmp_path / "link").symlink_to("a/b/c.py")
    (tmp_path / "dead").symlink_to("nowhere")
    (tmp_path / "round").symlink_to("a")
    assert list_repository(tmp_path) == {"a/b/c.py", "link"}


def test_a_plain_directory_inside_another_repository_is_not_taken_for_it(repo):
    (repo / "inner").mkdir()
    (repo / "inner" / "x.py").write_text("x")
    assert list_repository(repo / "inner") == {"x.py"}


def test_a_submodule_is_no_file(repo, git, tmp_path):
    make_repo(tmp_path / "lib")
    git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(tmp_path / "lib"), "lib")
    assert list_repository(repo) == {"README.md", ".gitmodules"}


def test_an_inherited_git_dir_does_not_lead_elsewhere(repo, tmp_path, monkeypatch):
    other = make_repo(tmp_path / "other")
    (other / "secret.py").write_text("x")
    run_git(other, "add", "secret.py")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert list_repository(repo) == {"README.md"}


def test_nothing_that_a_repository_configures_is_run(repo, git, tmp_path):
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    git("config", "core.fsmonitor", str(trap))
    list_repository(repo)
    would_be_untracked(repo, repo / "artifacts")
    assert not (tmp_path / "sprung").exists()


def test_what_cannot_be_listed_is_refused_in_one_line_that_names_it(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / ".git").write_text("gitdir: nowhere\n")
    run_git(tmp_path, "init", "-q", "--bare", "bare.git")
    for name, said in [
        ("none", "does not exist"),
        ("file", "is not a directory"),
        ("broken", "git cannot list its files: fatal: not a git repository"),
        ("bare.git", "is a bare repository"),
    ]:
        with pytest.raises(RepositoryError, match=said) as caught:
            list_repository(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_interruption_ends_the_listing(tmp_path):
    class Stop(Exception):
        pass

    def stop():
        raise Stop

    with pytest.raises(Stop):
        list_repository(tmp_path, stop)


def test_a_file_name_that_is_not_utf8_is_listed_and_shown_as_an_escape(repo, git):
    with open(os.fsencode(repo) + b"/odd\xff.py", "wb") as file:
        file.write(b"x")
    git("add", ".")
    files = list_repository(repo)
    assert describe(files).splitlines() == ["README.md", r"odd\udcff.py"]
    assert "odd" in shipped(repo_files=files).encode().decode()


def test_whether_artifacts_would_make_the_repository_untidy_is_asked_of_git(repo, tmp_path):
    (repo / ".gitignore").write_text("artifacts/\n")
    assert not would_be_untracked(repo, repo / "artifacts")
    assert would_be_untracked(repo, repo / "plans")
    assert not would_be_untracked(repo, tmp_path / "plans")


# --- showing it ----------------------------------------------------------------------------


def test_a_listing_is_sorted_and_a_path_a_line():
    assert describe({"b.py", "a/z.py", "a.py"}) == "a.py\na/z.py\nb.py"


def test_a_line_break_in_a_name_does_not_make_two_lines():
    assert describe({"a\nb\x1b[31m.py"}) == r"a\nb\x1b[31m.py"


def test_no_files_are_said_to_be_none():
    assert describe(()) == "(no files)"


def test_what_does_not_fit_is_folded_into_directories_with_counts():
    files = ["README.md", "docs/a.md", *(f"src/deep/m{n}.py" for n in range(500))]
    assert describe(files, max_bytes=300).splitlines() == [
        "README.md",
        "docs/a.md",
        "src/deep/ (500 files directly in it, not listed)",
        "(502 files in all; directories marked `not listed` were folded to keep this short)",
    ]


@pytest.mark.parametrize("max_bytes", [200, 1000, 5000, 20_000])
@pytest.mark.parametrize(
    "files",
    [
        [f"f{n}.py" for n in range(6_000)],
        [f"d{n}/f.py" for n in range(6_000)],
        [f"a{n % 7}/b{n % 31}/c{n % 3}/f{n}.py" for n in range(6_000)],
        ["/".join("deep" for _ in range(200)) + f"/f{n}.py" for n in range(2_000)],
        [f"ü/{n}/ö{n}.py" for n in range(4_000)],
    ],
    ids=["flat", "wide", "tree", "deep", "umlauts"],
)
def test_a_listing_never_exceeds_its_bound(files, max_bytes):
    shown = describe(files, max_bytes)
    assert len(shown.encode()) <= max_bytes
    assert f"({len(files)} files in all" in shown
    assert shown == describe(reversed(files), max_bytes)
