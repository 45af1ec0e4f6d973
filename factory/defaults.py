"""Numbers and names of the factory. Sizes are 1024-based, times are seconds."""

from __future__ import annotations

from enum import IntEnum

DEFAULT_LLM_MODEL = "gpt-5.2"
DEFAULT_LLM_TEMPERATURE = 0.0
DEFAULT_MAX_ATTEMPTS = 5
DEFAULT_TIMEOUT_SECONDS = 600.0
"""Bound of one command and of one model call, retries and waiting included."""
DEFAULT_MAX_WALL_SECONDS = 4 * 3600.0
"""Bound of a whole run; a run that reaches it ends as FAIL with exit code 6."""
PUSH_TIMEOUT_SECONDS = 120.0

MAX_FILE_BYTES = 200 * 1024
MAX_PROPOSAL_BYTES = 500 * 1024
MAX_CONTEXT_BYTES = 200 * 1024
MAX_JSON_PAYLOAD_BYTES = 10 * 1024 * 1024
MAX_EXCERPT_CHARS = 2000
MAX_RAW_ANSWER_EXCERPT_CHARS = 500

GIT_BRANCH_PREFIX = "factory/"
ADHOC_BRANCH_PART = "adhoc"

VERIFY_SCRIPT = "scripts/verify.sh"
VERIFY_COMMAND = ("bash", VERIFY_SCRIPT)
COMPILE_COMMAND = ("python", "-m", "compileall", "-q", ".")
FALLBACK_VERIFY_COMMANDS = (
    COMPILE_COMMAND,
    ("python", "-m", "pip", "--version"),
    ("python", "-m", "pytest", "-q"),
)
# langsmith, which comes with langgraph, registers a pytest plugin that costs every start of pytest
# more than a second; naming a plugin that is not there is harmless.
PYTEST_ADDOPTS = "-p no:cacheprovider -p no:langsmith_plugin"

ARTIFACT_RUN_SUMMARY = "run_summary.json"
ARTIFACT_WORK_ORDER = "work_order.json"
ARTIFACT_SE_PROMPT = "se_prompt.txt"
ARTIFACT_RAW_RESPONSE = "raw_llm_response.json"
ARTIFACT_PROPOSED_WRITES = "proposed_writes.json"
ARTIFACT_WRITE_RESULT = "write_result.json"
ARTIFACT_VERIFY_RESULT = "verify_result.json"
ARTIFACT_ACCEPTANCE_RESULT = "acceptance_result.json"
ARTIFACT_FAILURE_BRIEF = "failure_brief.json"


class Exit(IntEnum):
    """Exit codes of `factory run` and `factory run-all`; a signal ends with 128 + its number."""

    PASS = 0
    FAIL = 1
    CRASH = 2
    BUDGET = 6
    USAGE = 64
