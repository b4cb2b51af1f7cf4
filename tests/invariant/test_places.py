"""A value's bits do not depend on its place in memory: every elementwise operation that invariant mode lets pass.

torch's CPU library has a vector form and a scalar form of many functions; the last elements of a tensor, and those of a
strided one, get the scalar form. Where the two differ, a row's bits depend on the rows around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from samebits.invariant import InvariantError, invariant_mode
from samebits.numerics.bits import same_bits
from samebits.numerics.recipes import make

COUNT = 640
aten = torch.ops.aten
UNARY = """
    exp exp2 log rsqrt sin cos tanh erf sigmoid silu gelu sqrt reciprocal abs neg ceil floor round trunc relu square
    hardswish hardsigmoid hardtanh leaky_relu nan_to_num expm1 log2 log10 log1p tan asin acos atan asinh acosh erfc
    erfinv sign frac
"""
OPERATIONS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(aten, name) for name in UNARY.split()},
    "gelu tanh": lambda x: aten.gelu(x, approximate="tanh"),
    "log_sigmoid": lambda x: aten.log_sigmoid_forward(x)[0],
    **{f"power {p}": lambda x, p=p: aten.pow(x.abs(), p) for p in (2, 3, 4, 0.5, -0.5, -1)},
    "add": aten.add,
    "add with a factor": lambda x, y: aten.add(x, y, alpha=0.3),
    "subtract with a factor": lambda x, y: aten.sub(x, y, alpha=0.3),
    "subtract from with a factor": lambda x, y: aten.rsub(x, y, alpha=0.3),
    "add a number with a factor": lambda x: aten.add(x, 2.5, alpha=0.3),
    "lerp": lambda x, y: aten.lerp(x, y, 0.3),
    "lerp by a tensor": lambda x, y: aten.lerp(x, y, x),
    "addcmul without a factor": lambda x, y: aten.addcmul(x, y, x),
    "addcdiv without a factor": lambda x, y: aten.addcdiv(x, y, x),
    "add of lists": lambda x, y: aten._foreach_add([x], [y], alpha=0.3)[0],
    "addcmul of lists": lambda x, y: torch._foreach_addcmul([x], [y], [x], value=0.3)[0],
    "squared differences": lambda x, y: aten.mse_loss(x, y, 0),
    "smooth differences": lambda x, y: aten.smooth_l1_loss(x, y, 0),
    "multiply": aten.mul,
    "divide": aten.div,
    "multiply by a number": lambda x, y: aten.mul(x, 3.7),
    "remainder": aten.remainder,
    "maximum": aten.maximum,
    "addcmul": lambda x, y: aten.addcmul(x, y, x, value=0.7),
    "addcdiv": lambda x, y: aten.addcdiv(x, y, x, value=0.7),
    "silu backward": aten.silu_backward,
    "gelu backward": aten.gelu_backward,
    "gelu tanh backward": lambda x, y: aten.gelu_backward(x, y, approximate="tanh"),
    "tanh backward": aten.tanh_backward,
    "sigmoid backward": aten.sigmoid_backward,
    "threshold backward": lambda x, y: aten.threshold_backward(x, y, 0),
    "hardtanh backward": lambda x, y: aten.hardtanh_backward(x, y, -1, 1),
    "leaky relu backward": lambda x, y: aten.leaky_relu_backward(x, y, 0.01, False),
    "hardswish backward": aten.hardswish_backward,
    "hardsigmoid backward": aten.hardsigmoid_backward,
    "log_sigmoid backward": lambda x, y: aten.log_sigmoid_backward(x, y, aten.log_sigmoid_forward(y)[1]),
    "fmod": aten.fmod,
    "copysign": aten.copysign,
    "minimum": aten.minimum,
    "fmax": aten.fmax,
    "clamp": lambda x: aten.clamp(x, -1, 1),
    "degrees": aten.deg2rad,
    "a number less": lambda x, y: aten.rsub(x, 3.7),
    "divided by a number": lambda x, y: aten.div(x, 3.7),
    "xlogy": lambda x, y: aten.xlogy(x, y.abs()),
}
POSITION_DEPENDENT = (
    "add a number with a factor",
    "silu",
    "sigmoid",
    "gelu",
    "silu backward",
    "gelu backward",
    "add with a factor",
    "rsqrt",
)


def placements(values: list[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
    """The same values, cut, shifted, strided, transposed, and many at once."""
    for offset in (1, 3, 8):
        yield f"offset {offset}", [torch.cat([value[:offset], value])[offset:] for value in values]
    yield "every second", [torch.stack([value, value], 1)[:, 0] for value in values]
    yield "one strided", [values[0], *[torch.stack([value, value], 1)[:, 1] for value in values[1:]]]
    yield "transposed", [value.reshape(32, 20).T.contiguous().T for value in values]


EDGES: dict[str, Callable[..., Tensor]] = {
    "maximum": aten.maximum,
    "minimum": aten.minimum,
    "larger of two": lambda x, y: torch.max(x, y),
    "largest": lambda x, y: torch.stack([x, y]).amax(0),
    "least": lambda x, y: torch.stack([x, y]).amin(0),
    "between tensors": lambda x, y: torch.clamp(x, y, y.abs()),
    "at least a tensor": torch.clamp_min,
    "between numbers": lambda x, y: torch.clamp(x, -1, 0),
    "fmod": aten.fmod,
    "remainder": aten.remainder,
    "remainder of a number": lambda x, y: aten.remainder(0.5, y),
    "fmod by a number": lambda x, y: aten.fmod(x, 0.3),
}
"""Elementwise too, and alike everywhere for most values: asked for zeros, and numbers of very different size."""
OF_WHOLE_NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "root": lambda n: n**0.5,
    "power of a number": lambda n: 2.5**n,
    "sum with a factor": lambda n: torch.add(n, 0.5, alpha=0.3),
    "exp": torch.exp,
}
REFUSED_OF_WHOLE_NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "power": lambda n: n**0.3,
    "sinh": torch.sinh,
    "atan2": lambda n: torch.atan2(n, n + 1),
    "lgamma": torch.lgamma,
}


def usual() -> list[Tensor]:
    drawn = [torch.from_numpy(make("normal", (COUNT,), seed)) * scale for seed, scale in ((1, 3.0), (2, 1.0))]
    drawn[0][::5] *= 20
    return drawn


def edges() -> list[Tensor]:
    """Zeros of both signs, and quotients beyond the largest number."""
    values = torch.tensor([0.0, -0.0, 0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 0.5, -0.3])
    return [values[torch.randint(10, (COUNT,), generator=torch.Generator().manual_seed(seed))] for seed in (1, 2)]


def dependent_on_place(
    function: Callable[..., Tensor],
    dtype: torch.dtype,
    around: Callable[[], Any],
    device: str = "cpu",
    given: Callable[[], list[Tensor]] = usual,
) -> list[str]:
    """Placements that give other bits than the whole in one piece."""
    drawn = given()
    with around():
        values = [each.to(device, dtype) for each in drawn]
        try:
            whole = function(values[0])
            values = values[:1]
        except (RuntimeError, TypeError):
            whole = function(*values)
        found = []
        for name, placed in placements(values):
            if not same_bits(function(*placed).reshape(-1), whole):
                found.append(name)
        for length in (1, 2, 3, 5, 7, 9, 16, 31, 65):
            end = min(COUNT, 40 * length)
            parts = [function(*[value[s : min(s + length, end)] for value in values]) for s in range(0, end, length)]
            if not same_bits(torch.cat(parts), whole[:end]):
                found.append(f"pieces of {length}")
        large = function(*[torch.cat([value] * 120 + [value[:77]]) for value in values])  # several threads
        if not all(same_bits(large[i * COUNT : (i + 1) * COUNT], whole) for i in (0, 50, 119)):
            found.append("threads")
    return found


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["float32", "bfloat16", "float16"]
)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_values_bits_do_not_depend_on_its_place(name: str, dtype: torch.dtype) -> None:
    assert dependent_on_place(OPERATIONS[name], dtype, invariant_mode) == []


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["float32", "bfloat16", "float16"]
)
@pytest.mark.parametrize("name", EDGES)
def test_nor_do_those_of_zeros_and_of_extremes(name: str, dtype: torch.dtype) -> None:
    assert dependent_on_place(EDGES[name], dtype, invariant_mode, given=edges) == []


@pytest.mark.parametrize("name", OF_WHOLE_NUMBERS)
def test_nor_do_floats_that_are_made_of_whole_numbers(name: str) -> None:
    """torch's own functions make them as well."""
    whole = [torch.arange(COUNT, dtype=torch.float32) % 100]
    function = OF_WHOLE_NUMBERS[name]
    assert dependent_on_place(lambda n: function(n.long()), torch.float32, invariant_mode, given=lambda: whole) == []


@pytest.mark.parametrize("name", REFUSED_OF_WHOLE_NUMBERS)
def test_what_is_refused_of_floats_is_refused_of_whole_numbers(name: str) -> None:
    with invariant_mode(), pytest.raises(InvariantError, match="is refused"):
        REFUSED_OF_WHOLE_NUMBERS[name](torch.arange(9))


@pytest.mark.parametrize("name", ["maximum", "largest", "least", "between tensors"])
def test_in_stock_torch_a_zeros_sign_depends_on_its_place(name: str) -> None:
    """The negative control."""
    assert dependent_on_place(EDGES[name], torch.float32, nullcontext, given=edges)


def test_in_stock_torch_they_do() -> None:
    """The negative control. SiLU, the activation of most language models, is among them."""
    formats = (torch.float32, torch.bfloat16)
    assert any(
        dependent_on_place(OPERATIONS[name], dtype, nullcontext) for name in POSITION_DEPENDENT for dtype in formats
    )
