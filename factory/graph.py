"""Routes and retry: which stage comes after which, and when to stop. The only langgraph."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langsmith.run_helpers import tracing_context

from factory.bench import Attempt, Bench
from factory.defaults import ARTIFACT_FAILURE_BRIEF, ARTIFACT_PROPOSED_WRITES
from factory.nodes_po import po_node
from factory.nodes_se import se_node
from factory.nodes_tr import tr_node
from factory.schemas import AttemptRecord
from shared.events import AttemptFailed, AttemptStarted, RolledBack
from shared.files import save_json

Stage = Callable[[Attempt, Bench], Attempt]


class FactoryState(TypedDict):
    """What travels through the graph: the pass in hand, and the record of those behind it."""

    attempt: Attempt
    attempts: tuple[AttemptRecord, ...]


Graph = CompiledStateGraph[FactoryState, Bench, FactoryState, FactoryState]

_RAISING_SWITCHES = ("LANGCHAIN_TRACING", "LANGCHAIN_HANDLER")

# After a stage the walk goes on in the right column, or to `finalize` when the attempt has failed.
WALK = {"se": "tr", "tr": "po", "po": "finalize"}


def build_graph() -> Graph:
    """The compiled graph: se, tr, po, finalize, with one way back, from finalize to se.

    It holds nothing of a run: `Bench` is the context of an invocation.
    """
    graph: StateGraph[FactoryState, Bench, FactoryState, FactoryState] = StateGraph(
        FactoryState, context_schema=Bench
    )
    stages: dict[str, Stage] = {"se": se_node, "tr": tr_node, "po": po_node}
    for name, stage in stages.items():
        graph.add_node(name, _node(stage))
        onward = WALK[name]
        graph.add_conditional_edges(name, _route_to(onward), sorted({onward, "finalize"}))
    graph.add_node("finalize", _finalize_node)
    graph.add_edge(START, "se")
    graph.add_conditional_edges("finalize", _route_after_finalize, ["se", END])
    return graph.compile()


@dataclass(frozen=True)
class Walked:
    """Where a walk ended: the last pass, and the records of all of them in order."""

    last: Attempt
    attempts: tuple[AttemptRecord, ...]


def walk(graph: Graph, bench: Bench) -> Walked:
    """Run attempts until one passes, none can, or none is left.

    Tracing is off whatever the environment says: a tracing service would get every prompt.
    """
    start: FactoryState = {"attempt": Attempt(index=1), "attempts": ()}
    steps = (len(WALK) + 1) * bench.limits.max_attempts + 1
    with _untraced():
        end = graph.invoke(start, config={"recursion_limit": steps}, context=bench)
    return Walked(end["attempt"], end["attempts"])


@contextmanager
def _untraced() -> Iterator[None]:
    """Inside, no tracer is made; the oldest switch, which only raises by now, is taken away."""
    switches = {name: os.environ.pop(name) for name in _RAISING_SWITCHES if name in os.environ}
    try:
        with tracing_context(enabled=False):
            yield
    finally:
        os.environ.update(switches)


class _Node(Protocol):
    def __call__(self, state: FactoryState, *, runtime: Runtime[Bench]) -> dict[str, Any]: ...


def _node(stage: Stage) -> _Node:
    def node(state: FactoryState, *, runtime: Runtime[Bench]) -> dict[str, Any]:
        bench, attempt = runtime.context, state["attempt"]
        bench.check()
        if stage is se_node:
            bench.emit(AttemptStarted(bench.order.id, attempt.index, bench.limits.max_attempts))
        return {"attempt": stage(attempt, bench)}

    return node


def _route_to(onward: str) -> Callable[[FactoryState], str]:
    def route(state: FactoryState) -> str:
        return onward if state["attempt"].failure is None else "finalize"

    return route


def _finalize_node(state: FactoryState, *, runtime: Runtime[Bench]) -> dict[str, Any]:
    attempt, bench = state["attempt"], runtime.context
    record = _record(attempt, bench)
    attempts = (*state["attempts"], record)
    if attempt.failure is None:
        return {"attempts": attempts}
    save_json(
        bench.attempt_dir(attempt.index) / ARTIFACT_FAILURE_BRIEF, attempt.failure.model_dump(mode="json")
    )
    stage, excerpt = attempt.failure.stage.value, attempt.failure.primary_error_excerpt
    bench.emit(AttemptFailed(attempt.index, stage, excerpt))
    bench.tree.reset()
    bench.emit(RolledBack(bench.tree.baseline))
    if _is_over(attempt, bench):
        return {"attempts": attempts}
    return {"attempts": attempts, "attempt": Attempt(index=attempt.index + 1, previous=attempt.failure)}


def _route_after_finalize(state: FactoryState) -> str:
    # A further attempt has been set up, or the one that was just recorded stands.
    return "se" if state["attempt"].index > len(state["attempts"]) else END


def _is_over(attempt: Attempt, bench: Bench) -> bool:
    assert attempt.failure is not None
    hopeless = attempt.final or not attempt.failure.stage.retryable
    return hopeless or attempt.index >= bench.limits.max_attempts


def _record(attempt: Attempt, bench: Bench) -> AttemptRecord:
    passed = attempt.failure is None
    touched = list(attempt.touched_files)
    proposal = bench.attempt_dir(attempt.index) / ARTIFACT_PROPOSED_WRITES
    return AttemptRecord(
        attempt_index=attempt.index,
        verdict="PASS" if passed else "FAIL",
        proposal_path=None if attempt.proposal is None else str(proposal),
        touched_files=touched,
        write_ok=attempt.write_ok,
        verify_results=list(attempt.verify_results),
        acceptance_results=list(attempt.acceptance_results),
        failure_brief=attempt.failure,
        repo_drift=bench.tree.drift(touched) if passed else [],
        usage=None if attempt.usage is None else attempt.usage.as_json(),
        duration_seconds=round(time.monotonic() - attempt.started, 6),
    )
