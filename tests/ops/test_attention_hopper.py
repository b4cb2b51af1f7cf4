"""Attention's kernels for Hopper as they are compiled, without a GPU: what their speed and their order rest on.

Bits are compared on the CPU by test_hopper_kernels.py, on a GPU by tests/gpu/test_attention_hopper.py."""

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


PRODUCTS = {
    "forward": {64: 4 + 4, 128: 8 + 4},
    "dq": {64: 2 * 4 + 4, 128: 2 * 8 + 4},
    "dk_dv": {64: 2 * 4 + 2 * 4, 128: 2 * 8 + 2 * 4},
}
"""Of a block: of scores in steps of 16 along the head, of rounded weights in steps of 16 along the block."""
GROUPS = {"forward": 3, "dq": 2, "dk_dv": 2}
"""Of warps that compute; each has code of its own."""


def compiled(kernel: str, head: int, causal: bool, windowed: bool, several: bool) -> dict[str, Any]:
    """Its assembly, and what the assembler says and makes of it, and of it with a planted fault."""
    script = Path(__file__).with_name("compiled_hopper.py")
    given = json.dumps([kernel, head, causal, windowed, several])
    command = [sys.executable, str(script), given]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment())
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def narrow(ptx: str) -> list[str]:
    """Accesses of a thread to one number of 16 bits in memory, where eight lie side by side."""
    return re.findall(r"\b(?:ld|st)\.global(?:\.\w+)*\.[bu]16\b", ptx)


@pytest.mark.parametrize(
    ("kernel", "head", "causal", "windowed", "several"),
    [
        ("forward", 64, True, False, False),
        pytest.param("dq", 128, True, False, False, marks=pytest.mark.long),
        ("dk_dv", 128, True, False, False),
        pytest.param("forward", 128, True, False, True, marks=pytest.mark.long),
        pytest.param("forward", 128, False, False, False, marks=pytest.mark.long),
        pytest.param("forward", 64, True, False, True, marks=pytest.mark.long),
        pytest.param("forward", 64, False, True, True, marks=pytest.mark.long),
        pytest.param("dq", 64, False, True, False, marks=pytest.mark.long),
        pytest.param("dk_dv", 64, False, True, False, marks=pytest.mark.long),
        pytest.param("dk_dv", 128, False, False, False, marks=pytest.mark.long),
    ],
)
def test_its_products_overlap_and_nothing_is_contracted(
    kernel: str, head: int, causal: bool, windowed: bool, several: bool
) -> None:
    found = compiled(kernel, head, causal, windowed, several)
    ptx, made, spoiled = found["ptx"], found["made"], found["spoiled"]
    # The assembler says so where it had to wait after every product; then the kernel is twice as slow.
    assert "serialized" not in made["said"], made["said"]
    assert "serialized" in spoiled["said"]
    # Registers are short where splits are merged and around the loop over blocks. In that loop nothing is spilled; dK
    # and dV, whose sums are 128 numbers a thread, load a few addresses there, beside the first product.
    assert [loop["products"] for loop in made["loops"]] == [PRODUCTS[kernel][head]] * GROUPS[kernel]
    assert all(loop["stores"] == 0 for loop in made["loops"]), made
    assert all(loop["loads"] <= (6 if kernel == "dk_dv" else 0) for loop in made["loops"]), made
    assert spoiled["loops"] and all(loop["stores"] and loop["loads"] > 6 for loop in spoiled["loops"]), spoiled
    # Scores in steps of 16 along the head, values in steps of 16 keys, each onto what was there: the declared chain.
    assert set(re.findall(r"wgmma\.mma_async\S+", ptx)) == {
        f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16" for columns in {64, head}
    }
    assert not narrow(ptx), "two bytes at a time: it must be said where what is stored to begins"
    assert narrow(ptx.replace("st.global.v4.b32", "st.global.b16"))
    # What Triton made: assembly in the source has products that nothing contracts.
    own = re.sub(r"// begin inline asm.*?// end inline asm", "", ptx, flags=re.DOTALL)
    assert re.search(r"\bmul\.f32|\bmul\.rn\.f32", own), "no product of its own is left: it was contracted"
    assert "fma.rn.ftz" not in ptx
