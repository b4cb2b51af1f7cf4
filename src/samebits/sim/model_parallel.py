"""Tensor parallel groups of a run, and the four functions between whole and split tensors, each with its conjugate.

copy: forward nothing, backward all-reduce; reduce: the other way round. scatter: forward a rank's columns, backward all
of them gathered; gather: the other way round. Over torch.distributed, whatever its backend."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from samebits.sim.rank import current

_main: dict[str, dist.ProcessGroup] = {}


def _groups() -> dict[str, dist.ProcessGroup]:
    """Of the rank that runs: groups are its own, as a process's are."""
    rank = current()
    if rank is None:
        return _main
    found: dict[str, dist.ProcessGroup] = rank.__dict__.setdefault("model_parallel", {})
    return found


def initialize_model_parallel(tensor_model_parallel_size: int = 1) -> None:
    """Consecutive ranks form tensor parallel groups; ranks at the same place of each form data parallel ones."""
    world, size = dist.get_world_size(), tensor_model_parallel_size
    if size < 1 or world % size:
        raise ValueError(f"model parallel: tensor is {size} for {world} ranks; allowed: a divisor of them")
    found = _groups()
    for name, groups in (
        ("tensor", [list(range(first, first + size)) for first in range(0, world, size)]),
        ("data", [list(range(place, world, size)) for place in range(size)]),
    ):
        for members in groups:
            group = dist.new_group(members)
            if dist.get_rank() in members:
                found[name] = group


def model_parallel_is_initialized() -> bool:
    return bool(_groups())


def destroy_model_parallel() -> None:
    _groups().clear()


def _group(name: str) -> dist.ProcessGroup:
    found = _groups().get(name)
    if found is None:
        raise RuntimeError("model parallel: there are no groups; call initialize_model_parallel first")
    return found


def get_tensor_model_parallel_group() -> dist.ProcessGroup:
    return _group("tensor")


def get_data_parallel_group() -> dist.ProcessGroup:
    return _group("data")


def get_tensor_model_parallel_world_size() -> int:
    return dist.get_world_size(_group("tensor"))


def get_tensor_model_parallel_rank() -> int:
    return dist.get_rank(_group("tensor"))


def get_data_parallel_world_size() -> int:
    return dist.get_world_size(_group("data"))


def get_data_parallel_rank() -> int:
    return dist.get_rank(_group("data"))


def _summed(x: Tensor) -> Tensor:
    total = x.contiguous().clone()
    dist.all_reduce(total, group=_group("tensor"))
    return total


def _own_columns(x: Tensor) -> Tensor:
    size, place = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
    each = divided(x.shape[-1], size, "the last axis")
    return x[..., place * each : (place + 1) * each].contiguous()


def _all_columns(x: Tensor) -> Tensor:
    parts = [torch.zeros_like(x) for _ in range(get_tensor_model_parallel_world_size())]
    dist.all_gather(parts, x.contiguous(), group=_group("tensor"))
    return torch.cat(parts, dim=-1)


def divided(length: int, parts: int, what: str) -> int:
    if length % parts:
        raise ValueError(f"model parallel: {what} is {length} for {parts} ranks; allowed: a multiple of them")
    return length // parts


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _summed(gradients[0])


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _summed(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _own_columns(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _all_columns(gradients[0])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _all_columns(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _own_columns(gradients[0])


def copy_to_tensor_region(x: Tensor) -> Tensor:
    """x as it is, for layers that each rank has a part of; their gradients are summed."""
    found: Tensor = _Copy.apply(x)  # type: ignore[no-untyped-call]
    return found


def reduce_from_tensor_region(x: Tensor) -> Tensor:
    """The sum of all ranks' x."""
    found: Tensor = _Reduce.apply(x)  # type: ignore[no-untyped-call]
    return found


def scatter_to_tensor_region(x: Tensor) -> Tensor:
    """This rank's columns of x, which all ranks have."""
    found: Tensor = _Scatter.apply(x)  # type: ignore[no-untyped-call]
    return found


def gather_from_tensor_region(x: Tensor) -> Tensor:
    """All ranks' columns side by side."""
    found: Tensor = _Gather.apply(x)  # type: ignore[no-untyped-call]
    return found
