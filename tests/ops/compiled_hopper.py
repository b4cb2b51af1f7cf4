"""Compiles attention's kernels for Hopper without a GPU, and prints what the assembler says of one.

Run by test_attention_hopper.py in a process of its own: it stands in for Triton's driver."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from hopper_attention import launches
from hopper_attention.dk_dv import attention_dk_dv_hopper
from hopper_attention.dq import attention_dq_hopper
from hopper_attention.forward import attention_hopper_whole
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from samebits.checker.artifact_process import stand_in
from samebits.ops.attention.triton_hopper import STAGES
from samebits.ops.attention.triton_hopper_forward import attention_hopper

NUMBERS = (4, 4, 2, 4, 0)
"""Lines, heads, tiles, section, window."""


def described(x: Tensor, columns: int, dtype: gl.dtype) -> TensorDescriptor:
    rows = 64 if x.dtype != torch.float32 else 1
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], dtype)
    return TensorDescriptor(x, [len(x), x[0].numel()], [x[0].numel(), 1], [rows, columns], layout)


def compiled(kernel: str, head: int, causal: bool, windowed: bool, several: bool) -> str:
    """The assembly that Triton makes."""
    x_THD, statistics = torch.zeros(256, 4, head, dtype=torch.bfloat16), torch.zeros(8, 256)
    block, lines = described(x_THD, head, gl.bfloat16), described(statistics, 64, gl.float32)
    lse, marks, table = torch.zeros(256, 4), torch.zeros(17, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    tables, blocks = (table,) * 4, (block,) * 4
    splits = {"SEVERAL": several, "STAGES": STAGES[head], "SPLIT": 32}
    whole = splits | {"STAGES": launches.FORWARD[head].stages, "BUFFERS": launches.FORWARD[head].buffers}
    stages = {"STAGES": launches.BACKWARD[head].stages, "BUFFERS": launches.BACKWARD[head].buffers}
    forward = (*blocks[:3], x_THD, lse, marks, marks, *tables, *NUMBERS, 0.1)
    dq = (*blocks, statistics, x_THD, marks, marks, *tables, 256, *NUMBERS, 0.1, 0.1)
    dk_dv = (*blocks, lines, x_THD, x_THD, marks, marks, *tables, *NUMBERS, 0.1, 0.1)
    kernels: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
        "forward": (attention_hopper, forward, splits),
        "whole": (attention_hopper_whole, forward, whole),
        "dq": (attention_dq_hopper, dq, stages),
        "dk_dv": (attention_dk_dv_hopper, dk_dv, stages),
    }
    function, arguments, constants = kernels[kernel]
    made = function.run(
        *arguments,
        HEAD=head,
        GROUP=1,
        CAUSAL=causal,
        WINDOWED=windowed,
        **constants,
        num_warps=4,
        num_stages=1,
        num_ctas=1,
        enable_fp_fusion=False,
        grid=(132,),
        warmup=True,
    )
    return str(made.asm["ptx"])


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
