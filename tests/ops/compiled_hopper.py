"""Compiles attention's kernel for Hopper without a GPU, and prints what the assembler says of it.

Run by test_attention_hopper.py in a process of its own: it stands in for Triton's driver."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from samebits.checker.artifact_process import stand_in
from samebits.ops.attention.triton_hopper import STAGES
from samebits.ops.attention.triton_hopper_forward import attention_hopper


def compiled(head: int, causal: bool, windowed: bool, several: bool) -> str:
    """The assembly that Triton makes."""
    layout = gl.NVMMASharedLayout.get_default_for([64, head], gl.bfloat16)
    x_THD = torch.zeros(256, 4, head, dtype=torch.bfloat16)
    described = TensorDescriptor(x_THD, [256, 4 * head], [4 * head, 1], [64, head], layout)
    lse, marks, table = torch.zeros(256, 4), torch.zeros(17, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    kernel = attention_hopper.run(
        *(described, described, described),
        *(x_THD, lse, marks, marks, table, table, table, table),
        *(4, 4, 2, 4, 0, 0.1),
        HEAD=head,
        GROUP=1,
        CAUSAL=causal,
        WINDOWED=windowed,
        SEVERAL=several,
        STAGES=STAGES[head],
        SPLIT=32,
        num_warps=4,
        num_stages=1,
        num_ctas=1,
        enable_fp_fusion=False,
        grid=(132,),
        warmup=True,
    )
    return str(kernel.asm["ptx"])


def assembled(ptx: str) -> str:
    """What the assembler says: registers, spills, warnings."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", str(source), "-o", f"{source}.cubin"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def spoiled(ptx: str) -> str:
    """Planted: every accumulator is read while products onto it are under way."""
    begun = re.compile(r"(wgmma\.mma_async\S+ \{(%r\d+),[^;]*;)")
    return begun.sub(r"\1\nadd.f32 \2, \2, \2;\n", ptx)


if __name__ == "__main__":
    stand_in()
    ptx = compiled(*json.loads(sys.argv[1]))
    print(json.dumps({"ptx": ptx, "said": assembled(ptx), "said_of_spoiled": assembled(spoiled(ptx))}))
