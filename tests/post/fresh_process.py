"""Work in a process of its own that is killed or runs out of space; forked from one without threads.

A fork of the process that runs the tests would wait for ever for torch's threads, which a fork does not copy."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass

from tests.parallel.ranks import FORKING

KILLED = -signal.SIGKILL
FULL = 7
"""The exit code of `on_a_full_disk` where the error named a file."""


def in_a_process(work: Callable[..., object], *arguments: object) -> int:
    """Calls a function of a module there; the exit code, negative for the signal that ended it."""
    process = FORKING.Process(target=work, args=arguments)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def in_a_fork(work: Callable[..., object], *arguments: object) -> int:
    """The same from a process that has no threads, which `in_a_process` made: cheaper where there are hundreds."""
    if (child := os.fork()) == 0:
        work(*arguments)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# What changes a disk, as the package calls it.
CALLS = ("write", "pwrite", "ftruncate", "fsync", "rename", "replace", "unlink", "mkdir")


@dataclass
class KillAfter:
    """Ends its process at the call of this number."""

    calls: int

    def __call__(self, _: int = 0) -> None:
        self.calls -= 1
        if self.calls == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def calls_to_the_disk(self, work: Callable[..., object], *arguments: object) -> None:
        """Ends this process just before such a call of `work`, each counted."""
        for name in CALLS:
            setattr(os, name, self._counted(getattr(os, name)))
        work(*arguments)

    def _counted(self, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **named: object) -> object:
            self()
            return call(*arguments, **named)

        return counted


def on_a_full_disk(limit: int, part: str, work: Callable[..., object], *arguments: object) -> None:
    """Files may grow to `limit` bytes; exits with FULL where the error names a file in the folder `part`."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        work(*arguments)
    except OSError as error:
        os._exit(FULL if part in str(error.filename) else FULL + 1)
