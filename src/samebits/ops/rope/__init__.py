"""Rotary position embedding: `rope(x, positions, theta)`, two layouts of pairs, scaled frequencies.

A token's bits depend on that token and its position alone; where it lies in memory, in which chunk or beside which
tokens, does not matter. The gradient is the rotation by the opposite angle."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.ops.argument_types import checked
from samebits.ops.arguments import check_tensors, choose_backend, short
from samebits.ops.backends import kernel_module
from samebits.ops.cuts import Cut
from samebits.ops.registering import call, contiguous_like, register
from samebits.ops.rope.scaling import RopeScaling, attention_factor, frequencies

__all__ = ["LAYOUTS", "RopeScaling", "rope"]

LAYOUTS = ("half", "interleaved")
# The whole numbers up to here are exact in float32.
LARGEST_POSITION = 2**24


@checked
def rope(
    x: Tensor,
    positions: Tensor,
    theta: float = 10000.0,
    *,
    layout: str = "half",
    scaling: RopeScaling | None = None,
    backend: str | None = None,
) -> Tensor:
    """x (..., T, H, D), each pair of a head turned by its token's position times the pair's frequency.

    positions: int32 or int64, (..., T), or (T) for every sequence of a batch. A pair is (i, i + D/2) in the layout
    "half", (2i, 2i + 1) in "interleaved"."""
    backend = choose_backend("rope", x, backend)
    check_tensors("rope", backend, {"x": x})
    _check(x, positions, theta, layout)
    heads, size = x.shape[-2:]
    positions_M = positions.expand(x.shape[:-2]).reshape(-1).long()
    y: Tensor = call(
        "rope",
        x.reshape(-1, heads, size),
        positions_M,
        theta,
        "" if scaling is None else scaling.text,
        layout == "interleaved",
        False,
        backend,
    )
    return y.reshape(x.shape)


def _check(x: Tensor, positions: Tensor, theta: float, layout: str) -> None:
    if x.dim() < 3 or x.shape[-1] % 2 or x.shape[-1] == 0:
        raise ValueError(f"rope: x has shape {tuple(x.shape)}; allowed: (..., tokens, heads, an even head size)")
    if positions.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"rope: positions have dtype {short(positions.dtype)}; allowed: int32, int64")
    if positions.shape not in (x.shape[:-2], x.shape[-3:-2]):
        raise ValueError(
            f"rope: positions have shape {tuple(positions.shape)}, x has {tuple(x.shape)};"
            f" allowed: {tuple(x.shape[:-2])} or {tuple(x.shape[-3:-2])}"
        )
    if positions.device != x.device:
        raise ValueError(f"rope: positions are on {positions.device}, x on {x.device}; they must agree")
    if not 1.0 < theta < math.inf:
        raise ValueError(f"rope: theta is {theta}; allowed: finite, above 1")
    if layout not in LAYOUTS:
        raise ValueError(f"rope: layout is {layout!r}; allowed: {', '.join(LAYOUTS)}")


@cache
def _table(size: int, theta: float, scaling: str, device: torch.device) -> tuple[Tensor, float]:
    """The frequencies in float32 on their device, and what sine and cosine are multiplied by; made once."""
    scaled = RopeScaling.from_text(scaling) if scaling else None
    values = np.asarray(frequencies(size, theta, scaled), np.float32)
    return torch.tensor(values, device=device), attention_factor(scaled)


_kernel = partial(kernel_module, __name__, "rope")


def _check_range(positions: Tensor) -> None:
    """Looks at the numbers; on CUDA that waits for them, and while a graph is captured nobody can."""
    if positions.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    least, most = torch.stack(torch.aminmax(positions)).tolist()
    if least < 0 or most > LARGEST_POSITION:
        bad = least if least < 0 else most
        place = int((positions == bad).nonzero()[0])
        raise ValueError(f"rope: the position of token {place} is {bad}; allowed: 0 to {LARGEST_POSITION}")


def _rope(
    x: Tensor, positions: Tensor, theta: float, scaling: str, interleaved: bool, opposite: bool, backend: str
) -> Tensor:
    if x.numel() == 0:
        return contiguous_like(x)
    if not opposite:  # a backward pass has the positions of its forward pass
        _check_range(positions)
    table, factor = _table(x.shape[-1], theta, scaling, x.device)
    rotate = _kernel(backend, x.device).rotate
    y: Tensor = rotate(x.contiguous(), positions.contiguous(), table, factor, interleaved, opposite)
    return y


def _rope_fake(
    x: Tensor, positions: Tensor, theta: float, scaling: str, interleaved: bool, opposite: bool, backend: str
) -> Tensor:
    return contiguous_like(x)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, positions, *ctx.plain = inputs
    ctx.save_for_backward(positions)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    (positions,), (*angles, opposite, backend) = ctx.saved_tensors, ctx.plain
    dx = call("rope", dy, positions, *angles, not opposite, backend)
    return dx, *[None] * 6


register(
    "rope(Tensor x, Tensor positions, float theta, str scaling, bool interleaved, bool opposite, str backend)"
    " -> Tensor",
    run=_rope,
    fake=_rope_fake,
    setup_context=_setup_context,
    backward=_backward,
    # Tokens with their positions, or heads.
    cuts=[Cut({"x": 0, "positions": 0}, (0,)), Cut({"x": 1}, (1,))],
)
