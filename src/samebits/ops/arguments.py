"""What every public function checks before a kernel runs: backend, device, dtype, shape; one line says what is wrong.

Knows no operator but the name it is given."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from samebits.ops.argument_types import check_layout, shown

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BACKEND_OF_DEVICE = {"cpu": "cpu", "cuda": "triton"}


# What a kernel's 64-bit numbers can hold. ctypes and the dispatcher cut off what is beyond, without a word.
SMALLEST_INTEGER, LARGEST_INTEGER = -(2**63), 2**63 - 1


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def choose_backend(operator: str, tensor: Tensor, backend: str | None) -> str:
    """The backend asked for, or the tensor's own. Never another one than asked for."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{operator}: a tensor is needed, got {shown(tensor)}; allowed: a torch.Tensor")
    device = tensor.device.type
    if device not in BACKEND_OF_DEVICE:
        raise ValueError(f"{operator}: no backend for device {device!r}; allowed: {', '.join(BACKEND_OF_DEVICE)}")
    if backend is None:
        return BACKEND_OF_DEVICE[device]
    if backend == "reference":
        return backend
    for home, name in BACKEND_OF_DEVICE.items():
        if name == backend:
            if home != device:
                raise ValueError(f"{operator}: backend={backend!r} takes tensors on {home!r}, got one on {device!r}")
            return backend
    raise ValueError(f"{operator}: unknown backend={backend!r}; allowed: cpu, triton, reference")


def check_tensors(operator: str, backend: str, tensors: Mapping[str, Tensor | None]) -> None:
    """One dtype, one device, a dtype the backend knows."""
    first_name, first = next((name, tensor) for name, tensor in tensors.items() if tensor is not None)
    allowed = (*DTYPES, torch.float64) if backend == "reference" else DTYPES
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{operator}: {name} is {shown(tensor)}; allowed: a torch.Tensor")
        check_layout(operator, name, tensor)
        if tensor.dtype not in allowed:
            names = ", ".join(short(dtype) for dtype in allowed)
            why = ", for no order of its sums is declared" if short(tensor.dtype).startswith("float8") else ""
            raise ValueError(
                f"{operator}: {name} has dtype {short(tensor.dtype)}{why}; allowed with backend={backend!r}: {names}"
            )
        if tensor.dtype != first.dtype:
            raise ValueError(
                f"{operator}: {name} has dtype {short(tensor.dtype)},"
                f" {first_name} has {short(first.dtype)}; they must agree"
            )
        if tensor.device != first.device:
            raise ValueError(
                f"{operator}: {name} is on {tensor.device}, {first_name} on {first.device}; they must agree"
            )


def check_dimensions(operator: str, name: str, tensor: Tensor, count: int) -> None:
    if tensor.dim() != count:
        raise ValueError(f"{operator}: {name} has shape {tuple(tensor.shape)}; allowed: {count} dimensions")


def check_integer(
    operator: str,
    name: str,
    value: object,
    least: int = SMALLEST_INTEGER,
    most: int = LARGEST_INTEGER,
    *,
    optional: bool = False,
) -> int:
    """A whole number that the kernel can take, as Python's own. `optional` is for the message: None is allowed too."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not isinstance(value, int | np.integer) or not least <= value <= most:
        allowed = f"a whole number, {_border(least)} to {_border(most)}{', or None' if optional else ''}"
        # As everywhere: another number is a wrong value, anything else a wrong kind.
        raise (ValueError if number else TypeError)(f"{operator}: {name} is {value!r:.60}; allowed: {allowed}")
    return int(value)


def _border(number: int) -> str:
    """Large borders as they are known: 2^31 - 1 rather than ten digits."""
    size = abs(number).bit_length()
    if size < 20:
        return str(number)
    sign = "-" if number < 0 else ""
    if abs(number) == 2 ** (size - 1):
        return f"{sign}2^{size - 1}"
    return f"{sign}2^{size} - 1" if abs(number) == 2**size - 1 and number > 0 else str(number)


def check_equal(operator: str, left: str, left_size: int, right: str, right_size: int) -> None:
    if left_size != right_size:
        raise ValueError(f"{operator}: {left} is {left_size}, {right} is {right_size}; they must agree")


def check_accumulator(operator: str, accumulator: Tensor, shape: tuple[int, ...], inputs: Mapping[str, Tensor]) -> None:
    """A float32 sum that a kernel may write in place: right shape, contiguous, and nobody else's memory."""
    if accumulator.dtype != torch.float32:
        raise ValueError(f"{operator}: accumulator has dtype {short(accumulator.dtype)}; allowed: float32")
    if tuple(accumulator.shape) != shape:
        raise ValueError(f"{operator}: accumulator has shape {tuple(accumulator.shape)}; allowed: {shape}")
    if not accumulator.is_contiguous():
        raise ValueError(f"{operator}: accumulator has strides {accumulator.stride()}; allowed: contiguous")
    for name, tensor in inputs.items():
        if tensor.device != accumulator.device:
            raise ValueError(
                f"{operator}: accumulator is on {accumulator.device}, {name} on {tensor.device}; they must agree"
            )
        same_memory = tensor.untyped_storage().data_ptr() == accumulator.untyped_storage().data_ptr()
        if same_memory and tensor.numel() and accumulator.numel():
            raise ValueError(f"{operator}: accumulator shares its memory with {name}; give it memory of its own")
