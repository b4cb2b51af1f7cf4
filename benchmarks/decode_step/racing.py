"""Forms of the product of a few rows beside launches of the one in use, on a GPU: which reads weights fastest.

All give the same bits: comparing.py has looked. Inputs rotate, so that no weight is in the cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from decode_step.products import Form, product
from samebits.bench.cuda_timing import copies, copy_bandwidth, kernel_times, medians
from samebits.bench.shapes import PUBLISHED, weights
from samebits.ops.matmul import triton_kernel as matmul
from samebits.ops.matmul.launch_table import Launch, select
from samebits.ops.swiglu import triton_kernel as swiglu

FORMS: Final = (
    Form(),
    Form(early=False),
    Form(depth=128),
    Form(depth=128, programs=2),
    Form(features=32),
    Form(features=32, programs=2),
    Form(features=32, depth=128, programs=2),
    Form(ahead=16),
    Form(features=32, ahead=32),
)
IN_USE: Final = (
    Launch(tile_m=64, tile_n=16, tile_k=256, warps=4, stages=5, swap=True),
    Launch(tile_m=64, tile_n=16, tile_k=256, warps=4, stages=5, swap=True, programs_per_sm=1),
    Launch(tile_m=64, tile_n=16, tile_k=128, warps=4, stages=5, swap=True, programs_per_sm=2),
    Launch(tile_m=128, tile_n=16, tile_k=128, warps=4, stages=4, swap=True),
    Launch(tile_m=128, tile_n=16, tile_k=128, warps=4, stages=6, swap=True, programs_per_sm=1),
    Launch(tile_m=32, tile_n=16, tile_k=256, warps=4, stages=8, swap=True),
    Launch(tile_m=32, tile_n=16, tile_k=256, warps=4, stages=4, swap=True, programs_per_sm=2),
    Launch(tile_m=16, tile_n=16, tile_k=256, warps=2, stages=6, swap=True, programs_per_sm=2),
)
"""Beside the one in the launch table: more programs, more of them that stay, smaller and larger tiles."""
ROWS: Final = 1
MILLISECONDS: Final = 10.0
ROUNDS: Final = 3
Call = Callable[[], Tensor]


def gated_in_use(x: Tensor, weight: Tensor, launch: Launch | None) -> Tensor:
    """As the engine has it for one row: gate and up as one product, and a launch for what is between."""
    gate, up = matmul.gemm(x, weight.T, launch=launch).chunk(2, 1)
    return swiglu.forward(gate.contiguous(), up.contiguous())


def sides(x: Tensor, weight: Tensor, gated: bool, wide: bool) -> dict[str, Call]:
    """By name, what computes one product."""
    out_dtype = torch.float32 if wide else None
    chosen = select(len(x), len(weight), x.shape[1], dtype="bfloat16", described=True, wide=wide)
    launches = {f"table: {chosen}": chosen, **{str(each): each for each in IN_USE if each != chosen}}
    found: dict[str, Call] = {}
    for name, launch in launches.items():
        if gated:
            found[name] = partial(gated_in_use, x, weight, launch)
        else:
            found[name] = partial(matmul.gemm, x, weight.T, launch=launch, out_dtype=out_dtype)
    for form in FORMS:
        found[f"ours: {form}"] = partial(product, x, weight, form, programmatic=False, gated=gated, out_dtype=out_dtype)
        found[f"ours, programmatic: {form}"] = partial(
            product, x, weight, form, programmatic=True, gated=gated, out_dtype=out_dtype
        )
    return found


def raced() -> list[dict[str, Any]]:
    """The products of one row of a Llama of 8 billion weights: microseconds by side, and of a copy's bandwidth."""
    rows = []
    for each in weights(PUBLISHED["llama-3-8b"]):
        size = 2 * each.n * each.k
        gated, wide = each.name == "gate_up", each.name == "lm_head"
        inputs = [
            (
                torch.randn(ROWS, each.k, device="cuda").bfloat16(),
                torch.randn(each.n, each.k, device="cuda", dtype=torch.bfloat16),
            )
            for _ in range(copies(size, 2**28))
        ]
        by_set = [sides(*operands, gated, wide) for operands in inputs]
        names = list(by_set[0])
        times = kernel_times([[made[name] for made in by_set] for name in names], MILLISECONDS, ROUNDS)
        found = {name: 1e3 * each_time for name, each_time in zip(names, medians(times), strict=True)}
        of_copy = {name: size / microseconds / 1e-6 / copy_bandwidth() for name, microseconds in found.items()}
        rows.append({"product": each.name, "n": each.n, "k": each.k, "us": found, "of_copy": of_copy})
        print(f"{each.name} {ROWS}x{each.k}x{each.n}, us and of a copy's bandwidth:")
        for name in sorted(found, key=lambda name: found[name]):
            print(f"  {found[name]:8.2f} {of_copy[name]:5.2f}  {name}", flush=True)
        del inputs, by_set
    return rows
