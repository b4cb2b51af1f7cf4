"""Attention of one query as it is compiled for Hopper, without a GPU: what its speed and its order rest on."""

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


def compiled(*given: int) -> dict[str, Any]:
    script = Path(__file__).with_name("compiled_decode.py")
    command = [sys.executable, str(script), json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment())
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# Head, group, page size, longest sequence, multiprocessors; products of a step, of which the warps that make weights
# have those of scores, and others those of the half of the values that a program has, or of both; registers.
KINDS = (
    ((128, 4, 0, 1024, 132), (4 * 8, 4 * 4), 112),
    ((128, 4, 16, 4096, 8), (4 * 8, 4 * 8), 112),
    ((128, 4, 0, 4096, 2), (2 * 8, 2 * 8), 80),
    ((64, 16, 64, 1024, 132), (2 * 4, 2 * 4), 112),
)


@pytest.mark.parametrize(("given", "products", "registers"), KINDS, ids=[str(each[0]) for each in KINDS])
def test_a_step_is_a_loop_of_each_strand_without_spills(
    given: tuple[int, ...], products: tuple[int, int], registers: int
) -> None:
    found = compiled(*given)
    ptx, made = found["ptx"], found["made"]
    assert "serialized" not in made["said"], made["said"]
    assert re.search(rf"Used {registers} registers", made["said"]), made["said"]
    loops = [{"products": count, "stores": 0, "loads": 0} for count in products]
    assert sorted(made["loops"], key=str) == sorted(loops, key=str)
    columns = max(8, given[1])
    assert set(re.findall(r"wgmma\.mma_async\S+", ptx)) == {
        f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16"
    }
    # What Triton made: assembly in the source has products that nothing contracts.
    own = re.sub(r"// begin inline asm.*?// end inline asm", "", ptx, flags=re.DOTALL)
    assert re.search(r"\bmul\.f32|\bmul\.rn\.f32", own), "no product of its own is left: it was contracted"
    assert "fma.rn.ftz" not in ptx
