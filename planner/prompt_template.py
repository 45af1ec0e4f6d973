"""Prompts: the template of a plan, and what is asked again when a plan was refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from planner.defaults import (
    DEFAULT_TEMPLATE,
    EXECUTOR_CONTEXT_KB,
    EXECUTOR_FILE_KB,
    EXECUTOR_ORDER_KB,
    MAX_FINDINGS_IN_PROMPT,
    MAX_PREVIOUS_ANSWER_BYTES,
    MAX_SPEC_BYTES,
    REVISION_TEMPLATE,
    SHELL_OPERATOR_TOKENS,
    VERIFY_SCRIPT,
)
from planner.repo_listing import describe
from shared.files import read_regular
from shared.template import placeholders
from shared.template import render as fill
from shared.work_order import MAX_CONTEXT_FILES

SPEC_PLACEHOLDER = "PRODUCT_SPEC"
LISTING_PLACEHOLDER = "REPO_FILES"


class PromptInputError(ValueError):
    """A spec or template that cannot be used. The text is one line: where, what, what to do next."""


@dataclass(frozen=True)
class Template:
    """A prompt with places in it. `data` is the file as it is on disk, for the hash of a plan's inputs."""

    source: str
    data: bytes
    text: str

    def has(self, placeholder: str) -> bool:
        """Whether there is a place for it."""
        return placeholder in placeholders(self.text)


def load_template(path: Path | None = None) -> Template:
    """The template in `path`, or the one that is shipped. Raises `PromptInputError`."""
    if path is None:
        source = f"planner/{DEFAULT_TEMPLATE}"
        data = resources.files("planner").joinpath(DEFAULT_TEMPLATE).read_bytes()
    else:
        source = str(path)
        data = read_input(path, "--template")
    template = Template(source, data, as_text(data, f"--template {source}"))
    if not template.has(SPEC_PLACEHOLDER):
        raise PromptInputError(
            f"--template {source} has no {{{{{SPEC_PLACEHOLDER}}}}}; put it where the spec belongs"
        )
    return template


def read_input(path: Path, flag: str) -> bytes:
    """The bytes of a regular file that the user named with `flag`. Raises `PromptInputError`."""
    try:
        data = read_regular(path, max_bytes=MAX_SPEC_BYTES + 1)
    except OSError as error:
        # read_regular's own refusal carries no errno.
        reason = error.strerror or "not a regular file"
        raise PromptInputError(f"{flag} {path} cannot be read ({reason}); check the path") from None
    if len(data) > MAX_SPEC_BYTES:
        raise PromptInputError(f"{flag} {path} is larger than {MAX_SPEC_BYTES} bytes; is it the right file?")
    return data


def as_text(data: bytes, name: str) -> str:
    """Text that is not blank, without a byte order mark. Raises `PromptInputError`."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptInputError(f"{name} is not UTF-8 at byte {error.start}; save it as UTF-8") from None
    if not text.strip():
        raise PromptInputError(f"{name} is empty; nothing can be planned from it")
    return text


# --- the first question ------------------------------------------------------------------


def render(template: Template, *, spec: str, repo_files: frozenset[str] | None) -> str:
    """The first prompt of a plan. `repo_files` is None when no repository was named.

    Equal inputs give equal text. Places that the template does not have are simply not filled.
    """
    return fill(
        template.text,
        {
            SPEC_PLACEHOLDER: spec.strip("\n"),
            LISTING_PLACEHOLDER: _listing(repo_files),
            "VERIFY_STATE": _verify_state(repo_files),
            "VERIFY_SCRIPT": VERIFY_SCRIPT,
            "SHELL_OPERATORS": " ".join(sorted(SHELL_OPERATOR_TOKENS)),
            "REPO_GUIDE": _guide(repo_files),
            "MAX_CONTEXT_FILES": str(MAX_CONTEXT_FILES),
            "MAX_CONTEXT_KB": str(EXECUTOR_CONTEXT_KB),
            "MAX_FILE_KB": str(EXECUTOR_FILE_KB),
            "MAX_ORDER_KB": str(EXECUTOR_ORDER_KB),
        },
    )


def _listing(repo_files: frozenset[str] | None) -> str:
    return describe(repo_files or ())


_NEW_REPOSITORY = "It is empty. No file exists before WO-01."

_EXISTING_REPOSITORY = """\
These files exist before WO-01. You see their names only; the executor sees the contents of those that an
order lists.

- Follow what is there: its language, layout, naming and way of testing. Extend it, do not rebuild it.
- A file in this list that an order changes stands in its `allowed_files`, its `postconditions` and its
  `context_files`.
- A file that an order must know but not change (a module it calls, a configuration, an example of a test)
  stands in its `context_files`.
- Never `file_absent` for a file in this list, and no order that creates what exists.
- Existing tests are part of the verification and must keep passing."""


def _guide(repo_files: frozenset[str] | None) -> str:
    return _EXISTING_REPOSITORY if repo_files else _NEW_REPOSITORY


def _verify_state(repo_files: frozenset[str] | None) -> str:
    if repo_files is not None and VERIFY_SCRIPT in repo_files:
        return (
            f"`{VERIFY_SCRIPT}` exists in this repository already. No order creates it; an order may only "
            "change it when the spec asks for that, and then it is an existing file like any other."
        )
    also = " It runs the tests that this repository has already, too." if repo_files else ""
    return f"`{VERIFY_SCRIPT}` does not exist yet. WO-01 creates it.{also}"


# --- the next questions ------------------------------------------------------------------


def render_revision(prompt: str, *, previous: str, findings: Sequence[str], remark: str = "") -> str:
    """The whole first prompt again, then the refused answer and what is wrong with it.

    The rules come first and unchanged: a model that sees only its errors mends those and breaks
    others, and an endpoint that caches prefixes charges less for it.
    """
    told = [f"- {finding}" for finding in findings[:MAX_FINDINGS_IN_PROMPT]]
    if left_out := len(findings) - len(told):
        told.append(f"- and {left_out} more, which are not listed here")
    template = resources.files("planner").joinpath(REVISION_TEMPLATE).read_text("utf-8")
    revision = fill(
        template,
        {
            "FINDINGS": "\n".join(told),
            "REMARK": f"\n{remark}\n" if remark else "",
            "PREVIOUS_ANSWER": bounded(previous),
        },
    )
    return f"{prompt.rstrip()}\n\n{revision}"


def bounded(text: str, max_bytes: int = MAX_PREVIOUS_ANSWER_BYTES) -> str:
    """`text` as UTF-8 can carry it; of a longer one the head and the tail, and how much is missing.

    A lone surrogate arrives as the escape that a model would write for it.
    """
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= max_bytes:
        return data.decode("utf-8")
    half = max_bytes // 2
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n[… {len(data) - 2 * half} bytes are left out here …]\n{tail}"
