"""The shorter exponential of _triton/exponential.py: of every input it may be given the bits of the generated one.

Its own source, traced without a GPU and compiled as C, beside the library's. On a GPU tests/gpu/test_elementary.py and
benchmarks/gpu_long_rows.py compare both as Triton compiles them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.repository.documents import PROJECT

from samebits.checker.tracing import child_environment
from samebits.numerics.elementary import elementary

CHUNK = 1 << 26
AROUND = 1 << 12
SOURCE = """
#include <math.h>
#include <stdint.h>
#include <string.h>
static inline float as_float(uint32_t bits) {{ float x; memcpy(&x, &bits, 4); return x; }}
static inline int32_t as_int(float x) {{ int32_t bits; memcpy(&bits, &x, 4); return bits; }}
static inline float exponential(float x) {{
{lines}
}}
void exponentials(uint32_t first, uint32_t step, uint32_t count, float *y) {{
    for (uint32_t i = 0; i < count; i++) y[i] = exponential(as_float(first + step * i));
}}
"""


@cache
def lines() -> str:
    """The function in C."""
    finished = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("traced_exponential.py"))],
        capture_output=True,
        text=True,
        check=False,
        env={**child_environment(), "TRITON_INTERPRET": "1", "PYTHONPATH": str(PROJECT)},
    )
    assert finished.returncode == 0, finished.stderr[-500:]
    return finished.stdout


def compiled(folder: Path, text: str) -> Callable[[int, int, int], np.ndarray]:
    """(first, step, count) -> results of these patterns; nothing is contracted, and nothing taken for finite."""
    source, library = folder / "exponential.c", folder / "exponential.so"
    source.write_text(SOURCE.format(lines=text))
    options = ["-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC"]
    subprocess.run([os.environ.get("CC", "gcc"), *options, str(source), "-o", str(library), "-lm"], check=True)
    function = ctypes.CDLL(str(library)).exponentials
    function.argtypes = [ctypes.c_uint32] * 3 + [ctypes.c_void_p]

    def results(first: int, step: int, count: int) -> np.ndarray:
        y = np.empty(count, np.float32)
        function(first, step, count, y.ctypes.data)
        return y

    return results


def differing(results: Callable[[int, int, int], np.ndarray], first: int, step: int, count: int) -> int:
    """Of so many patterns from the first on those whose results are not the same; a NaN is one."""
    patterns = np.uint32(first) + np.arange(count, dtype=np.uint32) * np.uint32(step)
    expected, found = elementary("exp", patterns.view(np.float32)), results(first, step, count)
    same = expected.view(np.uint32) == found.view(np.uint32)
    return int((~same & ~(np.isnan(expected) & np.isnan(found))).sum())


def some() -> Iterator[tuple[int, int, int]]:
    """A five-hundredth of them, those around where a result is subnormal, nothing or 1, and +0."""
    yield 1 << 31, 509, (1 << 31) // 509
    for edge in (-86.0, -87.33655, -103.97208, -104.0, -(2.0**-25), -np.inf):
        yield int(np.float32(edge).view(np.uint32)) - AROUND, 1, 2 * AROUND
    yield 0, 1, 1
    yield 0x7FC00000, 1, AROUND


def all_of_them() -> Iterator[tuple[int, int, int]]:
    """Every number with a sign, every NaN, and +0."""
    for first in range(1 << 31, 1 << 32, CHUNK):
        yield first, 1, CHUNK
    yield 0, 1, 1
    yield 0x7F800001, 1, (1 << 23) - 1


def test_some_inputs_have_the_bits_of_the_generated_function(tmp_path: Path) -> None:
    results = compiled(tmp_path, lines())
    assert [differing(results, *part) for part in some()] == [0] * 9


@pytest.mark.long
def test_every_input_has_the_bits_of_the_generated_function(tmp_path: Path) -> None:
    results = compiled(tmp_path, lines())
    assert sum(differing(results, *part) for part in all_of_them()) == 0


@pytest.mark.parametrize(
    ("line", "other"),
    [
        # A coefficient's last bit; the scale that a subnormal result does not survive; a NaN that is lost.
        ("0x3d2aac5au", "0x3d2aac5bu"),
        ("v26 * v32", "v26 * v32 < 0x1p-62f ? 0 : v26 * v32"),
        ("? NAN :", "? v1 :"),
    ],
)
def test_a_function_that_is_another_is_noticed(tmp_path: Path, line: str, other: str) -> None:
    """Planted."""
    assert line in lines()
    results = compiled(tmp_path, lines().replace(line, other))
    assert any(differing(results, *part) for part in some())
