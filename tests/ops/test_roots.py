"""The square root is the one that IEEE 754 defines: the nearest number, everywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from samebits import native
from samebits.native.launch_numbers import launching
from samebits.ops import grad_norm
from samebits.ops.roots import square_root

SPECIAL = [0.0, -0.0, 2.0**-149, 2.0**-126, 1.0, 4.0, 3.4028234663852886e38, float("inf"), float("nan"), -1.0]


def patterns(count: int) -> np.ndarray:
    """Positive float32 numbers spread over all exponents, subnormal ones among them."""
    words = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1)
    values: np.ndarray = (words & np.uint32(0x7FFFFFFF)).view(np.float32)
    return values[np.isfinite(values)]


def nearest_root(x: np.ndarray) -> np.ndarray:
    """In float64, whose root of a float32 number rounds to the nearest float32 whatever it was rounded to before."""
    rounded: np.ndarray = np.sqrt(x.astype(np.float64)).astype(np.float32)
    return rounded


def bits(values: torch.Tensor) -> list[int]:
    kept: list[int] = values.view(torch.int32).tolist()
    return kept


@pytest.mark.parametrize("instruction_set", native.instruction_sets())
@pytest.mark.parametrize("threads", [1, 3])
def test_the_root_is_the_nearest_number(instruction_set: str, threads: int) -> None:
    x = patterns(200_003)
    with launching(instruction_set=instruction_set, threads=threads):
        root = square_root(torch.from_numpy(x))
    assert bits(root) == bits(torch.from_numpy(nearest_root(x)))
    assert bits(square_root(torch.from_numpy(x), "reference")) == bits(root)


def test_a_root_that_is_one_ulp_off_is_noticed() -> None:
    """Planted fault: the reciprocal of a rounded reciprocal root, as vector libraries begin."""
    x = patterns(10_001)
    x = x[x > 0]
    off = (1 / nearest_root(x)).astype(np.float32)
    assert not np.array_equal((1 / off).astype(np.float32), nearest_root(x))


def test_the_ends_of_the_format() -> None:
    x = torch.tensor(SPECIAL)
    root = square_root(x)
    assert bits(root[:2]) == bits(x[:2]) and bool(root[8:].isnan().all())
    assert root[2:8].tolist() == [float(np.sqrt(np.float32(each))) for each in SPECIAL[2:8]]


def test_shapes_strides_and_float64() -> None:
    x = torch.from_numpy(patterns(60)[:48].copy()).reshape(4, 12)
    assert square_root(x[:, ::2]).shape == (4, 6)
    assert bits(square_root(x.T)) == bits(square_root(x).T.contiguous())
    assert square_root(torch.tensor(2.0)).shape == () and square_root(torch.zeros(0)).shape == (0,)
    wide = square_root(x.double())
    assert wide.dtype == torch.float64 and wide.tolist() == np.sqrt(x.double().numpy()).tolist()
    with pytest.raises(ValueError, match="square_root: x has dtype bfloat16; allowed: float32, float64"):
        square_root(x.bfloat16())


def test_a_gradient_norm_is_the_nearest_root_of_its_sum() -> None:
    """Sums of squares that are whole numbers, so that the sum itself is exact."""
    for count in range(1, 400, 7):
        norm = grad_norm([torch.ones(count)])
        assert bits(norm.reshape(1)) == bits(torch.from_numpy(nearest_root(np.array([count], np.float32))))
    assert grad_norm([torch.ones(3, dtype=torch.float64)], backend="reference").item() == 3**0.5
