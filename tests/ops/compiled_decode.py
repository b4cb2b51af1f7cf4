"""Compiles attention of one query for Hopper without a GPU, and prints what the assembler says and makes of it.

Run by test_decode_compiled.py in a process of its own: it stands in for Triton's driver."""

from __future__ import annotations

import json
import sys
from unittest.mock import patch

import torch
from compiled_hopper import assembled

from samebits.checker.artifact_process import stand_in
from samebits.checker.tracing.comparing import without_gpu
from samebits.ops.attention import triton_decode
from samebits.ops.attention.forms import Rule, Sequences


def compiled(head: int, group: int, page_size: int, longest: int, multiprocessors: int) -> str:
    """The assembly that Triton makes for two sequences of two key heads."""
    table, kept = torch.ones(2, dtype=torch.int64), torch.zeros(64, 2, head).bfloat16()
    q, lse = torch.zeros(2, 2 * group, head).bfloat16(), torch.zeros(2, 2 * group)
    sequences = Sequences(
        q_start=table,
        q_length=table,
        k_start=table,
        k_length=table,
        pages=torch.zeros(2, 256, dtype=torch.int32) if page_size else None,
        page_size=page_size,
        longest_query=1,
        longest_key=longest,
    )
    states = (lse, lse, lse) if longest > 2048 else (None, None, None)
    rule = Rule(causal=True, window=0, scale=0.1, softcap=0.0)
    with without_gpu(), patch.object(triton_decode, "multiprocessors", lambda device: multiprocessors):
        results = triton_decode.Results(q, lse, states)
        made = triton_decode.prepared(q, kept, kept, results, sequences, rule)
        options = {"num_warps": triton_decode.WARPS, "num_stages": 1, "num_ctas": 1, "enable_fp_fusion": False}
        kernel = triton_decode.attention_of_one_query
        ready = kernel.run(*made.arguments, **made.constants, **options, grid=(made.programs,), warmup=True)
    return str(ready.asm["ptx"])


if __name__ == "__main__":
    stand_in()
    ptx = compiled(*json.loads(sys.argv[1]))
    print(json.dumps({"ptx": ptx, "made": assembled(ptx)}))
