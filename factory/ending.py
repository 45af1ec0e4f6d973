"""How a command ends: an error becomes one line and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from factory.bench import WallLimitReached
from factory.defaults import Exit
from factory.git import GitError, Refused
from factory.records import Unrecorded
from shared.console import Console
from shared.process import Interrupted


def ending_of(work: Callable[[], int], console: Console, *, debug: bool) -> int:
    """The exit code of `work`, or of the error that ended it, told in one line.

    The one handler at the very outside: nothing below it prints an error or ends the process.
    """
    try:
        return work()
    except (Refused, GitError) as refusal:  # git that cannot be asked, before a run has begun
        console.error(str(refusal))
        return Exit.FAIL
    except Unrecorded as problem:
        console.error(str(problem))
        return Exit.CRASH
    except WallLimitReached:
        console.error("reached --max-wall while waiting for another run; nothing was done")
        return Exit.BUDGET
    except Interrupted as interruption:
        console.error(f"{interruption}; llmch changed nothing in the repository")
        return interruption.exit_code
    except Exception as error:  # noqa: BLE001  what nobody foresaw, outside of a run that could record it
        if debug:
            traceback.print_exc(file=sys.stderr)
        console.error(f"{type(error).__name__}: {error} (--debug shows where)")
        return Exit.CRASH
