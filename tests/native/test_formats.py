"""The storage formats: every instruction set widens and narrows to the same bits, every NaN and subnormal included."""

from __future__ import annotations

import numpy as np
import pytest

from samebits import native
from samebits.numerics.bits import to_bfloat16

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2
EVERY_WAY = [(name, by_vectors) for name in native.instruction_sets() for by_vectors in (0, 1)]


def converted(patterns: np.ndarray, source: int, target: int, instruction_set: str, by_vectors: int) -> np.ndarray:
    out = np.empty(patterns.size, np.uint32 if target == FLOAT32 else np.uint16)
    native.call(
        "convert",
        "iiippq",
        source,
        target,
        by_vectors,
        patterns.ctypes.data,
        out.ctypes.data,
        patterns.size,
        instruction_set=instruction_set,
    )
    return out


def float32_patterns() -> np.ndarray:
    """Every exponent and sign with fractions at and beside the places where a narrower format rounds; random ones."""
    places = [1 << bit for bit in range(23)]
    fractions = {0, *places, *(p - 1 for p in places), *(p + 1 for p in places), *(0x7FFFFF ^ p for p in places)}
    fractions |= {
        0xFFF,
        0x1000,
        0x1001,
        0x1FFF,
        0x2FFF,
        0x3000,
        0x3001,
        0x7FFF,
        0x8000,
        0x8001,
        0x17FFF,
        0x18000,
        0x18001,
    }
    upper = np.arange(512, dtype=np.uint32)[:, None] << 23
    chosen = (upper | np.array(sorted(f & 0x7FFFFF for f in fractions), np.uint32)).ravel()
    random = np.random.default_rng(12).integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    with np.errstate(invalid="ignore"):  # of signalling NaNs
        halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    beside = halves.view(np.uint32)[:, None] + np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF], np.uint32)
    return np.concatenate([chosen, random, beside.ravel()])


def is_nan(patterns: np.ndarray) -> np.ndarray:
    return (patterns & 0x7FFFFFFF) > 0x7F800000


def narrowed(patterns: np.ndarray, target: int) -> np.ndarray:
    """numpy's rounding; a NaN keeps its sign and the upper bits of its payload, and becomes quiet."""
    values, upper = patterns.view(np.float32), (patterns >> 16).astype(np.uint16)
    if target == BFLOAT16:
        return np.where(is_nan(patterns), upper | 0x40, to_bfloat16(values))
    with np.errstate(all="ignore"):
        rounded = values.astype(np.float16).view(np.uint16)
    payload = ((patterns >> 13) & 0x3FF).astype(np.uint16)
    return np.where(is_nan(patterns), (upper & 0x8000) | 0x7E00 | payload, rounded)


def widened(patterns: np.ndarray, source: int) -> np.ndarray:
    if source == BFLOAT16:
        return patterns.astype(np.uint32) << 16
    sign, fraction = (patterns & 0x8000).astype(np.uint32) << 16, (patterns & 0x3FF).astype(np.uint32)
    with np.errstate(all="ignore"):
        exact = patterns.view(np.float16).astype(np.float32).view(np.uint32)
    quiet = sign | 0x7FC00000 | (fraction << 13)
    return np.where((patterns & 0x7FFF) > 0x7C00, quiet, exact)


@pytest.mark.parametrize(("instruction_set", "by_vectors"), EVERY_WAY)
@pytest.mark.parametrize("narrow", [BFLOAT16, FLOAT16])
def test_all_65536_are_widened_alike(narrow: int, instruction_set: str, by_vectors: int) -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    got = converted(patterns, narrow, FLOAT32, instruction_set, by_vectors)
    assert np.array_equal(got, widened(patterns, narrow))


@pytest.mark.parametrize(("instruction_set", "by_vectors"), EVERY_WAY)
@pytest.mark.parametrize("narrow", [BFLOAT16, FLOAT16])
def test_float32_is_narrowed_alike(narrow: int, instruction_set: str, by_vectors: int) -> None:
    patterns = float32_patterns()
    assert is_nan(patterns).sum() > 1000 and patterns.size > 1_000_000
    got = converted(patterns, FLOAT32, narrow, instruction_set, by_vectors)
    wrong = np.flatnonzero(got != narrowed(patterns, narrow))
    assert not wrong.size, [f"{patterns[i]:08x} -> {got[i]:04x}" for i in wrong[:4]]


@pytest.mark.parametrize("count", range(20))
def test_a_tail_writes_no_further(count: int) -> None:
    patterns = np.arange(0x3C00, 0x3C00 + count, dtype=np.uint16)
    for name in native.instruction_sets():
        out = np.full(count + 1, 0xABCDABCD, np.uint32)
        native.call(
            "convert", "iiippq", FLOAT16, FLOAT32, 1, patterns.ctypes.data, out.ctypes.data, count, instruction_set=name
        )
        assert out[count] == 0xABCDABCD and np.array_equal(out[:count], widened(patterns, FLOAT16))


def test_other_pairs_are_refused() -> None:
    with pytest.raises(native.NativeError, match=r"formats 1 to 2: one must be 0 \(float32\)"):
        converted(np.zeros(1, np.uint16), BFLOAT16, FLOAT16, "baseline", 1)
