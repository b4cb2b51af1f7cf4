"""What gpu_rows.py compares before it times: every 16-bit number in SwiGLU and GELU, and each operator beside the CPU.

tests/ops/interpreted_halves.py has the first part run by Triton's interpreter, without a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits import ops
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.numerics.elementary import elementary
from samebits.numerics.recipes import make
from samebits.ops._triton import halves
from samebits.ops._triton.elements import ElementLaunch
from samebits.ops.gelu import reference as gelu_reference
from samebits.ops.gelu import triton_kernel as gelu
from samebits.ops.swiglu import reference as swiglu_reference
from samebits.ops.swiglu import triton_kernel as swiglu

DEVICE = "cuda"
HALVES = (torch.bfloat16, torch.float16)
FORMATS = (torch.float32, *HALVES)
WHOLE = ElementLaunch(block=2**16, warps=32)
RECIPES = ("normal", "wide", "subnormal", "infinite", "zeros_signed", "random_bits")
# One, an odd width, whole vectors; and thousands of programs, aligned and not.
SHAPES = ((1, 1), (17, 31), (33, 256))
LARGE = ((1026, 4096), (1025, 4097))
# Rows of norms: few, each by several warps, and many; kept, as up to 8,192 columns are, and longer; aligned and not.
NORMS = ((5, 255), (40, 1030), (4, 4096), (2200, 256), (1100, 1024), (1100, 4096), (600, 8192), (3, 8200))
Compared = tuple[str, Callable[[], Any], Callable[[], Any]]
"""A case, what Triton makes of it and what it must be."""


@triton.jit
def functions(x_ptr, sigmoid_ptr, exp_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.store(sigmoid_ptr + offsets, halves.sigmoid_of_half(x))
    tl.store(exp_ptr + offsets, halves.exp_of_minus_square(x, tl.bfloat16))


def all_numbers(dtype: torch.dtype) -> Tensor:
    return torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)


def others(dtype: torch.dtype, seed: int) -> Tensor:
    """Of random bits, with a NaN or an infinity now and then; every other one is an ordinary number."""
    made = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**15), 2**15, (2**16,), generator=made).to(torch.int16).view(dtype)
    bits[::2] = torch.randn(2**15, generator=made).to(dtype)
    return bits


def case(name: str, ours: Callable[..., Any], expected: Callable[..., Any], device: str, *given: Any) -> Compared:
    """A function and what it must be, both of the same."""
    there = [each.to(device) if isinstance(each, Tensor) else each for each in given]
    return name, partial(ours, *there), partial(expected, *given)


def by_triton(x: Tensor) -> tuple[Tensor, Tensor]:
    s, e = torch.empty_like(x), torch.empty_like(x)
    functions[(1,)](x, s, e, BLOCK=x.numel(), num_warps=32, enable_fp_fusion=False)
    return s, e


def by_definition(x: Tensor) -> tuple[Tensor, Tensor]:
    with np.errstate(all="ignore"):
        square = (x.numpy() * np.float32(-0.5)) * x.numpy()
    return torch.from_numpy(elementary("sigmoid", x.numpy())), torch.from_numpy(elementary("exp", square))


def of_functions(dtype: torch.dtype, device: str) -> Iterator[Compared]:
    """Of NaN, any number comes."""
    x = all_numbers(dtype).float()
    yield case("sigmoid, exponential", by_triton, by_definition, device, torch.where(x.isnan(), 0.0, x))


def of_kernels(dtype: torch.dtype, device: str) -> Iterator[Compared]:
    """Every number as the gate, and as what GELU is of."""
    x, one = all_numbers(dtype), torch.ones(2**16, dtype=dtype)
    for name, dy, up in (("", others(dtype, 2), others(dtype, 1)), (" of 1", one, one)):
        yield case(f"swiglu{name}", swiglu.forward, swiglu_reference.forward, device, x, up)
        yield case(f"swiglu{name} backward", swiglu.backward, swiglu_reference.backward, device, dy, x, up)
        for by_tanh in (False, True):
            words = f"gelu{name} backward by_tanh={by_tanh}"
            yield case(words, gelu.backward, gelu_reference.backward, device, dy, x, by_tanh)
    yield from of_gelu(dtype, device)


def of_gelu(dtype: torch.dtype, device: str) -> Iterator[Compared]:
    for by_tanh in (False, True):
        words = f"gelu by_tanh={by_tanh}"
        yield case(words, gelu.forward, gelu_reference.forward, device, all_numbers(dtype), by_tanh)


def differing(dtype: torch.dtype, compared: Iterable[Compared], words: str = "") -> dict[str, str | None]:
    """By case what differs, or None."""
    found = {}
    for name, ours, expected in compared:
        pairs = zip(*(each if isinstance(each, tuple) else (each,) for each in (ours(), expected())), strict=True)
        wrong = [str(each) for each in (compare(one.cpu(), other) for one, other in pairs) if each is not None]
        found[f"{name} {dtype}{words}"] = "; ".join(wrong) or None
    return found


def drawn(shape: tuple[int, ...], recipe: str, dtype: torch.dtype, count: int) -> list[Tensor]:
    name = str(dtype).removeprefix("torch.")
    return [torch.from_numpy(make(recipe, shape, seed, name)).to(dtype) for seed in range(count)]


def results(function: Callable[..., Any], given: list[Tensor], device: str) -> list[Tensor]:
    """What a function gives, and the gradients of the tensors that it is given."""
    leaves = [each.detach().to(device).requires_grad_() for each in given]
    made = function(*leaves)
    outputs = list(made) if isinstance(made, tuple) else [made]
    upstream = [torch.roll(each.detach().flatten(), 1).view_as(each) for each in outputs]
    gradients = torch.autograd.grad(outputs, leaves, upstream)
    return [each.detach().cpu() for each in (*outputs, *gradients)]


def beside_the_cpu(name: str, function: Callable[..., Any], given: list[Tensor], found: dict[str, str | None]) -> None:
    ours, expected = results(function, given, DEVICE), results(function, given, "cpu")
    wrong = [str(each) for each in map(compare, ours, expected) if each is not None]
    found[f"{name} {tuple(given[0].shape)} {given[0].dtype}"] = "; ".join(wrong) or None


def of_elements() -> dict[str, str | None]:
    """SwiGLU and GELU in three formats."""
    found: dict[str, str | None] = {}
    some = itertools.chain(itertools.product(SHAPES, RECIPES), itertools.product(LARGE, RECIPES[:1]))
    for (shape, recipe), dtype in itertools.product(list(some), FORMATS):
        gate, up = drawn(shape, recipe, dtype, 2)
        beside_the_cpu(f"swiglu {recipe}", ops.swiglu, [gate, up], found)
        for approximate in ("none", "tanh"):
            beside_the_cpu(f"gelu {approximate} {recipe}", lambda x, how=approximate: ops.gelu(x, how), [gate], found)
    return found


def of_rows() -> dict[str, str | None]:
    """The other operators that are timed, in float32, of which all promise the CPU's bits."""
    found: dict[str, str | None] = {}
    positions, ids = torch.arange(33), torch.randint(50, (33,), generator=torch.Generator().manual_seed(0))
    for recipe in RECIPES[:2]:
        x, residual = drawn((33, 4096), recipe, torch.float32, 2)
        weight, bias = drawn((4096,), recipe, torch.float32, 2)
        beside_the_cpu(f"rmsnorm {recipe}", ops.rmsnorm, [x, weight], found)
        beside_the_cpu(f"add_rmsnorm {recipe}", ops.add_rmsnorm, [x, residual, weight], found)
        beside_the_cpu(f"layernorm {recipe}", ops.layernorm, [x, weight, bias], found)
        beside_the_cpu(f"softmax {recipe}", ops.softmax, [x], found)
        beside_the_cpu(f"rope {recipe}", lambda x: ops.rope(x, positions.to(x.device)), [x.view(33, 32, 128)], found)
        (table,) = drawn((50, 200), recipe, torch.float32, 1)
        beside_the_cpu(
            f"embedding {recipe}", lambda weight: ops.embedding(ids.to(weight.device), weight), [table], found
        )
    return found


def of_norms() -> dict[str, str | None]:
    """The norms in three formats, by every kind of launch."""
    found: dict[str, str | None] = {}
    for shape, dtype, recipe in itertools.product(NORMS, FORMATS, ("normal", "infinite")):
        x, residual = drawn(shape, recipe, dtype, 2)
        weight, bias = drawn(shape[1:], "normal", dtype, 2)
        beside_the_cpu(f"rmsnorm {recipe}", ops.rmsnorm, [x, weight], found)
        beside_the_cpu(f"add_rmsnorm {recipe}", ops.add_rmsnorm, [x, residual, weight], found)
        beside_the_cpu(f"layernorm {recipe}", ops.layernorm, [x, weight, bias], found)
        beside_the_cpu(f"layernorm alone {recipe}", ops.layernorm, [x], found)
    return found


def all_differing() -> list[str]:
    """Every comparison that does not hold, by the GPU."""
    found: dict[str, str | None] = {}
    for dtype in HALVES:
        found |= differing(dtype, of_functions(dtype, DEVICE), " all numbers")
        found |= differing(dtype, of_kernels(dtype, DEVICE), " all numbers")
        with launching(launch=ElementLaunch(block=2048)):
            found |= differing(dtype, of_kernels(dtype, DEVICE), " all numbers, 2,048 a program")
    found |= of_elements() | of_rows() | of_norms()
    print(f"{len(found)} comparisons", flush=True)
    return [f"{name}: {wrong}" for name, wrong in found.items() if wrong is not None]
