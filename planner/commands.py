"""What an acceptance command runs: its words, the Python code in it, the files it leans on.

Commands are read, never run. What is not understood here is left alone: `python -m`, dynamic imports
and other languages have no findings, because a guess would be worse than silence.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from planner.defaults import VERIFY_SCRIPT
from shared.work_order import normalize_path

_UNQUOTED = re.compile(r"[ !#-&(-\[\]-~]*")  # printable ASCII but for quotes and the backslash
# Where a parse may warn: escapes in strings, numbers that run into a name.
_DOUBTFUL = re.compile(r"\\|[0-9.][A-Za-z]")
_VERIFY_NAME = VERIFY_SCRIPT.rpartition("/")[2]
_PYTHON = re.compile(r"python(?:[0-9]+(?:\.[0-9]+)*)?(?:\.exe)?")
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
# Programs that run the program named after their own options.
_LAUNCHERS = frozenset({"env", "exec", "nice", "nohup", "stdbuf", "time", "timeout"})
_LAUNCHER_ARGUMENT = re.compile(r"-.*|[A-Za-z_][A-Za-z0-9_]*=.*|[0-9.]+[smhd]?", re.DOTALL)
_SHELL_PUNCTUATION = frozenset("();<>|&")
_SHELL_OPTIONS_WITH_VALUE = frozenset({"--rcfile", "--init-file"})
_PYTHON_OPTIONS_WITH_VALUE = frozenset({"--check-hash-based-pycs"})


@dataclass(frozen=True, slots=True)
class Dependency:
    """Something a command needs from the tree: any one of `candidates` (or of `also`) provides it."""

    name: str
    candidates: tuple[str, ...]
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """What an interpreter is told to run: code on the command line, or a script, or neither."""

    code: str | None = None
    code_missing: bool = False
    script: str | None = None
    reads_only: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """What the rules need to know of one acceptance command. Its code is parsed once and not kept."""

    text: str
    words: tuple[str, ...] = ()
    split_error: str | None = None
    code_error: str | None = None
    runs_verification: bool = False
    dependencies: tuple[Dependency, ...] = ()

    @classmethod
    def of(cls, text: str) -> Command:
        """Read a command as the factory will split it. What cannot be split has no words."""
        try:
            # shlex reads one character at a time; half of all commands hold nothing that needs it.
            words = tuple(text.split() if _UNQUOTED.fullmatch(text) else shlex.split(text))
        except ValueError as error:
            return cls(text, split_error=str(error))
        program = _program(words)
        call = _python_call(program)
        code_error, dependencies = _examined(call) if call else (None, _shell_dependencies(program))
        # Most commands never name the script; only those that do are read as shell.
        runs_verification = any(_VERIFY_NAME in word for word in words) and _runs_verification(words)
        return cls(text, words, None, code_error, runs_verification, dependencies)


def extract_file_dependencies(command: str) -> list[str]:
    """The files that may provide what `command` imports or runs; empty when it needs none it names.

    `python -c "import a.b"` gives `a/b.py` and `a/b/__init__.py`; `bash x.sh` and `python x.py` give
    the script. The standard library and paths outside the repository are left out.
    """
    if not isinstance(command, str):
        return []
    return [path for dependency in Command.of(command).dependencies for path in dependency.candidates]


# --- interpreters --------------------------------------------------------------------------


def _name(program: str) -> str:
    return program.rpartition("/")[2]


def _program(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words without launchers in front: `env A=1 timeout 60 python x.py` runs `python x.py`."""
    start = 0
    while start < len(words) and _name(words[start]) in _LAUNCHERS:
        start += 1
        while start < len(words) and _LAUNCHER_ARGUMENT.fullmatch(words[start]):
            start += 1
    return words[start:]


def _python_call(words: tuple[str, ...]) -> Call | None:
    if not words or not _PYTHON.fullmatch(_name(words[0])):
        return None
    arguments = iter(words[1:])
    for word in arguments:
        if not word.startswith("-") or word == "-":
            return Call(script=None if word == "-" else word)
        if word.startswith("--"):
            if word in _PYTHON_OPTIONS_WITH_VALUE:
                next(arguments, None)
            continue
        # Short options come in clusters (`-Ic`); the first that takes a value ends its cluster.
        takes_value = re.search(r"[cmWX]", word)
        if not takes_value:
            continue
        option, value = takes_value.group(), word[takes_value.end() :] or next(arguments, None)
        if option == "c":
            return Call(code=value, code_missing=value is None)
        if option == "m":
            return Call()
    return Call()


def _shell_call(words: tuple[str, ...]) -> Call | None:
    if not words or _name(words[0]) not in _SHELLS:
        return None
    wants_code = reads_only = False
    arguments = iter(words[1:])
    for word in arguments:
        if word in {"--", "-"}:
            word = next(arguments, "")  # noqa: PLW2901 - the word after -- is the script, whatever it looks like
        elif word.startswith("--"):
            if word in _SHELL_OPTIONS_WITH_VALUE:
                next(arguments, None)
            continue
        elif word.startswith(("-", "+")):
            if word[0] == "-" and "s" in word:
                return Call()  # reads its script from stdin, which is closed
            wants_code = wants_code or (word[0] == "-" and "c" in word)
            reads_only = reads_only or (word[0] == "-" and "n" in word)
            if word[-1] in "oO":
                next(arguments, None)
            continue
        if wants_code:
            return Call(code=word, reads_only=reads_only)
        return Call(script=word, reads_only=reads_only)
    return Call()


def _shell_dependencies(words: tuple[str, ...]) -> tuple[Dependency, ...]:
    call = _shell_call(words)
    return () if call is None or call.script is None else tuple(_script_dependency(call.script))


def _runs_verification(words: tuple[str, ...]) -> bool:
    words = _program(words)
    if not words:
        return False
    if normalize_path(words[0]) == VERIFY_SCRIPT:
        return True
    if words[0] in {"source", "."}:
        return len(words) > 1 and normalize_path(words[1]) == VERIFY_SCRIPT
    call = _shell_call(words)
    if call is None or call.reads_only:  # `bash -n` checks the grammar of a script and runs nothing
        return False
    if call.script is not None:
        return normalize_path(call.script) == VERIFY_SCRIPT
    return call.code is not None and any(_runs_verification(part) for part in _shell_parts(call.code))


def _shell_parts(code: str) -> Iterator[tuple[str, ...]]:
    """The simple commands of a piece of shell code, roughly: split at newlines and operators."""
    lexer = shlex.shlex(code.replace("\n", ";"), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    part: list[str] = []
    try:
        for word in lexer:
            if word and set(word) <= _SHELL_PUNCTUATION:
                yield tuple(part)
                part = []
            else:
                part.append(word)
    except ValueError:  # a quote that is never closed: what was read so far still counts
        pass
    yield tuple(part)


# --- Python code ---------------------------------------------------------------------------


def _examined(call: Call) -> tuple[str | None, tuple[Dependency, ...]]:
    """What is wrong with the code of a Python call, and what the code or the script needs."""
    if call.code_missing:
        return "no code follows -c", ()
    if call.script is not None:
        return None, tuple(_script_dependency(call.script))
    tree, error = _parsed(call.code or "")
    # Walking a tree costs more than parsing it, and most code that is tried out imports little.
    return error, tuple(dict.fromkeys(_imports(tree))) if tree and "import" in (call.code or "") else ()


def _parsed(code: str) -> tuple[ast.Module | None, str | None]:
    try:
        if not _DOUBTFUL.search(code):
            return ast.parse(code), None
        with warnings.catch_warnings():
            # A doubtful escape is a warning for whoever runs the code, not for the plan's reader.
            warnings.simplefilter("ignore")
            return ast.parse(code), None
    except SyntaxError as error:
        return None, error.msg + (f" (line {error.lineno})" if error.lineno else "")
    except (RecursionError, MemoryError):  # the parser's words for nesting it cannot follow
        return None, "nested too deeply"
    except ValueError as error:  # NUL, lone surrogates
        return None, str(error)


def _imports(tree: ast.Module) -> Iterator[Dependency]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module(alias.name, ())
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from _module(node.module, tuple(alias.name for alias in node.names))


def _module(name: str, members: tuple[str, ...]) -> Iterator[Dependency]:
    if name.partition(".")[0] in sys.stdlib_module_names:
        return
    path = name.replace(".", "/")
    # `from a import b` also works when `a` is a directory without __init__.py that holds b.
    also = tuple(f"{path}/{member}{end}" for member in members for end in (".py", "/__init__.py"))
    yield Dependency(name, (f"{path}.py", f"{path}/__init__.py"), also)


def _script_dependency(script: str) -> Iterator[Dependency]:
    path = normalize_path(script)
    if path not in {"", "."} and not path.startswith(("/", "../", "~")) and path != "..":
        yield Dependency(path, (path,), (f"{path}/__main__.py",))
