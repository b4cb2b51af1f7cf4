"""Attention's kernels for Hopper as they are compiled, without a GPU: what their speed and their order rest on.

That in use, and those of benchmarks/hopper_attention that wait for a GPU. Bits are compared on a GPU, in
tests/gpu/test_attention_hopper.py and by benchmarks/gpu_attention.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.repository.documents import PROJECT

from samebits.checker.tracing import child_environment

pytest.importorskip("triton", reason="Triton compiles it; needs the package triton")


def compiled(kernel: str, head: int, causal: bool, windowed: bool, several: bool) -> dict[str, str]:
    """Its assembly, what the assembler says of it, and of it with a planted fault."""
    script = Path(__file__).with_name("compiled_hopper.py")
    given = json.dumps([kernel, head, causal, windowed, several])
    environment = child_environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(PROJECT / "benchmarks"), environment.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, str(script), given], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("kernel", "head", "causal", "windowed", "several"),
    [
        ("forward", 64, True, False, True),
        pytest.param("dq", 128, True, False, False, marks=pytest.mark.long),
        ("dk_dv", 128, True, False, False),
        pytest.param("forward", 128, True, False, True, marks=pytest.mark.long),
        pytest.param("forward", 128, False, False, False, marks=pytest.mark.long),
        pytest.param("forward", 64, False, True, True, marks=pytest.mark.long),
        pytest.param("whole", 128, True, False, True, marks=pytest.mark.long),
        pytest.param("whole", 64, False, True, True, marks=pytest.mark.long),
        pytest.param("dq", 64, False, True, False, marks=pytest.mark.long),
        pytest.param("dk_dv", 64, False, True, False, marks=pytest.mark.long),
        pytest.param("dk_dv", 128, False, False, False, marks=pytest.mark.long),
    ],
)
def test_its_products_overlap_and_nothing_is_contracted(
    kernel: str, head: int, causal: bool, windowed: bool, several: bool
) -> None:
    found = compiled(kernel, head, causal, windowed, several)
    ptx, said = found["ptx"], found["said"]
    # The assembler says so where it had to wait after every product; then the kernel is twice as slow.
    assert "serialized" not in said, said
    assert "serialized" in found["said_of_spoiled"]
    spilled = re.search(r"(\d+) bytes spill stores", said)
    # The sums of dK and dV are 128 numbers a thread; what is spilled is outside of its loop.
    assert spilled is not None and int(spilled[1]) < (400 if kernel == "dk_dv" else 100), said
    # Scores in steps of 16 along the head, values in steps of 16 keys, each onto what was there: the declared chain.
    assert set(re.findall(r"wgmma\.mma_async\S+", ptx)) == {
        f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16" for columns in {64, head}
    }
    assert re.search(r"\bmul\.f32|\bmul\.rn\.f32", ptx), "no product of its own is left: it was contracted"
    assert "fma.rn.ftz" not in ptx
