"""One process that answers calls of a stranger's function: asked, waited for, ended, and why it ended."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from samebits.checker.adversary.frames import Array, BrokenPipeMessageError, LateError, receive, send
from samebits.records.report import UnjudgedError

CALL_SECONDS = 60.0
"""Functions in plain Python, or with a slow way for some sizes, take half of it on a busy machine and are sound."""
FORK_HINT = "; it ran in a fork of this process, which libraries may not survive: put it where it can be imported"
MOST_BUSY = 4.0
"""How many times longer than on an idle machine anything is waited for."""


def busy() -> float:
    """How many times longer things take while others use this machine too; a budget is meant for an idle one."""
    return min(max(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0), MOST_BUSY)


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
            return f"crashed: {name}{last_line(self.log)}"
        code = os.waitstatus_to_exitcode(status)
        return f"ended its process in the middle of a call, exit code {code}{last_line(self.log)}"

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


def last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return f" ({lines[-1].strip()[:200]})" if lines else ""
