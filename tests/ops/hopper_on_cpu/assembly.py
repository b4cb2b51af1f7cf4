"""Assembly that stands in a kernel: the few instructions of PTX in use, for every thread of every warp.

Which elements a thread has is asked of Triton. A warp skips what a branch passes over; its threads must agree there."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from tests.ops.hopper_on_cpu.finding import Finding, Unsupported
from tests.ops.hopper_on_cpu.values import STORED, Tensor, layout_of
from triton._C.libtriton import gluon_ir, ir

REGISTERS = {"f": torch.float32, "r": torch.int32}
Threads = torch.Tensor
"""A register of every thread: (warps, 32)."""


@cache
def places(layout: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """Of every warp, thread and register, the number of its element in a block."""
    context = ir.context()
    ir.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    linear = builder.to_linear_layout(layout._to_ir(builder), list(shape))
    at = torch.zeros(1, len(shape), dtype=torch.int64)
    # Each bit of a register's, thread's or warp's number moves an element, by exclusive or.
    for base in (*linear.reg_bases, *linear.lane_bases, *linear.warp_bases):
        at = torch.cat([at, at ^ torch.tensor(base)])
    strides = torch.tensor([torch.Size(shape[axis + 1 :]).numel() for axis in range(len(shape))])
    return (at * strides).sum(1).view(2 ** len(linear.warp_bases), 2 ** len(linear.lane_bases), -1)


class Assembly:
    """A piece of assembly under way: its operands ($0, $1, ...), its own registers, and which warps go on."""

    def __init__(self, operands: list[Threads], warps: int) -> None:
        self.registers = {f"${number}": each for number, each in enumerate(operands)}
        self.warps = warps
        self.skipping: dict[str, torch.Tensor] = {}
        """By label, the warps that went there and do not run what is before it."""

    def running(self) -> torch.Tensor:
        asleep = torch.zeros(self.warps, 1, dtype=torch.bool)
        for each in self.skipping.values():
            asleep = asleep | each
        return ~asleep

    def value(self, name: str) -> Threads:
        if name.startswith("0f"):
            return torch.full((self.warps, 32), struct.unpack(">f", bytes.fromhex(name[2:]))[0])
        if name.isdigit():
            return torch.full((self.warps, 32), int(name), dtype=torch.int32)
        return self.registers[name]

    def write(self, name: str, value: Threads) -> None:
        before = self.registers[name]
        if before.dtype != value.dtype:
            raise TypeError(f"{value.dtype} into register {name} of {before.dtype}")
        self.registers[name] = torch.where(self.running(), value, before)

    def branch(self, condition: torch.Tensor, label: str) -> None:
        running = self.running()
        if (running & (condition != condition[:, :1])).any():
            raise Finding("branch", f"threads of a warp part at a branch to {label} that all of them must take or not")
        self.skipping[label] = running & condition[:, :1]

    def step(self, text: str) -> None:
        if text.endswith(":"):
            self.skipping.pop(text[:-1], None)
            return
        guarded = re.fullmatch(r"@!(\w+) bra\.uni (\w+)", text)
        if guarded:
            self.branch(~self.value(guarded[1]), guarded[2])
            return
        operation, _, rest = text.partition(" ")
        if operation == ".reg":
            _, name = rest.split()
            self.registers[name] = torch.zeros(self.warps, 32, dtype=torch.bool)
            return
        if operation not in OPERATIONS:
            raise Unsupported(f"the instruction {text!r}")
        result, *given = rest.replace(" ", "").split(",")
        if operation.startswith("vote") and given.pop() != "0xffffffff":
            raise Unsupported(f"a vote of some threads: {text!r}")
        self.write(result, OPERATIONS[operation](*(self.value(each) for each in given)))


def voted(votes: torch.Tensor) -> Threads:
    return votes[:, None].expand(-1, 32)


# "neu" is said of what is not a number, too.
OPERATIONS: dict[str, Callable[..., Threads]] = {
    "setp.neu.f32": torch.ne,
    "setp.neu.or.f32": lambda a, b, other: (a != b) | other,
    "setp.ne.b32": torch.ne,
    "vote.sync.any.pred": lambda of_thread: voted(of_thread.any(1)),
    "vote.sync.all.pred": lambda of_thread: voted(of_thread.all(1)),
    "selp.b32": lambda a, b, condition: torch.where(condition, a, b),
    "mov.b32": torch.clone,
    "mul.rn.f32": torch.mul,
}


def instructions_of(text: str) -> list[str]:
    """Instructions and labels, without the braces around them."""
    inner = text.strip().removeprefix("{").removesuffix("}")
    return [each.strip() for each in re.findall(r"\w+:|[^;:]+(?=;)", inner)]


def elementwise(text: str, constraints: str, given: list[Tensor], dtype: Any, pack: int, warps: int) -> Tensor:
    """What `inline_asm_elementwise` does: so many elements of a thread at a time, of every operand as many."""
    layout = layout_of(*given)
    shape = given[0].shape
    if any(each.shape != shape or each.layout != layout for each in given):
        raise TypeError("operands of assembly with other shapes or layouts")
    at = places(layout, tuple(shape))
    if at.shape[:2] != (warps, 32):
        raise TypeError(f"a block over {at.shape[0]} warps of {at.shape[1]} threads in a partition of {warps}")
    kinds = constraints.split(",")
    outputs, inputs = kinds[:pack], kinds[pack:]
    if any(kind[:1] != "=" for kind in outputs) or len(inputs) != len(given) * pack:
        raise TypeError(f"constraints {constraints} of {len(given)} operands and {pack} results")
    result = torch.empty(torch.Size(shape).numel(), dtype=STORED[dtype])
    for first in range(0, at.shape[2], pack):
        numbers = at[:, :, first : first + pack].unbind(2)
        read = [each.data.reshape(-1)[number] for each in given for number in numbers]
        written = [torch.full((warps, 32), -1).to(REGISTERS[kind[1:]]) for kind in outputs]
        for kind, each in zip(inputs, read, strict=True):
            if kind.isdigit():
                written[int(kind)] = each
            elif REGISTERS[kind] != each.dtype:
                raise TypeError(f"an operand of {each.dtype} in a register {kind!r}")
        assembly = Assembly(written + read, warps)
        for instruction in instructions_of(text):
            assembly.step(instruction)
        for place, number in enumerate(numbers):
            result[number] = assembly.registers[f"${place}"]
    return Tensor(result.view(shape), dtype, layout)
