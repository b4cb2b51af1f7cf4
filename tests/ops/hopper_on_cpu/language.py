"""What a kernel calls in `gl` and `tl`: values, control and memory. What is Hopper's own is in hopper.py."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import triton.language as tl
from tests.ops.hopper_on_cpu import assembly, functions, global_memory, values
from tests.ops.hopper_on_cpu.finding import Unsupported, place
from tests.ops.hopper_on_cpu.global_memory import Pointer
from tests.ops.hopper_on_cpu.machine import Machine, Strand
from tests.ops.hopper_on_cpu.shared import Allocation, View
from tests.ops.hopper_on_cpu.values import STORED, Tensor, flat, tensor_of


class Language:
    """What kernels find in `gl` and `tl`, for one run."""

    def __init__(self, machine: Machine, grid: tuple[int, int, int]) -> None:
        self.machine, self.grid = machine, grid

    # Numbers and blocks of them.

    where, fma = staticmethod(functions.where), staticmethod(functions.fma)
    maximum, minimum = staticmethod(functions.maximum), staticmethod(functions.minimum)
    PropagateNan = tl.PropagateNan
    broadcast_to, expand_dims = staticmethod(values.broadcast_to), staticmethod(values.expand_dims)
    to_tensor = staticmethod(tensor_of)
    exp2, exp, log = (staticmethod(partial(functions.function, name)) for name in ("exp2", "exp", "log"))
    rsqrt, sin, cos, erf = (staticmethod(partial(functions.function, name)) for name in ("rsqrt", "sin", "cos", "erf"))

    @staticmethod
    def arange(start: int, end: int, layout: Any = None) -> Tensor:
        return Tensor(torch.arange(start, end, dtype=torch.int32), tl.int32, layout)

    @staticmethod
    def full(shape: Any, value: Any, dtype: Any, layout: Any = None) -> Tensor:
        return Tensor(tensor_of(value).to(dtype).data.expand(flat((shape,))).clone(), dtype, layout)

    def zeros(self, shape: Any, dtype: Any, layout: Any = None) -> Tensor:
        return self.full(shape, 0, dtype, layout)

    def full_like(self, input: Tensor, value: Any, shape: Any = None, dtype: Any = None, layout: Any = None) -> Tensor:
        return self.full(shape or input.shape, value, dtype or input.dtype, layout or input.layout)

    def zeros_like(self, input: Tensor, shape: Any = None, dtype: Any = None, layout: Any = None) -> Tensor:
        return self.full_like(input, 0, shape, dtype, layout)

    @staticmethod
    def cast(input: Any, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False) -> Tensor:
        if isinstance(input, Tensor):
            return input.to(dtype, fp_downcast_rounding, bitcast)
        return tensor_of(input, None if bitcast else dtype).to(dtype, fp_downcast_rounding, bitcast)

    @staticmethod
    def convert_layout(value: Tensor, layout: Any, assert_trivial: bool = False) -> Tensor:
        return Tensor(value.data, value.dtype, layout)

    set_auto_layout = convert_layout

    @staticmethod
    def reshape(input: Tensor, *shape: Any, can_reorder: bool = False) -> Tensor:
        return values.reshape(input, flat(shape))

    @staticmethod
    def ravel(x: Tensor) -> Tensor:
        return values.reshape(x, (-1,))

    @staticmethod
    def permute(input: Tensor, *dims: Any) -> Tensor:
        return values.permute(input, flat(dims))

    @staticmethod
    def trans(input: Tensor, *dims: Any) -> Tensor:
        return values.permute(input, flat(dims) if dims else (1, 0))

    @staticmethod
    def join(a: Tensor, b: Tensor) -> Tensor:
        return Tensor(torch.stack((a.data, b.data), -1), a.dtype, a.layout)

    @staticmethod
    def split(a: Tensor) -> tuple[Tensor, Tensor]:
        left, right = a.data.unbind(-1)
        return Tensor(left, a.dtype, a.layout), Tensor(right, a.dtype, a.layout)

    @staticmethod
    def abs(x: Any) -> Tensor:
        return Tensor(torch.abs(tensor_of(x).data), tensor_of(x).dtype, tensor_of(x).layout)

    @staticmethod
    def div_rn(x: Any, y: Any) -> Tensor:
        return values.binary(torch.div, tensor_of(x, tl.float32), tensor_of(y, tl.float32))

    @staticmethod
    def sqrt_rn(x: Tensor) -> Tensor:
        return Tensor(torch.sqrt(tensor_of(x, tl.float32).data), tl.float32, x.layout)

    @staticmethod
    def cdiv(x: Any, div: Any) -> Any:
        return (x + div - 1) // div

    @staticmethod
    def reduce(input: Any, axis: int | None, combine_fn: Callable[..., Any], keep_dims: bool = False) -> Tensor:
        if not isinstance(input, Tensor):
            raise Unsupported("reduce of several tensors")
        return functions.reduced(input, axis, combine_fn, keep_dims)

    def max(self, input: Tensor, axis: int | None = None, keep_dims: bool = False) -> Tensor:
        return functions.reduced(input, axis, functions.maximum, keep_dims, by_halves=True)

    def min(self, input: Tensor, axis: int | None = None, keep_dims: bool = False) -> Tensor:
        return functions.reduced(input, axis, functions.minimum, keep_dims, by_halves=True)

    def sum(self, input: Tensor, axis: int | None = None, keep_dims: bool = False) -> Tensor:
        """Left to right, an order that a GPU does not promise."""
        narrow = input.dtype.is_int() and input.dtype.primitive_bitwidth < 32
        return functions.reduced(input.to(tl.int32) if narrow else input, axis, lambda a, b: a + b, keep_dims)

    @staticmethod
    def dot(
        input: Tensor,
        other: Tensor,
        acc: Tensor | None = None,
        input_precision: str = "tf32",
        out_dtype: Any = tl.float32,
    ) -> Tensor:
        if (input_precision != "ieee" and input.dtype is tl.float32) or out_dtype is not tl.float32:
            raise Unsupported(f"dot of {input.dtype} with input_precision={input_precision!r} into {out_dtype}")
        start = None if acc is None else acc.data
        return Tensor(functions.product(input.data, other.data, start, tensor_cores=False), tl.float32, None)

    @staticmethod
    def dot_fma(a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
        chains = functions.product(a.data, b.data, acc.data, tensor_cores=False)
        return Tensor(chains, tl.float32, acc.layout)

    @staticmethod
    def broadcast(input: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        shape = torch.broadcast_shapes(input.data.shape, other.data.shape)
        return values.broadcast_to(input, *shape), values.broadcast_to(other, *shape)

    def inline_asm_elementwise(
        self, asm: str, constraints: str, args: Any, dtype: Any, is_pure: bool, pack: int
    ) -> Tensor:
        return assembly.elementwise(asm, constraints, args, dtype, pack, self.machine.strand.warps)

    # What says something to a compiler alone.

    @staticmethod
    def multiple_of(input: Any, values: Any) -> Any:
        return input

    max_contiguous = max_constancy = multiple_of

    @staticmethod
    def assume(cond: Any) -> None:
        if not cond:
            raise AssertionError(f"assumed, and not so, in {place()}")

    @staticmethod
    def static_assert(cond: Any, msg: str = "") -> None:
        if not cond:
            raise AssertionError(f"{msg} in {place()}")

    device_assert = static_assert

    @staticmethod
    def thread_barrier() -> None:
        """The threads of a strand are one here."""

    debug_barrier = thread_barrier

    def gdc_wait(self) -> None:
        """A launch here begins when those before it have ended; so nobody waits, and nobody need be told."""

    gdc_launch_dependents = gdc_wait

    # Control.

    @staticmethod
    def constexpr(value: Any) -> Any:
        return value

    @staticmethod
    def tuple(args: Any) -> Any:
        return tuple(args)

    @staticmethod
    def static_range(*given: Any, **_: Any) -> Iterable[int]:
        return range(*(int(each) for each in given))

    @staticmethod
    def range(*given: Any, **_: Any) -> Iterable[Tensor]:
        """A loop at run time: its variable is a tensor."""
        wide = any(isinstance(each, Tensor) and each.dtype is tl.int64 for each in given)
        for number in builtins.range(*(int(each) for each in given)):
            yield tensor_of(number, tl.int64 if wide else tl.int32)

    def program_id(self, axis: int) -> Tensor:
        return tensor_of(self.machine.strand.program.at[axis], tl.int32)

    def num_programs(self, axis: int) -> Tensor:
        return tensor_of(self.grid[axis], tl.int32)

    def num_warps(self) -> int:
        return self.machine.strand.warps

    def warp_specialize(self, functions_and_args: Any, worker_num_warps: Any, worker_num_regs: Any) -> Any:
        """The first partition goes on as the strand itself, the others become strands."""
        (first, given), *others = functions_and_args
        here = self.machine.strand
        here.be_named(f"partition 0 ({first.__name__}) of {here.program.name}")
        workers = []
        for number, ((function, arguments), warps) in enumerate(zip(others, worker_num_warps, strict=True), 1):
            name = f"partition {number} ({function.__name__}) of {here.program.name}"
            body = partial(function, *arguments)
            workers.append(self.machine.add(Strand(name, here.program, body, warps, known=here.known)))
        result = first(*given)
        here.be_named(here.program.name)
        self.machine.turn(lambda: all(each.over for each in workers), lambda: "for the other partitions to end")
        for each in workers:
            here.known |= each.known
        return result

    # Memory.

    @staticmethod
    def load(pointer: Any, mask: Any = None, other: Any = None, **_: Any) -> Tensor:
        return global_memory.load(pointer, mask, other)

    @staticmethod
    def store(pointer: Any, value: Any, mask: Any = None, **_: Any) -> None:
        global_memory.store(pointer, value, mask)

    def atomic_add(self, pointer: Pointer, val: Any, mask: Any = None, sem: Any = None, scope: Any = None) -> Tensor:
        self.machine.turn()
        return global_memory.atomic_add(pointer, val, mask)

    def allocate_shared_memory(self, element_ty: Any, shape: Any, layout: Any, value: Tensor | None = None) -> View:
        sizes, stored = flat((shape,)), STORED[element_ty]
        allocation = Allocation(self.machine, torch.Size(sizes).numel() * stored.itemsize)
        view = View(allocation, allocation.bytes.view(stored).view(sizes), element_ty, layout)
        if value is not None:
            view.store(value)
        return view
