"""The kernel that sums along rows as it is compiled, without a GPU: one chain a thread, whatever the alignment.

Its bits are compared on a GPU, in tests/gpu/test_sums.py."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton compiles it; needs the package triton")
FORMS = list(product((32, 64), (True, False), (True, False)))
"""Terms a step, whether rows begin at multiples of 16 bytes, whether sums go on."""


@cache
def assemblies() -> dict[tuple[int, bool, bool], str]:
    script = Path(__file__).with_name("compiled_sums.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return {(step, aligned, resumed): ptx for step, aligned, resumed, ptx in json.loads(done.stdout)}


def chains(ptx: str) -> list[int]:
    """Lengths of runs of additions, each onto the result of the one before."""
    lengths, last = [], ""
    for result, left, _ in re.findall(r"add(?:\.rn)?\.f32\s+(%\w+), (%\w+), (%\w+);", ptx):
        if left == last:
            lengths[-1] += 1
        else:
            lengths.append(1)
        last = result
    return lengths


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_thread_adds_its_row_term_by_term(form: tuple[int, bool, bool]) -> None:
    """A step of the loop, and the last one that may be short; nothing is exchanged between threads."""
    ptx, step = assemblies()[form], form[0]
    assert sum(chains(ptx)) == 2 * step and all(length % step == 0 for length in chains(ptx))
    assert not re.search(r"shfl|bar\.sync|\.shared|fma\.|ftz", ptx)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_rows_that_are_aligned_are_read_16_bytes_at_a_time(form: tuple[int, bool, bool]) -> None:
    step, aligned, _ = form
    assert len(re.findall(r"ld\.global\.v4", assemblies()[form])) == (2 * step // 4 if aligned else 0)


def test_a_sum_of_halves_would_be_seen() -> None:
    """Planted: two accumulators that are added at the end."""
    halves = [f"add.f32 %r{i + 1}, %r{i}, %t{i};" for i in range(4)] + [
        "add.f32 %s1, %s0, %t9;",
        "add.f32 %a, %r4, %s1;",
    ]
    assert chains("\n".join(halves)) == [4, 1, 1]
