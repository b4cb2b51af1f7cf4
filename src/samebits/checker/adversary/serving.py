"""Answers the checker's messages about one function, and says what the function is; judges nothing.

Whatever the function raises is an answer."""

from __future__ import annotations

import inspect
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from samebits.checker.adversary.calling import Executor, ReturnedError
from samebits.checker.adversary.frames import BrokenPipeMessageError, receive, send
from samebits.checker.adversary.watching import counts_axes, numbers
from samebits.checker.targets import positional

MEMORY_BYTES = 6 << 30


def said(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'without a message'}"


def limit_memory() -> None:
    """A function that asks for gigabytes without end must not take the machine with it. CUDA needs address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    most = pages * resource.getpagesize() + MEMORY_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def parameters_of(function: Callable[..., Any]) -> list[list[Any]] | None:
    """Name, kind and whether it is required, of each; None for a builtin that does not tell."""
    try:
        found = inspect.signature(_written(function)).parameters.values()
    except (TypeError, ValueError):
        return None
    return [[each.name, each.kind.name, each.default is inspect.Parameter.empty] for each in found]


def _written(function: Callable[..., Any]) -> Callable[..., Any]:
    """What its author wrote: a module's call takes anything at all, and hands it to its forward."""
    module = getattr(function, "_orig_mod", function)
    return module.forward if isinstance(module, torch.nn.Module) else function


def described(function: Callable[..., Any]) -> dict[str, Any]:
    """What the checker must know before it calls: names and parameters, and the numbers in the code."""
    own = getattr(function, "__name__", type(function).__name__)
    return {
        "ok": True,
        "own_name": own,
        "parameters": parameters_of(positional(function)),
        "numbers": numbers(function),
        "counts_axes": counts_axes(function),
    }


def serve(pipe: socket.socket, executor: Executor) -> None:
    """Answers calls until the pipe closes. Whatever the function raises is an answer."""
    while True:
        try:
            header, arrays = receive(pipe)
        except BrokenPipeMessageError:
            return
        number = header.pop("number")
        try:
            if header["do"] == "load":
                answer: dict[str, Any] = executor.load(header, arrays)
                results: dict[str, Any] = {}
            elif header["do"] == "missed":
                answer, results = {"missed": executor.watch.missed() if executor.watch else []}, {}
            elif header["do"] == "raw":
                answer, results = executor.raw(header, arrays)
            else:
                answer, results = executor.call(header, arrays)
        except ReturnedError as error:
            answer, results = {"raised": str(error)}, {}
        except (MemoryError, torch.OutOfMemoryError) as error:
            answer, results = {"unjudged": f"ran out of memory: {said(error)}"}, {}
        except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            answer, results = {"unjudged": f"ended its process by {said(error)}"}, {}
        except BaseException as error:
            answer, results = _raised(error), {}
        send(pipe, {**answer, "number": number}, results)


def _raised(error: BaseException) -> dict[str, Any]:
    if "allocate memory" in str(error) or "not enough memory" in str(error):
        return {"unjudged": f"ran out of memory: {said(error)}"}
    return {"raised": f"raised {said(error)}"}
