"""Shared memory of a program: allocations, views of them, and which accesses to which bytes are in order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tests.ops.hopper_on_cpu.finding import Finding, Unsupported
from tests.ops.hopper_on_cpu.machine import Access, Barrier, Machine, Strand
from tests.ops.hopper_on_cpu.values import STORED, Tensor, flat


@dataclass(eq=False)
class Touched:
    """An access, and the bytes it reads or writes as bits of an integer."""

    access: Access
    region: int
    writes: bool


class Allocation:
    """Bytes that nobody wrote yet: NaN as floating-point numbers, -1 as integers."""

    def __init__(self, machine: Machine, size: int) -> None:
        self.machine = machine
        machine.strand.program.allocations.append(self)
        self.bytes = torch.full((size,), 0xFF, dtype=torch.uint8)
        self.touched: list[Touched] = []
        self.written = 0
        self.unfenced: list[Touched] = []
        """What threads wrote and no fence made visible to tensor cores and copies."""
        self.barriers: dict[int, Barrier] = {}
        self._regions: dict[tuple[Any, ...], int] = {}

    def region(self, view: torch.Tensor) -> int:
        """The bytes of a view."""
        width = view.element_size()
        key = (width, view.storage_offset(), *view.shape, *view.stride())
        if key not in self._regions:
            marks = torch.zeros_like(self.bytes)
            numbers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
            marks.view(numbers).as_strided(view.shape, view.stride(), view.storage_offset()).fill_(-1)
            self._regions[key] = int.from_bytes(np.packbits(marks.numpy(), bitorder="little").tobytes(), "little")
        return self._regions[key]

    def touch(self, access: Access, region: int, *, writes: bool, by_threads: bool) -> None:
        """Notes an access that begins now, and looks for one that need not be over."""
        known = self.machine.strand.known
        for other in self.touched:
            if other.region & region and (writes or other.writes) and not known & other.access.bit:
                raise Finding("race", f"{access.words} may come before the end of {other.access.words}")
        if writes:
            self.touched = [each for each in self.touched if each.region & ~region]
            self.unfenced = [each for each in self.unfenced if each.region & ~region]
            self.written |= region
        elif region & ~self.written:
            raise Finding("poison", f"{access.words}, which nobody wrote")
        here = Touched(access, region, writes)
        if writes and by_threads:
            self.unfenced.append(here)
        if not writes and not by_threads:
            for each in self.unfenced:
                if each.region & region:
                    raise Finding("fence", f"{access.words}: there is no fence after {each.access.words}")
        self.touched.append(here)

    def fence(self, strand: Strand) -> None:
        self.unfenced = [each for each in self.unfenced if not strand.known & each.access.bit]


class View:
    """A shared memory descriptor of Gluon."""

    def __init__(self, allocation: Allocation, data: torch.Tensor, dtype: Any, layout: Any) -> None:
        self.allocation, self.data, self.dtype, self.layout = allocation, data, dtype, layout

    @property
    def shape(self) -> list[int]:
        return list(self.data.shape)

    @property
    def type(self) -> View:
        return self

    @property
    def element_ty(self) -> Any:
        return self.dtype

    @property
    def rank(self) -> int:
        return self.data.dim()

    @property
    def numel(self) -> int:
        return self.data.numel()

    @property
    def nbytes(self) -> int:
        return self.data.numel() * self.data.element_size()

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"shared_memory_descriptor.{name}")

    def _of(self, data: torch.Tensor) -> View:
        return View(self.allocation, data, self.dtype, self.layout)

    def index(self, index: Any) -> View:
        number = int(index)
        if not 0 <= number < self.data.shape[0]:
            raise Finding("bounds", f"index {number} of shared memory of shape {self.shape}")
        return self._of(self.data[number])

    def slice(self, start: int, length: int, dim: int = 0) -> View:
        return self._of(self.data.narrow(dim, start, length))

    def permute(self, order: Any) -> View:
        return self._of(self.data.permute(flat((order,))))

    def reshape(self, shape: Any) -> View:
        return self._of(self.data.view(flat((shape,))))

    def _reinterpret(self, dtype: Any, shape: Any, layout: Any) -> View:
        sizes, stored = flat((shape,)), STORED[dtype]
        start = self.data.storage_offset() * self.data.element_size()
        size = math.prod(sizes) * stored.itemsize
        if not self.data.is_contiguous() or size > self.nbytes:
            raise Unsupported(f"shared memory of shape {self.shape} and {self.nbytes} bytes as {dtype} {list(sizes)}")
        return View(
            self.allocation, self.allocation.bytes[start : start + size].view(stored).view(sizes), dtype, layout
        )

    def load(self, layout: Any = None) -> Tensor:
        self.by_threads("a load of shared memory", writes=False)
        return Tensor(self.data.clone(), self.dtype, layout)

    def store(self, value: Tensor) -> None:
        if value.shape != self.shape or value.dtype != self.dtype:
            raise TypeError(f"{value.dtype} {value.shape} stored into shared memory of {self.dtype} {self.shape}")
        self.by_threads("a store to shared memory", writes=True)
        self.data.copy_(value.data)

    def _keep_alive(self) -> None:
        """Memory stays as long as its program."""

    def by_threads(self, words: str, *, writes: bool) -> None:
        """An access by the strand's own threads, which is over at once."""
        machine = self.allocation.machine
        machine.turn()
        access = machine.strand.program.access(words)
        self.allocation.touch(access, self.region, writes=writes, by_threads=True)
        machine.strand.known |= access.bit

    @property
    def region(self) -> int:
        return self.allocation.region(self.data)
