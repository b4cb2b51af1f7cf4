"""The module in C++ with the functions and variables of Python that it depends on, and operators called by it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import triton

from samebits.native import launch_numbers
from samebits.ops import registering
from samebits.ops._triton import launch
from samebits.ops.contracts.host_launch import building
from samebits.ops.contracts.host_launch.recording import record


def attached() -> Any:
    """The module for this machine's GPU."""
    module = building.module()
    check_layout(module)
    attach(module, torch._C._cuda_getCurrentRawStream)
    return module


def check_layout(module: Any) -> None:
    """Before anything is read through it: whether tensors lie in memory as torch_parts.hpp has them."""
    tensor = torch.empty(1)
    if module.implementation(tensor) != tensor._cdata:
        raise RuntimeError(f"host_launch: torch {torch.__version__} lays out tensors in a way that is not known here")


def attach(module: Any, stream: Callable[[int], int], *, record: Callable[..., Any] = record) -> None:
    """`stream`: the current one of a device."""
    homes = (registering, torch.compiler, launch_numbers, launch)
    module.attach(record, stream, *(vars(each) for each in homes), triton.knobs.runtime)


def calls_of(module: Any, function: Callable[..., Any]) -> Any:
    """The function's calls, made by the module."""
    parameters = inspect.signature(function).parameters.values()
    positional = sum(each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for each in parameters)
    if positional + sum(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters) < len(parameters):
        raise ValueError(f"{function.__name__}: {inspect.signature(function)}; allowed: parameters with names")
    return module.calls_of(function, tuple(each.name for each in parameters), positional)
