"""RMSNorm as transformers' models write it, in a block: one operation of torch's, which the mode computes by samebits'.

Written out it is eight operations, forty with its backward pass, of numbers that are read from memory every time. A
class is known by the code of its `forward`, so every form of a sequence goes the same way; a norm that is written
otherwise is taken as it is. Outside of blocks, and for a compiler, `forward` is the class's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from samebits.invariant.compound import PLAIN, mode_of_call, unseen
from samebits.invariant.same_code import same_code
from samebits.invariant.sums import rms_norm
from samebits.ops.arguments import BACKEND_OF_DEVICE, DTYPES

if TYPE_CHECKING:
    from samebits.invariant.mode import InvariantMode


def _rounded_twice(self: Any, hidden_states: Any) -> Any:
    input_dtype = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
    return self.weight * hidden_states.to(input_dtype)


def _rounded_once(self: Any, hidden_states: Any) -> Any:
    input_dtype = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
    return (self.weight * hidden_states).to(input_dtype)


FUSED: Final = torch.ops.aten._fused_rms_norm.default
NAME: Final = str(FUSED)


def replace_in(cls: type[nn.Module]) -> None:
    """The class's own `forward`, where it is one that is known here; nothing where it was replaced before."""
    stock: Any = cls.__dict__.get("forward")
    known = any(same_code(stock, each) for each in (_rounded_twice, _rounded_once))
    if known and stock.__globals__.get("torch") is torch:
        cls.forward = _forward(stock)


def _forward(stock: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(stock)
    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        mode = mode_of_call()
        if mode is None or not _is_ours(self, hidden_states):
            return stock(self, hidden_states)
        return _normalised(mode, hidden_states, self.weight, self.variance_epsilon)

    return forward


def _is_ours(norm: Any, x: Tensor) -> bool:
    """Nothing here depends on how many rows there are: none at all have no bits."""
    weight = norm.weight
    return (
        type(x) in PLAIN
        and type(weight) in PLAIN
        and x.dtype in DTYPES
        and x.dtype == weight.dtype
        and x.device == weight.device
        and x.device.type in BACKEND_OF_DEVICE
        and x.shape[-1:] == weight.shape
        and x.numel() > 0
        and isinstance(norm.variance_epsilon, float)
        and not torch.is_autocast_enabled(x.device.type)
    )


def _normalised(mode: InvariantMode, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y: Tensor
    if torch._C._functorch.peek_interpreter_stack() is not None:
        mode.routed[NAME] += 1
        y, _ = _OfTransforms.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    elif x.is_cuda:  # torch's own node of the graph costs the host less than one in Python
        with mode.whole(FUSED):
            y, _ = FUSED(x, weight.shape, weight, eps)
    else:  # here torch would take it apart above autograd, before the mode sees it
        mode.routed[NAME] += 1
        y = _OnCpu.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return y


def _computed(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    with unseen(x, weight):
        return rms_norm(x, weight.shape, weight, eps)


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    """By an operation that the mode sees, and can go on with."""
    x, weight, rstd = ctx.saved_tensors
    if torch.is_grad_enabled():  # a gradient of this gradient is wanted
        wide = x.float()
        y = weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + ctx.eps)).to(x.dtype)
        leaves = [each for each, needed in zip((x, weight), ctx.needs_input_grad, strict=False) if needed]
        found = iter(torch.autograd.grad(y, leaves, dy, create_graph=True))
        return *(next(found) if needed else None for needed in ctx.needs_input_grad[:2]), None
    wanted = list(ctx.needs_input_grad[:2])
    return *torch.ops.aten._fused_rms_norm_backward.default(dy, x, weight.shape, rstd, weight, wanted), None


class _OnCpu(torch.autograd.Function):
    """The operator with its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y, rstd = _computed(x, weight, eps)
        ctx.eps = eps
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, dy)


class _OfTransforms(torch.autograd.Function):
    """The same for torch.func, whose form of it takes torch twice as long."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return _computed(x, weight, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        (x, weight, ctx.eps), (_, rstd) = inputs, output
        ctx.mark_non_differentiable(rstd)
        ctx.save_for_backward(x, weight, rstd)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, dy)

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], x: Tensor, weight: Tensor, eps: float) -> Any:
        """More rows of one norm, or a norm after the other."""
        x = x.unsqueeze(0).expand(info.batch_size, *x.shape) if axes[0] is None else x.movedim(axes[0], 0)
        if axes[1] is None:
            return _OfTransforms.apply(x, weight, eps), (0, 0)  # type: ignore[no-untyped-call]
        pairs = zip(x, weight.movedim(axes[1], 0), strict=True)
        each = [_OfTransforms.apply(*pair, eps) for pair in pairs]  # type: ignore[no-untyped-call]
        return tuple(map(torch.stack, zip(*each, strict=True))), (0, 0)
