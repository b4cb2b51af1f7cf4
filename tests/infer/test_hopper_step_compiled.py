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
# The sequence's position, a block's pages, the block's keys and values in four pages of two halves, the next pages.
ATTENTION = ["LDG.E", *WEIGHTS * 4, "LDG.E"]
BEFORE = {
    **dict.fromkeys(PRODUCTS, WEIGHTS),
    "norm": [LINE] * 14,
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


@pytest.mark.parametrize("kind", KINDS)
def test_the_assembler_moves_nothing_before_the_wait(machine_code: dict[str, Any], kind: str) -> None:
    code = machine_code[kind]["code"]
    assert machine_code[kind]["programmatic"] is True
    assert code.count("PREEXIT") == 1 and (code[0] == "PREEXIT") == (kind not in PRODUCTS)
    assert before_the_wait(code) == BEFORE[kind]
    # A product and attention have two strands, of which one loads and one stores. Each waits, a product's first on two
    # ways.
    waits = [place for place, each in enumerate(code) if each == "ACQBULK"]
    stores = [place for place, each in enumerate(code) if each.startswith("STG")]
    assert len(waits) == (3 if kind in PRODUCTS else 2 if kind.startswith("attention") else 1)
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
