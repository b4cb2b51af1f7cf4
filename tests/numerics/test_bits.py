"""bits: equality is equality of patterns, and a difference says where, what and how far."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from samebits.numerics.bits import compare, from_bfloat16, numpy_bits, round_to, same_bits, to_bfloat16, ulp_distance


def test_signed_zeros_differ_and_nans_are_one() -> None:
    """+0 != -0; every NaN == every NaN; a NaN != a number."""
    nans = np.array([0x7FC00000, 0xFFC00001], np.uint32).view(np.float32)
    assert same_bits(nans, nans[::-1])
    assert str(compare(np.float32([0.0]), np.float32([-0.0]))) == "1 of 1 differ; first [0]: 0x0p+0 != -0x0p+0 (0 ulp)"
    beside_nan = compare(np.float32([1.0, 2.0]), np.float32([1.0, np.nan]))
    assert str(beside_nan) == "1 of 2 differ; first [1]: 0x1p+1 != nan (one is NaN)"


def test_the_line_names_count_place_values_and_distance() -> None:
    left = np.zeros((5, 128), np.float32)
    left[2, 11] = left[3, 0] = left[4, 127] = 10.375
    right = left.copy()
    right[2, 11] = right[3, 0] = right[4, 127] = np.nextafter(np.float32(10.375), np.float32(11))
    difference = compare(left, right)
    assert difference is not None and (difference.count, difference.total, difference.index) == (3, 640, (2, 11))
    assert str(difference) == "3 of 640 differ; first [2, 11]: 0x1.4cp+3 != 0x1.4c0002p+3 (1 ulp)"


@pytest.mark.parametrize("format", ["float16", "bfloat16", "float32", "float64"])
def test_numpy_and_torch_meet(format: str) -> None:
    """The patterns of a torch tensor are those of the numpy array; one flipped bit is one ulp."""
    tensor = torch.linspace(-3, 3, 24, dtype=torch.float64).reshape(4, 6).to(getattr(torch, format))
    patterns = numpy_bits(tensor)
    assert patterns.shape == (4, 6) and same_bits(tensor.T, patterns.T, format)
    flipped = patterns.copy()
    flipped[1, 2] ^= 1
    difference = compare(patterns, flipped, format)
    assert difference is not None and (difference.count, difference.index, difference.ulps) == (1, (1, 2), 1)


def test_gradients_and_strides_do_not_matter() -> None:
    tensor = torch.arange(12.0, requires_grad=True).reshape(3, 4)
    assert same_bits(tensor[:, ::2], np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2])


@pytest.mark.parametrize(
    ("left", "right", "format", "words"),
    [
        (np.zeros(3, np.float32), np.zeros(4, np.float32), None, "shapes differ: [3] != [4]"),
        (np.zeros(3, np.float32), np.zeros(3, np.float64), None, "dtypes differ"),
        (np.zeros(3, np.uint16), np.zeros(3, np.uint16), None, "patterns of unknown format: uint16 != uint16"),
        (np.zeros(3, np.uint16), np.zeros(3, np.uint16), "float32", "format='float32' does not fit dtype uint16"),
        (np.zeros(3, np.int32), np.zeros(3, np.int32), None, "bits of dtype int32 are not defined"),
        (np.zeros(3, np.float32), np.zeros(3, np.float32), "bfloat16", "dtypes differ"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(left: object, right: object, format: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"allowed|needed") as error:
        compare(left, right, format)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_ulp_distance() -> None:
    """Counted across zero; 0 between zeros and between NaNs, -1 beside one NaN."""
    tiny = np.float32(2.0**-149)
    left = np.float32([1, tiny, 0.0, np.nan, np.nan, np.inf])
    right = np.float32([1 + 2**-22, -tiny, -0.0, np.nan, 1, np.finfo(np.float32).max])
    assert ulp_distance(left, right).tolist() == [2, 2, 0, 0, -1, 1]
    assert ulp_distance(np.float64([-np.inf]), np.float64([np.inf])).tolist() == [2**63 - 1]


def test_bfloat16_rounds_like_torch() -> None:
    """All 65536 halves of float32, with every kind of tail: nearest, ties to even, NaN stays NaN."""
    high = np.arange(65536, dtype=np.uint32) << np.uint32(16)
    for tail in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = (high | np.uint32(tail)).view(np.float32)
        assert same_bits(to_bfloat16(values), torch.from_numpy(values).to(torch.bfloat16), "bfloat16")
    patterns = np.arange(65536).astype(np.uint16)
    assert same_bits(to_bfloat16(from_bfloat16(patterns)), patterns, "bfloat16")


def test_round_to_float16_is_torch_s() -> None:
    values = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    assert same_bits(round_to(values, "float16"), torch.from_numpy(values).half().float())
    with pytest.raises(ValueError, match="format='float8' cannot be rounded to"):
        round_to(values, "float8")


def test_numerics_loads_no_torch() -> None:
    """The whole floor needs numpy only."""
    modules = ["bits", "fma", "order", "picture", "simulate", "adder", "probes", "replay", "reveal", "recipes"]
    program = "import sys\n" + "".join(f"import samebits.numerics.{name}\n" for name in modules)
    program += "assert not {'torch', 'triton'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
