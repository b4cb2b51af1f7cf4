"""Compiles kernels of infer/hopper_step for Hopper without a GPU; prints what their machine code does.

Run by test_hopper_step_compiled.py in a process of its own: it stands in for Triton's driver. Launches are the folder's
own, and end in a compiled kernel instead of a run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton

from samebits.checker.artifact_process import stand_in
from samebits.checker.tracing.comparing import without_gpu
from samebits.infer.hopper_step import launches, launching, products
from samebits.infer.hopper_step.choices import ProductLaunch
from samebits.ops.attention.forms import Rule, Sequences

INSTRUCTIONS = ("ACQBULK", "PREEXIT", "UTMALDG", "UBLKPF", "LDG", "STG", "CCTL", "HGMMA", "STL", "LDL")


def launched(kind: str) -> Any:
    """The compiled kernel of a launch."""
    made: list[Any] = []

    def compiled(kernel: Any, programs: int, given: Any, *, warps: int, **constants: Any) -> None:
        options = {"num_warps": warps, "num_ctas": 1, "enable_fp_fusion": False, "launch_pdl": True}
        made.append(kernel.run(*given, **constants, **options, grid=(programs,), warmup=True))

    x, weight = torch.zeros(2, 512).bfloat16(), torch.zeros(512, 512).bfloat16()
    with without_gpu(), patch.object(launching, "run", compiled):
        if kind.startswith("product"):
            launch = ProductLaunch(overlapped="overlapped" in kind)
            products.product(x, weight, launch, gated="gated" in kind)
        elif kind == "norm":
            launches.norm(x, x, weight[0], 1e-5)
        else:
            table, parts = torch.ones(2, dtype=torch.int64), (x[:, :256], x[:, 256:384], x[:, 384:])
            kept = torch.zeros(64, 1, 128).bfloat16(), torch.zeros(64, 1, 128).bfloat16()
            rows = launches.Unrotated(parts, table, table, (torch.zeros(64), 1.0))
            if kind == "rotation":
                launches.rotate(rows, 128, kept)
            else:
                attend(kept, table, 4096 if kind.endswith("splits") else 256)
    return made[0]


def attend(kept: tuple[torch.Tensor, torch.Tensor], table: torch.Tensor, longest: int) -> None:
    """Of two sequences."""
    sequences = Sequences(
        q_start=table,
        q_length=table,
        k_start=table,
        k_length=table,
        pages=torch.zeros(2, 256, dtype=torch.int32),
        page_size=16,
        longest_query=1,
        longest_key=longest,
    )
    rule = Rule(causal=True, window=0, scale=0.1, softcap=0.0)
    launches.attend(torch.zeros(2, 4, 128).bfloat16(), kept, sequences, rule, table)


def listed(compiled: Any) -> list[str]:
    """The instructions of interest in the order of the machine code, with what says how wide an access is."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "kernel.cubin"
        made.write_bytes(compiled.asm["cubin"])
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-sass", str(made)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    code = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?(\S+)", text, re.MULTILINE)
    return [each for each in code if each.startswith(INSTRUCTIONS)]


if __name__ == "__main__":
    stand_in()
    made = {kind: launched(kind) for kind in sys.argv[1:]}
    found = {
        kind: {"code": listed(each), "programmatic": each.metadata.launch_pdl, "ptx": each.asm["ptx"]}
        for kind, each in made.items()
    }
    print(json.dumps(found))
