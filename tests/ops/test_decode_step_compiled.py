"""Kernels of benchmarks/decode_step as they are compiled, without a GPU: nothing is moved before the wait.

What they touch is held on the CPU by test_decode_step_kernels.py; here the machine code is looked at."""

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

KINDS = ("product 64", "product 32 gated", "norm", "rotation", "attention")
# Before the first wait, besides telling the next kernel: copies of four blocks of weights, and prefetches; numbers of
# 64 and 32 bits (position, frequencies, row of the cache), while what a step writes has 16 bits there.
BEFORE = {
    "product 64": ["UTMALDG.2D"] * 4 + ["UBLKPF.L2"] * 2,
    "product 32 gated": ["UTMALDG.2D"] * 4 + ["UBLKPF.L2"] * 2,
    "norm": [],
    "rotation": ["LDG.E.64", "LDG.E", "LDG.E.64"],
    "attention": [],
}


@pytest.fixture(scope="module")
def machine_code() -> dict[str, Any]:
    script = Path(__file__).with_name("compiled_decode_step.py")
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
    assert code[0] == "PREEXIT" and code.count("PREEXIT") == 1
    assert before_the_wait(code) == BEFORE[kind]
    # A product has two strands, of which one loads and one stores; each waits.
    waits = [place for place, each in enumerate(code) if each == "ACQBULK"]
    stores = [place for place, each in enumerate(code) if each.startswith("STG")]
    assert len(waits) == (2 if kind.startswith("product") else 1)
    assert stores and min(stores) > max(waits)
    # Planted: the wait behind the first access of what the step writes.
    later = [*code[: waits[0]], code[waits[0] + 1], "ACQBULK"]
    assert before_the_wait(later) != BEFORE[kind]


@pytest.mark.parametrize("kind", KINDS[:2])
def test_a_product_leaves_registers_to_the_kernels_beside_it(machine_code: dict[str, Any], kind: str) -> None:
    """Unasked, Gluon gives a program of several strands all registers of a multiprocessor when it begins: a norm that
    it waits for could then not run beside it."""
    ptx = machine_code[kind]["ptx"]
    threads, registers = (int(re.findall(rf"\.{name} (\d+)", ptx)[0]) for name in ("reqntid", "maxnreg"))
    assert threads * registers <= 65536 // 3
