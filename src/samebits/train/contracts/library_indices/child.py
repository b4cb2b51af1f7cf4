"""A process of its own that makes all calls with buffers against a page that may not be touched, and says what it does.

Each line is written before what it names is done, so that the last one names what ended the process."""

from __future__ import annotations

import json
import sys

import torch

from samebits import native
from samebits.native.launch_numbers import launching
from samebits.train.contracts.library_indices.calls import GROUPS
from samebits.train.contracts.library_indices.guarding import Calls, guarding

THREADS = 2
END = "end of all calls"


def announce(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(side: str, groups: list[str], shorter: tuple[str, int], open: bool) -> None:
    """All calls of some groups, on each instruction set."""
    torch.set_num_threads(THREADS)
    calls = Calls(side, announce, shorter, open)
    for name in native.instruction_sets():
        with launching(threads=THREADS, instruction_set=name), guarding(calls):
            for group in groups:
                for _, call in GROUPS[group]():
                    call()
    announce(END)


if __name__ == "__main__":
    side, groups, shorter, open = json.loads(sys.argv[1])
    run(side, groups, tuple(shorter), open)
