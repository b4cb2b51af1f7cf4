"""One process that is a rank: started so that it cannot outlive its launcher, its lines told apart from the others'.

Of rank 0 everything is shown as it comes; of the others what they write to stderr, with their name before it. What
the others write to stdout is what rank 0 writes, so it is kept back, and shown only if they fail."""

from __future__ import annotations

import ctypes
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from samebits.parallel.launching_watch import Watch

# Of a rank's stdout, this many last lines are kept for the case that it fails.
KEPT_LINES: Final = 100
_PR_SET_PDEATHSIG: Final = 1
# Loaded before any fork: between fork and exec nothing may be looked up.
_libc: Final = ctypes.CDLL(None, use_errno=True)
# What torch itself puts before the lines of a traceback.
_TORCH_NAME: Final = re.compile(rb"^\[rank\d+\]: ?")


class Screen:
    """Where lines go. `documents`: stdout is kept free for one document, and rank 0's goes to stderr too."""

    def __init__(self, documents: bool = False) -> None:
        self.out = sys.stderr if documents else sys.stdout
        self.err = sys.stderr

    def show_out(self, data: bytes) -> None:
        self._write(self.out.fileno(), data)

    def show_err(self, data: bytes) -> None:
        self._write(self.err.fileno(), data)

    def terminal(self) -> tuple[int, int]:
        """A terminal as wide as this one, for a rank that shows its progress to terminals only: to read, to write."""
        reads, writes = pty.openpty()
        termios.tcsetwinsize(writes, termios.tcgetwinsize(self.err.fileno()))
        return reads, writes

    def _write(self, end: int, data: bytes) -> None:
        while data:
            data = data[os.write(end, data) :]


class Process:
    """A rank's process, running from the start on."""

    def __init__(
        self, rank: int, command: Sequence[str], environment: dict[str, str], watch: Watch, screen: Screen
    ) -> None:
        self.rank = rank
        self.asked = False
        """It was told to end while it ran."""
        self.ended_at = 0.0
        self._screen = screen
        self._kept: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._last = b""
        self._rests = {"out": b"", "err": b""}
        read_out, write_out = os.pipe()
        read_err, write_err = screen.terminal() if rank == 0 and screen.err.isatty() else os.pipe()
        launcher = os.getpid()

        def before() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:
                os._exit(1)

        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=write_out,
            stderr=write_err,
            start_new_session=True,
            preexec_fn=before,
        )
        os.close(write_out)
        os.close(write_err)
        watch.pipe(read_out, self._take_out)
        watch.pipe(read_err, self._take_err)
        watch.ending(self._process.pid, self._ended)

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    @property
    def failed(self) -> bool:
        return bool(self._process.returncode)

    @property
    def code(self) -> int:
        """As `subprocess` says it: -n where signal n killed it."""
        return int(self._process.returncode)

    @property
    def last_words(self) -> str:
        return self._last.decode(errors="replace").strip().removeprefix("samebits: ")

    def ask(self) -> None:
        """Tells it to end. A stopped process hears that only when it goes on."""
        if self.running:
            self.asked = True
            os.killpg(self._process.pid, signal.SIGTERM)
            os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self.running:
            os.killpg(self._process.pid, signal.SIGKILL)

    def show_kept(self) -> None:
        """The last lines that it wrote to stdout, where those have not been shown."""
        self._screen.show_err(b"".join(self._named(line) for line in self._kept))

    def _ended(self) -> None:
        self.ended_at = time.monotonic()
        # Before it is waited for: until then the number of its group is nobody else's. Its own children end with it.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _take_out(self, data: bytes) -> None:
        if self.rank == 0:
            self._screen.show_out(data)
            return
        self._kept.extend(self._lines("out", data))

    def _take_err(self, data: bytes) -> None:
        lines = self._lines("err", data)
        self._last = next((_TORCH_NAME.sub(b"", line) for line in reversed(lines) if line.strip()), self._last)
        self._screen.show_err(data if self.rank == 0 else b"".join(self._named(line) for line in lines))

    def _lines(self, which: str, data: bytes) -> list[bytes]:
        """The lines that are whole now; at the end of the pipe the rest as well."""
        *lines, rest = (self._rests[which] + data).split(b"\n")
        self._rests[which] = rest
        if not data and rest:
            lines.append(rest)
            self._rests[which] = b""
        return lines

    def _named(self, line: bytes) -> bytes:
        return f"[rank {self.rank}] ".encode() + _TORCH_NAME.sub(b"", line) + b"\n"
