"""Starts the processes of a stranger's function: one with torch, a fork of it that imports the function, its workers.

The function never runs in the checker's own process. What exits, crashes, hangs or eats memory ends its own."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, ClassVar

import torch

import samebits
from samebits.checker.adversary.calling import Executor
from samebits.checker.adversary.frames import BrokenPipeMessageError, LateError, receive, send
from samebits.checker.adversary.origins import Origin
from samebits.checker.adversary.serving import described, limit_memory, serve
from samebits.checker.adversary.workers import Worker, last_line
from samebits.checker.targets import positional
from samebits.records.report import UnjudgedError

IMPORT_SECONDS = 120.0
# What torch imports when a custom operator is first differentiated or watched: once here, not once in every fork.
LATE_IMPORTS = ("sympy", "torch._dynamo")


class TorchProcess:
    """The process with torch and nothing of anyone's; one for each hash seed, kept while this process lives."""

    kept: ClassVar[dict[tuple[int, int], TorchProcess]] = {}

    def __init__(self, hash_seed: int) -> None:
        self.control, there = socket.socketpair()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "samebits.checker.adversary.stranger_process",
                str(there.fileno()),
                *(LATE_IMPORTS if not hash_seed else ()),
            ],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(Path(samebits.__file__).parents[1])},
        )
        there.close()
        atexit.register(self.close, os.getpid())

    @classmethod
    def of(cls, hash_seed: int) -> TorchProcess:
        """The one of this process; a fork of it gets its own."""
        key = (os.getpid(), hash_seed)
        if key not in cls.kept or cls.kept[key].process.poll() is not None:
            cls.kept[key] = cls(hash_seed)
        return cls.kept[key]

    def close(self, owner: int) -> None:
        if owner == os.getpid():
            self.control.close()
            self.process.wait()


def fork_over(control: socket.socket, descriptors: list[int]) -> tuple[int, Callable[[], int]]:
    """Asks a process for a fork that works for these descriptors: its number, and how to wait for its end."""
    socket.send_fds(control, [b"fork"], descriptors)
    pid = int(_line(control))

    def wait() -> int:
        control.sendall(f"wait{pid}".encode())
        return int(_line(control))

    return pid, wait


class Stranger:
    """A function, imported in a process of its own, from which workers are forked."""

    def __init__(self, origin: Origin, device: str, hash_seed: int = 0) -> None:
        self.origin, self.device, self.hash_seed = origin, device, hash_seed
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this does
        self.threads_vary = not origin.forks
        self.workers: list[Worker] = []
        self.others: list[Stranger] = []
        self.facts: dict[str, Any] = {}
        self.pid = 0
        if not origin.forks:
            self._start()

    def _start(self) -> None:
        self.control, there = socket.socketpair()
        self.pid, self.wait = fork_over(TorchProcess.of(self.hash_seed).control, [there.fileno(), self.log.fileno()])
        there.close()
        origin = {
            "name": self.origin.name,
            "path": self.origin.path,
            "file": self.origin.file,
            "attribute": self.origin.attribute,
            "pickled": self.origin.pickled,
        }
        path = [entry or os.getcwd() for entry in sys.path]
        send(
            self.control,
            {
                "origin": origin,
                "device": self.device,
                "path": path,
                "folder": os.getcwd(),
                "environment": dict(os.environ),
            },
        )

    def describe(self) -> dict[str, Any]:
        """What the function is; waits for its import. No such name is a ValueError, a failing one an UnjudgedError."""
        if self.facts:
            return self.facts
        if self.origin.forks:
            assert self.origin.function is not None
            self.facts = {**described(self.origin.function), "forks": True}
            return self.facts
        try:
            facts, _ = receive(self.control, IMPORT_SECONDS)
        except LateError:
            raise UnjudgedError(f"cannot be imported: the import took more than {IMPORT_SECONDS:.0f} s") from None
        except BrokenPipeMessageError:
            code = os.waitstatus_to_exitcode(self.wait())
            self.pid = 0
            words = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise UnjudgedError(f"cannot be imported: its process ended with {words}{last_line(self.log)}") from None
        if not facts["ok"]:
            if facts["usage"]:
                raise ValueError(facts["why"])
            raise UnjudgedError(facts["why"])
        self.facts = facts
        return facts

    def worker(self) -> Worker:
        """A process in which the function was never called."""
        facts = self.describe()
        if self.origin.forks:
            made = self._forked_here()
        elif facts["forks"]:
            made = self._forked_there()
        else:
            made = self._itself()
        self.workers.append(made)
        return made

    def _forked_here(self) -> Worker:
        here, there = socket.socketpair()
        assert self.origin.function is not None
        pid = os.fork()
        if not pid:
            try:
                here.close()
                os.setpgid(0, 0)
                for number in (1, 2):
                    os.dup2(self.log.fileno(), number)
                # Threads of this process do not live on in a fork; one thread needs none.
                torch.set_num_threads(1)
                if self.device == "cpu":
                    limit_memory()
                serve(there, Executor(positional(self.origin.function), self.device, vary_threads=False))
            finally:
                os._exit(0)
        there.close()
        return Worker(here, pid, lambda: os.waitpid(pid, 0)[1], self.log, forked_here=True)

    def _forked_there(self) -> Worker:
        here, there = socket.socketpair()
        try:
            pid, wait = fork_over(self.control, [there.fileno()])
        except (OSError, ValueError):
            raise UnjudgedError(f"its process is gone{last_line(self.log)}") from None
        finally:
            there.close()
        return Worker(here, pid, wait, self.log)

    def _itself(self) -> Worker:
        """The process serves by itself, and cannot be had twice."""
        if self.workers:
            self.others.append(Stranger(self.origin, self.device, self.hash_seed))
            return self.others[-1].worker()
        here, there = socket.socketpair()
        socket.send_fds(self.control, [b"fork"], [there.fileno()])
        there.close()
        pid, self.pid = self.pid, 0
        return Worker(here, pid, self.wait, self.log)

    def close(self) -> None:
        """Ends every process of this function."""
        for worker in self.workers:
            worker.end()
        for other in self.others:
            other.close()
        if self.pid:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(OSError, ValueError):
                self.wait()
        if not self.origin.forks:
            self.control.close()
        self.log.close()


def _line(control: socket.socket) -> bytes:
    parts = b""
    while not parts.endswith(b"\n"):
        part = control.recv(16 - len(parts))
        if not part:
            raise ValueError("closed")
        parts += part
    return parts
