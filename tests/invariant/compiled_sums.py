"""Compiles the kernel that sums along rows without a GPU, and prints its assembly.

Run by test_compiled_sums.py in a process of its own: it stands in for Triton's driver."""

from __future__ import annotations

import json
from itertools import product

import torch

from samebits.checker.artifact_process import stand_in
from samebits.invariant.triton_sums import STEP, STEP_OF_FEW, THREADS, chains_along_rows


def compiled(step: int, aligned: bool, resumed: bool) -> str:
    """The assembly that Triton makes."""
    sums, x = torch.zeros(64), torch.zeros(64, 64)
    kernel = chains_along_rows.run(
        *(sums, x, 64, 64, 64),
        RESUMED=resumed,
        ALIGNED=aligned,
        ROWS=THREADS,
        COUNT=step,
        num_warps=1,
        num_stages=1,
        num_ctas=1,
        enable_fp_fusion=False,
        grid=(2,),
        warmup=True,
    )
    return str(kernel.asm["ptx"])


if __name__ == "__main__":
    stand_in()
    forms = product((STEP, STEP_OF_FEW), (True, False), (True, False))
    print(json.dumps([[*form, compiled(*form)] for form in forms]))
