"""Launches of infer/hopper_step on the machine in tests/ops/hopper_on_cpu, and a watch over what comes before the wait.

A kernel that is launched programmatically runs beside the kernels before it until it has waited. What is written within
a step is therefore touched by no strand that has not waited itself; and every program waits before it ends, else the
end of a kernel would say nothing about those before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch
from tests.ops.hopper_on_cpu.finding import Finding
from tests.ops.hopper_on_cpu.global_memory import Matrix, Memory
from tests.ops.hopper_on_cpu.hopper import Copies
from tests.ops.hopper_on_cpu.language import Language
from tests.ops.hopper_on_cpu.launching import launches
from tests.ops.hopper_on_cpu.machine import Machine, Program, Strand
from tests.ops.hopper_on_cpu.running import Edit, run
from tests.ops.hopper_on_cpu.values import Tensor
from triton.language import int32, uint32

from samebits.infer.hopper_step import launching

CONSTANT: Final = frozenset(("weight", "weight_ptr", "frequencies_ptr", "positions_ptr", "written_ptr", "pages_ptr"))
"""Arguments of kernels that nothing writes within a step."""
CACHES: Final = frozenset(("k_described", "v_described"))
"""Of these, nothing but a row for each sequence."""


@dataclass
class Watch:
    """Who has waited; what a step's earlier kernels write comes at the first wait of a launch, by `arrive`."""

    arrive: Callable[[], None] = lambda: None
    watching: bool = False
    """A kernel of the folder runs."""
    waited: set[Strand] = field(default_factory=set)
    dependents: set[Program] = field(default_factory=set)
    """Programs that let the next kernel begin."""
    written: frozenset[int] = frozenset()
    """Rows of the caches that the step writes."""
    prefetched: int = 0
    """Bytes that were asked into the second cache."""

    def wait(self, machine: Machine) -> None:
        machine.turn()
        if not self.waited:
            self.arrive()
        self.waited.add(machine.strand)

    def touch(self, machine: Machine, memory: Memory) -> None:
        if self.watching and memory.name not in CONSTANT and machine.strand not in self.waited:
            raise Finding("early", f"{memory.name} is touched before the wait for the kernel before")

    def copy(self, machine: Machine, matrix: Matrix, coordinates: Any) -> None:
        first = int(coordinates[0])
        early = self.watching and machine.strand not in self.waited
        if matrix.memory.name not in CACHES:
            self.touch(machine, matrix.memory)
        elif early and self.written & set(range(first, first + matrix.block_shape[0])):
            raise Finding("early", f"a row of {matrix.memory.name} that the step writes is read before the wait")

    def end(self, program: Program) -> None:
        if self.watching and program not in {strand.program for strand in self.waited}:
            raise Finding("unwaited", f"{program.name} ends and has not waited for the kernel before")

    def prefetch_lines(self, pointers: Any) -> Tensor:
        """Of any memory there is, whoever writes it, before the wait or after it: no register holds them."""
        pointers.memory.places(pointers.at, torch.ones_like(pointers.at, dtype=torch.bool))
        self.prefetched += 128 * pointers.at.numel()
        return Tensor(torch.zeros_like(pointers.at, dtype=torch.int32), int32, None)


def umulhi(self: Language, x: Tensor, y: Tensor) -> Tensor:
    """The upper 32 bits of products of 32 bits, which the reduction of angles asks for."""
    left, right = (each.data.numpy().astype(np.uint64) for each in (x, y))
    return Tensor(torch.from_numpy((left * right >> np.uint64(32)).astype(np.int64)), uint32, x.layout)


def replaced(watch: Watch) -> list[tuple[type, str, Any]]:
    """What the machine does otherwise: accesses under the watch, and instructions that it does not know."""
    load, store, assembly = Language.load, Language.store, Language.inline_asm_elementwise
    copy, end = Copies.async_copy_global_to_shared, Program.end

    def watched_load(self: Language, pointer: Any, *given: Any, **options: Any) -> Tensor:
        watch.touch(self.machine, pointer.memory)
        return load(pointer, *given, **options)

    def watched_store(self: Language, pointer: Any, *given: Any, **options: Any) -> None:
        watch.touch(self.machine, pointer.memory)
        store(pointer, *given, **options)

    def watched_copy(self: Copies, tensor_desc: Matrix, coord: Any, *given: Any, **options: Any) -> None:
        watch.copy(self.machine, tensor_desc, coord)
        copy(self, tensor_desc, coord, *given, **options)

    def some_assembly(self: Language, text: str, constraints: str, given: Any, *rest: Any, **options: Any) -> Tensor:
        if text.startswith("prefetch.global.L2"):
            return watch.prefetch_lines(*given)
        return assembly(self, text, constraints, given, *rest, **options)

    def ended(self: Program, known: int) -> None:
        watch.end(self)
        end(self, known)

    return [
        (Language, "load", watched_load),
        (Language, "store", watched_store),
        (Language, "inline_asm_elementwise", some_assembly),
        (Language, "gdc_wait", lambda self: watch.wait(self.machine)),
        (Language, "gdc_launch_dependents", lambda self: watch.dependents.add(self.machine.strand.program)),
        (Copies, "async_copy_global_to_shared", watched_copy),
        (Program, "end", ended),
    ]


@contextmanager
def watched(watch: Watch, seed: int = 0, edits: Sequence[Edit] = ()) -> Iterator[None]:
    """Launches of the folder run on the machine, under a watch."""

    def here(kernel: Any, programs: int, given: Any, *, warps: int, **constants: Any) -> None:
        watch.waited.clear()
        watch.dependents.clear()
        watch.watching = True
        named = {name: value for name, value in constants.items() if name in kernel.arg_names}
        run(kernel, programs, given, named, seed=seed, warps=warps, edits=edits)
        watch.watching = False
        assert len(watch.dependents) == programs, "some programs do not let the next kernel begin before they end"

    with ExitStack() as patches:
        patches.enter_context(launches())
        patches.enter_context(patch.object(launching, "run", here))
        for owner, name, value in replaced(watch):
            patches.enter_context(patch.object(owner, name, value, create=True))
        yield
