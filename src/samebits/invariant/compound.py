"""Compound operations that must be caught whole, above autograd, before torch picks one of several ways through them.

While a block of invariant mode is open anywhere in the process, torch's dispatcher calls `_caught` for them, whoever
asks: Python, C++, TorchScript, a recomputation in backward. A thread without a mode gets torch's own."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor, nn

from samebits.invariant.attention import scaled_dot_product_attention

if TYPE_CHECKING:
    from samebits.invariant.mode import InvariantMode

WHOLE: Final[dict[str, Callable[..., Any]]] = {"scaled_dot_product_attention": scaled_dot_product_attention}
"""Operation to what samebits computes in its place. In inference mode they reach `__torch_dispatch__` whole as well."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Every row of x as a row of one matrix. torch adds a bias before or after the rounding, by x's strides."""
    if weight.dim() != 2 or x.dim() < 1:
        return cast("Tensor", torch.ops.aten.linear.default.decompose(x, weight, bias))
    with unseen(x, weight):
        rows, columns = _rows(x), weight.t()
    y = rows.mm(columns) if bias is None else torch.addmm(bias, rows, columns)
    with unseen(y):  # as no view: what comes out of it may be written to
        return cast("Tensor", torch.ops.aten._unsafe_view(y, (*x.shape[:-1], weight.shape[0])))


def _rows(x: Tensor) -> Tensor:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def linear_above_autograd(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    usual = weight.dim() == 2 and x.dim() > 0 and (bias is None or bias.shape == weight.shape[:1])
    if usual and torch.is_grad_enabled() and alone(x, weight):
        return cast("Tensor", _Linear.apply(x, weight, bias))  # type: ignore[no-untyped-call]
    return linear(x, weight, bias)


class _Linear(torch.autograd.Function):
    """One node of the graph: that of torch asks for eight views in a backward pass, which the mode would look at."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx = dweight = dbias = None
        with unseen(dy, x):
            dy_MN, x_MK = _rows(dy), _rows(x)
            dy_NM = dy_MN.t()
        if ctx.needs_input_grad[0]:
            dx = dy_MN.mm(weight)
            with unseen(dx):
                dx = dx.view(x.shape)
        if ctx.needs_input_grad[1]:
            dweight = dy_NM.mm(x_MK)
        if ctx.needs_input_grad[2]:
            dbias = dy_MN.sum(0)
        return dx, dweight, dbias


def alone(*tensors: Tensor) -> bool:
    """Whether our mode is the only one that looks, at plain tensors, and no transform of torch.func is under way."""
    return (
        torch._C._len_torch_dispatch_stack() == 1
        and all(type(each) in PLAIN for each in tensors)
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def unseen(*tensors: Tensor) -> AbstractContextManager[Any]:
    """For views, which compute nothing, and which our mode takes five times as long to look at as torch to make.

    Where another mode is open, or a tensor is of a kind of its own, all is seen."""
    if torch._C._len_torch_dispatch_stack() > 1:
        return nullcontext()
    for each in tensors:
        if type(each) not in PLAIN:
            return nullcontext()
    return torch._C._DisableTorchDispatch()


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """From left to right. torch takes the order that costs least, which follows the number of rows."""
    return reduce(torch.matmul, tensors)


def einsum(equation: str, tensors: Sequence[Tensor], *, path: Sequence[int] | None = None) -> Tensor:
    """From left to right. The path is opt_einsum's, where that is installed, and follows the sizes."""
    return cast("Tensor", torch.ops.aten.einsum.default.decompose(equation, tensors))


PLAIN: Final = (Tensor, nn.Parameter)
REWRITTEN: Final[dict[str, Callable[..., Any]]] = {
    "linear": linear,
    "einsum": einsum,
    **dict.fromkeys(("linalg_multi_dot", "chain_matmul"), multi_dot),
}
"""Operation to the one way in which it is taken apart; its parts are decided on one by one."""
CAUGHT: Final[dict[str, Callable[..., Any]]] = {**REWRITTEN, "linear": linear_above_autograd}
"""The same where they are caught, with gradients of their own."""


def innermost_mode() -> InvariantMode | None:
    """The mode of this thread that decides, or None."""
    for place in reversed(range(torch._C._len_torch_dispatch_stack())):
        mode = torch._C._get_dispatch_stack_at(place)
        if getattr(type(mode), "is_invariant_mode", False):
            return cast("InvariantMode", mode)
    return None


def mode_of_call() -> InvariantMode | None:
    """For functions that stand in another's place: to a compiler, which traces outside of blocks alone, that other."""
    return None if torch.compiler.is_compiling() else innermost_mode()


class _Catching:
    """The registrations, made by the first block that opens and taken back by the last that closes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0
        self._library: Any = None

    def start(self) -> None:
        with self._lock:
            self._open += 1
            if self._open > 1:
                return
            self._library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
            for name in (*WHOLE, *REWRITTEN):
                for device in ("CPU", "CUDA"):
                    self._library.impl(name, _caught(name), f"Autograd{device}")

    def any_open(self) -> bool:
        """Whether a block is open in any thread."""
        return self._open > 0

    def stop(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self._library._destroy()
                self._library = None


def _caught(name: str) -> Callable[..., Any]:
    operation = getattr(torch.ops.aten, name).default

    def as_torch_does(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return operation.decompose(*args, **kwargs)

    def caught(*args: Any, **kwargs: Any) -> Any:
        mode = innermost_mode()
        if mode is None:
            return as_torch_does(operation, args, kwargs)
        if name in REWRITTEN:
            return CAUGHT[name](*args, **kwargs)
        return mode.run_whole(operation, WHOLE[name], args, kwargs, as_torch_does)

    return caught


CATCHING: Final = _Catching()
