"""Verbs to child argv: `llmch run …` becomes `python -P -m factory run …`. Starts fast, knows nobody.

Only `sys` and `os` are imported on the way to the child: both are loaded before any program starts,
and `argparse` alone would double the time. Flags are declared in the children and nowhere else.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The directory that holds our packages: a checkout, or site-packages."""

IS_INSTALLED = HOME in (sys.path if sys.flags.safe_path else sys.path[1:])
"""Whether a child that starts with `-P` finds our packages by itself."""

if __name__ == "__main__" and not sys.flags.safe_path and sys.path[0] != HOME:
    # `python -m llmch` puts the current directory first, and what the user works on is none of our
    # libraries: a repository may well have a difflib.py or a planner/ of its own.
    del sys.path[0]
    if not IS_INSTALLED:
        sys.path.append(HOME)

from llmch import __version__  # noqa: E402  the path above comes first

USAGE_ERROR = 64

CHILDREN = {
    "plan": ("planner", "compile"),
    "validate": ("planner", "validate"),
    "explain": ("planner", "explain"),
    "schema": ("planner", "schema"),
    "run": ("factory", "run"),
    "run-all": ("factory", "run-all"),
    "demo": ("llmch.demo",),
}

HELP = """\
usage: llmch VERB [ARGUMENTS] [-- MORE ARGUMENTS]

Turns a product spec into verified commits: a model proposes, deterministic code decides.

  plan      spec -> work orders, checked against each other and the repository
  validate  the same checks over a directory of work orders; no model, no key
  explain   what a finding means: llmch explain E103
  schema    the JSON Schema of a work order
  run       one work order -> one verified commit
  run-all   a directory of work orders -> a branch with a commit for each
  demo      the whole way on a shipped example; no model, no key, no network

  llmch VERB --help   the arguments of a verb
  llmch --version     which llmch this is

start here:
  llmch demo
  llmch plan --spec SPEC.md --repo REPO --outdir ORDERS
  llmch run-all --repo REPO --workdir ORDERS
"""


def main(argv: list[str] | None = None) -> int:
    """Start the child that `argv` asks for. On POSIX this process becomes it and nothing returns."""
    arguments = sys.argv[1:] if argv is None else argv
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if verb in ("--help", "-h"):
        return _say(HELP)
    if verb == "--version":
        return _say(f"llmch {__version__}\n")
    if verb not in CHILDREN:
        _say(_complaint(verb) + "\n\n" + HELP, to_story=True)
        return USAGE_ERROR
    return _become(child_argv(verb, rest), child_environment(os.environ, IS_INSTALLED))


def child_argv(verb: str, rest: list[str]) -> list[str]:
    """The child's command line. The first `--` is ours: what stands behind it is passed on as it is."""
    if "--" in rest:
        cut = rest.index("--")
        rest = [*rest[:cut], *rest[cut + 1 :]]
    return [sys.executable, "-P", "-m", *CHILDREN[verb], *rest]


def child_environment(environment: "Mapping[str, str]", is_installed: bool) -> dict[str, str]:
    """What the child gets: the same environment, with our packages in reach and nobody else's.

    The child starts with `-P`, so a checkout that is not installed must be named to it. An empty
    entry in PYTHONPATH means the current directory, which is what `-P` is there to keep out.
    """
    entries = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if not is_installed:
        entries.insert(0, HOME)
    changed = {key: value for key, value in environment.items() if key != "PYTHONPATH"}
    return {**changed, "PYTHONPATH": os.pathsep.join(entries)} if entries else changed


def _become(argv: list[str], environment: dict[str, str]) -> int:
    try:
        if os.name == "posix":
            # Signals and the exit code are then the child's own.
            os.execve(argv[0], argv, environment)  # noqa: S606  that is what this program is for
        return wait_for(argv, environment)
    except OSError as error:
        _say(f"llmch: cannot start {argv[0]}: {error.strerror}\n", to_story=True)
        return 1


def wait_for(argv: list[str], environment: dict[str, str]) -> int:
    """Run the child beside us and return its exit code: the way of systems without `exec`."""
    import subprocess

    with subprocess.Popen(argv, env=environment) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue  # the child got it too, from the same terminal, and decides


def _complaint(verb: str) -> str:
    if not verb:
        return "llmch: which verb?"
    if verb.startswith("-"):
        return f"llmch: no such option: {verb!a}; options come after the verb"
    import difflib

    close = difflib.get_close_matches(verb, CHILDREN, n=1)
    return f"llmch: no such verb: {verb!a}" + (f"; did you mean {close[0]}?" if close else "")


def _say(text: str, *, to_story: bool = False) -> int:
    stream = sys.stderr if to_story else sys.stdout
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        # The reader went away (`| head`). Without this the interpreter complains at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
