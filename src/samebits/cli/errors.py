"""How a command that fails says so: one line on stderr, with --json a document on stdout as well, and an exit code.

Knows no command. A caller's mistake is code 2, what could not be judged 3; nothing ends in a traceback."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

import typer

from samebits.native import NativeError
from samebits.records.packages import MissingPackageError
from samebits.records.report import UnjudgedError

SCHEMA: Final = "samebits.error/1"
# Set: an exception that nobody expected is shown with all its calls.
TRACEBACK_VARIABLE: Final = "SAMEBITS_TRACEBACK"
WRONG_USAGE: Final = 2
COULD_NOT_BE_JUDGED: Final = 3
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141
LONGEST_LINE: Final = 2000

# Typer brings its own click in some versions and needs the package in others; this is the base of both.
_UsageError: Final[type[Exception]] = typer.BadParameter.__bases__[0]


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for a document; what is behind -- is another command's."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own


def one_line(message: str) -> str:
    """A message as one line that can be printed, whatever is in it."""
    joined = " ".join(message.split())
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in joined[:LONGEST_LINE])
    return shown if len(joined) <= LONGEST_LINE else f"{shown}..."


def tell(message: str, code: int, *, as_json: bool, kind: str = "error") -> None:
    """The line, and where it is wanted the document."""
    line = one_line(message)
    if as_json:
        said = {"schema": SCHEMA, "error": {"kind": kind, "message": line}, "exit_code": code}
        try:
            print(json.dumps(said, indent=2), flush=True)
        except OSError:
            # On a full disk this may be what went wrong; the line below says so.
            _let_go_of_stdout()
    print(f"samebits: {line}", file=sys.stderr, flush=True)


def between_ranks(as_json: bool) -> Callable[[str, int], None]:
    """The same for a failure between ranks, which ends its process at once."""
    return lambda message, code: tell(message, code, as_json=as_json, kind="ranks")


def end(error: BaseException, *, as_json: bool) -> NoReturn:
    """Ends the process as this error asks for."""
    if isinstance(error, BrokenPipeError):
        _let_go_of_stdout()
        sys.exit(PIPE_CLOSED)
    message, code, kind = _judged(error)
    if code == COULD_NOT_BE_JUDGED and kind == "internal" and os.environ.get(TRACEBACK_VARIABLE):
        raise error
    tell(message, code, as_json=as_json, kind=kind)
    try:
        sys.stdout.flush()
    except OSError:
        _let_go_of_stdout()
    sys.exit(code)


def _let_go_of_stdout() -> None:
    """What is still held back for a stdout that takes no more must not fail a second time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _judged(error: BaseException) -> tuple[str, int, str]:
    """(what to say, exit code, whose mistake it is)."""
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "interrupted", INTERRUPTED, "interrupted"
    if isinstance(error, _UsageError):
        return str(getattr(error, "format_message", error.__str__)()), WRONG_USAGE, "usage"
    if isinstance(error, NativeError):
        return str(error), COULD_NOT_BE_JUDGED, "native"
    if isinstance(error, UnjudgedError):
        return f"could not be judged: {error}", COULD_NOT_BE_JUDGED, "unjudged"
    if isinstance(error, MissingPackageError):
        return str(error), COULD_NOT_BE_JUDGED, "missing"
    if isinstance(error, ValueError):
        return str(error), WRONG_USAGE, "usage"
    if isinstance(error, OSError):
        named = f"{error.filename}: " if error.filename else ""
        return f"{named}{error.strerror or error}", WRONG_USAGE, "file"
    if isinstance(error, MemoryError):
        return "out of memory", COULD_NOT_BE_JUDGED, "memory"
    return (
        f"internal error: {type(error).__name__}: {error} ({TRACEBACK_VARIABLE}=1 shows where)",
        COULD_NOT_BE_JUDGED,
        "internal",
    )
