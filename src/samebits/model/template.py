"""A chat template, rendered by processes of their own, which end when it takes too much time or memory.

A template is a program that someone else wrote. What runs it is `template_worker.py`; here are the processes: few, each
started when it is first needed, used again, ended by the clock."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

WORKER: Final = Path(__file__).with_name("template_worker.py")
# Renderings at one time.
WORKERS: Final = 3
# By the clock, from the request to the answer. The processor's time, of which a worker has less, is used up first,
# unless the machine is very busy.
WALL_SECONDS: Final = 10.0


class Template:
    """A chat template; what is wrong with it is found when it is rendered."""

    LONGEST: ClassVar[int] = 2**16
    """Characters of a template."""

    def __init__(self, source: str) -> None:
        self.check(source)
        self._source = source

    @classmethod
    def check(cls, source: str) -> None:
        if len(source) > cls.LONGEST:
            raise ValueError(f"chat template: has {len(source)} characters; allowed: at most {cls.LONGEST}")

    def render(self, messages: Sequence[Mapping[str, Any]], **given: str) -> str:
        """What the template writes for the messages and the beginning of an answer. From any thread."""
        try:
            asked = json.dumps({"source": self._source, "messages": list(messages), "given": given})
        except (TypeError, ValueError) as error:
            raise _refusal(f"the messages are no JSON: {error}") from None
        answer = _POOL.ask(asked.encode() + b"\n")
        if "text" not in answer:
            raise _refusal(answer["error"])
        text: str = answer["text"]
        return text


def _refusal(reason: str) -> ValueError:
    return ValueError(f"chat template: {' '.join(reason.split())[:200]}; allowed: one that renders, within its bounds")


class _Worker:
    """A process that renders, one request after another."""

    def __init__(self) -> None:
        # It sees the packages that this process sees, and nothing else of its surroundings: no key, no credentials.
        kept = {name: value for name in ("LD_LIBRARY_PATH",) if (value := os.environ.get(name)) is not None}
        packages = os.pathsep.join(each for each in sys.path if each)
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**kept, "PYTHONPATH": packages, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def ask(self, request: bytes) -> dict[str, Any]:
        """Its answer, or why there is none."""
        assert self._process.stdin is not None and self._process.stdout is not None
        clock = threading.Timer(WALL_SECONDS, self._process.kill)
        clock.daemon = True
        clock.start()
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            answer: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {"error": self._why(), "last": True}
        except OSError:
            answer = {"error": self._why(), "last": True}
        finally:
            clock.cancel()
        return answer

    def _why(self) -> str:
        """Of a process that ended without an answer."""
        ended = self._process.wait()
        if ended == -signal.SIGPROF:
            return "it takes more of the processor's time than it may"
        if ended == -signal.SIGKILL:
            return f"it was ended, as it is after {WALL_SECONDS:g} seconds"
        return f"its process ended with {ended}"

    def end(self) -> None:
        """Whoever waits for its answer gets none."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """After its last answer."""
        self.end()
        assert self._process.stdin is not None and self._process.stdout is not None
        # What could not be written to a process that is gone is of no use to anyone.
        with suppress(OSError):
            self._process.stdin.close()
        self._process.stdout.close()


class _Pool:
    """Workers, those that wait for work and those that have some, and a bound on how many there are."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """As in a process that was forked: the workers are another's."""
        self._free = threading.BoundedSemaphore(WORKERS)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()

    def ask(self, request: bytes) -> dict[str, Any]:
        with self._free:
            with self._lock:
                worker = self._idle.pop() if self._idle else _Worker()
                self._busy.add(worker)
            last = True
            try:
                answer = worker.ask(request)
                last = answer["last"]
                return answer
            finally:
                with self._lock:
                    self._busy.discard(worker)
                    if not last:
                        self._idle.append(worker)
                if last:
                    worker.close()

    def end(self) -> None:
        """Ends every process; the next rendering starts another."""
        with self._lock:
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for worker in busy:
            worker.end()
        for worker in idle:
            worker.close()


_POOL: Final = _Pool()
atexit.register(_POOL.end)
os.register_at_fork(after_in_child=_POOL.forget)
