"""Public functions of operators whose calls on a GPU are launched in C++; everything else about them is Python's.

Called as they are, or by way of `samebits.ops` after `samebits.launch_in_cpp`. The first call with a tensor on a GPU
builds the C++, which takes a compiler ten seconds once. Where it cannot be built, Python launches, with the same bits,
and `state` says why. Without a GPU nothing here imports Triton."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from samebits.ops.contracts.host_launch import building
from samebits.ops.gelu import gelu as gelu_by_python
from samebits.ops.layernorm import layernorm as layernorm_by_python
from samebits.ops.matmul import linear as linear_by_python
from samebits.ops.matmul import matmul as matmul_by_python
from samebits.ops.rmsnorm import add_rmsnorm as add_rmsnorm_by_python
from samebits.ops.rmsnorm import rmsnorm as rmsnorm_by_python
from samebits.ops.softmax import log_softmax as log_softmax_by_python
from samebits.ops.softmax import softmax as softmax_by_python
from samebits.ops.swiglu import swiglu as swiglu_by_python

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(slots=True)
class _Built:
    """The module in C++ once somebody needed it, or why there is none."""

    module: Any = None
    missing: str = ""
    calls: dict[str, Any] = field(default_factory=dict)
    """By a function's name, its calls in C++, which are counted there."""
    lock: threading.Lock = field(default_factory=threading.Lock)


_built = _Built()


def in_cpp(function: Function, home: str = __name__) -> Function:
    """The function, whose calls on a GPU are launched in C++ from the third of their kind on.

    `home` is the module in which it can be found by its name."""
    made: Callable[..., Any] = function
    settled = False

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        nonlocal made, settled
        # Dynamo reads the function itself, C++ would be closed to it; whoever else compiles is heard by the C++.
        if torch.compiler.is_dynamo_compiling():
            return function(*given, **named)
        if not settled and _on_gpu(*given, *named.values()):
            made, settled = _made(function), True
        return made(*given, **named)

    call.__module__ = home
    return call  # type: ignore[return-value]


def _on_gpu(*arguments: Any) -> bool:
    initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return initialized and any(isinstance(each, Tensor) and each.is_cuda for each in arguments)


def _made(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function's calls in C++; the function where there is no C++."""
    with _built.lock:
        if _built.module is None and not _built.missing:
            _build()
        if _built.module is None:
            return function
        from samebits.ops.contracts.host_launch.attaching import calls_of

        name = function.__qualname__
        if name not in _built.calls:
            _built.calls[name] = calls_of(_built.module, function)
        calls: Callable[..., Any] = _built.calls[name]
        return calls


def _build() -> None:
    try:
        from samebits.ops.contracts.host_launch.attaching import attached

        _built.module = attached()
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        _built.missing = " ".join(str(error).split())[:300] or type(error).__name__


def counted() -> Mapping[str, tuple[int, int]]:
    """By a function's name, its calls on a GPU that C++ launched, and those that Python did."""
    return {name: each.counted() for name, each in _built.calls.items()}


def state() -> str:
    """One line: whether calls on a GPU are launched in C++, or why not."""
    if _built.missing:
        return f"calls on a GPU are launched by Python, slower, with the same bits: {_built.missing}"
    if _built.module is None:
        lacks = building.lacks()
        coming = f"C++ cannot launch any: {lacks}" if lacks else "the first one builds the C++ that launches such calls"
        return f"no call on a GPU so far; {coming}"
    in_c, by_python = (sum(each[side] for each in counted().values()) for side in (0, 1))
    return f"calls on a GPU are launched in C++: {in_c} were, {by_python} by Python"


linear = in_cpp(linear_by_python)
matmul = in_cpp(matmul_by_python)
rmsnorm = in_cpp(rmsnorm_by_python)
add_rmsnorm = in_cpp(add_rmsnorm_by_python)
layernorm = in_cpp(layernorm_by_python)
gelu = in_cpp(gelu_by_python)
swiglu = in_cpp(swiglu_by_python)
softmax = in_cpp(softmax_by_python)
log_softmax = in_cpp(log_softmax_by_python)
