"""What somebody else's formula may lose beyond ours: sums in any order, a gradient through a maximum, other angles.

Bounds of losses and attention are derived for our blocks; another order of those sums is as good. And a formula that
subtracts the largest number of a row, differentiated as it is written, sends that number the gradient of the whole row:
exactly nothing, by rounding what all terms of the row miss together. Frequencies of a rotation are powers, which we
round once and others several times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from samebits.contracts.orders import UNIT_ROUNDOFF
from samebits.contracts.spec import Arguments, Bounded, OperatorSpec
from samebits.ops.attention.exact import Options, dense_weights, repeated
from samebits.ops.rope.check import THETA
from samebits.ops.rope.reference import parts
from samebits.ops.rope.scaling import frequencies

# A row whose exact gradients add up to no more than this share of their magnitudes has a sum of nothing, in float64.
NOTHING = 1e-11
# Relative, of theta^(-i/D) p in float32: the quotient is rounded before the power (ln theta = 9.2 roundings), the power
# is good to 2 ulp, its reciprocal and the product round once each.
OF_ANGLES = 16 * UNIT_ROUNDOFF
Error = Callable[[int], float]
Exact = Mapping[str, Bounded]


def with_any_formula(
    spec: OperatorSpec, exact: Exact, arguments: Arguments, cotangent: Tensor, error: Error
) -> dict[str, Bounded]:
    """The same values with what another formula may miss of them besides."""
    more: dict[str, Tensor] = {}
    if _is_token_loss(arguments):
        more = _of_token_loss(exact, arguments, cotangent, error)
    elif list(arguments) == ["q", "k", "v"] and spec.differentiable:
        more = _of_attention(arguments, cotangent, error, causal=bool(spec.implied.get("causal", True)))
    elif list(arguments) == ["x", "positions"]:
        more = _of_rotation(arguments, cotangent)
    elif len(arguments) == 1 and exact.keys() > {"output"}:
        more = _of_shifted_rows(exact, arguments, cotangent, error)
    # An exponent that may be off by anything, times a number that is nothing, has no bound.
    return {
        name: Bounded(
            exact=each.exact, allowed=(each.allowed + more.get(name, 0.0)).nan_to_num(nan=math.inf, posinf=math.inf)
        )
        for name, each in exact.items()
    }


def low_kinds(spec: OperatorSpec, names: Sequence[str]) -> tuple[str, ...]:
    """Rows far below zero that have exact values: where only distances between numbers count.

    A maximum that starts at 0, or a mask that is only a large number, shows there."""
    if list(names) == ["q", "k", "v"]:
        return ("low",)
    if len(names) != 1 or spec.without_gradient:
        return ()
    x = torch.arange(6.0).reshape(2, 3)
    here, below = (spec.exact({names[0]: each}, torch.zeros_like(x), float)["output"].exact for each in (x, x - 1))
    return ("low", "very_low") if here.shape == x.shape and torch.allclose(here, below) else ()


def _is_token_loss(arguments: Arguments) -> bool:
    """Whether rows of hidden states, a weight a token and one token a row go in."""
    return list(arguments)[:2] == ["hidden", "weight"] and [
        value.is_floating_point() for value in arguments.values()
    ] == [True, True, False]


def _of_token_loss(exact: Exact, arguments: Arguments, cotangent: Tensor, error: Error) -> dict[str, Tensor]:
    hidden_MK, weight_VK, ids = arguments.values()
    hidden_MK, weight_VK = hidden_MK.double(), weight_VK.double()
    logits_MV = hidden_MK @ weight_VK.T
    of_sum = error(weight_VK.shape[0])
    # Which logit is the largest may be decided by rounding.
    of_logits_MV = error(weight_VK.shape[1]) * (hidden_MK.abs() @ weight_VK.abs().T)
    # The quotient e / sum misses that of its sum; the two terms at the maximum cancel, each as large as g.
    largest_MV = _perhaps_largest(logits_MV, of_logits_MV)
    of_dz_MV = cotangent.double().abs()[:, None] * of_sum * (logits_MV.softmax(-1) + 2 * largest_MV)
    of_dz_MV = torch.where((ids < 0)[:, None], 0.0, of_dz_MV)
    return {
        "output": torch.full_like(exact["output"].allowed, of_sum),
        "hidden": of_dz_MV @ weight_VK.abs(),
        "weight": of_dz_MV.T @ hidden_MK.abs(),
    }


def _of_shifted_rows(exact: Exact, arguments: Arguments, cotangent: Tensor, error: Error) -> dict[str, Tensor]:
    """Of a function that a constant added to a row does not change, which its gradient tells: it adds up to nothing."""
    ((name, x),) = arguments.items()
    gradient, allowed = exact[name].exact, exact[name].allowed
    magnitude = gradient.abs().sum(-1, keepdim=True)
    if gradient.dim() != 2 or bool((gradient.sum(-1, keepdim=True).abs() > NOTHING * magnitude).any()):
        return {}
    # Terms of the row are shares of what flows in; where a logarithm was taken, all of it.
    output = exact["output"].exact
    shares = output if bool((output >= 0).all()) else torch.ones_like(output)
    terms = (allowed + gradient.abs() + 2 * shares * cotangent.double().abs()).sum(-1, keepdim=True)
    of_row = allowed.sum(-1, keepdim=True) + error(x.shape[-1]) * terms
    return {name: torch.where(x.double() == x.double().amax(-1, keepdim=True), of_row, 0.0)}


def _of_attention(arguments: Arguments, cotangent: Tensor, error: Error, *, causal: bool) -> dict[str, Tensor]:
    q, k, v = arguments.values()
    q64, k64, v64, dout = q.double(), repeated(k, q), repeated(v, q), cotangent.double()
    head, keys, scale = q.shape[-1], k.shape[1], q.shape[-1] ** -0.5
    weights, scores = dense_weights(q, k, Options(causal=causal))
    seen, of_sum = weights > 0, error(keys + head)

    def pairs(left: Tensor, right: Tensor) -> Tensor:
        return torch.einsum("bihd,bjhd->bhij", left.abs(), right.abs())

    def over_queries(of_pairs: Tensor, values: Tensor) -> Tensor:
        by_head = torch.einsum("bhij,bihd->bjhd", of_pairs, values.abs())
        return by_head.reshape(*k.shape[:3], -1, head).sum(3)

    # Relative, of a weight: that of its exponent, which may be large, and that of the sum by which it is divided.
    of_scores = error(head) * scale * pairs(q64, k64)
    level = scores.masked_fill(~seen, 0.0).abs().amax(-1, keepdim=True)
    of_weights = torch.expm1(of_scores + 8 * UNIT_ROUNDOFF * level) + of_sum
    flows_in = pairs(dout, v64)
    size = weights * (flows_in + (weights * flows_in).sum(-1, keepdim=True))
    of_ds = size * of_weights
    of_row = (of_ds + of_sum * size).sum(-1, keepdim=True)
    of_ds = of_ds + of_row * _perhaps_largest(scores.masked_fill(~seen, -torch.inf), of_scores)
    return {
        "output": torch.einsum("bhij,bjhd->bihd", weights * of_weights, v64.abs()),
        "q": scale * torch.einsum("bhij,bjhd->bihd", of_ds, k64.abs()),
        "k": scale * over_queries(of_ds, q64),
        "v": over_queries(weights * of_weights, dout),
    }


def _of_rotation(arguments: Arguments, cotangent: Tensor) -> dict[str, Tensor]:
    x, positions = arguments.values()
    angles = positions.double()[:, None] * torch.tensor(frequencies(x.shape[-1], THETA, None), dtype=torch.float64)
    first, second = parts(x.shape[-1], False)

    def missed(given: Tensor) -> Tensor:
        both = OF_ANGLES * angles[:, None, :] * (given[..., first].abs() + given[..., second].abs())
        more = torch.empty_like(given)
        more[..., first], more[..., second] = both, both
        return more

    return {"output": missed(x.double()), "x": missed(cotangent.double())}


def _perhaps_largest(numbers: Tensor, off: Tensor) -> Tensor:
    """1.0 where a number of a row may be its largest, each of them off by so much."""
    return (numbers + off >= (numbers - off).amax(-1, keepdim=True)).double()
