"""The module in C++ with the functions and variables of Python that it depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton

from host_launch import building
from host_launch.preparing import Prepared, prepared
from samebits.native import launch_numbers
from samebits.ops import linear, registering
from samebits.ops._triton import launch


def attached() -> Any:
    """`linear` of this module takes the arguments of samebits.ops.linear, and calls it where it must."""
    module = building.module()
    attach(module, torch._C._cuda_getCurrentRawStream)
    return module


def attach(
    module: Any,
    stream: Callable[[int], int],
    *,
    otherwise: Callable[..., Any] = linear,
    prepare: Callable[..., Prepared | None] = prepared,
) -> None:
    """`stream`: the current one of a device. `otherwise`: what is called where nothing can be launched."""
    homes = (registering, torch.compiler, launch_numbers, launch)
    module.attach(otherwise, prepare, stream, *(vars(each) for each in homes), triton.knobs.runtime)
    module.forget()
