"""`python -m planner`: make plans."""

import os
import sys

# `python -m` puts the current directory first, and a repository with a `json.py` in it must not run
# inside our process. This comes before every other import.
_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if not sys.flags.safe_path and sys.path and sys.path[0] != _HOME:
    sys.path.pop(0)
    if _HOME not in sys.path:
        sys.path.append(_HOME)

import signal  # noqa: E402  after the path is clean

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Until a command listens for signals itself, the imports included, there is nothing to put in order.
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))

from planner.cli import last_words, main  # noqa: E402  after the path is clean

if __name__ == "__main__":
    sys.excepthook = last_words
    code = main()
    # All is done and said: a second Ctrl-C while Python takes itself apart must not change the code.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(code)
