"""The matrix-unit adder as integers: its model, and whole matrix products added the way it adds them.

Knows no GPU: it replays on any CPU what a GPU computed. The same node in plain numpy is `simulate.fused_node`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from samebits import native
from samebits.numerics.bits import format_of, numpy_bits, round_to, same_bits, to_bfloat16
from samebits.numerics.order import Fused, Order, chain


@dataclass(frozen=True, slots=True)
class Operand:
    """How the operands of a product are stored."""

    code: int
    """What the C++ kernel calls the format."""
    significand_bits: int
    lowest_exponent: int


OPERANDS: Final = {
    "bfloat16": Operand(1, 8, -126),
    "float16": Operand(2, 11, -14),
    # tfloat32 is float32 whose last 13 bits the unit cuts off.
    "tfloat32": Operand(3, 11, -126),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class AdderModel:
    """One fused addition of the accumulator and `width` products. Every field decides bits."""

    operand: str = "bfloat16"
    width: int = 16
    fraction_bits: int = 25
    """Each term is cut this many bits below the largest exponent."""
    keep_bits: int = 24
    """The exact sum of the cut terms is cut to this many significant bits."""
    normalise_subnormals: bool = False
    """Whether a subnormal operand enters with its true exponent instead of the lowest one of its format."""
    zeros_align: bool = False
    """Whether a zero counts, with the lowest exponent of its format, when the largest exponent is sought."""
    least_exponent: int = -133
    """The largest exponent is never taken lower than this. -133, the last bit of a bfloat16, is an H200's: of 344,064
    sums of subnormal operands times small ones it gives all, -134 misses 82 and -132 misses 204."""
    overflow_is_infinite: bool = True
    """Whether a sum beyond float32 becomes an infinity; else it becomes the largest finite value, as if cut."""

    def __post_init__(self) -> None:
        if self.operand not in OPERANDS:
            raise ValueError(f"AdderModel: operand={self.operand!r} is unknown; allowed: {', '.join(OPERANDS)}")
        for name, low, high in (("width", 1, 64), ("fraction_bits", 1, 40), ("keep_bits", 1, 24)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"AdderModel: {name} must be in {low}..{high}, got {name}={value}")

    @property
    def kind(self) -> Fused:
        """The node of an order that adds like this."""
        return Fused(self.fraction_bits, self.keep_bits)

    def order(self, n: int) -> Order:
        """The chain over n products."""
        return chain(n, self.width, self.kind)


# Decides bits: what `mma.sync` and `wgmma` of a Hopper GPU do, measured on an H200.
HOPPER: Final = AdderModel()
HOPPER_FLOAT16: Final = replace(HOPPER, operand="float16")
HOPPER_TFLOAT32: Final = replace(HOPPER, operand="tfloat32", width=8)


def operand_patterns(x: Any, model: AdderModel, name: str) -> np.ndarray:
    """Patterns the kernel reads: 32 bits for tfloat32, else 16. Values given as float32 must fit the operand format."""
    stored, wanted = format_of(x), model.operand
    if wanted == "tfloat32" and stored in ("float32", "uint32"):
        return np.ascontiguousarray(numpy_bits(x))
    if stored in (wanted, "uint16") and wanted != "tfloat32":
        return np.ascontiguousarray(numpy_bits(x))
    if stored == "float32" and wanted != "tfloat32":
        values = numpy_bits(x).view(np.float32)
        if not same_bits(round_to(values, wanted), values):
            raise ValueError(f"{name}: float32 values given for operand={wanted!r} do not all fit that format")
        return to_bfloat16(values) if wanted == "bfloat16" else values.astype(np.float16).view(np.uint16)
    fitting = f"{wanted}, float32 values that fit it, uint16 patterns"
    allowed = "float32 or its patterns" if wanted == "tfloat32" else fitting
    raise ValueError(f"{name}: dtype {stored} cannot hold operand={wanted!r}; allowed: {allowed}")


def fused_chain(
    a_MK: Any,
    b_KN: Any,
    model: AdderModel = HOPPER,
    accumulator: Any = None,
    *,
    threads: int | None = None,
    instruction_set: str | None = None,
) -> np.ndarray:
    """The float32 product a @ b, each output one chain of fused additions over k ascending.

    Starts from +0, or from a float32 `accumulator` of shape [M, N]. Threads and instruction set decide speed only."""
    a, b = operand_patterns(a_MK, model, "a_MK"), operand_patterns(b_KN, model, "b_KN")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        given = f"{list(a.shape)} and {list(b.shape)}"
        raise ValueError(f"fused_chain: shapes {given} do not multiply; needed: [M, K] and [K, N]")
    shape = (a.shape[0], b.shape[1])
    out = np.zeros(shape, np.float32)
    if accumulator is not None:
        if tuple(accumulator.shape) != shape or format_of(accumulator) != "float32":
            given = f"{format_of(accumulator)} {list(accumulator.shape)}"
            raise ValueError(f"fused_chain: accumulator is {given}; needed: float32 {list(shape)}")
        out[...] = numpy_bits(accumulator).view(np.float32)
    if out.size:
        native.call(
            "fused_chain",
            "pppqqqiiiiiiii",
            *(array.ctypes.data for array in (a, b, out)),
            *a.shape,
            b.shape[1],
            *_choices(model),
            threads=threads,
            instruction_set=instruction_set,
        )
    return out


def _choices(model: AdderModel) -> tuple[int, ...]:
    """The model as the kernel takes it."""
    return (
        OPERANDS[model.operand].code,
        model.width,
        model.fraction_bits,
        model.keep_bits,
        model.normalise_subnormals,
        model.zeros_align,
        model.least_exponent,
        model.overflow_is_infinite,
    )
