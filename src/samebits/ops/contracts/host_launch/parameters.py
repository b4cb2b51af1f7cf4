"""A launch that samebits.ops._triton.launch.run was asked for, as numbers: what the driver is handed.

How arguments lie in the driver's parameters is how the launcher does it that Triton generates. Knows no operator."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

from samebits.ops._triton import launch as launching
from samebits.ops._triton.launch import Described

DESCRIPTOR, ADDRESS, VALUE = range(3)
SCRATCH: Final = 2
"""Addresses behind a kernel's own parameters, of memory that none of these kernels asks for."""

Parameter = tuple[int, int, int, tuple[int, ...] | None]
"""Kind, source, number, layout: as reading.hpp reads it."""
Numbers = tuple[int, int, int, int, str, Any, tuple[Parameter, ...]]
"""Function, programs, warps, bytes of shared memory, name, compiled kernel, parameters."""
Place = Callable[[Tensor], tuple[int, int]]
"""Of a tensor: the source that its memory is, and how many bytes behind its start the tensor begins."""


class UnrepeatableError(Exception):
    """Why a call cannot be made again from what was seen of it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What `run` was handed."""

    kernel: Any
    programs: int
    arguments: tuple[Any, ...]
    warps: int
    stages: int
    constants: Mapping[str, Any]


def in_numbers(asked: Asked, place: Place) -> Numbers:
    """The launch as reading.hpp reads it."""
    name = asked.kernel.__name__
    device = torch.cuda.current_device()
    key = launching._key(name, device, asked.warps, asked.stages, asked.arguments, dict(asked.constants))
    repeated = launching._compiled.get(key)
    if repeated is None:
        raise UnrepeatableError(f"nothing was compiled for {name}")
    kernel = repeated._compiled
    metadata, launcher = kernel.metadata, kernel.run
    warps, clusters, shared = kernel.packed_metadata
    if clusters != 1 or launcher.launch_cooperative_grid or launcher.launch_pdl:
        raise UnrepeatableError(f"{name} is launched in clusters, as one grid or early")
    if metadata.global_scratch_size or metadata.profile_scratch_size:
        raise UnrepeatableError(f"{name} needs scratch memory")
    given = (*asked.arguments, *asked.constants.values())
    descriptors = iter(getattr(metadata, "tensordesc_meta", None) or ())
    parameters = [
        parameter
        for kind, each in zip(kernel.src.signature.values(), given, strict=True)
        for parameter in parameters_of(kind, each, place, descriptors)
    ]
    scratch: list[Parameter] = [(VALUE, 0, 0, None)] * SCRATCH
    return (kernel.function, asked.programs, warps, shared, name, kernel, (*parameters, *scratch))


def parameters_of(kind: str, given: Any, place: Place, descriptors: Iterator[Any]) -> Sequence[Parameter]:
    """The driver's parameters for one argument, of the kind that Triton compiled it as."""
    if kind == "constexpr":
        return ()
    if kind in ("i32", "i64"):
        return ((VALUE, 0, int(given), None),)
    if kind == "fp32":
        return ((VALUE, 0, bits_of(given), None),)
    if kind.startswith("*") and isinstance(given, Tensor):
        return ((ADDRESS, *place(given), None),)
    if isinstance(given, Described) and given.padding == "zero" and given.strides[1] == 1:
        return described(given, place, next(descriptors))
    raise UnrepeatableError(f"an argument of kind {kind}; known: i32, i64, fp32, addresses, described matrices")


def bits_of(number: float) -> int:
    """Of a number rounded to float32, as C rounds it."""
    return int.from_bytes(bytes(ctypes.c_float(number)), "little")


def described(given: Described, place: Place, metadata: Any) -> Sequence[Parameter]:
    """A descriptor, then sizes and strides as Triton hands them on behind it."""
    if metadata is None or metadata["fp4_padded"]:
        raise UnrepeatableError("a described matrix that Triton takes apart")
    kind = TMA_DTYPE_DEVICE_TO_HOST[metadata["elem_type"]]
    layout = (kind, metadata["elem_size"], metadata["swizzle"], *metadata["block_size"], *given.shape, given.strides[0])
    numbers: list[Parameter] = [(VALUE, 0, each, None) for each in (*given.shape, *given.strides)]
    return ((DESCRIPTOR, *place(given.base), layout), *numbers)
