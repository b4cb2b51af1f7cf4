"""Raw bits of floating-point arrays: equality, the first difference, distance in ulps, and the bfloat16 patterns.

+0 is not -0; any NaN equals any NaN. Knows no tolerance, and torch only by the look of its tensors."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

# Width of the pattern and of the stored significand.
_LAYOUT: Final = {"float16": (16, 10), "bfloat16": (16, 7), "float32": (32, 23), "float64": (64, 52)}
FORMATS: Final = tuple(_LAYOUT)


@dataclass(frozen=True, slots=True)
class BitsDifference:
    """Where two arrays part: how many elements differ, and the first of them."""

    count: int
    total: int
    index: tuple[int, ...]
    left_hex: str
    right_hex: str
    ulps: int | None
    """Distance between the two first differing values; None beside a NaN."""

    def __str__(self) -> str:
        distance = "one is NaN" if self.ulps is None else f"{self.ulps} ulp"
        first = f"first {list(self.index)}: {self.left_hex} != {self.right_hex} ({distance})"
        return f"{self.count} of {self.total} differ; {first}"


def format_of(x: Any) -> str:
    """The name of the format an array or tensor is stored in."""
    return str(x.dtype).removeprefix("torch.")


def numpy_bits(x: Any) -> np.ndarray:
    """The patterns of a numpy array or torch tensor as unsigned integers; unsigned integers are patterns already."""
    name = format_of(x)
    if name in ("uint16", "uint32", "uint64") and isinstance(x, (np.ndarray, np.generic)):
        return np.asarray(x)
    if name not in _LAYOUT:
        raise ValueError(f"bits of dtype {name} are not defined; allowed: {', '.join(FORMATS)}")
    width = _LAYOUT[name][0]
    if isinstance(x, (np.ndarray, np.generic)):
        return np.asarray(x).view(f"uint{width}")
    # Only a torch tensor gets here, so torch is loaded; numpy has no bfloat16, hence the detour over integers.
    integers = getattr(sys.modules["torch"], f"int{width}")
    signed: np.ndarray = x.detach().cpu().contiguous().view(integers).numpy()
    return signed.view(f"uint{width}")


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Patterns of the nearest bfloat16 values, ties to even; a NaN stays a NaN."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    nan = (bits & np.uint64(0x7FFFFFFF)) > 0x7F800000
    return np.where(nan, (bits >> np.uint64(16)) | np.uint64(0x40), rounded).astype(np.uint16)


def from_bfloat16(patterns: np.ndarray) -> np.ndarray:
    """The float32 values of bfloat16 patterns, exactly."""
    return (np.asarray(patterns, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_to(values: np.ndarray, format: str) -> np.ndarray:
    """float32 values rounded once to a format, nearest even, and held as float32 again."""
    values = np.asarray(values, np.float32)
    if format == "float32":
        return values
    if format == "bfloat16":
        return from_bfloat16(to_bfloat16(values))
    if format == "float16":
        with np.errstate(over="ignore", under="ignore"):
            return values.astype(np.float16).astype(np.float32)
    raise ValueError(f"format={format!r} cannot be rounded to; allowed: float32, bfloat16, float16")


def _ordered(bits: np.ndarray, format: str) -> np.ndarray:
    """Integers that count representable values from zero, negative ones below it."""
    magnitude = (bits & bits.dtype.type((1 << (_LAYOUT[format][0] - 1)) - 1)).astype(np.int64)
    ordered: np.ndarray = np.where(magnitude == bits, magnitude, -magnitude)
    return ordered


def _is_nan(bits: np.ndarray, format: str) -> np.ndarray:
    width, fraction = _LAYOUT[format]
    infinity = ((1 << (width - 1)) - 1) & ~((1 << fraction) - 1)
    nan: np.ndarray = (bits & bits.dtype.type((1 << (width - 1)) - 1)) > bits.dtype.type(infinity)
    return nan


def _value(pattern: int, format: str) -> float:
    if format == "bfloat16":
        return float(np.array(pattern << 16, np.uint32).view(np.float32))
    return float(np.array(pattern, f"uint{_LAYOUT[format][0]}").view(format))


def hexadecimal(value: float) -> str:
    """float.hex() without its trailing zeros: 0x1.4cp+3."""
    text = value.hex()
    if "p" not in text:
        return text
    digits, exponent = text.split("p")
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}p{exponent}"


def _patterns(left: Any, right: Any, format: str | None) -> tuple[np.ndarray, np.ndarray, str]:
    """Both patterns and the one format they share, or a ValueError that names both sides."""
    if tuple(left.shape) != tuple(right.shape):
        raise ValueError(f"shapes differ: {list(left.shape)} != {list(right.shape)}; equal shapes are needed")
    left_bits, right_bits = numpy_bits(left), numpy_bits(right)
    names = {name for name in (format_of(left), format_of(right)) if not name.startswith("uint")}
    names |= {format} if format else set()
    if len(names) != 1 or left_bits.dtype != right_bits.dtype:
        given = f"{format_of(left)} != {format_of(right)}" + (f", format={format!r}" if format else "")
        raise ValueError(f"dtypes differ or are patterns of unknown format: {given}; allowed: {', '.join(FORMATS)}")
    (name,) = names
    if name not in _LAYOUT or _LAYOUT[name][0] != 8 * left_bits.dtype.itemsize:
        raise ValueError(f"format={name!r} does not fit dtype {format_of(left)}; allowed: {', '.join(FORMATS)}")
    return left_bits, right_bits, name


def compare(left: Any, right: Any, format: str | None = None) -> BitsDifference | None:
    """None where every bit is equal, else the difference. Unsigned integers are patterns of the `format` named."""
    left_bits, right_bits, name = _patterns(left, right, format)
    differs = (left_bits != right_bits) & ~(_is_nan(left_bits, name) & _is_nan(right_bits, name))
    count = int(np.count_nonzero(differs))
    if count == 0:
        return None
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(differs)), differs.shape))
    pair = np.stack([left_bits[index], right_bits[index]])
    left_step, right_step = _ordered(pair, name).tolist()
    values = [hexadecimal(_value(pattern, name)) for pattern in pair.tolist()]
    ulps = None if _is_nan(pair, name).any() else abs(left_step - right_step)
    return BitsDifference(count, differs.size, index, values[0], values[1], ulps)


def same_bits(left: Any, right: Any, format: str | None = None) -> bool:
    """Whether every element has equal bits."""
    return compare(left, right, format) is None


def ulp_distance(left: Any, right: Any, format: str | None = None) -> np.ndarray:
    """Representable steps between elements, as int64: 0 between +0 and -0 and between NaNs, -1 beside one NaN."""
    left_bits, right_bits, name = _patterns(left, right, format)
    a, b = _ordered(left_bits, name), _ordered(right_bits, name)
    # Two float64 values can lie further apart than an int64 reaches; no reader needs the exact figure there.
    steps = np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)
    distance = np.minimum(steps, np.uint64(np.iinfo(np.int64).max)).astype(np.int64)
    left_nan, right_nan = _is_nan(left_bits, name), _is_nan(right_bits, name)
    return np.where(left_nan & right_nan, 0, np.where(left_nan | right_nan, -1, distance))
