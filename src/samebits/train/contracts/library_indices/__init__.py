"""Which functions of the C++ library touch memory beside their buffers, at the sizes that are tried, on this machine.

Every buffer lies against a page that may not be touched, once with its end and once with its start. It is no proof for
other sizes, nor for what a function allocates itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from samebits import native
from samebits.records.report import UnjudgedError
from samebits.train.contracts.library_indices.calls import GROUPS, functions
from samebits.train.contracts.library_indices.child import END
from samebits.train.contracts.library_indices.guarding import SIDES

# Half a minute of a core's time; a busy machine may give it a tenth of one.
TIMEOUT_SECONDS: Final = 400
ALL: Final = tuple(GROUPS)
NOTHING: Final = ("", 0)
PLANTED: Final = ("logprob_gradient_in_place", 0)
"""Its logits: a function of the last group, which is run in little time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What a process said, and whether it came to its end."""

    reached: frozenset[str]
    ended: bool
    last: str


@cache
def ran(side: str, groups: tuple[str, ...] = ALL, shorter: tuple[str, int] = NOTHING, open: bool = False) -> Ran:
    """A process of its own; one that fails otherwise than by touching memory judged nothing."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    command = [sys.executable, "-m", "samebits.train.contracts.library_indices.child"]
    try:
        finished = subprocess.run(
            [*command, json.dumps([side, groups, shorter, open])],
            text=True,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        raise UnjudgedError(f"calls of the library took more than {TIMEOUT_SECONDS} s") from None
    if finished.returncode > 0:
        said = (finished.stderr.strip().splitlines() or ["without a message"])[-1]
        raise UnjudgedError(f"calls of the library failed: {said}")
    lines = finished.stdout.splitlines()
    reached = frozenset(line.rpartition(" ")[0] for line in lines if line != END)
    return Ran(reached=reached, ended=END in lines, last=lines[-1] if lines else "nothing")


def beyond(
    parts: Tensor,
    *,
    groups: tuple[str, ...] = ALL,
    shorter: tuple[str, int] = NOTHING,
    open: bool = False,
    sides: Sequence[str] = SIDES,
) -> Tensor:
    """(parts, 3), the sides dealt out to the parts: functions that no call reaches, calls that touch what is beside a
    buffer, and whether a buffer that lacks bytes goes unseen."""
    wanted = {f"{name} {each}" for name in functions() for each in native.instruction_sets()}
    found = torch.zeros(len(parts), 3, dtype=torch.int64)
    for number, side in enumerate(sides):
        line, said = found[number % len(parts)], ran(side, groups, shorter)
        if said.ended:
            line[0] += len(wanted - said.reached)
        line[1] += not said.ended
        line[2] += ran(side, ("others",), PLANTED, open).ended
    return found
