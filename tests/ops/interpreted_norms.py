"""LayerNorm and RMSNorm by Triton's interpreter beside the CPU: rows that are kept, and rows read step by step.

Run with TRITON_INTERPRET=1, in a process of its own, a fault's name behind it or none. Prints a line of JSON: by case,
the first difference or null."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from tests.ops.interpreted_attention import install
from tests.ops.interpreted_halves import round_to_nearest
from torch import Tensor
from triton.runtime import interpreter

from samebits.checker.tracing.comparing import without_gpu
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops._triton.rows import RowLaunch, block_of
from samebits.ops.layernorm import cpu_kernel as layernorm_cpu
from samebits.ops.layernorm import triton_blocks, triton_kernel
from samebits.ops.rmsnorm import cpu_kernel as rmsnorm_cpu
from samebits.ops.rmsnorm import triton_kernel as rmsnorm_kernel

FORMATS = (torch.float32, torch.bfloat16, torch.float16)
RECIPES = ("wide", "subnormal", "infinite", "zeros_signed", "random_bits")
# Around the borders of blocks, with whole vectors of 16 bytes and without; each with every launch, by turns.
SHAPES = (
    (1, 1),
    (3, 8),
    (1, 255),
    (2, 256),
    (3, 257),
    (1, 264),
    (2, 511),
    (3, 512),
    (1, 520),
    (2, 1023),
    (3, 1032),
    (1, 4096),
)
RAGGED = ((3, 257), (2, 1023))
LAUNCHES = (
    None,
    RowLaunch(rows=2, columns=2048, warps=4),
    RowLaunch(rows=4, columns=512, warps=4),
    RowLaunch(rows=1, columns=256, warps=4),
)
"""The operator's own, which keeps a row; several kept rows a program, one of which may not exist; steps of two blocks
and of one."""


def widen_by_a_shift() -> None:
    """As a GPU does; the interpreter makes another number of a subnormal bfloat16."""
    widened = interpreter.InterpreterBuilder.create_fp_ext

    def shifted(builder: Any, handle: Any, kind: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16 or kind.scalar != tl.float32:
            return widened(builder, handle, kind)
        bits = handle.data.view(np.uint16).astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    interpreter.InterpreterBuilder.create_fp_ext = shifted


def drawn(shape: tuple[int, ...], recipe: str, dtype: torch.dtype, seed: int, unaligned: bool) -> Tensor:
    values = torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype)
    if not unaligned:
        return values
    return torch.cat([values.new_zeros(1), values.flatten()])[1:].view(shape)


def of_layernorm(given: Callable[..., Tensor], m: int, width: int, weighted: bool, biased: bool) -> Iterator[Any]:
    x, dy = given(m, width), given(m, width)
    weight, bias = given(width) if weighted else None, given(width) if biased else None
    y, mean, rstd = layernorm_cpu.forward(x, weight, bias, 1e-5)
    yield triton_kernel.forward(x, weight, bias, 1e-5), (y, mean, rstd)
    expected = layernorm_cpu.backward_input(dy, x, weight, mean, rstd)
    yield (triton_kernel.backward_input(dy, x, weight, mean, rstd),), (expected,)


def of_rmsnorm(given: Callable[..., Tensor], m: int, width: int, more: bool, _: bool) -> Iterator[Any]:
    x, dy, weight = given(m, width), given(m, width), given(width)
    residual, dhidden = (given(m, width), given(m, width)) if more else (None, None)
    y, rstd, hidden = rmsnorm_cpu.forward(x, weight, 1e-6, residual)
    yield rmsnorm_kernel.forward(x, weight, 1e-6, residual), (y, rstd, hidden)
    expected = rmsnorm_cpu.backward_input(dy, hidden, weight, rstd, dhidden)
    yield (rmsnorm_kernel.backward_input(dy, hidden, weight, rstd, dhidden),), (expected,)


NORMS = {"layernorm": of_layernorm, "rmsnorm": of_rmsnorm}
FORMS = tuple(itertools.product((True, False), repeat=2))


def differences(shapes: Sequence[tuple[int, int]]) -> dict[str, str | None]:
    """Every shape with every launch; formats, recipes, forms and alignments by turns of different lengths."""
    found: dict[str, str | None] = {}
    cases = itertools.product(NORMS, shapes, LAUNCHES)
    for number, (norm, (m, width), launch) in enumerate(cases):
        dtype, recipe = FORMATS[number % 3], RECIPES[number % 5]
        unaligned, form = number % 7 == 0, FORMS[number // 2 % 4]
        seeds = itertools.count(number)

        def given(*shape: int, how: Any = (recipe, dtype), seeds: Any = seeds, apart: bool = unaligned) -> Tensor:
            return drawn(shape, *how, next(seeds), apart)

        wrong = []
        with without_gpu(), launching(**({} if launch is None else {"launch": launch})):
            for ours, expected in NORMS[norm](given, m, width, *form):
                wrong += [str(each) for each in map(compare, ours, expected) if each is not None]
        words = f"{norm} {m}x{width} {recipe} {dtype} launch {LAUNCHES.index(launch)} {form} unaligned={unaligned}"
        found[words] = "; ".join(wrong) or None
    return found


@triton.jit
def always_full(rows, start, M, H, FULL: tl.constexpr, ALIGNED: tl.constexpr):
    """Planted: the last block of a row is taken for a full one, and what lies behind the row is read."""
    offsets, _, columns = block_of(rows, start, M, H, 256, ALIGNED)
    return offsets, (rows < M)[:, None] & (offsets < M * H), columns


@triton.jit
def from_the_end(lanes, blocks, STEPS: tl.constexpr):
    """Planted: a lane's terms are added from the last to the first."""
    for step in tl.static_range(STEPS):
        lanes = lanes + blocks[STEPS - 1 - step].to(tl.float32)
    return lanes


@triton.jit
def whether_or_not(new, old, inside, FULL: tl.constexpr):
    """Planted: terms that do not exist are added as well."""
    return new


FAULTS = {
    "always full": lambda: [setattr(module, "block_at", always_full) for module in (triton_blocks, rmsnorm_kernel)],
    "from the end": lambda: setattr(triton_kernel, "add_blocks", from_the_end),
    "whether or not": lambda: setattr(triton_blocks, "only_inside", whether_or_not),
}

if __name__ == "__main__":
    install()
    round_to_nearest()
    widen_by_a_shift()
    faults = sys.argv[1:]
    for fault in faults:
        FAULTS[fault]()
    with np.errstate(all="ignore"):
        print(json.dumps(differences(RAGGED if faults else SHAPES)))
