"""Make the transcript of an example: run the real tools and answer their prompts from files.

    python examples/record.py NAME [--answers DIR]

An answer is looked up by what is asked: `DIR/plan-1.txt` for the first plan, `DIR/WO-03-2.txt` for the
second attempt at WO-03; where there is no such file, the transcript that exists is asked for the same
subject and attempt. So a changed prompt needs no new answers, only a new run. When an answer is missing,
the prompt is written to `DIR/SUBJECT-ATTEMPT.prompt.txt`, and the run ends there. The transcript is
replaced only when every order has passed.
"""

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from factory.console import narrator
from factory.run import run_one
from factory.sequence import read_plan
from factory.settings import RunSettings
from llmch.demo import find_example, set_stage
from planner.compiler import Settings, compile_plan, read_inputs
from planner.console import narrator as plan_narrator
from shared.console import Console, Level
from shared.events import Bus
from shared.llm import Recorded, Reply, Request, TranscriptError
from shared.process import Interrupt

NOTE = (
    "Answers written by hand to the prompts that llmch sends; the failures among them are part of the script."
)


@dataclass(frozen=True)
class Answers:
    """A model that reads its answers from files, and from the transcript that exists."""

    directory: Path
    transcript: Path

    def __call__(self, request: Request) -> Reply:
        name = f"{request.subject}-{request.attempt}"
        file = self.directory / f"{name}.txt"
        if file.is_file():
            return Reply(file.read_text("utf-8"), model="scripted", finish="stop")
        for call in sorted(self.transcript.glob("*/call-*.json")):
            record = json.loads(call.read_bytes())
            if (record["subject"], record["attempt"]) == (request.subject, request.attempt) and record[
                "reply"
            ]:
                return Reply(record["reply"]["text"], model="scripted", finish="stop")
        self.directory.mkdir(parents=True, exist_ok=True)
        prompt = self.directory / f"{name}.prompt.txt"
        prompt.write_text(request.prompt, "utf-8")
        raise TranscriptError(f"no answer yet: write {file} in answer to {prompt}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("--answers", type=Path, default=Path("answers"))
    options = parser.parse_args()
    example = find_example(options.name)
    model = Answers(options.answers, example.directory / "transcript")
    console = Console(Level.NORMAL, colour=False)
    with tempfile.TemporaryDirectory() as temporary:
        stage = set_stage(example, Path(temporary).resolve())
        made = stage.directory / "transcript"
        inputs = read_inputs(stage.directory / "spec.md", repo=stage.repository)
        recorded = Recorded(model, made / "plan", origin="scripted", note=NOTE)
        artifacts, orders = stage.directory / "artifacts", stage.directory / "orders"
        plan = compile_plan(
            inputs=inputs, llm=recorded, artifacts_root=artifacts, settings=Settings(), outdir=orders,
            emit=Bus(plan_narrator(console)),
        )  # fmt: skip
        if not plan.success:
            console.error(plan.problem or "there is no plan")
            for error in plan.errors:
                console.error(f"{error.code} {error.wo_id} {error.field}: {error.message}")
            return 1
        recorded = Recorded(model, made / "orders", origin="scripted", note=NOTE)
        settings = RunSettings(
            repo=stage.repository,
            artifacts_root=artifacts,
            environment=stage.environment,
            branch="factory/record",
        )
        for order in read_plan(orders):
            code = run_one(settings, order.path, narrator(console), Interrupt(), llm=recorded)
            if code != 0:
                return code
        target = example.directory / "transcript"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made, target)
        calls = len(list(target.glob("*/call-*.json")))
        console.result(f"{example.name}: {calls} calls kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
