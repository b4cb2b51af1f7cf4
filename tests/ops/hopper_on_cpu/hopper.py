"""What a kernel calls of Hopper's own: asynchronous products of the tensor cores, barriers, copies of the tensor memory
accelerator."""

from __future__ import annotations

from typing import Any

import torch
from tests.ops.hopper_on_cpu.finding import Finding, Unsupported, place
from tests.ops.hopper_on_cpu.functions import product
from tests.ops.hopper_on_cpu.global_memory import Matrix
from tests.ops.hopper_on_cpu.machine import Barrier, Machine, Operation
from tests.ops.hopper_on_cpu.shared import View
from tests.ops.hopper_on_cpu.values import Tensor


class Accumulator(Tensor):
    """What a product of the tensor cores will be; nobody may look at it before the wait."""

    def __init__(self, machine: Machine, operation: Operation, like: Tensor) -> None:
        self.machine, self.operation = machine, operation
        self.dtype, self.layout, self._shape = like.dtype, like.layout, like.shape

    def is_done(self) -> bool:
        """Whether the strand has waited for it."""
        return bool(self.machine.strand.known & self.operation.access.bit)

    @property
    def data(self) -> torch.Tensor:
        if not self.is_done():
            raise Finding("accumulator", f"used before the wait: {self.operation.access.words}")
        return self._data

    @property
    def shape(self) -> list[int]:
        return self._shape

    def hold(self, data: torch.Tensor) -> None:
        self._data = data

    def held(self) -> torch.Tensor:
        """For the tensor cores, which know when it is done."""
        return self._data


class Products:
    """What kernels find in `hopper`."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def fence_async_shared(self, cluster: bool = False) -> None:
        for allocation in self.machine.strand.program.allocations:
            allocation.fence(self.machine.strand)

    def warpgroup_mma(
        self,
        a: Any,
        b: View,
        acc: Tensor,
        *,
        use_acc: Any = True,
        precision: Any = None,
        max_num_imprecise_acc: Any = None,
        is_async: bool = False,
    ) -> Tensor:
        """acc + a @ b: shared memory is read at some moment before the wait."""
        self.machine.turn()
        strand = self.machine.strand
        access = strand.program.access("what a product reads", asynchronous=True)
        for operand in (a, b):
            if isinstance(operand, View):
                operand.allocation.touch(access, operand.region, writes=False, by_threads=False)
        # Registers are read now, where nobody may still be computing them; shared memory later.
        left, start = (None if isinstance(a, View) else a.data), None
        onto = bool(use_acc)
        if onto and not isinstance(acc, Accumulator):
            start = acc.data

        def finish() -> None:
            before = acc.held() if onto and isinstance(acc, Accumulator) else start
            result.hold(product(a.data if left is None else left, b.data, before, tensor_cores=True))

        operation = self.machine.begin(Operation(finish, access, strand.products))
        result = Accumulator(self.machine, operation, acc)
        return result if is_async else self.warpgroup_mma_wait(0, deps=[result])

    def warpgroup_mma_wait(self, num_outstanding: int = 0, deps: Any = None) -> Any:
        if deps is None:
            raise ValueError("warpgroup_mma_wait deps must be given")
        strand = self.machine.strand
        self.machine.wait_in_order(strand.products, num_outstanding, f"for products, in {place(quoted=True)}")
        given = [
            Tensor(each.data, each.dtype, each.layout) if isinstance(each, Accumulator) and each.is_done() else each
            for each in deps
        ]
        return given[0] if len(given) == 1 else tuple(given)

    @staticmethod
    def warpgroup_mma_init(value: Tensor) -> Tensor:
        return value


class Barriers:
    """What kernels find in `mbarrier`."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @staticmethod
    def _at(barrier: View) -> tuple[dict[int, Barrier], int]:
        if barrier.numel != 1:
            raise Unsupported(f"a barrier of shape {barrier.shape}; one of them is [1]")
        return barrier.allocation.barriers, int(barrier.data.storage_offset())

    def _barrier(self, barrier: View) -> Barrier:
        barriers, at = self._at(barrier)
        if at not in barriers:
            raise Finding("barrier", f"barrier {at} of its allocation is used and was never initialised")
        return barriers[at]

    def init(self, barrier: View, count: int) -> None:
        barriers, at = self._at(barrier)
        if at in barriers:
            raise Finding("barrier", f"barrier {at} of its allocation is initialised twice")
        barriers[at] = Barrier(int(count))

    def invalidate(self, barrier: View) -> None:
        barriers, at = self._at(barrier)
        self._barrier(barrier)
        del barriers[at]

    def expect(self, barrier: View, bytes: int, pred: Any = True) -> None:
        self.machine.turn()
        if pred:
            self._barrier(barrier).expect(int(bytes), self.machine.strand.known)

    def arrive(self, barrier: View, *, count: int = 1, pred: Any = True) -> None:
        self.machine.turn()
        if pred:
            self._barrier(barrier).arrive(int(count), self.machine.strand.known)

    def wait(self, barrier: View, phase: Any, pred: Any = True, deps: Any = ()) -> None:
        if not pred:
            return
        waited, parity, here = self._barrier(barrier), int(phase), place(quoted=True)
        if parity not in (0, 1):
            raise Finding("phase", f"a wait for phase parity {parity}")
        self.machine.turn(
            lambda: waited.phase & 1 != parity, lambda: f"for parity {parity} of a barrier that {waited}, in {here}"
        )
        self.machine.strand.known |= waited.known


class Copies:
    """What kernels find in `tma`."""

    def __init__(self, machine: Machine, barriers: Barriers) -> None:
        self.machine, self.barriers = machine, barriers

    def async_copy_global_to_shared(
        self, tensor_desc: Matrix, coord: Any, barrier: View, result: View, pred: Any = True
    ) -> None:
        """Written at some moment; then its bytes arrive at the barrier."""
        self.machine.turn()
        if not pred:
            return
        self._fits(tensor_desc, result)
        strand = self.machine.strand
        told, coordinates = self.barriers._barrier(barrier), [int(each) for each in coord]
        access = strand.program.access("a copy to shared memory", asynchronous=True)
        result.allocation.touch(access, result.region, writes=True, by_threads=False)
        known = strand.known | access.bit

        def finish() -> None:
            result.data.copy_(tensor_desc.read(coordinates))
            told.receive(result.nbytes, known)

        self.machine.begin(Operation(finish, access))

    def async_copy_shared_to_global(self, tensor_desc: Matrix, coord: Any, src: View) -> None:
        self.machine.turn()
        self._fits(tensor_desc, src)
        strand, coordinates = self.machine.strand, [int(each) for each in coord]
        access = strand.program.access("a copy from shared memory", asynchronous=True)
        src.allocation.touch(access, src.region, writes=False, by_threads=False)

        def finish() -> None:
            tensor_desc.write(coordinates, src.data)

        self.machine.begin(Operation(finish, access, strand.stores))

    def store_wait(self, pendings: int) -> None:
        self.machine.wait_in_order(
            self.machine.strand.stores, int(pendings), f"for copies to global memory, in {place(quoted=True)}"
        )

    @staticmethod
    def _fits(matrix: Matrix, view: View) -> None:
        if view.shape != matrix.block_shape or view.dtype != matrix.dtype:
            wanted = f"{matrix.dtype} {matrix.block_shape}"
            raise TypeError(
                f"a copy of blocks {wanted} of {matrix.memory.name} and shared memory {view.dtype} {view.shape}"
            )
