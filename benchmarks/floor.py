"""One work order without a harness: ask, write, run the checks, commit. The least that it can take.

A script of its own, run as `python floor.py --repo REPO --work-order ORDER` and imported by nobody.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit


def main(repo: Path, order_file: Path) -> None:
    """Do the work; any failure ends in a traceback."""
    order = json.loads(order_file.read_bytes())
    answer = ask(os.environ["OPENAI_BASE_URL"], order["intent"])
    for write in answer["writes"]:
        path = repo / write["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(write["content"], encoding="utf-8")
    commands = [["bash", "scripts/verify.sh"], *map(shlex.split, order["acceptance_commands"])]
    git = ["git", "-c", "core.hooksPath=/dev/null"]
    paths = [write["path"] for write in answer["writes"]]
    commands += [[*git, "checkout", "-q", "-b", "work"], [*git, "add", "--", *paths]]
    commands += [[*git, "commit", "-q", "-m", f"{order['id']}: {order['title']}"]]
    for command in commands:
        subprocess.run(command, cwd=repo, check=True, stdin=subprocess.DEVNULL, capture_output=True)


def ask(url: str, prompt: str) -> dict:
    """The model's answer, by a plain POST."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    body = json.dumps({"model": "instant", "messages": [{"role": "user", "content": prompt}]})
    connection.request("POST", f"{parts.path}/chat/completions", body, {"content-type": "application/json"})
    reply = json.loads(connection.getresponse().read())
    return json.loads(reply["choices"][0]["message"]["content"])


if __name__ == "__main__":
    _, _, repo_flag, _, order_flag = sys.argv
    main(Path(repo_flag), Path(order_flag))
