"""SE: check that the order can start, show the model what it needs, read its proposal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources

import pydantic

from factory.bench import Attempt, Bench
from factory.defaults import (
    ARTIFACT_PROPOSED_WRITES,
    ARTIFACT_RAW_RESPONSE,
    ARTIFACT_SE_PROMPT,
    MAX_CONTEXT_BYTES,
    MAX_FILE_BYTES,
    MAX_JSON_PAYLOAD_BYTES,
    MAX_PROPOSAL_BYTES,
    MAX_RAW_ANSWER_EXCERPT_CHARS,
)
from factory.schemas import FailureBrief, Stage, WriteProposal, brief, excerpt_of, proposal_schema
from factory.scratch import ScratchTree
from factory.tree_files import NotAFile, read_file
from factory.verification import verification_of
from shared.answers import json_object_in
from shared.events import ModelAnswered, ModelAsked, StepDone
from shared.files import EMPTY_SHA256, JsonError, save_json, sha256_bytes, write_text
from shared.llm import AnswerCut, AnswerRefused, LLMError, Reply, Request
from shared.template import render
from shared.work_order import WorkOrder, problems_of

_TEMPLATE = resources.files("factory").joinpath("FACTORY_PROMPT.md").read_text("utf-8")
_VOLATILE = "[output of the command]"


def se_node(attempt: Attempt, bench: Bench) -> Attempt:
    """Ask for a proposal. The attempt comes back with one, or with a failure.

    The prompt is on disk before it is sent and the raw reply before it is read. The model is never
    asked when a precondition does not hold.
    """
    if unmet := list(unmet_preconditions(bench)):
        excerpt = "PLANNER-CONTRACT BUG: " + "; ".join(unmet)
        return replace(attempt, failure=brief(Stage.PREFLIGHT, excerpt))
    context = read_context(bench.order, bench.tree)
    request = build_request(bench, attempt.index, attempt.previous, context)
    attempt = replace(attempt, shown={file.path: file.sha256 for file in context if file.whole})
    folder = bench.attempt_dir(attempt.index)
    write_text(folder / ARTIFACT_SE_PROMPT, request.prompt)
    size = len(request.prompt.encode("utf-8", "backslashreplace"))
    bench.emit(ModelAsked(request.role, request.subject, request.attempt, size))
    try:
        reply = bench.llm(request)
    except (AnswerCut, AnswerRefused) as error:
        failure = brief(Stage.LLM_OUTPUT_INVALID, str(error))
        return replace(attempt, failure=failure, usage=error.usage)
    except LLMError as error:
        failure = brief(Stage.EXCEPTION, str(error))
        return replace(attempt, failure=failure, final=error.final, usage=error.usage)
    save_json(folder / ARTIFACT_RAW_RESPONSE, reply.as_json())
    bench.check()
    usage = reply.usage
    tokens = None if usage is None else usage.as_json()
    bench.emit(ModelAnswered("se", bench.order.id, attempt.index, reply.seconds, tokens))
    attempt = replace(attempt, usage=usage)
    proposal = parse_proposal(reply)
    if isinstance(proposal, FailureBrief):
        return replace(attempt, failure=proposal)
    save_json(folder / ARTIFACT_PROPOSED_WRITES, proposal.model_dump())
    bench.emit(StepDone("proposal", ok=True, detail=proposal.summary))
    return replace(attempt, proposal=proposal)


def unmet_preconditions(bench: Bench) -> Iterator[str]:
    """What the order needs and the tree does not give, a sentence each."""
    for condition in bench.order.preconditions:
        if not bench.holds(condition):
            problem = "does not exist" if condition.kind == "file_exists" else "exists already"
            yield f"precondition {condition.kind} {condition.path}: it {problem} in the repository"


def parse_proposal(reply: Reply) -> WriteProposal | FailureBrief:
    """The proposal in a reply, or what is wrong with it, in words for the model."""
    try:
        return WriteProposal.model_validate(json_object_in(reply.text, max_bytes=MAX_JSON_PAYLOAD_BYTES))
    except JsonError as error:
        problem = f"the answer is not one JSON object: {error}"
    except pydantic.ValidationError as error:
        problem = "the answer does not have the required form: " + _first_faults(error)
    start = excerpt_of(reply.text, MAX_RAW_ANSWER_EXCERPT_CHARS)
    return brief(Stage.LLM_OUTPUT_INVALID, f"{problem}\nThe answer was:\n{start}")


def _first_faults(error: pydantic.ValidationError, most: int = 5) -> str:
    faults = [f"{problem.field or 'the object'} {problem.message}" for problem in problems_of(error)]
    more = f"; and {len(faults) - most} more" if len(faults) > most else ""
    return "; ".join(faults[:most]) + more


# --- context -----------------------------------------------------------------------------


@dataclass(frozen=True)
class ContextFile:
    """One file as the model is shown it. `whole` is whether every byte of it is in the prompt."""

    path: str
    sha256: str
    text: str
    whole: bool
    note: str = ""


def read_context(order: WorkOrder, tree: ScratchTree) -> list[ContextFile]:
    """The files the model sees, sorted by path, at most `MAX_CONTEXT_BYTES` of contents in all.

    Context files come first when room is shared out; allowed files that exist follow, because a
    file can only be rewritten whole by someone who has seen it whole.
    """
    wanted = [*sorted(set(order.context_files)), *sorted(set(order.allowed_files) - set(order.context_files))]
    left = MAX_CONTEXT_BYTES
    found = []
    for path in wanted:
        file = _context_file(path, tree, left)
        left -= len(file.text.encode("utf-8")) if file.text else 0
        found.append(file)
    return sorted(found, key=lambda file: file.path)


def _context_file(path: str, tree: ScratchTree, room: int) -> ContextFile:
    try:
        data = read_file(tree.path, path, max_bytes=MAX_JSON_PAYLOAD_BYTES + 1)
    except (NotAFile, OSError) as error:
        return ContextFile(path, "", "", whole=False, note=f"cannot be shown: {error}")
    if data is None:
        return ContextFile(path, EMPTY_SHA256, "", whole=True, note="does not exist yet")
    if len(data) > MAX_JSON_PAYLOAD_BYTES:
        limit = f"{MAX_JSON_PAYLOAD_BYTES // 1024 // 1024} MB"
        note = f"larger than {limit}: not shown, may not be rewritten"
        return ContextFile(path, "", "", whole=False, note=note)
    digest = sha256_bytes(data)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        note = f"{len(data)} bytes that are not UTF-8 text: not shown, may not be rewritten"
        return ContextFile(path, digest, "", whole=False, note=note)
    if len(data) <= room:
        return ContextFile(path, digest, text, whole=True)
    note = f"only the first {room} of {len(data)} bytes are shown: may not be rewritten"
    return ContextFile(path, digest, data[:room].decode("utf-8", "ignore"), whole=False, note=note)


# --- prompt ------------------------------------------------------------------------------


def build_request(
    bench: Bench, index: int, previous: FailureBrief | None, context: list[ContextFile]
) -> Request:
    """The whole question. Equal inputs give an equal prompt; lists that have no order are sorted."""
    order = bench.order
    values = {
        "ID": order.id,
        "TITLE": order.title,
        "INTENT": order.intent,
        "ALLOWED_FILES": _bullets(sorted(order.allowed_files)),
        "POSTCONDITIONS": _bullets([f"{c.kind}: {c.path}" for c in order.postconditions]),
        "VERIFICATION": verification_of(bench).description,
        "ACCEPTANCE_COMMANDS": _bullets(order.acceptance_commands),
        "FORBIDDEN": _bullets(order.forbidden),
        "NOTES": order.notes or "(none)",
        "CONTEXT": "\n".join(_shown(file, file.path in order.allowed_files) for file in context),
        "EMPTY_SHA256": EMPTY_SHA256,
        "MAX_FILE_KB": str(MAX_FILE_BYTES // 1024),
        "MAX_TOTAL_KB": str(MAX_PROPOSAL_BYTES // 1024),
    }
    stable = None
    if previous is not None and previous.command is not None:
        stable = render(_TEMPLATE, {**values, "FAILURE": _told(previous, _VOLATILE)})
    failure = "" if previous is None else _told(previous, previous.primary_error_excerpt)
    prompt = render(_TEMPLATE, {**values, "FAILURE": failure})
    return Request("se", prompt, order.id, index, schema=proposal_schema(), stable=stable)


def _bullets(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "(none)"


def _shown(file: ContextFile, writable: bool) -> str:
    use = "may be written" if writable else "for reading only"
    head = f"### {file.path}\nsha256: {file.sha256 or '(none)'}\n({use})"
    if file.note:
        head += f"\n({file.note})"
    if not file.text:
        return head + "\n"
    # A fence longer than any in the file, so that the file's own fences end nothing.
    fence = "```"
    while fence in file.text:
        fence += "`"
    end = "" if file.text.endswith("\n") else "\n(no newline at the end)\n"
    return f"{head}\n{fence}\n{file.text}{end}{fence}\n"


def _told(previous: FailureBrief, excerpt: str) -> str:
    lines = [
        "# The previous attempt failed",
        "All its writes were rolled back; the files above are again as they were before it.",
        f"stage: {previous.stage.value}",
    ]
    if previous.command is not None:
        lines.append(f"command: {previous.command}")
    if previous.exit_code is not None:
        lines.append(f"exit code: {previous.exit_code}")
    return "\n".join([*lines, f"rule: {previous.constraints_reminder}", "what was seen:", excerpt, "", ""])
