"""TR: object to a proposal, or write it into the scratch tree."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from factory.bench import Attempt, Bench
from factory.defaults import ARTIFACT_WRITE_RESULT, MAX_JSON_PAYLOAD_BYTES
from factory.schemas import FailureBrief, Stage, WriteProposal, brief
from factory.tree_files import LinkInTheWay, read_file, write_files
from shared.events import StepDone
from shared.files import EMPTY_SHA256, save_json, sha256_bytes
from shared.work_order import WorkOrder, normalize_path

_FAULTS_TOLD = 20


def tr_node(attempt: Attempt, bench: Bench) -> Attempt:
    """Write the proposal, or say why not. Nothing is written while there is any objection."""
    assert attempt.proposal is not None
    proposal = attempt.proposal
    touched = tuple(sorted({write.path for write in proposal.writes}))
    failure = next(objections(attempt, bench), None)
    if failure is None:
        try:
            # Not synced: the tree is thrown away, and the commit is made from the proposal's own bytes.
            files = [(write.path, write.data) for write in proposal.writes]
            write_files(bench.tree.path, files, durable=False)
        except OSError as error:
            failure = brief(Stage.WRITE_FAILED, f"cannot write the proposal: {error}")
    record = {
        "write_ok": failure is None,
        "touched_files": list(touched),
        "errors": [] if failure is None else [failure.primary_error_excerpt],
    }
    save_json(bench.attempt_dir(attempt.index) / ARTIFACT_WRITE_RESULT, record)
    count = f"{len(touched)} file{'s' if len(touched) != 1 else ''}"
    bench.emit(
        StepDone("write", ok=failure is None, detail=count if failure is None else failure.stage.value)
    )
    return replace(attempt, touched_files=touched, write_ok=failure is None, failure=failure)


def objections(attempt: Attempt, bench: Bench) -> Iterator[FailureBrief]:
    """What speaks against writing the proposal, most serious first. Looks, never touches."""
    assert attempt.proposal is not None
    # An answer may hold a hundred thousand writes, and a brief holds a few lines of them.
    faults = list(islice(scope_faults(attempt.proposal, bench.order), _FAULTS_TOLD))
    if faults:
        yield brief(Stage.WRITE_SCOPE_VIOLATION, "\n".join(faults))
        return
    stale = []
    for write in sorted(attempt.proposal.writes, key=lambda write: write.path):
        try:
            data = read_file(bench.tree.path, write.path, max_bytes=MAX_JSON_PAYLOAD_BYTES)
        except LinkInTheWay as error:
            faults.append(f"{write.path}: {error}")
            continue
        except OSError as error:  # a directory has the name, or a file is where a directory should be
            yield brief(Stage.WRITE_FAILED, f"cannot write {write.path}: {error}")
            return
        now = EMPTY_SHA256 if data is None else sha256_bytes(data)
        if write.base_sha256.strip().lower() != now:
            state = "does not exist, so it must be" if data is None else "has now"
            stale.append(f"{write.path}: base_sha256 is {write.base_sha256[:80]!r}, the file {state} {now}")
        elif write.path not in attempt.shown:
            stale.append(f"{write.path}: it could not be shown whole, so it may not be rewritten as a whole")
    if faults:
        yield brief(Stage.WRITE_SCOPE_VIOLATION, "\n".join(faults))
    if stale:
        yield brief(Stage.STALE_CONTEXT, "\n".join(stale))


def scope_faults(proposal: WriteProposal, order: WorkOrder) -> Iterator[str]:
    """Paths that the order does not let the proposal write, a sentence each."""
    allowed = set(order.allowed_files)
    listed = ", ".join(sorted(allowed))
    forbidden = {normalize_path(entry) for entry in order.forbidden}
    spellings: dict[str, str] = {}
    times = Counter(write.path for write in proposal.writes)
    folders = {path[:end] for path in allowed & times.keys() for end, char in enumerate(path) if char == "/"}
    for path in times:
        if path not in allowed:
            yield f"{path}: not in allowed_files ({listed})"
        elif path in forbidden:
            yield f"{path}: the order forbids it"
        if path in folders:
            yield f"{path}: cannot be a file, another write needs it as a directory"
        if times[path] > 1:
            yield f"{path}: written more than once"
        # Two names that a file system may take for one would overwrite each other there.
        folded = unicodedata.normalize("NFC", path).casefold()
        earlier = spellings.setdefault(folded, path)
        if earlier != path:
            yield f"{path}: differs from {earlier} only in case or Unicode form"
