"""FSDP2 (torch's `fully_shard`) with our reduction: gradients over ranks by the balanced tree, in float32.

Knows no module. Every element is summed by one and the same tree, so how parameters are wrapped, bucketed and padded
reaches no bit. Nothing is divided: a mean puts its denominator into the cotangent, before the backward pass.

What is promised: ranks are lanes, one each. A rank may hold two lanes, the first one's backward pass under
`set_requires_gradient_sync(False)`: that one addition is the tree's lowest level, so the bits are those of twice the
ranks. Beyond two FSDP2 adds left to right, which is another order than the tree's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.distributed.tensor import DTensor, Replicate

from samebits.parallel import collectives
from samebits.parallel.world import Group, World


class TreeReduceScatter(ReduceScatter):
    """The reduce-scatter that FSDP2 calls, moved by `Group` and added by the tree."""

    def __init__(self, world: World) -> None:
        self.world = world

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        """`output_tensor` <- this rank's piece of the tree over all ranks' `input_tensor`, which is overwritten."""
        if op != dist.ReduceOp.SUM:
            raise ValueError(f"fsdp: the reduction is {op}; allowed: SUM, with the mean's denominator in the cotangent")
        if input_tensor.dtype != torch.float32:
            raise ValueError(
                f"fsdp: gradients are reduced in {input_tensor.dtype}; allowed: torch.float32"
                f" (MixedPrecisionPolicy(reduce_dtype=torch.float32))"
            )
        members = Group(world=self.world, members=tuple(dist.get_process_group_ranks(group)))
        cuts = collectives.even_cuts(input_tensor.numel(), members.size)
        output_tensor.copy_(collectives.reduce_scatter(members, input_tensor, cuts, "fsdp reduce-scatter"))


def add_by_tree(module: nn.Module, world: World) -> None:
    """Gives our reduction to a module on which `fully_shard` was called, and to all such modules in it."""
    wrapped = [each for each in module.modules() if isinstance(each, FSDPModule)]
    if not wrapped:
        raise ValueError(f"fsdp: no module of {type(module).__name__} is wrapped; allowed: after fully_shard(module)")
    for name, parameter in module.named_parameters():
        # Replicas are summed by the backend's own all-reduce, in an order of its own.
        if isinstance(parameter, DTensor) and isinstance(parameter.placements[0], Replicate):
            raise ValueError(
                f"fsdp: {name} lies {parameter.placements} on a mesh of {tuple(parameter.device_mesh.shape)};"
                f" allowed: sharded over all ranks (a mesh of 1 axis), no replicas"
            )
    reduction = TreeReduceScatter(world)
    for each in wrapped:
        each.set_custom_reduce_scatter(reduction)
        each.set_gradient_divide_factor(1.0)
        each.set_force_sum_reduction_for_comms(True)
