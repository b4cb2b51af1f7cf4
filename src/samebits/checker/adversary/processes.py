"""Starts the processes that a stranger's function runs in, asks them for calls, and says why one ended.

The function never runs in the checker's own process. What exits, crashes, hangs or eats memory ends its own."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

import torch

import samebits
from samebits.checker.adversary.calling import Executor
from samebits.checker.adversary.frames import Array, BrokenPipeMessageError, LateError, receive, send
from samebits.checker.adversary.origins import Origin
from samebits.checker.adversary.serving import described, limit_memory, serve
from samebits.checker.targets import positional
from samebits.records.report import UnjudgedError

IMPORT_SECONDS = 120.0
FIRST_CALL_SECONDS = 45.0
LATER_CALL_SECONDS = 30.0
# What torch imports when a custom operator is first differentiated or watched: once here, not once in every fork.
LATE_IMPORTS = ("sympy", "torch._dynamo")
FORK_HINT = "; it ran in a fork of this process, which libraries may not survive: put it where it can be imported"
PATIENCE = 50
"""A call may take so many times what it should by its size."""
MOST_BUSY = 4.0
"""How many times longer than on an idle machine anything is waited for."""


@dataclass(slots=True)
class Worker:
    """One process that answers calls, one at a time."""

    pipe: socket.socket
    pid: int
    wait: Callable[[], int]
    log: IO[bytes]
    forked_here: bool = False
    """A fork of the checker's own process, where threads that libraries had started are missing."""
    calls: int = 0
    ended: bool = False
    loaded: set[str] = field(default_factory=set)
    order: list[str] = field(default_factory=list)
    """Pools that the process holds, oldest first."""

    def ask(
        self, header: Mapping[str, Any], arrays: Mapping[str, Array], seconds: float
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """One answer, or an UnjudgedError that says what became of the process."""
        number = secrets.token_hex(8)
        try:
            send(self.pipe, {**header, "number": number}, arrays)
            self._await(seconds)
            answer, results = receive(self.pipe, seconds)
        except LateError:
            self.end()
            beside = FORK_HINT if self.forked_here else ""
            raise UnjudgedError(f"hangs: a call took more than {seconds:.0f} s and was ended{beside}") from None
        except BrokenPipeMessageError as error:
            raise UnjudgedError(self._death(str(error))) from None
        if answer.pop("number", None) != number:
            self.end()
            raise UnjudgedError("wrote into the checker's pipe: an answer came that nothing had asked for")
        if "unjudged" in answer:
            raise UnjudgedError(answer["unjudged"])
        self.calls += 1
        return answer, results

    def _await(self, seconds: float) -> None:
        """Until an answer begins, or a LateError. Time in which the process is ready to run and others have the cores
        does not count; but a function with a thousand threads of its own is not waited for for ever."""
        started = last = time.monotonic()
        spent, allowed, left = _running(self.pid)[1], seconds, seconds
        while not select.select([self.pipe], [], [], min(left, 1.0))[0]:
            now, (ready, computed) = time.monotonic(), _running(self.pid)
            if ready:
                allowed += max(0.0, now - last - (computed - spent))
            last, spent = now, computed
            left = started + min(allowed, MOST_BUSY * seconds) - now
            if left <= 0:
                raise LateError

    def _death(self, words: str) -> str:
        status = self._reap()
        if not words.startswith("the process is gone"):
            return f"wrote into the checker's pipe: {words}"
        if status is None:
            return words
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            return f"crashed: {name}{_last_line(self.log)}"
        code = os.waitstatus_to_exitcode(status)
        return f"ended its process in the middle of a call, exit code {code}{_last_line(self.log)}"

    def _reap(self) -> int | None:
        self.ended = True
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
        if self.ended:
            return
        self.ended = True
        self.pipe.close()
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(OSError, ValueError):
            self.wait()


def _running(pid: int) -> tuple[bool, float]:
    """Whether a process is ready to run now, and the seconds that it has computed so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False, 0.0
    return fields[0] == "R", (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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


class Nursery:
    """The process with torch and nothing of anyone's; one for each hash seed, kept while this process lives."""

    kept: ClassVar[dict[tuple[int, int], Nursery]] = {}

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
    def of(cls, hash_seed: int) -> Nursery:
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
        self.pid, self.wait = fork_over(Nursery.of(self.hash_seed).control, [there.fileno(), self.log.fileno()])
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
        return Worker(here, pid, lambda: os.waitpid(pid, 0)[1], self.log, forked_here=True)

    def _forked_there(self) -> Worker:
        here, there = socket.socketpair()
        try:
            pid, wait = fork_over(self.control, [there.fileno()])
        except (OSError, ValueError):
            raise UnjudgedError(f"its process is gone{_last_line(self.log)}") from None
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
