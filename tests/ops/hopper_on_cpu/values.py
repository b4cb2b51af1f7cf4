"""Values in a kernel's registers: tensors over torch, with Triton's promotion and operators.

Knows no memory, no machine and no time. Layouts are carried along because kernels ask for them, and so does assembly;
they mean nothing here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton.language as tl
from tests.ops.hopper_on_cpu.finding import Unsupported
from triton.experimental.gluon.language import AutoLayout, SliceLayout
from triton.language.semantic import TritonSemantic

STORED: Final = {
    tl.int1: torch.bool,
    tl.int8: torch.int8,
    tl.int16: torch.int16,
    tl.int32: torch.int32,
    tl.int64: torch.int64,
    tl.uint8: torch.uint8,
    # torch has little arithmetic for it; reduced to 32 bits after every operation.
    tl.uint32: torch.int64,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float32: torch.float32,
    tl.float64: torch.float64,
}
"""How elements of a dtype are held."""
DTYPES: Final = {stored: dtype for dtype, stored in STORED.items() if dtype is not tl.uint32}
PROMOTION: Final = TritonSemantic(None)
"""Triton's own rules for dtypes; they need no builder."""
NEXT_TO_IT: Final = 2**32


@dataclass(frozen=True)
class Type:
    """What a kernel may ask of a value's type."""

    element_ty: Any
    shape: list[int]
    layout: Any

    @property
    def scalar(self) -> Any:
        return self.element_ty

    def is_block(self) -> bool:
        return bool(self.shape)


class Tensor:
    """Elements of one dtype; a number of the kernel is a tensor without axes."""

    def __init__(self, data: torch.Tensor, dtype: Any, layout: Any = None) -> None:
        self._data, self.dtype, self.layout = data, dtype, layout

    @property
    def data(self) -> torch.Tensor:
        return self._data

    @property
    def shape(self) -> list[int]:
        return list(self.data.shape)

    @property
    def type(self) -> Type:
        return Type(self.dtype, self.shape, self.layout)

    @property
    def numel(self) -> int:
        return self.data.numel()

    @property
    def T(self) -> Tensor:
        return permute(self, (1, 0))

    def to(self, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False) -> Tensor:
        if fp_downcast_rounding not in (None, "rtne"):
            raise Unsupported(f"rounding {fp_downcast_rounding!r}; only to the nearest, ties to even")
        return Tensor(bits_as(self, dtype) if bitcast else converted(self, dtype), dtype, self.layout)

    def trans(self, *axes: int) -> Tensor:
        return permute(self, axes or (1, 0))

    def permute(self, *axes: Any) -> Tensor:
        return permute(self, flat(axes))

    def reshape(self, *shape: Any) -> Tensor:
        return reshape(self, flat(shape))

    def broadcast_to(self, *shape: Any) -> Tensor:
        return broadcast_to(self, *shape)

    def expand_dims(self, axis: int) -> Tensor:
        return expand_dims(self, axis)

    def __getitem__(self, at: Any) -> Tensor:
        return Tensor(self.data[expanding(at)], self.dtype, expanded_layout(self.layout, at))

    def __bool__(self) -> bool:
        return bool(self.number())

    def __index__(self) -> int:
        return int(self.number())

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.number())

    def number(self) -> float:
        if self.data.dim():
            raise Unsupported(f"a block of shape {self.shape} where one number is needed")
        return self.data.item()

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"tensor.{name}")

    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> Tensor:
        return binary(torch.sub, 0, self)

    def __invert__(self) -> Tensor:
        return Tensor(kept(~self.data, self.dtype), self.dtype, self.layout)


def flat(given: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes given one by one, or as one sequence."""
    sizes = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
    return tuple(int(size) for size in sizes)


def expanding(at: Any) -> tuple[Any, ...]:
    """An index that adds axes and selects nothing, as Triton has it."""
    index = at if isinstance(at, tuple) else (at,)
    if any(each is not None and each != slice(None) for each in index):
        raise Unsupported(f"a tensor's index {index}; only None and : are understood")
    return index


def expanded_layout(layout: Any, at: Any) -> Any:
    """The layout of whose parent, along an added axis, this one is a slice."""
    for _ in range(sum(each is None for each in expanding(at))):
        layout = layout.parent if isinstance(layout, SliceLayout) else layout and AutoLayout()
    return layout


def tensor_of(value: Any, dtype: Any = None) -> Tensor:
    """A value as a tensor; a number of Python has Triton's dtype for it, unless one is given."""
    if isinstance(value, Tensor):
        return value if dtype is None or dtype == value.dtype else value.to(dtype)
    if not isinstance(value, bool | int | float):
        raise TypeError(f"{value!r} where a tensor or a number is needed")
    if dtype is None:
        wide = isinstance(value, int) and not -(2**31) <= value < 2**31
        kinds = {bool: tl.int1, int: tl.int64 if wide else tl.int32, float: tl.float32}
        dtype = kinds[type(value)]
    return Tensor(kept(torch.tensor(value, dtype=STORED[dtype]), dtype), dtype)


def kept(data: torch.Tensor, dtype: Any) -> torch.Tensor:
    """What is left of a result in its dtype."""
    return data % NEXT_TO_IT if dtype is tl.uint32 else data


def converted(x: Tensor, dtype: Any) -> torch.Tensor:
    """Rounded to the nearest, ties to even; cut towards zero where an integer is made."""
    if dtype not in STORED:
        raise Unsupported(f"dtype {dtype}")
    return x.data if dtype == x.dtype else kept(x.data.to(STORED[dtype]), dtype)


def bits_as(x: Tensor, dtype: Any) -> torch.Tensor:
    """The same bits, read as another dtype of the same width."""
    if x.dtype.primitive_bitwidth != dtype.primitive_bitwidth:
        raise TypeError(f"bits of {x.dtype} as {dtype}: another width")
    data = x.data
    if x.dtype is tl.uint32:
        data = torch.where(data < NEXT_TO_IT // 2, data, data - NEXT_TO_IT).to(torch.int32)
    if dtype is tl.uint32:
        return data.view(torch.int32).to(torch.int64) % NEXT_TO_IT
    return data.view(STORED[dtype])


def layout_of(*values: Any) -> Any:
    """The layout of a result: of the operands, that of one with axes."""
    laid = [each for each in values if isinstance(each, Tensor) and each.layout is not None]
    return max(laid, key=lambda each: each.data.dim()).layout if laid else None


def promoted(left: Any, right: Any, *, dividing: bool = False) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Both operands in the dtype that Triton computes in. A number of Python does not widen a tensor of its kind."""
    of_python = [not isinstance(each, Tensor) for each in (left, right)]
    dtypes = [tensor_of(each).dtype for each in (left, right)]
    dtype = PROMOTION.computation_type_impl(dtypes[0], of_python[0], dtypes[1], of_python[1], dividing)
    return tensor_of(left, dtype).data, tensor_of(right, dtype).data, dtype


def binary(operation: Callable[..., torch.Tensor], left: Any, right: Any) -> Tensor:
    a, b, dtype = promoted(left, right)
    return Tensor(kept(operation(a, b), dtype), dtype, layout_of(left, right))


def compared(operation: Callable[..., torch.Tensor], left: Any, right: Any) -> Tensor:
    a, b, _ = promoted(left, right)
    return Tensor(operation(a, b), tl.int1, layout_of(left, right))


def divided(operation: Callable[..., torch.Tensor], left: Any, right: Any) -> Tensor:
    """Whole numbers, towards zero as in C."""
    a, b, dtype = promoted(left, right, dividing=True)
    if not dtype.is_int():
        raise Unsupported("/, // or % on floating-point numbers, which a GPU does not round correctly; use div_rn")
    return Tensor(operation(a, b), dtype, layout_of(left, right))


def quotient(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def _operators() -> dict[str, Callable[[Any, Any], Tensor]]:
    """Operators of Python by name, from both sides."""

    def of(kind: Callable[..., Tensor], operation: Callable[..., torch.Tensor]) -> Callable[[Any, Any], Any]:
        def apply(left: Any, right: Any) -> Any:
            # What is no tensor, as a pointer, says itself what it makes of one.
            return kind(operation, left, right) if isinstance(right, Tensor | bool | int | float) else NotImplemented

        return apply

    def from_the_right(kind: Callable[..., Tensor], operation: Callable[..., torch.Tensor]) -> Callable[..., Any]:
        return lambda right, left: of(kind, operation)(left, right)

    both: dict[str, tuple[Callable[..., Tensor], Callable[..., torch.Tensor]]] = {
        "add": (binary, torch.add),
        "sub": (binary, torch.sub),
        "mul": (binary, torch.mul),
        "and": (binary, torch.bitwise_and),
        "or": (binary, torch.bitwise_or),
        "xor": (binary, torch.bitwise_xor),
        "lshift": (binary, torch.bitwise_left_shift),
        "rshift": (binary, torch.bitwise_right_shift),
        "floordiv": (divided, quotient),
        "truediv": (divided, quotient),
        "mod": (divided, torch.fmod),
    }
    made = {f"__{name}__": of(*each) for name, each in both.items()}
    for name, each in both.items():
        made[f"__r{name}__"] = from_the_right(*each)
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        made[f"__{name}__"] = of(compared, getattr(torch, name))
    return made


for _name, _operator in _operators().items():
    setattr(Tensor, _name, _operator)


def reshape(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return Tensor(x.data.reshape(shape), x.dtype, x.layout and AutoLayout())


def permute(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return Tensor(x.data.permute(axes), x.dtype, x.layout and AutoLayout())


def expand_dims(x: Tensor, axis: int) -> Tensor:
    return Tensor(x.data.unsqueeze(axis), x.dtype, expanded_layout(x.layout, None))


def broadcast_to(x: Tensor, *shape: Any) -> Tensor:
    return Tensor(x.data.broadcast_to(flat(shape)), x.dtype, x.layout)
