"""The planner's numbers, names and exit codes."""

from __future__ import annotations

from enum import IntEnum

# --- the model -----------------------------------------------------------------------------

DEFAULT_MODEL = "gpt-5.2-codex"
DEFAULT_REASONING_EFFORT = "medium"
DEFAULT_MAX_OUTPUT_TOKENS = 64000
INCOMPLETE_BUDGET_FACTOR = 2  # an answer that was cut is asked for once more, with exactly twice the budget

MAX_COMPILE_ATTEMPTS = 5  # one generation and four revisions
MAX_JSON_PAYLOAD_BYTES = 10 * 1024 * 1024

# --- transport -----------------------------------------------------------------------------

# A plan for a large spec at high effort can think for tens of minutes; an hour is a bound, not a goal.
DEFAULT_TIMEOUT_SECONDS = 3600.0
CONNECT_TIMEOUT_SECONDS = 5.0
# Silence between two bytes. Keep-alives reset it, which is why the total deadline above exists.
READ_TIMEOUT_SECONDS = 600.0
POLL_INTERVAL_SECONDS = 0.5
POLL_INTERVAL_CAP_SECONDS = 10.0  # a background answer is polled less often the longer it takes

TRANSPORT_RETRIES = 3  # tries in all, the first included
BACKOFF_BASE_SECONDS = 0.5
BACKOFF_CAP_SECONDS = 8.0

# --- the plan ------------------------------------------------------------------------------

# Commands are started without a shell, so these would arrive as plain arguments.
SHELL_OPERATOR_TOKENS = frozenset({"|", "||", "&&", ";", ">", ">>", "<", "<<"})
VERIFY_SCRIPT = "scripts/verify.sh"

# What the executor of an order can be shown and may write, in KB of 1024 bytes. The factory sets these;
# the planner tells its model of them (a test compares the two).
EXECUTOR_CONTEXT_KB = 200
EXECUTOR_FILE_KB = 200
EXECUTOR_ORDER_KB = 500

# --- files ---------------------------------------------------------------------------------

DEFAULT_TEMPLATE = "PLANNER_PROMPT.md"  # beside this module, also in an installed package
REVISION_TEMPLATE = "REVISION_PROMPT.md"
COMPILE_DIR = "compile"
OUTPUT_DIR = "output"
MANIFEST_FILE = "WORK_ORDERS_MANIFEST.json"
COMPILE_SUMMARY_FILE = "compile_summary.json"
VALIDATION_ERRORS_FILE = "validation_errors.json"
WORK_ORDER_GLOB = "WO-*.json"

# Of one attempt; `format(attempt=N)`, counted from 1.
PROMPT_FILE = "prompt_attempt_{attempt}.txt"
RAW_RESPONSE_FILE = "llm_raw_response_attempt_{attempt}.txt"
REASONING_FILE = "llm_reasoning_attempt_{attempt}.txt"
RAW_MANIFEST_FILE = "manifest_raw_attempt_{attempt}.json"
ATTEMPT_ERRORS_FILE = "validation_errors_attempt_{attempt}.json"
CALL_FILE = "llm_call_attempt_{attempt}.json"

# --- the repository as the model sees it -----------------------------------------------------

# About 15,000 tokens: the names of some 2,000 files, and still a small part of a prompt.
MAX_REPO_LISTING_BYTES = 60 * 1024
MAX_REPO_FILES = 1_000_000  # beyond this a plain directory was named by mistake, such as / or a home
GIT_TIMEOUT_SECONDS = 60.0
# More than any answer within the doubled output budget has: a plan to be revised is shown whole, and
# only an endpoint that babbles is cut.
MAX_PREVIOUS_ANSWER_BYTES = 600 * 1024
MAX_FINDINGS_IN_PROMPT = 300
# Specs and templates are prose; what is larger was pointed at by mistake.
MAX_SPEC_BYTES = 10 * 1024 * 1024


class Exit(IntEnum):
    """How the planner ends; callers may rely on each number."""

    OK = 0
    ERROR = 1  # refused, unreadable, unwritable
    INVALID_PLAN = 2  # still invalid after the last attempt
    ENDPOINT = 3  # the model could not be asked, a missing key included
    NOT_JSON = 4  # the last answer held no JSON object
    USAGE = 64  # unknown flag, missing value
    INTERRUPTED = 130
    TERMINATED = 143
