"""Kernels of infer/hopper_step as they are compiled, without a GPU: nothing is moved before the wait.

What they touch is held on the CPU by test_hopper_step_kernels.py; here the machine code is looked at."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samebits.checker.tracing import child_environment

pytest.importorskip("triton", reason="Triton compiles it; needs the package triton")

PRODUCTS = ("product", "product overlapped", "product gated", "product gated overlapped")
# Before the first wait, besides telling the next kernel: copies of blocks of weights, as many as are written out there,
# and prefetches; numbers of 64 and 32 bits (positions, frequencies, pages, rows of the cache), while what a step writes
# has 16 bits there.
WEIGHTS, LINE = ["UTMALDG.2D"] * 4, "CCTL.E.PF2"
# Of each of two strands that load: a block's pages, its keys or values in four pages of two halves, the next pages.
ATTENTION = ["LDG.E", *WEIGHTS * 2, "LDG.E"]
BEFORE = {
    **dict.fromkeys(PRODUCTS, WEIGHTS),
    "norm": [LINE] * 4,
    "rotation": ["LDG.E.64", "LDG.E", "LDG.E.64"],
    "attention": ATTENTION,
    "attention of splits": ATTENTION,
}
KINDS = tuple(BEFORE)


@pytest.fixture(scope="module")
def machine_code() -> dict[str, Any]:
    script = Path(__file__).with_name("compiled_hopper_step.py")
    done = subprocess.run(
        [sys.executable, str(script), *KINDS], capture_output=True, text=True, env=child_environment()
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def before_the_wait(code: list[str]) -> list[str]:
    """What the machine does before it, besides telling the next kernel to begin."""
    return [each for each in code[: code.index("ACQBULK")] if each != "PREEXIT"]


def strands(code: list[str], kind: str) -> list[list[str]]:
    """From where each strand that loads tells the next kernel to begin; a product tells it later, by one strand."""
    told = [place for place, each in enumerate(code) if each == "PREEXIT"]
    assert len(told) == (2 if kind.startswith("attention") else 1)
    return [code] if kind in PRODUCTS else [code[place:] for place in told]


@pytest.mark.parametrize("kind", KINDS)
def test_the_assembler_moves_nothing_before_the_wait(machine_code: dict[str, Any], kind: str) -> None:
    code = machine_code[kind]["code"]
    assert machine_code[kind]["programmatic"] is True
    assert [before_the_wait(strand) for strand in strands(code, kind)] == [BEFORE[kind]] * (code.count("PREEXIT"))
    waits = [place for place, each in enumerate(code) if each == "ACQBULK"]
    stores = [place for place, each in enumerate(code) if each.startswith("STG")]
    if kind.startswith("attention"):
        # Strands that sum values, load keys, load values and make weights: the first and the last store.
        loading = code.index("PREEXIT")
        assert len(waits) == 4 and waits[0] == 0
        assert all(place < loading or place > waits[3] for place in stores)
        assert min(stores) < loading < max(stores)
    else:
        # A product has two strands, of which one loads and one stores. Each waits, the first on two ways.
        assert len(waits) == (3 if kind in PRODUCTS else 1)
        assert (code[0] == "PREEXIT") == (kind not in PRODUCTS)
        assert stores and min(stores) > max(waits)
    # Planted: the wait behind the first access of what the step writes.
    later = [*code[: waits[0]], code[waits[0] + 1], "ACQBULK"]
    assert before_the_wait(later) != BEFORE[kind]


@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_product_leaves_registers_to_the_kernels_beside_it(machine_code: dict[str, Any], kind: str) -> None:
    """Unasked, Gluon gives a program of several strands all registers of a multiprocessor when it begins: a norm that
    it waits for could then not run beside it."""
    ptx = machine_code[kind]["ptx"]
    threads, registers = (int(re.findall(rf"\.{name} (\d+)", ptx)[0]) for name in ("reqntid", "maxnreg"))
    assert threads * registers <= 65536 // 3
