"""Programs of torch.distributed as users write them, the same on gloo processes and on the virtual cluster.

Each runs some steps on the default group and returns a digest of every parameter's bits; none knows what it runs on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS = 3


def digest(tensors: Iterable[Tensor]) -> str:
    state = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        state.update(whole.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def network(width: int = 24, hidden: int = 48, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, width))


def train(model: Any, rank: int, steps: int = STEPS, width: int = 24) -> None:
    torch.manual_seed(100 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, width)).square().mean().backward()
        optimizer.step()


def ddp(dropout: float = 0.0) -> str:
    rank = dist.get_rank()
    model = network(dropout=dropout)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.002)
    train(wrapped, rank)
    return digest(model.parameters())


def ddp_dropout() -> str:
    return ddp(0.3)


def fsdp() -> str:
    rank = dist.get_rank()
    model = network()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, rank)
    return digest(model.parameters())


def dtensor() -> str:
    model = network()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "3": RowwiseParallel()})
    train(model, 0)
    return digest(model.parameters())


PROGRAMS = {"ddp": ddp, "ddp_dropout": ddp_dropout, "fsdp": fsdp, "dtensor": dtensor}


def torch_programs() -> dict[str, str]:
    """All of them, one after another: as a program of several parts would."""
    return {name: program() for name, program in PROGRAMS.items()}
