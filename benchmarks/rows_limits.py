"""What limits each kernel of gpu_rows.py on an H200, told without one: `python benchmarks/rows_limits.py`.

Every kernel is compiled for sm_90 and its instructions are counted, those of a loop as often as the loop is run. They
take issue slots, bytes take bandwidth, and neither hides the other wholly: three measured times of SwiGLU and GELU were
within 2 % of the fourth root of the sum of both times' fourth powers, which is what is predicted here. What it does not
know is waiting: so it is said how long a program may last before a multiprocessor, which has as many of them as its
registers allow, moves fewer bytes than its share of a copy's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_rows
import torch
import triton
from gpu_rows import Case

from samebits.checker.artifact_process import Forgetful, stand_in
from samebits.checker.tracing.comparing import without_gpu
from samebits.ops._triton import launch as launching_module
from samebits.ops.rmsnorm import triton_kept
from samebits.ops.softmax import triton_kernel as softmax

BANDWIDTH = 4.3e12
"""Bytes a second, read and written, that a copy moves on an H200."""
MULTIPROCESSORS = 132
SLOTS = MULTIPROCESSORS * 4 * 1.755e9
"""Instructions of a warp that its schedulers issue in a second."""
REGISTERS, SHARED, MOST_WARPS, MOST_PROGRAMS = 2**16, 227 * 2**10, 64, 32
"""Of a multiprocessor."""
POWER = 4
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", re.MULTILINE)
BACK = re.compile(r"(?:@!?U?P\d )?BRA .*?(0x[0-9a-f]+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Instructions of a thread and element, microseconds, and how many of them a program may last."""

    case: str
    instructions: float
    issue: float
    memory: float
    life: float

    @property
    def predicted(self) -> float:
        return float((self.issue**POWER + self.memory**POWER) ** (1 / POWER))


def launches(case: Case) -> list[tuple[Any, int, int]]:
    """What a call launches: the compiled kernel, programs and warps. Nothing is run."""
    found = []

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made = original(self, *arguments, grid=grid, warmup=True, **options)
        found.append((made, grid[0], options["num_warps"]))
        return made

    original = triton.runtime.jit.JITFunction.run
    triton.runtime.jit.JITFunction.run = run
    try:
        with without_gpu():
            call = case.make()
            # What makes its operands is not the case's.
            found.clear()
            call()
    finally:
        triton.runtime.jit.JITFunction.run = original
    return found


def trips(case: Case) -> int:
    """How often a loop of its kernel is run: steps of columns, or heads of a token."""
    if case.name.startswith("rope"):
        return case.width // gpu_rows.HEAD // 16
    if "norm" in case.name:
        launch = triton_kept.launch_for(case.width, case.rows)
        return 1 if triton_kept.steps_of(launch, case.width)[1] else case.width // launch.columns
    if case.name.startswith("softmax"):
        return max(1, case.width // softmax.chosen_launch(case.width).columns)
    return 1


def assembled(made: Any, turns: int) -> tuple[int, int]:
    """Instructions of one thread, all up to the first end, those of a loop `turns` times; and its registers."""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(made.asm["ptx"])
        command = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", str(source), "-o", str(binary)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-sass", str(binary)]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    code = [(int(at, 16), text) for at, text in INSTRUCTION.findall(listed)]
    end = next(at for at, text in code if text.strip() == "EXIT")
    back = [(int(found[1], 16), at) for at, text in code if at < end and (found := BACK.match(text))]
    loops = [(first, last) for first, last in back if first < last]
    count = sum(turns if any(first <= at <= last for first, last in loops) else 1 for at, _ in code if at <= end)
    registers = re.search(r"Used (\d+) registers", said)
    assert registers is not None
    return count, int(registers[1])


def resident(made: Any, warps: int, registers: int) -> int:
    """Programs that a multiprocessor has at once; registers are given out to warps in eights a thread."""
    by_registers = REGISTERS // (-(-registers // 8) * 8 * 32 * warps)
    by_shared = SHARED // (made.metadata.shared + 1024)
    return min(by_registers, by_shared, MOST_WARPS // warps, MOST_PROGRAMS)


def limits(case: Case) -> Limits:
    issued, at_once = 0.0, 0.0
    for made, programs, warps in launches(case):
        count, registers = assembled(made, trips(case))
        issued += programs * warps * count
        at_once = case.bytes * min(1.0, resident(made, warps, registers) * MULTIPROCESSORS / programs)
    return Limits(
        case=f"{case.name} {case.rows}x{case.width}",
        instructions=32 * issued / (case.rows * case.width),
        issue=1e6 * issued / SLOTS,
        memory=1e6 * case.bytes / BANDWIDTH,
        life=1e6 * at_once / BANDWIDTH,
    )


def all_limits() -> Iterator[Limits]:
    """Of every case but those that also call kernels of torch's. Operands are never read."""
    stand_in()
    gpu_rows.DEVICE, gpu_rows.random = "cpu", lambda *shape: torch.empty(shape, dtype=torch.bfloat16)
    launching_module._compiled = Forgetful()
    yield from (limits(case) for case in gpu_rows.all_cases() if "with its sort" not in case.name)


def main() -> int:
    found = list(all_limits())
    if "--json" in sys.argv:
        told = {each.case: [each.instructions, each.issue, each.memory, each.predicted, each.life] for each in found}
        print(json.dumps(told))
        return 0
    print("| kernel | instructions an element | issue, us | memory, us | predicted, us | of a copy | may last, us |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for each in found:
        times = (each.issue, each.memory, each.predicted)
        shown = " | ".join(f"{time:.0f}" for time in times)
        last = f"{each.memory / each.predicted:.2f} | {each.life:.1f}"
        print(f"| {each.case} | {each.instructions:.1f} | {shown} | {last} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
