"""shared/console: what reaches the terminal."""

import io
import subprocess
import sys

import pytest

from shared.console import Console, Level, printable, wants_colour


class Terminal(io.StringIO):
    def isatty(self):
        return True


def said(level, colour=False):
    story, answer = io.StringIO(), io.StringIO()
    console = Console(level, colour, story, answer)
    console.header("run")
    console.kv("order", "WO-01")
    console.attempt_start(1, 5)
    console.step("verify", ok=False, detail="pytest")
    console.detail("more")
    console.error_block("verify_failed", "one\ntwo")
    console.rollback_notice("0123456789abcdef")
    console.fragment("thinking")
    console.warning("careful")
    console.error("wrong")
    console.verdict("FAIL", ok=False)
    return story.getvalue(), answer.getvalue()


def test_quiet_says_verdict_warnings_and_errors_only():
    assert said(Level.QUIET) == ("warning: careful\nerror: wrong\n", "FAIL\n")


def test_each_level_says_at_least_what_the_one_below_says():
    quiet, normal, verbose = (len(said(level)[0]) for level in Level)
    assert quiet < normal < verbose


def test_without_colour_there_is_no_escape():
    assert "\x1b" not in "".join(said(Level.VERBOSE))


def test_with_colour_there_are_escapes():
    assert "\x1b[31m" in said(Level.NORMAL, colour=True)[0]


@pytest.mark.parametrize(
    ("stream", "environment", "expected"),
    [
        (io.StringIO(), {}, False),
        (Terminal(), {}, True),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_is_for_terminals_unless_the_environment_says_otherwise(stream, environment, expected):
    assert wants_colour(stream, environment) is expected


@pytest.mark.parametrize("text", ["\x1b[2J", "\x07", "\r", "\x9b31m", "\u202e", "\ud800", "\x00", "\u2028"])
def test_nothing_that_steers_a_terminal_gets_through(text):
    shown = printable(f"a{text}b")
    assert shown.startswith("a\\")
    assert shown.endswith("b")
    assert shown.isprintable()


def test_text_that_people_write_gets_through():
    assert printable("déjà vu\t日本語 🎉\n") == "déjà vu\t日本語 🎉\n"


def test_any_text_can_be_said_in_any_locale():
    raw = io.BytesIO()
    console = Console(Level.NORMAL, False, io.TextIOWrapper(raw, encoding="ascii"), io.StringIO())
    console.info("naïve → 日本")
    assert raw.getvalue() == b"na\\xefve \\u2192 \\u65e5\\u672c\n"


def test_running_text_ends_before_the_next_line_begins():
    story = io.StringIO()
    console = Console(Level.NORMAL, False, story, io.StringIO())
    console.fragment("thin")
    console.fragment("king")
    console.info("next")
    assert story.getvalue() == "thinking\nnext\n"


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">/dev/full", "2>/dev/full", "| true"])
def test_a_stream_that_is_gone_changes_no_exit_code(redirection):
    script = (
        "from shared.console import Console; c = Console(); c.info('a'); c.verdict('b', ok=True); c.info('c')"
    )
    command = f'set -o pipefail; "{sys.executable}" -c "{script}" {redirection}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
