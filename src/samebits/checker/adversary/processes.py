"""Starts the processes that a stranger's function runs in, asks them for calls, and says why one ended.

The function never runs in the checker's own process. What exits, crashes, hangs or eats memory ends its own process only."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from samebits.checker.adversary.calling import Executor
from samebits.checker.adversary.frames import Array, BrokenPipeMessageError, LateError, receive, send
from samebits.checker.adversary.origins import Origin
from samebits.checker.adversary.stranger_process import described, limit_memory, serve
from samebits.checker.driving import UnjudgedError
from samebits.checker.targets import positional

IMPORT_SECONDS = 120.0
FIRST_CALL_SECONDS = 45.0
LATER_CALL_SECONDS = 15.0
PATIENCE = 50
"""A call may take so many times what it should by its size."""


@dataclass(slots=True)
class Worker:
    """One process that answers calls, one at a time."""

    pipe: socket.socket
    pid: int
    wait: Callable[[], int]
    log: IO[bytes]
    calls: int = 0
    loaded: set[str] = field(default_factory=set)
    order: list[str] = field(default_factory=list)
    """Pools that the process holds, oldest first."""

    def ask(self, header: Mapping[str, Any], arrays: Mapping[str, Array], seconds: float) -> tuple[dict[str, Any], dict[str, Array]]:
        """One answer, or an UnjudgedError that says what became of the process."""
        number = secrets.token_hex(8)
        try:
            send(self.pipe, {**header, "number": number}, arrays)
            answer, results = receive(self.pipe, seconds)
        except LateError:
            self.end()
            raise UnjudgedError(f"hangs: a call took more than {seconds:.0f} s and was ended") from None
        except BrokenPipeMessageError as error:
            raise UnjudgedError(self._death(str(error))) from None
        if answer.pop("number", None) != number:
            self.end()
            raise UnjudgedError("wrote into the checker's pipe: an answer came that nothing had asked for")
        if "unjudged" in answer:
            raise UnjudgedError(answer["unjudged"])
        self.calls += 1
        return answer, results

    def _death(self, words: str) -> str:
        status = self._reap()
        if status is None:
            return words
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            return f"crashed: {name}{_last_line(self.log)}"
        return f"ended its process in the middle of a call, exit code {os.waitstatus_to_exitcode(status)}{_last_line(self.log)}"

    def _reap(self) -> int | None:
        with contextlib.suppress(OSError):
            # A process that closed the pipe and lives on is ended.
            deadline = time.monotonic() + 0.5
            while _alive(self.pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            if _alive(self.pid):
                os.kill(self.pid, signal.SIGKILL)
        try:
            return self.wait()
        except (OSError, ValueError):
            return None

    def end(self) -> None:
        """Ends the process and whatever it started."""
        self.pipe.close()
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError, ValueError):
            self.wait()


def _alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return f" ({lines[-1].strip()[:200]})" if lines else ""


class Stranger:
    """A function, imported in a process of its own, from which workers are forked."""

    def __init__(self, origin: Origin, backend_device: str, hash_seed: int = 0) -> None:
        self.origin, self.device, self.hash_seed = origin, backend_device, hash_seed
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this does
        self.threads_vary = not origin.forks
        self.workers: list[Worker] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.facts: dict[str, Any] = {}
        if not origin.forks:
            self._start()

    def _start(self) -> None:
        here, there = socket.socketpair()
        # The checker's own modules come from where they came from here, before any of the user's folders.
        path = [entry or os.getcwd() for entry in sys.path]
        origin = {"name": self.origin.name, "path": self.origin.path, "file": self.origin.file,
                  "attribute": self.origin.attribute, "pickled": self.origin.pickled}  # fmt: skip
        request = json.dumps({"origin": origin, "device": self.device, "path": path})
        code = (
            "import sys, runpy; sys.argv[0] = 'samebits'; "
            "runpy.run_module('samebits.checker.adversary.stranger_process', run_name='__main__')"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(there.fileno()), request], pass_fds=[there.fileno()], stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=self.log, start_new_session=True,
            env={**os.environ, "PYTHONHASHSEED": str(self.hash_seed), "PYTHONPATH": os.pathsep.join(path)},
        )  # fmt: skip
        there.close()
        self.control = here

    def describe(self) -> dict[str, Any]:
        """What the function is; waits for its import. No such function is a ValueError, one that fails an UnjudgedError."""
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
            assert self.process is not None
            code = self.process.wait()
            words = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise UnjudgedError(f"cannot be imported: its process ended with {words}{_last_line(self.log)}") from None
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
        return Worker(here, pid, lambda: os.waitpid(pid, 0)[1], self.log)

    def _forked_there(self) -> Worker:
        here, there = socket.socketpair()
        try:
            socket.send_fds(self.control, [b"fork"], [there.fileno()])
            there.close()
            pid = int(_line(self.control))
        except (OSError, ValueError):
            raise UnjudgedError(f"its process is gone{_last_line(self.log)}") from None

        def wait() -> int:
            self.control.sendall(f"wait{pid}".encode())
            return int(_line(self.control))

        return Worker(here, pid, wait, self.log)

    def _itself(self) -> Worker:
        """The process serves itself, and cannot be had twice."""
        if self.workers:
            other = Stranger(self.origin, self.device, self.hash_seed)
            return other.worker()
        here, there = socket.socketpair()
        socket.send_fds(self.control, [b"fork"], [there.fileno()])
        there.close()
        process = self.process
        assert process is not None

        def wait() -> int:
            code = process.wait()
            return -code if code < 0 else code << 8

        return Worker(here, process.pid, wait, self.log)

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        if self.process is not None:
            self.control.close()
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()


def _line(control: socket.socket) -> bytes:
    parts = b""
    while not parts.endswith(b"\n"):
        part = control.recv(16 - len(parts))
        if not part:
            raise ValueError("closed")
        parts += part
    return parts
