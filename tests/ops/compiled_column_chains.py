"""Compiles the chains over rows for Hopper without a GPU, and prints what the assembler says and makes of them.

Run by test_column_chains.py in a process of its own: it stands in for Triton's driver. A line of JSON: by launch, the
assembler's words, and the instructions of the loop in which a warp adds."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton

from samebits.checker.artifact_process import stand_in
from samebits.checker.tracing.comparing import without_gpu
from samebits.ops._triton import hopper_columns
from samebits.ops._triton.hopper_columns import ChainLaunch

LAUNCHES = (ChainLaunch(), ChainLaunch(rows=128, columns=32, warps=8))


def compiled(launch: ChainLaunch) -> str:
    """The assembly that Triton makes for 16-bit numbers."""
    made = []

    def here(kernel: Any, programs: int, given: tuple[Any, ...], *, warps: int, stages: int, **constants: Any) -> None:
        options = {"num_warps": warps, "num_stages": stages, "num_ctas": 1, "enable_fp_fusion": False}
        made.append(kernel.run(*given, **constants, **options, grid=(programs,), warmup=True))

    hopper_columns.__dict__["run"] = here
    x_MH, rstd_M = torch.zeros(300, 64, dtype=torch.bfloat16), torch.zeros(300)
    with without_gpu():
        hopper_columns.add_rows(x_MH, x_MH, None, rstd_M, torch.zeros(64), launch)
    return str(made[0].asm["ptx"])


def assembled(ptx: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        command = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-sass", str(made)]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {"said": done.stdout + done.stderr, **loop_of(listed)}


def loop_of(listed: str) -> dict[str, int]:
    """The shortest loop with additions of float32."""
    code = [(int(at, 16), text) for at, text in re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", listed, re.MULTILINE)]
    back = [(int(found[1], 16), at) for at, text in code if (found := re.match(r"@!?U?P\d BRA .*?(0x[0-9a-f]+)", text))]
    loops = [[text for at, text in code if first <= at <= last] for first, last in back if first <= last]
    additions, instructions = min(
        ((sum(" FADD " in f" {text}" for text in loop), len(loop)) for loop in loops if "FADD" in " ".join(loop)),
        key=lambda counts: counts[1],
    )
    return {"additions": additions, "instructions": instructions}


if __name__ == "__main__":
    stand_in()
    print(json.dumps([{"rows": launch.rows, **assembled(compiled(launch))} for launch in LAUNCHES]))
