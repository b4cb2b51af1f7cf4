"""A layer over ranks in a model of your own: `samebits launch --nproc 3 -- examples/tensor_parallel.py`.

Two linear layers, the outputs of the first and the inputs of the second cut over ranks; forward and gradients have the
bits of one device, for any number of ranks."""

from __future__ import annotations

import torch

from samebits import ops
from samebits.parallel.launching import ranks
from samebits.parallel.linear_modules import ColumnParallelLinear, RowParallelLinear

torch.manual_seed(0)
x, first, second = torch.randn(40, 64), torch.randn(200, 64), torch.randn(64, 200)

with ranks() as world:
    up = ColumnParallelLinear.from_whole(first, None, world.group)
    down = RowParallelLinear.from_whole(second, None, world.group)
    here = x.clone().requires_grad_()
    y = down(ops.gelu(up(here)[0]))[0]
    y.sum().backward()

    alone = x.clone().requires_grad_()
    wanted = ops.linear(ops.gelu(ops.linear(alone, first)), second)
    wanted.sum().backward()
    pairs = {"y": (y, wanted), "dx": (here.grad, alone.grad)}
    differing = {name: int((a.view(torch.int32) != b.view(torch.int32)).sum()) for name, (a, b) in pairs.items()}
    assert not any(differing.values()), differing
    if world.rank == 0:
        print(f"{world.size} ranks, {up.weight.shape[0]} of {len(first)} outputs on rank 0; differing: {differing}")
