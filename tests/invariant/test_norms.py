"""RMSNorm as transformers writes it: which classes go to samebits' operator, with which bits, and what stays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GemmaConfig, GemmaForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from samebits import ops
from samebits.invariant import invariant_mode
from samebits.numerics.bits import same_bits

FUSED = "aten._fused_rms_norm.default"
WIDTH = 300


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def norm_of(kind: Callable[..., nn.Module], dtype: torch.dtype = torch.float32) -> Any:
    norm = kind(WIDTH)
    norm.weight.data.copy_(drawn(WIDTH, seed=9))  # type: ignore[union-attr,operator]
    return norm.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Qwen3RMSNorm, Olmo2RMSNorm])
def test_is_the_operator(kind: Any, dtype: torch.dtype) -> None:
    """Output and both gradients, of heads of several tokens too; one operation instead of eight."""
    norm = norm_of(kind, dtype)
    for shape in ((5, WIDTH), (2, 3, 4, WIDTH), (WIDTH,)):
        x, dy = drawn(*shape, seed=1).to(dtype).requires_grad_(), drawn(*shape, seed=2).to(dtype)
        y = ops.rmsnorm(x, norm.weight, norm.variance_epsilon)
        wanted = [y, *torch.autograd.grad(y, (x, norm.weight), dy)]
        with invariant_mode() as mode:
            y = norm(x)
            found = [y, *torch.autograd.grad(y, (x, norm.weight), dy)]
        assert all(map(same_bits, found, wanted))
        assert mode.routed == {FUSED: 1, "aten._fused_rms_norm_backward.default": 1}


def test_is_what_the_class_says() -> None:
    """Against float64: 300 squares in 256 lanes folded by halves are 10 roundings deep, and four steps follow."""
    norm, x = norm_of(LlamaRMSNorm), drawn(7, WIDTH, seed=1)
    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt() * norm.weight.double()
    with invariant_mode():
        y = norm(x)
    assert ((y.double() - exact).abs() <= 14 * 2.0**-24 * exact.abs()).all()


def written(self: Any, hidden_states: Tensor) -> Any:
    input_dtype = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
    return self.weight * hidden_states.to(input_dtype)


class Weighted(nn.Module):
    """One of a user's own: it is the code that counts, not the name."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = 1e-6


def test_a_class_that_is_defined_in_a_block() -> None:
    """Its first call too: a later block would else see other bits."""
    x = drawn(4, WIDTH)
    with invariant_mode() as mode:
        norm: Any = type("Late", (Weighted,), {"forward": written})(WIDTH)
        y = norm(x)
    assert mode.routed[FUSED] == 1 and same_bits(y, ops.rmsnorm(x, norm.weight, 1e-6))


class OfAnotherMean(Weighted):
    """Planted: one number is another."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(4).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class OfAnotherAttribute(Weighted):
    """Planted: one name is another."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.abs().mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


@pytest.mark.parametrize("kind", [OfAnotherMean, OfAnotherAttribute, lambda width: GemmaRMSNorm(width)])
def test_another_function_is_taken_as_it_is(kind: Callable[[int], nn.Module]) -> None:
    norm, x = norm_of(kind), drawn(6, WIDTH)
    with invariant_mode() as mode:
        together, alone = norm(x), norm(x[2:3])
    torch.testing.assert_close(together, norm(x))
    assert FUSED not in mode.routed and same_bits(together[2], alone[0])


def test_what_the_operator_does_not_take_is_taken_as_it_is() -> None:
    """A weight of another dtype, autocast, no rows: the class's own, with its results."""
    norm, x = norm_of(LlamaRMSNorm), drawn(3, WIDTH)
    with invariant_mode() as mode:
        assert norm(x.bfloat16()).dtype == torch.float32
        assert norm(x[:0]).shape == (0, WIDTH)
        with torch.autocast("cpu", torch.bfloat16):
            assert norm(x).dtype == torch.float32
    assert FUSED not in mode.routed


@pytest.mark.parametrize("axis", [0, 1])
def test_a_batch_by_vmap(axis: int) -> None:
    """Of rows, and of norms: the bits of each alone."""
    norm, x, weights = norm_of(LlamaRMSNorm), drawn(4, 3, WIDTH), drawn(4, WIDTH, seed=8)
    given = x.movedim(0, axis).contiguous()

    def of_weight(weight: Tensor, x: Tensor) -> Any:
        return torch.func.functional_call(norm, {"weight": weight}, x)

    with invariant_mode() as mode:
        rows = torch.func.vmap(norm, in_dims=axis)(given)
        norms = torch.func.vmap(of_weight, in_dims=(0, axis))(weights, given)
        of_one = torch.func.vmap(of_weight, in_dims=(0, None))(weights, x[0])
        assert same_bits(rows, norm(x))
        for place, weight in enumerate(weights):
            assert same_bits(norms[place], of_weight(weight, x[place]))
            assert same_bits(of_one[place], of_weight(weight, x[0]))
    assert "aten.mean.dim" not in mode.routed


def test_micro_batches_give_the_gradient_of_the_batch() -> None:
    """The weight's chain goes on: cut anywhere, the same bits. Planted: two finished sums differ."""
    norm, x, dy = norm_of(LlamaRMSNorm), drawn(64, WIDTH, seed=3), drawn(64, WIDTH, seed=4)

    def gradient(*cuts: int) -> Tensor:
        norm.weight.grad = None
        with invariant_mode():
            for rows, each in zip(x.tensor_split(cuts), dy.tensor_split(cuts), strict=True):
                norm(rows).backward(each)
        return norm.weight.grad.clone()  # type: ignore[no-any-return]

    whole = gradient()
    assert same_bits(gradient(1), whole) and same_bits(gradient(7, 33, 50), whole)
    sums = []
    for rows, each in zip(x.tensor_split((7,)), dy.tensor_split((7,)), strict=True):
        with invariant_mode():
            sums += torch.autograd.grad(norm(rows), norm.weight, each)
    assert not same_bits(sums[0] + sums[1], whole)


@pytest.mark.parametrize(
    "kind", [LlamaRMSNorm, lambda width: nn.Linear(width, 7), lambda width: nn.Linear(width, 7, bias=False)]
)
def test_a_result_may_be_written_to(kind: Callable[[int], nn.Module]) -> None:
    """In place, as models do it; of one row, of one axis too, where a result is a row of a matrix seen otherwise."""
    module = kind(WIDTH)
    for shape in ((2, 3, WIDTH), (4, WIDTH), (WIDTH,)):
        x = drawn(*shape, seed=7).requires_grad_()
        with invariant_mode():
            wanted = torch.autograd.grad((module(x) * 2 + 1).square().sum(), x)
            y = module(x)
            y.mul_(2).add_(1)
            found = torch.autograd.grad(y.square().sum(), x)
        assert same_bits(found[0], wanted[0])


def test_a_gradient_of_a_gradient() -> None:
    """Against the same in float64 outside of blocks; chains of 300 terms, twice, and a dozen steps."""
    norm, x, dy = norm_of(LlamaRMSNorm), drawn(3, WIDTH, seed=5), drawn(3, WIDTH, seed=6)

    def second(norm: Any, x: Tensor, dy: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(norm(x), x, dy, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    with invariant_mode():
        found = second(norm, x, dy)
        norm.weight.requires_grad_(False)
        assert same_bits(second(norm, x, dy), found)
    exact = second(_InDouble(norm.weight.double()), x.double(), dy.double())
    assert (found.double() - exact).norm() <= 612 * 2.0**-24 * math.sqrt(x.numel()) * exact.norm()


class _InDouble(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt())


def test_outside_of_blocks_a_class_is_its_own() -> None:
    """The bits that the written-out form has, and one graph for a compiler."""
    norm, x = norm_of(LlamaRMSNorm, torch.bfloat16), drawn(5, WIDTH).bfloat16()
    with invariant_mode():
        norm(x)
    wide = x.float()
    by_hand = norm.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16()
    assert same_bits(norm(x), by_hand)
    compiled = torch.compile(norm, fullgraph=True, backend="eager")
    assert same_bits(compiled(x), by_hand)


SMALL: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


@pytest.mark.parametrize(
    ("model", "config", "fused"), [(LlamaForCausalLM, LlamaConfig, 5), (GemmaForCausalLM, GemmaConfig, 0)]
)
def test_after_a_block_a_model_is_compiled_whole(model: Any, config: Any, fused: int) -> None:
    """Its attention, its masks and its norms are functions that stand in another's place."""
    torch.manual_seed(1)
    made, ids = model(config(**SMALL, use_cache=False)).eval(), torch.arange(12).reshape(2, 6)
    with invariant_mode() as mode, torch.no_grad():
        made(input_ids=ids)
    assert mode.routed[FUSED] == fused
    with torch.no_grad():
        compiled = torch.compile(made, fullgraph=True, backend="eager")
        assert torch.equal(compiled(input_ids=ids).logits, made(input_ids=ids).logits)
