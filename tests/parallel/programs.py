"""A small program that is a rank, run by tests of launching and failing: it adds with others, and something happens.

`python programs.py WHAT [RANK]`: what happens to that rank, by its own hand, in the middle of the work."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time

import torch

from samebits.parallel.collectives import all_reduce
from samebits.parallel.launching import ranks
from samebits.parallel.world import World


def main(what: str, victim: int) -> None:
    with ranks() as world:
        add(world, 3)
        if world.rank == victim:
            happen(what)
        if what == "forever":
            go_on(world)
        add(world, 3)
        # In one write: lines of ranks that share a pipe must not meet.
        sys.stdout.write(f"rank {world.rank} of {world.size}: {world.counted.total()} exchanges\n")


def add(world: World, times: int) -> None:
    for _ in range(times):
        all_reduce(world.group, torch.ones(64), "tree of ones")


def go_on(world: World) -> None:
    print("at work", flush=True)
    while True:
        add(world, 1)
        time.sleep(0.05)


def happen(what: str) -> None:
    print("before it happens", flush=True)
    if what == "leave slowly":
        atexit.register(time.sleep, 5)
    if what in ("raise", "leave slowly"):
        raise ArithmeticError("the sum is odd")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else -1)
