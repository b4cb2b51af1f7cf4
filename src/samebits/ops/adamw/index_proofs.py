"""Integer facts of AdamW, for all sizes: each element of each tensor is updated once.

Runs the real `elements_of`, whose lines `adamw_step` repeats; models the tasks of the C++."""

from __future__ import annotations

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth
from samebits.ops.index_claims import each_once, program_elements

# _cpu/rows.h:TASK_ELEMENTS.
TASK_ELEMENTS = 2**16


def tasks() -> Claim:
    """cpu_kernel.cpp:adamw: a task every 65536 elements of a tensor, the last one short."""

    def state(z: Symbols) -> Truth:
        return each_once(z, z.whole("size", least=1), TASK_ELEMENTS, name="element")

    return Claim(name="each element has one task", state=state, fault="the last, short task left out", truncating=True)


def programs() -> Claim:
    """triton_tables.py:tables: a tensor's programs follow those of all tensors before it, and a program's tensor is the
    last whose first program is not behind it."""

    def state(z: Symbols) -> Truth:
        before, size, later, block = z.wholes("programs_before size size_of_the_next BLOCK", least=0)
        z.assume(size >= 1, later >= 1, block >= 1, block < 2**16)
        here = z.ceiling(size, block)
        after = before + z.planted(here, here - 1)
        last = z.whole("block", least=0, below=here)
        program = before + last
        return (before <= program) & (program < after) & (program - before == last)

    return Claim(
        name="each program has one tensor", state=state, fault="tensors overlap by one program", truncating=True
    )


def elements() -> Proof:
    """triton_kernel.py: adamw_step, of a tensor's own programs; cpu_kernel.cpp: adamw."""
    claims = [tasks(), programs(), program_elements(False), program_elements(True)]
    return prove(claims, bound="all sizes < 2^62, all blocks < 2^16, at most 2^31 - 1 programs")
