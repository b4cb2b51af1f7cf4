"""What Python does once for sizes that were never seen: the launch that its own function has just made, as numbers.

The tile, the constants and the arguments are those of ops/matmul/triton_kernel.py, asked of its own functions; how they
lie in the driver's parameters is how the launcher does it that Triton generates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

import torch
from torch import Tensor
from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

from samebits.ops._triton import launch as launching
from samebits.ops._triton.launch import Described
from samebits.ops.matmul.launch_table import select
from samebits.ops.matmul.triton_kernel import NAMES, described_layouts, launch_addressed, launch_described

DESCRIPTOR, ADDRESS, VALUE = range(3)
X, WEIGHT, BIAS, OUT = range(4)
SCRATCH: Final = 2
"""Addresses behind a kernel's own parameters, of memory that none of these kernels asks for."""

Parameter = tuple[int, int, int, tuple[int, ...] | None]
"""Kind, operand, number, layout: as reading.h reads it."""
Prepared = tuple[int, int, int, int, str, Any, tuple[Parameter, ...]]
"""Function, programs, warps, bytes of shared memory, name, compiled kernel, parameters."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is handed to samebits.ops._triton.launch.run."""

    kernel: Any
    programs: int
    arguments: tuple[Any, ...]
    warps: int
    stages: int
    constants: dict[str, Any]


def asked(function: Callable[..., Any], *arguments: Any, **options: Any) -> Asked:
    """What a function of triton_kernel.py would launch: a copy of it, which sees another `run`."""
    found: list[Asked] = []

    def run(kernel: Any, programs: int, given: tuple[Any, ...], *, warps: int, stages: int, **constants: Any) -> None:
        found.append(Asked(kernel, programs, given, warps, stages, constants))

    assert isinstance(function, FunctionType)
    FunctionType(function.__code__, {**function.__globals__, "run": run})(*arguments, **options)
    (one,) = found
    return one


def prepared(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Prepared | None:
    """The launch that `linear` has made for these; None where there was none, or none that can be made again."""
    if out.numel() == 0 or weight.shape[1] == 0:
        return None
    rows = x.reshape(-1, x.shape[-1])
    layouts = described_layouts(rows, weight.T, out.view(-1, weight.shape[0]))
    # Tensors without memory: what is asked for depends on none, and no two are the same, as x and weight may be.
    a, b, added = (None if each is None else without_memory(each) for each in (rows, weight, bias))
    y = out.view(-1, weight.shape[0])
    assert a is not None and b is not None
    sizes = (a.shape[0], b.shape[0], a.shape[1])
    numbers = select(*sizes, dtype=NAMES[a.dtype], described=layouts is not None, wide=y.dtype == torch.float32)
    if numbers.loads == "pointer":
        one = asked(launch_addressed, numbers, a, b.T, y, added, resumed=False)
    else:
        one = asked(launch_described, numbers, a, b.T, layouts, y, added, resumed=False, kept=False)
    return in_numbers(one, {operand: each for operand, each in enumerate((a, b, added, y)) if each is not None})


def without_memory(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def in_numbers(one: Asked, operands: dict[int, Tensor]) -> Prepared | None:
    """The launch as reading.h reads it; None where nothing was compiled for it."""
    name = one.kernel.__name__
    device = torch.cuda.current_device()
    key = launching._key(name, device, one.warps, one.stages, one.arguments, one.constants)
    repeated = launching._compiled.get(key)
    if repeated is None:
        return None
    kernel = repeated._compiled
    metadata, launcher = kernel.metadata, kernel.run
    warps, clusters, shared = kernel.packed_metadata
    if clusters != 1 or launcher.launch_cooperative_grid or launcher.launch_pdl:
        return None
    if metadata.global_scratch_size or metadata.profile_scratch_size:
        return None
    places = {storage(each): operand for operand, each in operands.items()}
    given = (*one.arguments, *one.constants.values())
    descriptors = iter(getattr(metadata, "tensordesc_meta", None) or ())
    parameters = [
        parameter
        for kind, each in zip(kernel.src.signature.values(), given, strict=True)
        for parameter in parameters_of(kind, each, places, descriptors)
    ]
    scratch: list[Parameter] = [(VALUE, 0, 0, None)] * SCRATCH
    return (kernel.function, one.programs, warps, shared, name, kernel, (*parameters, *scratch))


def storage(tensor: Tensor) -> int:
    """Names a tensor's memory, also where it has none."""
    return int(tensor.untyped_storage()._cdata)


def parameters_of(kind: str, given: Any, places: dict[int, int], descriptors: Iterator[Any]) -> Sequence[Parameter]:
    """The driver's parameters for one argument, of the kind that Triton compiled it as."""
    if kind == "constexpr":
        return ()
    if kind in ("i32", "i64"):
        return ((VALUE, 0, given, None),)
    if kind.startswith("*"):
        return ((ADDRESS, places[storage(given)], 0, None),)
    if isinstance(given, Described) and given.padding == "zero" and given.strides[1] == 1:
        return described(given, places[storage(given.base)], next(descriptors))
    raise RuntimeError(f"host_launch: an argument of kind {kind}; allowed: i32, i64, addresses, described matrices")


def described(given: Described, operand: int, metadata: Any) -> Sequence[Parameter]:
    """A descriptor, then sizes and strides as Triton hands them on behind it."""
    if metadata is None or metadata["fp4_padded"]:
        raise RuntimeError("host_launch: a described matrix that Triton takes apart; allowed: tensor maps")
    kind = TMA_DTYPE_DEVICE_TO_HOST[metadata["elem_type"]]
    layout = (kind, metadata["elem_size"], metadata["swizzle"], *metadata["block_size"], *given.shape, given.strides[0])
    numbers: list[Parameter] = [(VALUE, 0, each, None) for each in (*given.shape, *given.strides)]
    return ((DESCRIPTOR, operand, 0, layout), *numbers)
