"""RMSNorm as transformers writes it, in invariant mode on the GPU: the operator's bits, in every form of a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from samebits import ops
from samebits.invariant import invariant_mode
from samebits.numerics.bits import same_bits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = (128, 300, 2048)


def drawn(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to("cuda", dtype)


def norm_of(width: int, dtype: torch.dtype) -> Any:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    norm = Qwen3RMSNorm(width)
    norm.weight.data.copy_(torch.randn(width, generator=torch.Generator().manual_seed(9)))
    return norm.to("cuda", dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_is_the_operator_in_every_form(width: int, dtype: torch.dtype) -> None:
    """Whole, a row alone, and by vmap; the gradient of a row's input likewise."""
    norm, x = norm_of(width, dtype), drawn(6, 5, width, seed=1, dtype=dtype).requires_grad_()
    dy = drawn(6, 5, width, seed=2, dtype=dtype)
    with invariant_mode() as mode:
        y = norm(x)
        (dx,) = torch.autograd.grad(y, x, dy)
        row = x[2:3, 3:4].detach().requires_grad_()
        alone = norm(row)
        (drow,) = torch.autograd.grad(alone, row, dy[2:3, 3:4])
        mapped = torch.func.vmap(norm)(x.detach())
    assert same_bits(y, ops.rmsnorm(x, norm.weight, norm.variance_epsilon)) and same_bits(mapped, y)
    assert same_bits(alone[0, 0], y[2, 3]) and same_bits(drow[0, 0], dx[2, 3])
    assert mode.routed["aten._fused_rms_norm.default"] >= 3 and "aten.mean.dim" not in mode.routed


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_weights_gradient_ignores_padding(width: int, dtype: torch.dtype) -> None:
    """Rows into which no gradient flows, before and behind."""
    norm, x, dy = norm_of(width, dtype), drawn(70, width, seed=3, dtype=dtype), drawn(70, width, seed=4, dtype=dtype)
    dy[:9], dy[50:] = 0, 0
    with invariant_mode():
        (padded,) = torch.autograd.grad(norm(x), norm.weight, dy)
        (alone,) = torch.autograd.grad(norm(x[9:50]), norm.weight, dy[9:50])
    assert same_bits(padded, alone)


@pytest.mark.parametrize("width", WIDTHS)
def test_micro_batches_give_the_gradient_of_the_batch(width: int) -> None:
    """Planted: two finished sums differ."""
    norm, x = norm_of(width, torch.float32), drawn(96, width, seed=5, dtype=torch.float32)
    dy = drawn(96, width, seed=6, dtype=torch.float32)

    def gradient(*cuts: int) -> Tensor:
        norm.weight.grad = None
        with invariant_mode():
            for rows, each in zip(x.tensor_split(cuts), dy.tensor_split(cuts), strict=True):
                norm(rows).backward(each)
        found: Tensor = norm.weight.grad
        return found

    whole = gradient()
    assert same_bits(gradient(1, 40), whole)
    with invariant_mode():
        parts = [torch.autograd.grad(norm(x[a:b]), norm.weight, dy[a:b])[0] for a, b in ((0, 7), (7, 96))]
    assert not same_bits(parts[0] + parts[1], whole)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 16, 70, 128), (3, 5, 33, 64), (1, 8, 9, 80), (2, 3, 5, 6)], ids=str)
def test_a_rotation_has_the_bits_of_the_operations(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Forward and back, in the layout that models have, of angles for one sequence and for each."""
    import transformers.models.qwen3.modeling_qwen3 as qwen3

    B, H, S, D = shape
    for angles in {1, B}:
        q, k, dq = (
            drawn(B, S, heads, D, seed=seed, dtype=dtype).transpose(1, 2)
            for seed, heads in ((1, H), (2, max(1, H // 2)), (3, H))
        )
        cos, sin = (drawn(angles, S, D, seed=seed, dtype=dtype) for seed in (4, 5))
        given = [each.detach().requires_grad_() for each in (q, k)]
        stock = qwen3.apply_rotary_pos_emb(*given, cos, sin)
        wanted = [*stock, *torch.autograd.grad(stock[0], given[0], dq)]
        with invariant_mode() as mode:
            ours = qwen3.apply_rotary_pos_emb(*given, cos, sin)
            found = [*ours, *torch.autograd.grad(ours[0], given[0], dq)]
        assert all(map(same_bits, found, wanted)) and not mode.unverified
        assert type(ours[0].grad_fn).__name__ == ("AddBackward0" if dtype == torch.float32 else "_RotatedBackward")
