"""What verifies a repository as a whole: its own script, else the default for Python."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from factory.bench import Bench
from factory.defaults import COMPILE_COMMAND, FALLBACK_VERIFY_COMMANDS, VERIFY_COMMAND, VERIFY_SCRIPT


@dataclass(frozen=True)
class Verification:
    """The commands that judge the whole repository, and how the model is told of them."""

    commands: tuple[tuple[str, ...], ...]
    description: str


def verification_of(bench: Bench) -> Verification:
    """What verifies this tree as it is now: the repository's script, else the default for Python."""
    if bench.order.verify_exempt:
        command = _with_python(COMPILE_COMMAND, bench)
        return Verification(
            (command,), f"`{shlex.join(COMPILE_COMMAND)}` (the full verification comes later)"
        )
    if VERIFY_SCRIPT in bench.tree.files:
        return Verification((VERIFY_COMMAND,), f"`{shlex.join(VERIFY_COMMAND)}`")
    commands = tuple(_with_python(command, bench) for command in FALLBACK_VERIFY_COMMANDS)
    described = ", ".join(f"`{shlex.join(command)}`" for command in FALLBACK_VERIFY_COMMANDS)
    promised = {condition.path for condition in bench.order.postconditions}
    if VERIFY_SCRIPT in promised:
        described = f"`{shlex.join(VERIFY_COMMAND)}`, the script that this order writes"
    elif VERIFY_SCRIPT in bench.order.allowed_files:
        described = f"`{shlex.join(VERIFY_COMMAND)}` if you write that script, else {described}"
    return Verification(commands, described)


def _with_python(command: tuple[str, ...], bench: Bench) -> tuple[str, ...]:
    return (bench.fallback_python, *command[1:])
