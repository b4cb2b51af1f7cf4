"""Sharding rules for torch's DTensor: how an operator's tensors may be cut over ranks without its bits moving.

Knows no process group. A rule lets rows, output columns or heads be cut, or nothing; never an axis that is summed over.
What arrives cut along such an axis is gathered by DTensor first; no sum is ever left to a collective ("partial").

An operator without a rule (attention, for which there is a function here, the reduced cross_entropy, and those that
write into a sum) raises, as does an argument that is partial. A batch that ranks do not divide must be flattened before
it is cut: torch cannot after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor.experimental import register_sharding

import samebits.ops
from samebits.ops.arguments import choose_backend
from samebits.ops.registering import call

Layout = tuple[list[Placement | None], list[Placement | None]]
"""Where an operator's outputs and its arguments lie, along one axis of the mesh; None for what is no tensor."""
Rule = Callable[..., Sequence[Layout]]

_enabled: set[str] = set()


def enable() -> None:
    """Registers the rules with DTensor, once a process. An operator without a rule raises when it meets a DTensor."""
    for name, rule in RULES.items():
        if name not in _enabled:
            register_sharding(getattr(torch.ops.samebits, name).default)(partial(_ruled, name, rule))
            _enabled.add(name)


def _ruled(name: str, rule: Rule, *arguments: Any) -> Sequence[Layout]:
    """The rule, for arguments whose values are all there."""
    for place, each in enumerate(arguments):
        if isinstance(each, DTensorSpec) and any(isinstance(placement, Partial) for placement in each.placements):
            raise ValueError(
                f"{name}: argument {place} lies {each.placements}, so a backend would sum it in an order of its own;"
                f" allowed: Replicate, Shard"
            )
    return rule(*arguments)


def _layout(arguments: Sequence[Any], outputs: Sequence[Placement], cut: Mapping[int, Placement]) -> Layout:
    """Arguments lie as `cut` says, other tensors whole."""
    return list(outputs), [
        cut.get(place, Replicate()) if isinstance(each, DTensorSpec) else None for place, each in enumerate(arguments)
    ]


def _gemm(*arguments: Any) -> Sequence[Layout]:
    """(a, b, bias, backend): rows of a, or columns of b with their bias; the axis between them whole."""
    lay = partial(_layout, arguments)
    return [lay([Replicate()], {}), lay([Shard(0)], {0: Shard(0)}), lay([Shard(1)], {1: Shard(1), 2: Shard(0)})]


def _lm_head(*arguments: Any) -> Sequence[Layout]:
    """(hidden, weight, backend): rows of hidden, or of the weight, which are columns of the logits."""
    lay = partial(_layout, arguments)
    return [lay([Replicate()], {}), lay([Shard(0)], {0: Shard(0)}), lay([Shard(1)], {1: Shard(0)})]


def _by_rows(outputs: int, *cut: int) -> Rule:
    """Rows of the arguments at these places and of every output; the other arguments whole."""

    def rule(*arguments: Any) -> Sequence[Layout]:
        whole = _layout(arguments, [Replicate()] * outputs, {})
        return [whole, _layout(arguments, [Shard(0)] * outputs, {place: Shard(0) for place in cut})]

    return rule


def _by_element(outputs: int) -> Rule:
    """Any axis, the same of all tensors."""

    def rule(*arguments: Any) -> Sequence[Layout]:
        tensors = [place for place, each in enumerate(arguments) if isinstance(each, DTensorSpec)]
        cuts = [Replicate(), *(Shard(axis) for axis in range(arguments[0].ndim))]
        return [_layout(arguments, [cut] * outputs, dict.fromkeys(tensors, cut)) for cut in cuts]

    return rule


def _rope(*arguments: Any) -> Sequence[Layout]:
    """(x (tokens, heads, size), positions, ...): tokens with their positions, or heads."""
    lay = partial(_layout, arguments)
    return [lay([Replicate()], {}), lay([Shard(0)], {0: Shard(0), 1: Shard(0)}), lay([Shard(1)], {0: Shard(1)})]


def _embedding(*arguments: Any) -> Sequence[Layout]:
    """(ids, weight, padding, backend): ids, or columns of the table; the vocabulary whole."""
    lay = partial(_layout, arguments)
    return [lay([Replicate()], {}), lay([Shard(0)], {0: Shard(0)}), lay([Shard(1)], {1: Shard(1)})]


def _embedding_dweight(*arguments: Any) -> Sequence[Layout]:
    """(dy, ids, vocabulary, padding, backend): columns; positions are summed over, so they are whole."""
    lay = partial(_layout, arguments)
    return [lay([Replicate()], {}), lay([Shard(1)], {0: Shard(1)})]


def _logprob_gradients(*arguments: Any) -> Sequence[Layout]:
    """(dlogprob, hidden, weight, ids, lse, ignore_index, wants_hidden, wants_weight, backend): rows, unless they are
    summed over for the weight's gradient; what is not wanted is empty and so whole."""
    lay = partial(_layout, arguments)
    wants_hidden, wants_weight = arguments[6:8]
    whole = lay([Replicate(), Replicate()], {})
    if wants_weight or not wants_hidden:
        return [whole]
    return [whole, lay([Shard(0), Replicate()], dict.fromkeys((0, 1, 3, 4), Shard(0)))]


RULES: Final[Mapping[str, Rule]] = {
    "gemm": _gemm,
    "lm_head": _lm_head,
    "rmsnorm": _by_rows(2, 0),
    "rmsnorm_residual": _by_rows(3, 0, 2),
    "rmsnorm_dx": _by_rows(1, 0, 1, 3, 4),
    "rope": _rope,
    "swiglu": _by_element(1),
    "swiglu_backward": _by_element(2),
    "gelu": _by_element(1),
    "gelu_backward": _by_element(1),
    "softmax": _by_rows(1, 0),
    "softmax_dx": _by_rows(1, 0, 1),
    "embedding": _embedding,
    "embedding_dweight": _embedding_dweight,
    "selected_logprob": _by_rows(2, 0, 2),
    "selected_logprob_gradients": _logprob_gradients,
    "cross_entropy_rows": _by_rows(2, 0, 2),
}


def attention(q: DTensor, k: DTensor, v: DTensor, **options: Any) -> DTensor:
    """`samebits.ops.attention` of DTensors, cut as q is between heads that share keys, or between sequences of a batch
    without `lengths`, where the ranks divide their number; whole where they do not. No head sees another one."""
    if options.get("cache") is not None:
        raise ValueError("attention: a cache with DTensors is not supported; pass plain tensors")
    mesh, heads = q.device_mesh, q.ndim - 2
    free = {heads: k.shape[heads]} | ({0: q.shape[0]} if q.ndim == 4 and options.get("lengths") is None else {})
    lies: list[Placement] = [Replicate()] * mesh.ndim
    for axis, (cut, ranks) in enumerate(zip(q.placements, mesh.shape, strict=True)):
        if isinstance(cut, Shard) and cut.dim in free and free.pop(cut.dim) % ranks == 0:
            lies[axis] = Shard(cut.dim)
    q_here, k_here, v_here = (each.redistribute(mesh, lies).to_local(grad_placements=lies) for each in (q, k, v))
    out = samebits.ops.attention(q_here, k_here, v_here, **options)
    return DTensor.from_local(out, mesh, lies, run_check=False)


def rmsnorm(x: DTensor, weight: DTensor, eps: float = 1e-6, *, backend: str | None = None) -> Tensor:
    """`samebits.ops.rmsnorm` of DTensors, with the weight's gradient, a chain over all rows in their global order.

    The operator's own gradient starts that chain in a plain tensor, which DTensor does not let meet others."""
    y: Tensor = _RMSNorm.apply(x, weight, eps, choose_backend("rmsnorm", x, backend))  # type: ignore[no-untyped-call]
    return y


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: DTensor, weight: DTensor, eps: float, backend: str) -> Tensor:
        x_MH = x.reshape(-1, x.shape[-1])
        y_MH, rstd_M = call("rmsnorm", x_MH, weight, eps, backend)
        ctx.save_for_backward(x_MH, weight, rstd_M)
        ctx.shape, ctx.backend = x.shape, backend
        return y_MH.reshape(x.shape)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x_MH, weight, rstd_M = ctx.saved_tensors
        dy_MH: Any = dy.reshape(-1, dy.shape[-1])
        dx_MH = call("rmsnorm_dx", dy_MH, x_MH, weight, rstd_M, None, ctx.backend)
        whole = [each.full_tensor() for each in (dy_MH, x_MH, rstd_M)]
        sum_H = torch.zeros(weight.shape, dtype=torch.float32, device=whole[0].device)
        torch.ops.samebits.rmsnorm_dweight_(sum_H, *whole, ctx.backend)
        mesh = weight.device_mesh
        dweight_H = DTensor.from_local(sum_H.to(weight.dtype), mesh, [Replicate()] * mesh.ndim, run_check=False)
        return dx_MH.reshape(ctx.shape), dweight_H, None, None
