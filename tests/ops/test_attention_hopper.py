"""Attention's kernel for Hopper as it is compiled, without a GPU: what its speed and its order rest on.

Its bits are compared on a GPU, in tests/gpu/test_attention_hopper.py."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton compiles it; needs the package triton")


def compiled(head: int, causal: bool, windowed: bool, several: bool) -> dict[str, str]:
    """Its assembly, what the assembler says of it, and of it with a planted fault."""
    script = Path(__file__).with_name("compiled_hopper.py")
    given = json.dumps([head, causal, windowed, several])
    done = subprocess.run([sys.executable, str(script), given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("head", "causal", "windowed", "several"),
    [
        (64, True, False, True),
        pytest.param(128, True, False, True, marks=pytest.mark.long),
        pytest.param(128, False, False, False, marks=pytest.mark.long),
        pytest.param(64, False, True, True, marks=pytest.mark.long),
    ],
)
def test_its_products_overlap_and_nothing_is_contracted(head: int, causal: bool, windowed: bool, several: bool) -> None:
    found = compiled(head, causal, windowed, several)
    ptx, said = found["ptx"], found["said"]
    # The assembler says so where it had to wait after every product; then the kernel is twice as slow.
    assert "serialized" not in said, said
    assert "serialized" in found["said_of_spoiled"]
    spilled = re.search(r"(\d+) bytes spill stores", said)
    assert spilled is not None and int(spilled[1]) < 100, said
    # Scores in steps of 16 along the head, values in steps of 16 keys, each onto what was there: the declared chain.
    assert set(re.findall(r"wgmma\.mma_async\S+", ptx)) == {
        f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16" for columns in {64, head}
    }
    assert re.search(r"\bmul\.f32|\bmul\.rn\.f32", ptx), "no product of its own is left: it was contracted"
    assert "fma.rn.ftz" not in ptx
