"""Tensors as named memory: what a kernel reads are leaves or what was stored before, and a result is stored once.

Knows no operator. A leaf is named by its place within its row, and each value carries the row it was made from, so that
rows of any batch have equal expressions under equal names, and a value made from two rows is noticed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from torch import Tensor

from samebits.checker.tracing.nodes import Nodes, RefusedError
from samebits.contracts.traced import SHARED

# A value under trace: the number of its expression, and the row whose data it was made from.
NODE: Final = np.dtype([("id", np.int64), ("row", np.int64)])
MIXED: Final = -2  # of more than one, or of memory that nobody wrote
NOBODY: Final = -1
SEVERAL: Final = -2

NAMES: Final = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}


def joined(rows: list[np.ndarray]) -> np.ndarray:
    """The row that values made from these are of."""
    total = rows[0]
    for other in rows[1:]:
        total = np.where((total == other) | (other == SHARED), total, np.where(total == SHARED, other, MIXED))
    return total


@dataclass(slots=True)
class Region:
    """One storage. Integers are read as they are: they steer; all else is an expression."""

    name: str
    tensor: Tensor
    """Kept, so that its address is not given to another."""
    base: int
    width: int
    dtype: str
    cells: np.ndarray
    writer: np.ndarray
    """The program that stored an element last, and the launch it belonged to."""
    write_launch: np.ndarray
    reader: np.ndarray
    read_launch: np.ndarray
    reread: np.ndarray = field(init=False)
    """Whether an element was read since it was stored last: a program may then store it again, as scratch memory."""

    def __post_init__(self) -> None:
        self.reread = np.zeros(len(self.cells), bool)

    @property
    def end(self) -> int:
        return self.base + self.width * len(self.cells)


class Memory:
    """All storages that kernels were given."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.regions: list[Region] = []
        self.launch = 0
        self.program = 0
        self.shifted = False
        """Planted fault: reads of a row's data come from the next row."""

    def add(
        self,
        name: str,
        tensor: Tensor,
        rows: np.ndarray | None = None,
        places: np.ndarray | None = None,
        *,
        traced: bool = False,
    ) -> None:
        """A tensor whose elements, in the order of its contiguous storage, belong to `rows` at `places` in them.

        Without them every element is shared and stands for itself. Integers are expressions where `traced` says so."""
        storage = tensor.untyped_storage()
        width = tensor.element_size()
        count = storage.nbytes() // width
        rows = np.full(count, SHARED) if rows is None else rows.reshape(-1)
        places = np.arange(count) if places is None else places.reshape(-1)
        dtype = NAMES.get(str(tensor.dtype), str(tensor.dtype).removeprefix("torch.") if traced else "")
        cells = np.zeros(count, NODE)
        cells["row"] = rows
        if dtype:
            kinds, back = np.unique(places, return_inverse=True)
            cells["id"] = np.array([self.nodes.leaf(name, place, dtype) for place in kinds])[back]
        nobody = (np.full(count, NOBODY) for _ in range(4))
        self.regions.append(Region(name, tensor, storage.data_ptr(), width, dtype, cells, *nobody))

    def know(self, name: str, tensor: Tensor) -> None:
        """A tensor that a launch is given; one not met before is fresh memory."""
        if not any(region.base == tensor.untyped_storage().data_ptr() for region in self.regions):
            self.add(name, tensor)

    def find(self, addresses: np.ndarray, what: str) -> tuple[Region, np.ndarray]:
        """The one storage that addresses lie in, and the elements they name."""
        first, last = int(addresses.min()), int(addresses.max())
        for region in self.regions:
            if region.base <= first < region.end:
                if last >= region.end:
                    raise RefusedError(
                        f"{what} {(last - region.end) // region.width + 1} elements beyond {region.name}"
                    )
                return region, (addresses - np.uint64(region.base)).astype(np.int64) // region.width
        raise RefusedError(f"{what} memory of no tensor")

    def read(self, region: Region, elements: np.ndarray) -> np.ndarray:
        raced = (region.write_launch[elements] == self.launch) & (region.writer[elements] != self.program)
        if raced.any():
            where = int(elements[raced][0])
            raise RefusedError(f"element {where} of {region.name} is read beside the program that stores it")
        again = (region.read_launch[elements] == self.launch) & (region.reader[elements] != self.program)
        region.reader[elements] = np.where(again, SEVERAL, self.program)
        region.read_launch[elements] = self.launch
        region.reread[elements] = True
        cells: np.ndarray = region.cells[elements]
        if self.shifted and len(np.unique(region.cells["row"])) > 1:
            cells["row"] += cells["row"] >= 0
        return cells

    def write(self, region: Region, elements: np.ndarray, values: np.ndarray) -> None:
        again = region.reread[elements] & (region.writer[elements] == self.program)
        twice = (region.write_launch[elements] == self.launch) & ~again
        if twice.any() or len(np.unique(elements)) < len(elements):
            where = int(elements[twice][0]) if twice.any() else int(elements[0])
            raise RefusedError(f"element {where} of {region.name} is stored a second time")
        raced = (region.read_launch[elements] == self.launch) & (region.reader[elements] != self.program)
        if raced.any():
            where = int(elements[raced][0])
            raise RefusedError(f"element {where} of {region.name} is stored beside another program that reads it")
        region.cells[elements] = values
        region.writer[elements] = self.program
        region.write_launch[elements] = self.launch
        region.reread[elements] = False

    def result(self, tensor: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """(values, whether any program stored them) of a tensor, in its own shape."""
        region = next(each for each in self.regions if each.base == tensor.untyped_storage().data_ptr())
        elements = tensor.storage_offset() + sum(
            np.arange(size).reshape([-1 if axis == other else 1 for other in range(tensor.dim())]) * stride
            for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True))
        )
        elements = np.asarray(elements).reshape(tuple(tensor.shape))
        return region.cells[elements], region.writer[elements] != NOBODY


def is_symbolic(data: Any) -> bool:
    return isinstance(data, np.ndarray) and data.dtype == NODE
