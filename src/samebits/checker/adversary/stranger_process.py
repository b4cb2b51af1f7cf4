"""The process that a stranger's function lives in: imports it once, and is forked for every worker that runs it.

Its parent is `processes.py`. It holds no verdict: it answers messages with raw bits, each under the number it was asked by."""

from __future__ import annotations

import inspect
import json
import os
import resource
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from samebits.checker.adversary.calling import Executor, ReturnedError
from samebits.checker.adversary.frames import BrokenPipeMessageError, receive, send
from samebits.checker.adversary.origins import ImportFailedError, load
from samebits.checker.adversary.watching import numbers
from samebits.checker.targets import positional

MEMORY_BYTES = 8 << 30


def said(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'without a message'}"


def limit_memory() -> None:
    """A function that asks for gigabytes without end must not take the machine with it. CUDA needs address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    most = pages * resource.getpagesize() + MEMORY_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def described(function: Callable[..., Any]) -> dict[str, Any]:
    """What the checker must know before it calls: names and parameters, and the numbers in the code."""
    called = positional(function)
    try:
        parameters: list[list[Any]] | None = [
            [each.name, each.kind.name, each.default is inspect.Parameter.empty]
            for each in inspect.signature(called).parameters.values()
        ]
    except (TypeError, ValueError):
        parameters = None  # a builtin that does not tell
    own = getattr(function, "__name__", type(function).__name__)
    return {"ok": True, "own_name": own, "parameters": parameters, "numbers": numbers(function)}


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
    if "allocate memory" in str(error):
        return {"unjudged": f"ran out of memory: {said(error)}"}
    return {"raised": f"raised {said(error)}"}


def _threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 0


def main(control: socket.socket, request: dict[str, Any]) -> None:
    """Imports the function, says what it is, then forks a worker whenever a pipe for one comes."""
    if request["device"] == "cpu":
        limit_memory()
    before = _threads()
    try:
        function = load(request["origin"])
    except ImportFailedError as error:
        send(control, {"ok": False, "usage": error.usage, "why": str(error)})
        return
    except BaseException as error:
        send(control, {"ok": False, "usage": False, "why": f"cannot be imported: {said(error)}"})
        return
    # Threads that the module started do not live on in a fork, nor does a CUDA context: then each worker is a new process.
    forks = _threads() <= before and request["device"] == "cpu"
    send(control, {**described(function), "forks": forks})
    called = positional(function)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 16, 1)
        if not message:
            return
        if message.startswith(b"wait"):
            _, status = os.waitpid(int(message[4:]), 0)
            control.sendall(f"{status:>15}\n".encode())
            continue
        pid = os.fork() if forks else 0
        if not pid:
            if forks:
                control.close()
                os.setpgid(0, 0)
            serve(socket.socket(fileno=descriptors[0]), Executor(called, request["device"]))
            os._exit(0)
        os.close(descriptors[0])
        control.sendall(f"{pid:>15}\n".encode())


if __name__ == "__main__":
    # No user's folder shadows our own modules: it joins the path only now.
    request = json.loads(sys.argv[2])
    sys.path[:0] = request["path"]
    main(socket.socket(fileno=int(sys.argv[1])), request)
    os._exit(0)
