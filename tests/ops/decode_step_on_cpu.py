"""Launches of benchmarks/decode_step on the machine in hopper_on_cpu/, and a watch over what comes before the wait.

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
from tests.ops.hopper_on_cpu.functions import product
from tests.ops.hopper_on_cpu.global_memory import Matrix, Memory
from tests.ops.hopper_on_cpu.hopper import Copies
from tests.ops.hopper_on_cpu.language import Language
from tests.ops.hopper_on_cpu.launching import launches
from tests.ops.hopper_on_cpu.machine import Machine, Program, Strand
from tests.ops.hopper_on_cpu.running import Edit, run
from tests.ops.hopper_on_cpu.values import Tensor
from triton.language import float32, uint32

CONSTANT: Final = frozenset(("weight", "weight_ptr", "frequencies_ptr", "positions_ptr", "written_ptr"))
"""Arguments of kernels that nothing writes within a step."""


@dataclass
class Watch:
    """Who has waited; what a step's earlier kernels write comes at the first wait of a launch, by `arrive`."""

    arrive: Callable[[], None] = lambda: None
    watching: bool = False
    """A kernel that was launched programmatically runs."""
    waited: set[Strand] = field(default_factory=set)
    dependents: set[Program] = field(default_factory=set)
    """Programs that let the next kernel begin."""
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

    def end(self, program: Program) -> None:
        if self.watching and program not in {strand.program for strand in self.waited}:
            raise Finding("unwaited", f"{program.name} ends and has not waited for the kernel before")

    def prefetch(self, machine: Machine, pointers: Any, size: Tensor) -> Tensor:
        """The last byte is there, too, and the instruction takes multiples of 16."""
        self.touch(machine, pointers.memory)
        last = pointers.at + size.data // pointers.memory.data.element_size() - 1
        pointers.memory.places(last, torch.ones_like(last, dtype=torch.bool))
        if bool((size.data % 16 != 0).any()):
            raise Finding("bounds", "a prefetch of bytes that are no multiple of 16")
        self.prefetched += int(size.data.sum())
        return size


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

    def watched_copy(self: Copies, tensor_desc: Matrix, *given: Any, **options: Any) -> None:
        watch.touch(self.machine, tensor_desc.memory)
        copy(self, tensor_desc, *given, **options)

    def some_assembly(self: Language, text: str, constraints: str, given: Any, *rest: Any, **options: Any) -> Tensor:
        if text.startswith("cp.async.bulk.prefetch.L2"):
            return watch.prefetch(self.machine, *given)
        return assembly(self, text, constraints, given, *rest, **options)

    def ended(self: Program, known: int) -> None:
        watch.end(self)
        end(self, known)

    def mma_v2(self: Language, a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
        return Tensor(product(a.data, b.data, acc.data, tensor_cores=False), float32, acc.layout)

    return [
        (Language, "load", watched_load),
        (Language, "store", watched_store),
        (Language, "inline_asm_elementwise", some_assembly),
        (Language, "gdc_wait", lambda self: watch.wait(self.machine)),
        (Language, "gdc_launch_dependents", lambda self: watch.dependents.add(self.machine.strand.program)),
        (Language, "mma_v2", mma_v2),
        (Copies, "async_copy_global_to_shared", watched_copy),
        (Program, "end", ended),
    ]


@contextmanager
def watched(watch: Watch, seed: int = 0, edits: Sequence[Edit] = ()) -> Iterator[None]:
    """Launches of decode_step run on the machine, under a watch."""
    from decode_step import launching

    def here(kernel: Any, programs: int, given: Any, *, warps: int, programmatic: bool, **constants: Any) -> None:
        watch.waited.clear()
        watch.dependents.clear()
        watch.watching = programmatic
        named = {name: value for name, value in constants.items() if name.isupper()}
        run(kernel, programs, given, named, seed=seed, warps=warps, edits=edits)
        watch.watching = False
        assert len(watch.dependents) == programs, "some programs do not let the next kernel begin before they end"

    with ExitStack() as patches:
        patches.enter_context(launches())
        patches.enter_context(patch.object(launching, "run", here))
        for owner, name, value in replaced(watch):
            patches.enter_context(patch.object(owner, name, value, create=True))
        yield
