"""`ColumnParallelLinear` and `RowParallelLinear` on launched kernels: no product runs on the host.

Megatron's semantics. A column-parallel layer splits its outputs, takes an input that all ranks have and gives each rank
its columns, without a sum over ranks; a row-parallel layer splits its inputs, takes each rank's columns, sums over
ranks and adds its bias once. Backward passes launch kernels too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from samebits.sim.ahbm import current_device
from samebits.sim.launching import Accelerator
from samebits.sim.model_parallel import (
    copy_to_tensor_region,
    divided,
    gather_from_tensor_region,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    reduce_from_tensor_region,
    scatter_to_tensor_region,
)

# M rows, K inputs, N outputs.


class _Launched(torch.autograd.Function):
    """x weight^T, with every product of forward and backward launched on the SIP that the rank has set."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_NK: Tensor, accelerator: Accelerator) -> Tensor:
        ctx.save_for_backward(x, weight_NK)
        ctx.accelerator, ctx.sip = accelerator, current_device()
        x_MK = x.reshape(-1, x.shape[-1])
        y_MN = accelerator.gemm(x_MK, weight_NK.T, ctx.sip, "linear")
        return y_MN.to(x.dtype).reshape(*x.shape[:-1], weight_NK.shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_NK = ctx.saved_tensors
        dy_MN, x_MK = gradients[0].reshape(-1, weight_NK.shape[0]), x.reshape(-1, x.shape[-1])
        dx = ctx.accelerator.gemm(dy_MN, weight_NK, ctx.sip, "input gradient").to(x.dtype).reshape(x.shape)
        dweight = ctx.accelerator.gemm(dy_MN.T.contiguous(), x_MK, ctx.sip, "weight gradient").to(weight_NK.dtype)
        return dx, dweight, None


def launched_linear(x: Tensor, weight: Tensor, accelerator: Accelerator) -> Tensor:
    """x (..., K) with weight (N, K) by launched kernels."""
    found: Tensor = _Launched.apply(x, weight, accelerator)  # type: ignore[no-untyped-call]
    return found


class ColumnParallelLinear(nn.Module):
    """y = x A^T + b with A split along its outputs."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        accelerator: Accelerator,
        gather_output: bool = False,
    ) -> None:
        super().__init__()
        own = divided(out_features, get_tensor_model_parallel_world_size(), "out_features")
        self.weight = nn.Parameter(torch.zeros(own, in_features))
        self.bias = nn.Parameter(torch.zeros(own)) if bias else None
        self.gather_output, self.accelerator = gather_output, accelerator

    def load_whole(self, weight_NK: Tensor, bias_N: Tensor | None = None) -> None:
        """Takes this rank's rows of a whole layer's weight."""
        place, own = get_tensor_model_parallel_rank(), self.weight.shape[0]
        with torch.no_grad():
            self.weight.copy_(weight_NK[place * own : (place + 1) * own])
            if self.bias is not None and bias_N is not None:
                self.bias.copy_(bias_N[place * own : (place + 1) * own])

    def forward(self, x: Tensor) -> Tensor:
        y = launched_linear(copy_to_tensor_region(x), self.weight, self.accelerator)
        y = y if self.bias is None else y + self.bias
        return gather_from_tensor_region(y) if self.gather_output else y


class RowParallelLinear(nn.Module):
    """y = x A^T + b with A split along its inputs."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        accelerator: Accelerator,
        input_is_parallel: bool = True,
    ) -> None:
        super().__init__()
        own = divided(in_features, get_tensor_model_parallel_world_size(), "in_features")
        self.weight = nn.Parameter(torch.zeros(out_features, own))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.input_is_parallel, self.accelerator = input_is_parallel, accelerator

    def load_whole(self, weight_NK: Tensor, bias_N: Tensor | None = None) -> None:
        """Takes this rank's columns of a whole layer's weight, and the bias as it is."""
        place, own = get_tensor_model_parallel_rank(), self.weight.shape[1]
        with torch.no_grad():
            self.weight.copy_(weight_NK[:, place * own : (place + 1) * own])
            if self.bias is not None and bias_N is not None:
                self.bias.copy_(bias_N)

    def forward(self, x: Tensor) -> Tensor:
        own = x if self.input_is_parallel else scatter_to_tensor_region(x)
        y = reduce_from_tensor_region(launched_linear(own, self.weight, self.accelerator))
        return y if self.bias is None else y + self.bias
