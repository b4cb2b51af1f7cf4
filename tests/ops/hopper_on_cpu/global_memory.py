"""Global memory: arguments of a kernel, pointers into them, and blocks of them by a descriptor.

An access outside of an argument is a finding; a block's elements outside of its matrix are zero, or not written."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from tests.ops.hopper_on_cpu.finding import Finding, Unsupported
from tests.ops.hopper_on_cpu.values import DTYPES, Tensor, Type, expanded_layout, expanding, tensor_of


class Memory:
    """An argument of the kernel in global memory."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name = name
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        self.data = tensor.as_strided((extent if tensor.numel() else 0,), (1,))
        self.dtype = DTYPES[tensor.dtype]

    def places(self, at: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The places that a mask selects, all of them inside."""
        chosen = at[mask]
        wrong = chosen[(chosen < 0) | (chosen >= len(self.data))]
        if len(wrong):
            element = int(wrong[0])
            raise Finding("bounds", f"element {element} of {self.name}, which has {len(self.data)} elements")
        return chosen


class Pointer:
    """Addresses: a tensor in global memory, and the place of an element in it for each of them."""

    def __init__(self, memory: Memory, at: torch.Tensor, layout: Any = None) -> None:
        self.memory, self.at, self.layout = memory, at, layout
        self.dtype = tl.pointer_type(memory.dtype)

    @property
    def shape(self) -> list[int]:
        return list(self.at.shape)

    @property
    def type(self) -> Type:
        return Type(self.dtype, self.shape, self.layout)

    def __add__(self, offset: Any) -> Pointer:
        right = tensor_of(offset)
        if not right.dtype.is_int():
            raise TypeError(f"a pointer to {self.memory.name} plus {right.dtype}")
        return Pointer(self.memory, self.at + right.data, self.layout or right.layout)

    __radd__ = __add__

    def __sub__(self, offset: Any) -> Pointer:
        return self + -tensor_of(offset)

    def __getitem__(self, at: Any) -> Pointer:
        return Pointer(self.memory, self.at[expanding(at)], expanded_layout(self.layout, at))

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"pointer.{name}")


class Matrix:
    """A tensor descriptor: where blocks of one shape are read from, and written to."""

    def __init__(self, name: str, described: Any) -> None:
        self.memory = Memory(name, described.base)
        self.shape, self.strides = list(described.shape), list(described.strides)
        self.block_shape = list(described.block_shape)
        self.layout = getattr(described, "layout", None)
        self.block_type = tl.block_type(self.memory.dtype, self.block_shape)
        if described.padding != "zero":
            raise Unsupported(f"padding {described.padding!r}")

    @property
    def dtype(self) -> Any:
        return self.memory.dtype

    def places(self, coordinates: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a block's elements, the places in memory, and whether they are inside of the matrix."""
        at, inside = torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool)
        sizes = zip(coordinates, self.block_shape, self.shape, self.strides, strict=True)
        for first, block, size, stride in sizes:
            numbers = int(first) + torch.arange(block)
            at = at[..., None] + numbers * stride
            inside = inside[..., None] & (numbers >= 0) & (numbers < size)
        return at, inside

    def read(self, coordinates: Any) -> torch.Tensor:
        at, inside = self.places(coordinates)
        block = torch.zeros(self.block_shape, dtype=self.memory.data.dtype)
        block[inside] = self.memory.data[self.memory.places(at, inside)]
        return block

    def write(self, coordinates: Any, block: torch.Tensor) -> None:
        at, inside = self.places(coordinates)
        self.memory.data[self.memory.places(at, inside)] = block[inside]

    def load(self, coordinates: Any) -> Tensor:
        return Tensor(self.read(coordinates), self.dtype)

    def store(self, coordinates: Any, value: Tensor) -> None:
        self.write(coordinates, tensor_of(value, self.dtype).data)


def aimed(pointer: Pointer, mask: Any, *others: Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Places and mask of an access, of one shape."""
    if not isinstance(pointer, Pointer):
        raise TypeError(f"{pointer!r} where a pointer is needed")
    selects = torch.ones((), dtype=torch.bool) if mask is None else tensor_of(mask).data != 0
    shape = np.broadcast_shapes(pointer.at.shape, selects.shape, *(each.data.shape for each in others))
    return pointer.at.expand(shape), selects.expand(shape)


def load(pointer: Pointer, mask: Any = None, other: Any = None) -> Tensor:
    """What a mask leaves out is `other`, or poison."""
    at, selects = aimed(pointer, mask)
    memory = pointer.memory
    missing = (float("nan") if memory.dtype.is_floating() else 85) if other is None else other
    data = torch.empty(at.shape, dtype=memory.data.dtype)
    data[...] = tensor_of(missing).to(memory.dtype).data
    data[selects] = memory.data[memory.places(at, selects)]
    return Tensor(data, memory.dtype, pointer.layout)


def store(pointer: Pointer, value: Any, mask: Any = None) -> None:
    stored = tensor_of(value).to(pointer.memory.dtype)
    at, selects = aimed(pointer, mask, stored)
    pointer.memory.data[pointer.memory.places(at, selects)] = stored.data.expand(at.shape)[selects]


def atomic_add(pointer: Pointer, value: Any, mask: Any = None) -> Tensor:
    """Adds one element after another, and gives what was there."""
    added = tensor_of(value, pointer.memory.dtype)
    at, selects = aimed(pointer, mask, added)
    before = torch.zeros(at.shape, dtype=pointer.memory.data.dtype)
    terms = added.data.expand(at.shape)[selects]
    found = []
    for place, term in zip(pointer.memory.places(at, selects).tolist(), terms, strict=True):
        found.append(pointer.memory.data[place].clone())
        pointer.memory.data[place] += term
    if found:
        before[selects] = torch.stack(found)
    return Tensor(before, pointer.memory.dtype, pointer.layout)
