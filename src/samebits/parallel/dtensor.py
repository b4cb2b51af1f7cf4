"""Sharding rules for torch's DTensor, made of the cuts that operators register (`samebits.ops.cuts`).

Knows no process group and no operator but the two that need a function here. What arrives cut along an axis that is
summed over is gathered by DTensor first; no sum is ever left to a collective ("partial").

An operator without cuts (attention, for which there is a function here, the reduced cross_entropy, and those that
write into a sum) raises, as does an argument that is partial. A batch that ranks do not divide must be flattened before
it is cut: torch cannot after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor.experimental import register_sharding

import samebits.ops
from samebits.ops.arguments import choose_backend
from samebits.ops.cuts import Cut, Cuts
from samebits.ops.registering import call, registered_cuts

Layout = tuple[list[Placement | None], list[Placement | None]]
"""Where an operator's outputs and its arguments lie, along one axis of the mesh; None for what is no tensor."""

_enabled: set[str] = set()


def enable() -> None:
    """Registers the operators' cuts with DTensor, once a process. An operator without any raises when it meets one."""
    for name, cuts in registered_cuts().items():
        if name not in _enabled:
            operator = getattr(torch.ops.samebits, name).default
            register_sharding(operator)(
                partial(_layouts, name, [each.name for each in operator._schema.arguments], cuts)
            )
            _enabled.add(name)


def _layouts(name: str, names: Sequence[str], cuts: Cuts, *arguments: Any) -> Sequence[Layout]:
    """All whole, and every way that the operator registered, for arguments whose values are all there."""
    for place, each in enumerate(arguments):
        if isinstance(each, DTensorSpec) and any(isinstance(placement, Partial) for placement in each.placements):
            raise ValueError(
                f"{name}: argument {place} lies {each.placements}, so a backend would sum it in an order of its own;"
                f" allowed: Replicate, Shard"
            )
    given = dict(zip(names, arguments, strict=False))
    ways = cuts(given) if callable(cuts) else cuts
    outputs = len(getattr(torch.ops.samebits, name).default._schema.returns)
    return [_layout(given, each) for each in (Cut({}, (None,) * outputs), *ways)]


def _layout(given: Mapping[str, Any], cut: Cut) -> Layout:
    """Placements of outputs and arguments; what is no tensor has none."""
    return [_placed(axis) for axis in cut.outputs], [
        _placed(cut.arguments.get(name)) if isinstance(each, DTensorSpec) else None for name, each in given.items()
    ]


def _placed(axis: int | None) -> Placement:
    return Replicate() if axis is None else Shard(axis)


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
