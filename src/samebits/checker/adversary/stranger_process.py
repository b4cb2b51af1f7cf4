"""The processes that strangers' functions live in: one with torch alone, its forks with a function each, their workers.

Their parent is `processes.py`. They hold no verdict: they answer messages with raw bits, each under the number it was
asked by."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from samebits.checker.adversary.calling import Executor
from samebits.checker.adversary.frames import receive, send
from samebits.checker.adversary.origins import ImportFailedError, load
from samebits.checker.adversary.serving import described, limit_memory, said, serve
from samebits.checker.targets import positional


def _threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 0


def stranger(control: socket.socket) -> None:
    """Imports the function, says what it is, then forks a worker whenever a pipe for one comes."""
    request, _ = receive(control)
    _settle(request)
    before = _threads()
    try:
        function = load(request["origin"])
    except ImportFailedError as error:
        send(control, {"ok": False, "usage": error.usage, "why": str(error)})
        return
    except BaseException as error:
        send(control, {"ok": False, "usage": False, "why": f"cannot be imported: {said(error)}"})
        return
    # Threads that the module started do not live on in a fork, nor does a CUDA context: then it serves by itself.
    forks = _threads() <= before and request["device"] == "cpu"
    send(control, {**described(function), "forks": forks})
    executor = Executor(positional(function), request["device"])
    for descriptors in requests(control):
        pipe = socket.socket(fileno=descriptors[0])
        if forks:
            fork_for(control, lambda pipe=pipe: serve(pipe, executor))  # type: ignore[misc]
            pipe.close()
        else:
            serve(pipe, executor)
            return


def _settle(request: dict[str, Any]) -> None:
    """The user's folder, path and environment, and a limit on memory."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = request["path"]
    if request["device"] == "cpu":
        limit_memory()


def requests(control: socket.socket) -> Iterator[list[int]]:
    """Descriptors to work for; questions about processes that ended are answered on the way."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 16, 2)
        if not message:
            return
        if message.startswith(b"wait"):
            _, status = os.waitpid(int(message[4:]), 0)
            control.sendall(f"{status:>15}\n".encode())
        else:
            yield descriptors


def fork_for(control: socket.socket, work: Callable[[], None]) -> None:
    """Does the work in a fork, in a group of processes of its own, and tells its number."""
    pid = os.fork()
    if not pid:
        try:
            control.close()
            os.setpgid(0, 0)
            work()
        finally:
            os._exit(0)
    # On both sides: whoever is told the number may end the group at once, before the fork has come to it.
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    control.sendall(f"{pid:>15}\n".encode())


def nursery(control: socket.socket) -> None:
    """A process that has torch and nothing of anyone's: each function is imported in a fork of it."""
    for pipe_number, log in requests(control):
        pipe = socket.socket(fileno=pipe_number)

        def work(pipe: socket.socket = pipe, log: int = log) -> None:
            for number in (1, 2):
                os.dup2(log, number)
            stranger(pipe)

        fork_for(control, work)
        pipe.close()
        os.close(log)


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    nursery(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)
