"""All who may listen to a call or want another one of it, and tensors that are more than numbers in memory.

For each of them Python's function must be called; `refusal` answers with its name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, Final
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from samebits.native.launch_numbers import launching
from samebits.ops import registering


class Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Does what torch does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Function(TorchFunctionMode):
    """Does what torch does."""


@contextmanager
def observed() -> Iterator[None]:
    registering.observe(lambda name, run, arguments, flops: run(*arguments))
    try:
        yield
    finally:
        registering.observe(None)


def _hook(_: Any) -> None:
    """Of somebody who wants to know of launches."""


@contextmanager
def hooked() -> Iterator[None]:
    hooks = triton.knobs.runtime.launch_enter_hook
    hooks.add(_hook)
    try:
        yield
    finally:
        hooks.remove(_hook)


Mode = Callable[[], AbstractContextManager[Any]]
_ENTERED: Final[Mapping[str, Mode]] = MappingProxyType(
    {
        "dispatch mode": Dispatch,
        "function mode": Function,
        "forward AD": forward_ad.dual_level,
        "profiler": partial(torch.autograd.profiler.profile, use_kineto=False),
        "other keys": lambda: torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.PythonDispatcher),
        "compiling": lambda: patch.object(torch.compiler, "_is_compiling_flag", True),
        "observed": observed,
        "forced launch": lambda: launching(launch=None),
        "launch hook": hooked,
    }
)
MODES: Final = (*_ENTERED, "functorch", "tracing")


def answers_within(mode: str, refusal: Callable[[], str | None]) -> list[str | None]:
    """What is answered within a mode: one that a `with` opens, or a transform that calls who asks."""
    answers: list[str | None] = []

    def ask(x: Tensor) -> Tensor:
        answers.append(refusal())
        return x.sum()

    if mode == "functorch":
        with torch.enable_grad():
            torch.func.grad(ask)(torch.ones(2))
    elif mode == "tracing":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.jit.trace(ask, (torch.ones(2),), check_trace=False)  # type: ignore[no-untyped-call]
    else:
        with _ENTERED[mode]():
            answers.append(refusal())
    return answers


class Subclass(Tensor):
    """Of a user's."""


PARTICULAR: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {
        "kind": lambda x: x.as_subclass(Subclass),
        "keys": torch._neg_view,
        "gradient": lambda x: x.clone().requires_grad_(),
    }
)


def answers_for(kind: str, refusal: Callable[..., str | None], given: Sequence[Tensor]) -> list[str | None]:
    """What is answered where one of the tensors is of a particular kind, for each of them in turn."""
    with torch.enable_grad():
        particular = PARTICULAR[kind]
        return [
            refusal(*(particular(each) if number == place else each for number, each in enumerate(given)))
            for place in range(len(given))
        ]
