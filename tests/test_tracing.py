"""Prompts never leave for a tracing service, whatever the environment asks langgraph to do."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from loopback import Answer, LoopbackEndpoint

# What the environment would do to a graph that does not say no: without this the test proves nothing.
BARE_GRAPH = """
from typing import TypedDict
from langgraph.graph import END, START, StateGraph
from langchain_core.tracers.langchain import wait_for_all_tracers

class State(TypedDict):
    text: str

graph = StateGraph(State)
graph.add_node("node", lambda state: state)
graph.add_edge(START, "node")
graph.add_edge("node", END)
graph.compile().invoke({"text": "a prompt"})
wait_for_all_tracers()
"""


@pytest.fixture
def tracing_service():
    """A service that counts what it is sent, and the environment that turns tracing on towards it."""
    heard = []

    class Service(BaseHTTPRequestHandler):
        def answer(self):
            heard.append(self.path)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = b"{}"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = answer  # noqa: N815  the names http.server looks for

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    switches = {f"{old}_{name}": value for old in ("LANGSMITH", "LANGCHAIN") for name, value in (
        ("TRACING", "true"), ("TRACING_V2", "true"), ("ENDPOINT", address), ("API_KEY", "a-tracing-key"),
    )}  # fmt: skip
    yield heard, switches
    server.shutdown()
    server.server_close()
    thread.join()


def start(*argv, env):
    command = [sys.executable, "-P", *map(str, argv)]
    return subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_graph_that_does_not_say_no_sends_its_state(tracing_service):
    heard, switches = tracing_service
    done = start("-c", BARE_GRAPH, env=switches)
    assert done.returncode == 0, done.stderr
    assert heard


def test_a_run_sends_nothing_to_a_tracing_service(tracing_service, repo, git, an_order, a_proposal, tmp_path):
    heard, switches = tracing_service
    (repo / "scripts").mkdir()
    (repo / "scripts/verify.sh").write_text("exit 0\n")
    git("add", "-A")
    git("commit", "-q", "-m", "verify")
    order = tmp_path / "WO-01.json"
    order.write_text(json.dumps(an_order()))
    with LoopbackEndpoint([Answer("not json"), Answer(json.dumps(a_proposal()))]) as endpoint:
        env = {**switches, "OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": "a-key"}
        where = ("--repo", repo, "--work-order", order, "--artifacts-dir", tmp_path / "artifacts")
        done = start("-m", "factory", "run", *where, env=env)
    assert done.returncode == 0, done.stderr
    assert len(endpoint.posts) == 2
    assert heard == []
