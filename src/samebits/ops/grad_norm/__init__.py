"""Gradient norms: `grad_norm` of a list of tensors, the sum of squares under it, and clipping by it.

The order of the sum is fixed by the tensors' sizes and their order in the list, which is part of it: pieces of 65536
elements, 256 lanes each, folded by halves. How memory lies, threads and tiles decide no bit. Squares are float32:
those of numbers beyond 1.8e19 are infinite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from samebits.ops.argument_types import check_each, checked, shown
from samebits.ops.arguments import DTYPES, choose_backend, short
from samebits.ops.backends import kernel_module
from samebits.ops.registering import register
from samebits.ops.roots import square_root


@checked
def grad_norm(tensors: Iterable[Tensor], *, error_if_nonfinite: bool = False, backend: str | None = None) -> Tensor:
    """sqrt of the sum of all squares of all tensors, float32, as one number. Not differentiable; of no tensors: 0."""
    given = check_each("grad_norm", "tensors", tensors)
    if not given:
        return torch.zeros(())
    norm: Tensor = torch.ops.samebits.grad_norm(_detached(given), _check("grad_norm", given, backend))
    if error_if_nonfinite:
        _check_finite("grad_norm", norm)
    return norm


def grad_square_sum(tensors: Iterable[Tensor], *, backend: str | None = None) -> Tensor:
    """The sum of all squares of all tensors, whose root is `grad_norm`."""
    given = check_each("grad_square_sum", "tensors", tensors)
    if not given:
        return torch.zeros(())
    backend = _check("grad_square_sum", given, backend)
    return torch.ops.samebits.grad_square_sum(_detached(given), backend)  # type: ignore[no-any-return]


@checked
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    *,
    error_if_nonfinite: bool = False,
    backend: str | None = None,
) -> Tensor:
    """Scales all gradients by min(1, max_norm / (norm + 1e-6)), in place; returns the norm before.

    A norm that is NaN makes every gradient NaN; an infinite one makes them 0, or NaN where they were infinite.
    `error_if_nonfinite` raises before anything is changed; on a GPU the host then waits for the norm."""
    if isinstance(max_norm, bool) or not isinstance(max_norm, int | float) or not 0.0 <= max_norm < math.inf:
        raise ValueError(f"clip_grad_norm_: max_norm is {shown(max_norm)}; allowed: a finite number, at least 0")
    given = [parameters] if isinstance(parameters, Tensor) else parameters
    parameters = check_each("clip_grad_norm_", "parameters", given)
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not grads:
        return torch.zeros(())
    backend = _check("clip_grad_norm_", grads, backend)
    grads = _detached(grads)
    norm: Tensor = torch.ops.samebits.grad_norm(grads, backend)
    if error_if_nonfinite:
        _check_finite("clip_grad_norm_", norm)
    torch.ops.samebits.grad_norm_clip_(grads, norm, float(max_norm), backend)
    return norm


def _detached(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach() for tensor in tensors]


def _check(operator: str, tensors: Sequence[Tensor], backend: str | None) -> str:
    """Valid tensors, each of any known dtype, on one device; and the backend."""
    for place, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{operator}: tensor {place} must be a Tensor, got {type(tensor).__name__}")
    backend = choose_backend(operator, tensors[0], backend)
    wide = backend == "reference" and tensors[0].dtype == torch.float64
    allowed = (torch.float64,) if wide else DTYPES
    for place, tensor in enumerate(tensors):
        if tensor.layout is not torch.strided:
            raise ValueError(f"{operator}: tensor {place} has layout {tensor.layout}; allowed: strided")
        if tensor.dtype not in allowed:
            names = ", ".join(short(dtype) for dtype in allowed)
            raise ValueError(f"{operator}: tensor {place} has dtype {short(tensor.dtype)}; allowed: {names}")
        if tensor.device != tensors[0].device:
            raise ValueError(
                f"{operator}: tensor {place} is on {tensor.device}, tensor 0 on {tensors[0].device}; they must agree"
            )
    return backend


def _check_finite(operator: str, norm: Tensor) -> None:
    if not bool(norm.isfinite()):
        raise RuntimeError(f"{operator}: the norm is {norm.item()}; allowed with error_if_nonfinite: finite")


_kernel = partial(kernel_module, __name__, "grad_norm")


def _square_sum(tensors: Sequence[Tensor], backend: str) -> Tensor:
    whole = [tensor.contiguous() for tensor in tensors if tensor.numel()]
    if not whole:
        return _number_fake(tensors, backend).zero_()
    total: Tensor = _kernel(backend, whole[0].device).square_sum(whole)
    return total


def _norm(tensors: Sequence[Tensor], backend: str) -> Tensor:
    return square_root(_square_sum(tensors, backend), backend)


def _number_fake(tensors: Sequence[Tensor], backend: str) -> Tensor:
    wide = torch.float64 if tensors[0].dtype == torch.float64 else torch.float32
    return tensors[0].new_empty((), dtype=wide)


def _clip_(grads: Sequence[Tensor], norm: Tensor, max_norm: float, backend: str) -> None:
    kept = [grad for grad in grads if grad.numel()]
    if not kept:
        return
    # Memory that does not lie in one piece is scaled in a copy that does.
    whole = [grad.contiguous() for grad in kept]
    _kernel(backend, kept[0].device).clip(whole, norm, max_norm)
    for grad, scaled in zip(kept, whole, strict=True):
        if scaled is not grad:
            grad.copy_(scaled)
    torch.autograd.graph.increment_version(kept)


def _clip_fake(grads: Sequence[Tensor], norm: Tensor, max_norm: float, backend: str) -> None:
    return None


register("grad_square_sum(Tensor[] tensors, str backend) -> Tensor", run=_square_sum, fake=_number_fake)
register("grad_norm(Tensor[] tensors, str backend) -> Tensor", run=_norm, fake=_number_fake)
register(
    "grad_norm_clip_(Tensor(a!)[] grads, Tensor norm, float max_norm, str backend) -> ()", run=_clip_, fake=_clip_fake
)
