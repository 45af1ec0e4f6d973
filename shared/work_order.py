"""The contract: what a work order is, which paths it may name, and how one is read from disk.

Planner and factory read the same models, so what one accepts the other accepts. Nothing here looks
at the file system, but for `load_work_order`, which reads one file.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from shared.files import JsonError, read_json

MAX_CONTEXT_FILES = 10
MAX_COMMAND_BYTES = 128 * 1024 - 1  # Linux starts no program with a longer argument
MAX_WORK_ORDER_BYTES = 10 * 1024 * 1024
MAX_PATH_BYTES = 4096
MAX_COMPONENT_BYTES = 255
GLOB_CHARACTERS = "*?["


class WorkOrderError(ValueError):
    """A work order that cannot be used. The text is one line: where, what, what to do next."""


class GlobInPath(ValueError):
    """A path that is a pattern. Told apart, because the plan rules have a code of their own for it."""


class BadId(ValueError):
    """An id that cannot stand in a branch or file name. The plan rules have a code of their own for it."""


# --- paths ---------------------------------------------------------------------------------

# Paths that are plainly fine and already normalised: no component starts with a dot, no odd character.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
# U+2028/9 end a line for many readers of a log; NUL ends a path for the kernel.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_GLOB = re.compile(r"[*?\[]")
_DRIVE = re.compile(r"[A-Za-z]:")
# HFS+ drops these when it compares names, so `.g<U+200C>it` opens `.git` there.
_HFS_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")


def normalize_path(text: str) -> str:
    """`text` without surrounding whitespace and in its one spelling: `./a//b` is `a/b`.

    Decides nothing: an empty text stays empty, a bad path stays bad (`checked_path` judges).
    """
    text = text.strip()
    # Some releases of Python 3.11 and 3.12 cut a path at its first NUL here, and so would hide it.
    return posixpath.normpath(text) if text and "\0" not in text else text


def checked_path(text: str) -> str:
    """The one spelling of a path below the repository root, or `ValueError` with the reason.

    Refused: absolute paths, drive letters, `..` that leaves the root, the root itself, backslashes,
    control characters, lone surrogates, a leading `:`, glob characters, any component that some file
    system takes for `.git`, and names longer than file systems keep (255 bytes each, 4096 together).
    Surrounding spaces are dropped.
    """
    if _PLAIN.fullmatch(text) and len(text) <= MAX_COMPONENT_BYTES:
        return text
    path = normalize_path(text)
    if problem := next(_problems(text, path), None):
        raise ValueError(f"{quoted(text)} {problem}")
    if _GLOB.search(path):
        raise GlobInPath(f"{quoted(text)} is a pattern; name each file, without any of * ? [")
    return path


def _problems(text: str, path: str) -> Iterator[str]:
    if _SURROGATE.search(text):
        yield "holds a lone surrogate, which is no text"
    if _CONTROL.search(text):
        yield "holds a control character"
    if path in ("", "."):
        yield "names no file; name one below the repository root"
    if "\\" in path:
        yield "holds a backslash; separate directories with /"
    if path.startswith("/") or _DRIVE.match(path):
        yield "is absolute; name it relative to the repository root"
    if path == ".." or path.startswith("../"):
        yield "leaves the repository; name a path below its root"
    if path.startswith(":"):
        yield "starts with a colon, which git reads as magic"
    if path != path.strip():
        yield "starts or ends with a space"
    yield from _component_problems(path.split("/"))


def _component_problems(components: list[str]) -> Iterator[str]:
    if any(_is_dot_git(component) for component in components):
        yield "reaches into .git, which belongs to git alone"
    sizes = [len(component.encode("utf-8", "surrogatepass")) for component in components]
    if max(sizes) > MAX_COMPONENT_BYTES or sum(sizes) + len(sizes) - 1 > MAX_PATH_BYTES:
        yield f"is too long; a name has at most {MAX_COMPONENT_BYTES} bytes, a path {MAX_PATH_BYTES}"


def _is_dot_git(component: str) -> bool:
    # NTFS drops trailing dots and spaces, opens streams after a colon, and knows .git as GIT~1.
    name = _HFS_IGNORED.sub("", component).partition(":")[0].rstrip(". ")
    return name.casefold() in (".git", "git~1")


def quoted(text: str) -> str:
    """`text` as a message shows it: on one line, control characters visible, at most 120 characters."""
    return repr(text if len(text) <= 120 else text[:120] + "…")


# --- the models ----------------------------------------------------------------------------


def _said(text: str) -> str:
    """Text that a process, a commit message and a file can carry."""
    if "\0" in text:
        raise ValueError("holds a NUL character, which no command line or commit can carry")
    if not text.isascii() and _SURROGATE.search(text):
        raise ValueError("holds a lone surrogate, which is no text")
    return text


def _checked_command(text: str) -> str:
    if not text.strip():
        raise ValueError("is blank; name a program to run")
    if len(_said(text).encode()) > MAX_COMMAND_BYTES:
        raise ValueError(f"is longer than {MAX_COMMAND_BYTES} bytes; put the code into a file of the plan")
    return text


_ID = re.compile(r"[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*")


def _checked_id(text: str) -> str:
    if not _ID.fullmatch(text) or len(text) > 64:
        raise BadId(f"{quoted(text)} is no id; use letters, digits and single hyphens, such as WO-01")
    return text


Text = Annotated[str, AfterValidator(_said)]
RepoPath = Annotated[str, AfterValidator(checked_path), Field(description="relative to the repository root")]
Command = Annotated[str, AfterValidator(_checked_command)]


class _Contract(BaseModel):
    # strict: "true" is no boolean and 1 is no text; unknown keys are somebody else's business.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class Condition(_Contract):
    """Something that must be so: a file is there, or nothing of that name is."""

    kind: Literal["file_exists", "file_absent"]
    path: RepoPath

    def holds_in(self, files: Container[str]) -> bool:
        """Whether this is so among `files`: a planned set of paths, or a live tree that answers `in`."""
        return (self.path in files) == (self.kind == "file_exists")


def _only_promises(condition: Condition) -> Condition:
    if condition.kind != "file_exists":
        raise ValueError(f"promises that {condition.path} is absent; a postcondition can only be file_exists")
    return condition


# The published schema is narrower than that of a condition, as the validator is.
Promise = Annotated[
    Condition,
    AfterValidator(_only_promises),
    WithJsonSchema(
        {
            "type": "object",
            "description": "A file that is there once the order is done.",
            "properties": {"kind": {"const": "file_exists"}, "path": {"type": "string"}},
            "required": ["kind", "path"],
        }
    ),
]


class Provenance(_Contract):
    """Where a work order comes from. Written by the planner, never by a model."""

    planner_run_id: Text | None = None
    compile_hash: Text | None = None
    manifest_sha256: Text | None = None
    bootstrap: bool = False


class WorkOrder(_Contract):
    """One step of a plan: what must hold before, what may be written, what must pass, what holds after.

    Frozen; paths come back normalised; lists keep their order; unknown keys are ignored. An order that
    may write no file is refused, because a proposal has at least one write and so could never pass.
    """

    id: Annotated[str, AfterValidator(_checked_id)]
    title: Text
    intent: Text
    preconditions: list[Condition] = []
    postconditions: list[Promise] = []
    allowed_files: Annotated[list[RepoPath], Field(min_length=1)]
    forbidden: list[Text] = []
    acceptance_commands: Annotated[list[Command], Field(min_length=1)]
    context_files: Annotated[list[RepoPath], Field(max_length=MAX_CONTEXT_FILES)]
    notes: Text | None = None
    verify_exempt: bool = False
    provenance: Provenance | None = None


def work_order_json_schema() -> dict[str, Any]:
    """The JSON Schema of a work order file, as `llmch schema` prints it."""
    schema = WorkOrder.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


# --- reading -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a value: the field's JSON path, what is wrong, and the error behind it."""

    field: str
    message: str
    cause: BaseException | None = None


def problems_of(error: ValidationError) -> list[Problem]:
    """What pydantic found, in sentences a person or a model can act on."""
    found = []
    for item in error.errors(include_url=False):
        cause = item.get("ctx", {}).get("error")
        found.append(
            Problem(
                field=_json_path(item["loc"]),
                message=_sentence(item),
                cause=cause if isinstance(cause, BaseException) else None,
            )
        )
    return found


def load_work_order(path: str | Path) -> WorkOrder:
    """Read one work order. Raises `WorkOrderError` with one line that says where, what, and what next."""
    try:
        data = read_json(path, max_bytes=MAX_WORK_ORDER_BYTES)
    except OSError as error:
        raise WorkOrderError(
            f"{path}: cannot be read ({error.strerror or error}); check the path and its permissions"
        ) from None
    except JsonError as error:
        raise WorkOrderError(f"{path}: not one strict JSON object: {error}; correct the file") from None
    if not isinstance(data, dict):
        raise WorkOrderError(f"{path}: must hold a JSON object, not {_kind(data)}; see `llmch schema`")
    try:
        return WorkOrder.model_validate(data)
    except ValidationError as error:
        first, *others = problems_of(error)
        more = f" (and {len(others)} more)" if others else ""
        raise WorkOrderError(f"{path}: {first.field}: {first.message}{more}; see `llmch schema`") from None


def _json_path(location: tuple[int | str, ...]) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removeprefix(".")


_SENTENCES = {
    "missing": "is missing",
    "string_type": "must be a string, not {kind}",
    "list_type": "must be a list, not {kind}",
    "bool_type": "must be true or false, not {kind}",
    "model_type": "must be an object, not {kind}",
    "literal_error": "must be {expected}, not {shown}",
    "too_short": "must not be empty",
    "too_long": "has {actual_length} entries; at most {max_length} are allowed",
    "string_unicode": "holds a lone surrogate, which is no text",
    "value_error": "{error}",
}


def _sentence(item: Mapping[str, Any]) -> str:
    value = item["input"]
    words = {
        "kind": _kind(value),
        "shown": quoted(value) if isinstance(value, str) else _kind(value),
        **item.get("ctx", {}),
    }
    template = _SENTENCES.get(item["type"])
    return template.format(**words) if template else str(item["msg"])


_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    str: "a string",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


def _kind(value: object) -> str:
    return _KINDS.get(type(value), f"a {type(value).__name__}")
