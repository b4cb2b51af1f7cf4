"""Values agree with stock transformers in float64 within a bound that is derived, not guessed.

To first order a logit's error is the sum, over every place where float32 rounds, of |d logit / d value| times the error
made there. The derivatives come from one backward pass in float64; the errors from the number of roundings, u = 2^-24:
 a product of K terms       (K + 1) u  sum of |x| |w|
 RMSNorm over n             (n / 2 + 6) u |y|          (n squares added, halved by the root; the rest a few roundings)
 SwiGLU                     8 u |y|
 a residual sum             u |y|
 attention over n keys      sum of p |v| (2 d + (2 n + 8) u), d the error of a score: (D + 20) u scale |q| |k|, RoPE
                            included, which turns pairs and leaves |q| and |k| as they are
The factor 2 below covers what first order leaves out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.invariant.conftest import Make, ids_of
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AttentionInterface

from samebits.invariant import invariant_mode

U = 2.0**-24
LENGTH = 37


class Errors:
    """float64 values of the model at the places where float32 rounds, with the error made there."""

    def __init__(self, model: nn.Module) -> None:
        self.places: list[tuple[Tensor, Tensor]] = []
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(
                    self.after(lambda x, y, m: (m.in_features + 1) * U * linear(x.abs(), m.weight.abs()))
                )
            elif "RMSNorm" in type(module).__name__:
                module.register_forward_hook(self.after(lambda x, y, m: (x.shape[-1] / 2 + 6) * U * y.abs()))
        for layer in model.model.layers:
            layer.mlp.down_proj.register_forward_pre_hook(self.before(lambda x: 8 * U * x.abs()))
            layer.post_attention_layernorm.register_forward_pre_hook(self.before(lambda x: U * x.abs()))
            layer.register_forward_hook(self.after(lambda x, y, m: U * y.abs()))

    def attention(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **_: Any
    ) -> tuple[Tensor, None]:
        """Stock attention, written out: transformers calls it in place of its own."""
        key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        weights = (query @ key.transpose(2, 3) * scaling).masked_fill(~seen, -torch.inf).softmax(-1)
        with torch.no_grad():
            score = (
                (query.shape[-1] + 20) * U * scaling * query.norm(dim=-1)[..., None] * key.norm(dim=-1)[..., None, :]
            )
            error = (weights * (2 * score + (2 * LENGTH + 8) * U)) @ value.abs()
        out = (weights @ value).transpose(1, 2)
        return self.place(out, error.transpose(1, 2)), None

    def after(self, error: Callable[[Tensor, Tensor, Any], Tensor]) -> Callable[..., Tensor]:
        def hook(module: nn.Module, given: tuple[Tensor, ...], output: Any) -> Any:
            value = output[0] if isinstance(output, tuple) else output
            return self.place(value, error(given[0].detach(), value.detach(), module))

        return hook

    def before(self, error: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        def hook(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (self.place(given[0], error(given[0].detach())), *given[1:])

        return hook

    def place(self, value: Tensor, error: Tensor) -> Tensor:
        value = value + 0  # a node of its own, so that its derivative can be asked for
        self.places.append((value, error))
        return value


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_logits_are_within_the_derived_bound(make: Make, kind: str) -> None:
    ids = ids_of(1, LENGTH)
    ours, exact = make(kind), make(kind, "eager").double()
    errors = Errors(exact)
    AttentionInterface.register("watched", errors.attention)
    exact.set_attn_implementation("watched")
    reference = exact(input_ids=ids, use_cache=False).logits[0]
    with invariant_mode(), torch.no_grad():
        found = ours(input_ids=ids).logits[0]
    with torch.no_grad():
        stock = make(kind, "sdpa")(input_ids=ids).logits[0]
    for token, word in ((0, 3), (9, 70), (LENGTH - 1, 5), (LENGTH - 1, 100)):
        slopes = torch.autograd.grad(
            reference[token, word], [value for value, _ in errors.places], retain_graph=True, allow_unused=True
        )
        bound = 2 * sum(
            float((slope.abs() * error.detach()).sum())
            for slope, (_, error) in zip(slopes, errors.places, strict=True)
            if slope is not None
        )
        value = float(reference[token, word].detach())
        assert 0 < bound < 0.05 * float(reference.detach().abs().max()), bound  # it says something
        assert abs(float(found[token, word]) - value) <= bound
        assert abs(float(stock[token, word]) - value) <= bound
