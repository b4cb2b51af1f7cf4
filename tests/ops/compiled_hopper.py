"""Compiles attention's kernels for Hopper without a GPU, and prints what the assembler says and makes of one.

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
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from samebits.checker.artifact_process import stand_in
from samebits.ops.attention import triton_hopper, triton_hopper_backward
from samebits.ops.attention.triton_hopper_dk_dv import attention_dk_dv_hopper
from samebits.ops.attention.triton_hopper_dq import attention_dq_hopper
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
    splits = {"SEVERAL": several, "STAGES": triton_hopper.STAGES[head], "SPLIT": 32}
    stages = {"STAGES": triton_hopper_backward.STAGES[head]}
    forward = (*blocks[:3], x_THD, lse, marks, marks, *tables, *NUMBERS, 0.1)
    dq = (*blocks, statistics, x_THD, marks, marks, *tables, 256, *NUMBERS, 0.1, 0.1)
    dk_dv = (*blocks, lines, x_THD, x_THD, marks, marks, *tables, *NUMBERS, 0.1, 0.1)
    kernels: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
        "forward": (attention_hopper, forward, splits),
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


def assembled(ptx: str) -> dict[str, Any]:
    """What the assembler says, warnings among it, and the loops that it makes."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        command = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-sass", str(made)]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {"said": done.stdout + done.stderr, "loops": loops_of(listed)}


def loops_of(listed: str) -> list[dict[str, int]]:
    """Of the innermost loops with products of the tensor cores: how many there are, and accesses to local memory.

    A loop is a conditional branch back; those without a condition return from waits that stand behind the end."""
    code = [(int(at, 16), text) for at, text in re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", listed, re.MULTILINE)]
    back = [(int(found[1], 16), at) for at, text in code if (found := re.match(r"@!?U?P\d BRA .*?(0x[0-9a-f]+)", text))]
    loops = [(first, last, [text for at, text in code if first <= at <= last]) for first, last in back if first <= last]
    loops = [each for each in loops if any("HGMMA" in text for text in each[2])]
    innermost = [
        lines
        for first, last, lines in loops
        if not any(first <= other[0] and other[1] <= last and other[:2] != (first, last) for other in loops)
    ]
    wanted = {"products": r"\bHGMMA\b", "stores": r"\bSTL\b", "loads": r"\bLDL\b"}
    return [
        {name: sum(bool(re.search(pattern, text)) for text in lines) for name, pattern in wanted.items()}
        for lines in innermost
    ]


def spoiled(ptx: str) -> str:
    """Planted: every accumulator is read while products onto it are under way, and there are too few registers."""
    begun = re.compile(r"(wgmma\.mma_async\S+ \{(%r\d+),[^;]*;)")
    computing = re.compile(r"(setmaxnreg\S+\s+)(1[6-9]\d|240);")
    return computing.sub(r"\g<1>96;", begun.sub(r"\1\nadd.f32 \2, \2, \2;\n", ptx))


if __name__ == "__main__":
    stand_in()
    ptx = compiled(*json.loads(sys.argv[1]))
    print(json.dumps({"ptx": ptx, "made": assembled(ptx), "spoiled": assembled(spoiled(ptx))}))
