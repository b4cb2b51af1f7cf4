"""How an operator becomes torch's: schema, implementation on every device, fake, gradient, cuts, in one call.

Knows no operator. `Library.define` and `impl` instead of `custom_op`: half the cost of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from samebits.ops.cuts import Cuts

Flops = Callable[..., int]
Around = Callable[[str, Callable[..., Any], tuple[Any, ...], Flops | None], Any]
"""Called with an operator's name, its implementation, the arguments and its `flops`; returns what the call returns."""

_PLAIN = (Tensor, nn.Parameter)
_library: Any = torch.library.Library("samebits", "FRAGMENT")  # type: ignore[no-untyped-call]
_runs: dict[str, Callable[..., Any]] = {}
_observables: dict[str, Callable[..., Any]] = {}
_called = _runs
"""What `call` calls: the implementations themselves while nobody observes."""
_cuts: dict[str, Cuts] = {}
_around: Around | None = None


def register(
    schema: str,
    *,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
    cuts: Cuts | None = None,
    flops: Flops | None = None,
) -> None:
    """Make `torch.ops.samebits.<name>` from a schema like "name(Tensor x, str backend) -> Tensor".

    `cuts` says how ranks may share its tensors; without it no rank may. `flops`: how many a call with these arguments
    takes, for a profile."""
    name = schema.split("(")[0]
    _library.define(schema)
    _runs[name], _observables[name] = run, _observable(name, run, flops)
    for device in ("CPU", "CUDA"):
        _library.impl(name, _observables[name], device)
    torch.library.register_fake(f"samebits::{name}", fake)
    if backward is not None:
        torch.library.register_autograd(f"samebits::{name}", backward, setup_context=setup_context)
    if cuts is not None:
        _cuts[name] = cuts


def registered_cuts() -> Mapping[str, Cuts]:
    """By operator, how its tensors may be cut; one that is not here may not be."""
    return _cuts


def observe(around: Around | None) -> None:
    """From now on every call of an operator goes through `around`; None: no longer."""
    global _around, _called
    _around, _called = around, _runs if around is None else _observables


def _observable(name: str, run: Callable[..., Any], flops: Flops | None) -> Callable[..., Any]:
    @wraps(run)
    def observable(*arguments: Any) -> Any:
        return run(*arguments) if _around is None else _around(name, run, arguments, flops)

    return observable


def call(name: str, *arguments: Any) -> Any:
    """`torch.ops.samebits.<name>`, without torch's dispatcher where nobody listens: two thirds of a small call's time.

    Not for operators that write into an argument: torch counts those writes on the way."""
    if torch.compiler.is_compiling() or _listened_to(arguments):
        return getattr(torch.ops.samebits, name)(*arguments)
    return _called[name](*arguments)


def _listened_to(arguments: tuple[Any, ...]) -> bool:
    """Whether a gradient, a mode, a transform, a trace, a profiler or another kind of tensor needs the dispatcher.
    So does a view whose memory has the opposite sign, which only the dispatcher turns into what it stands for."""
    wants_gradient = torch.is_grad_enabled()
    for each in arguments:
        if isinstance(each, Tensor) and (
            type(each) not in _PLAIN or (wants_gradient and each.requires_grad) or each.is_neg()
        ):
            return True
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._is_torch_function_mode_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
        or torch._C._autograd._profiler_enabled()
    )


def contiguous_like(x: Tensor) -> Tensor:
    """What a fake kernel returns for a contiguous result of x's shape and dtype, whatever x's own strides."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)
