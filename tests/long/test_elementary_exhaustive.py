"""All 2^32 inputs of each elementary function: error within what is stated, bits equal on every instruction set."""

import numpy as np
import pytest
from tests.numerics_elementary.test_functions import QUICK_FORMS, quick_form_differs

from samebits import native
from samebits.numerics.elementary import FUNCTIONS, MAXIMUM_ULP, elementary, worst_ulp

CHUNK = 1 << 24
SIGN = np.uint32(1 << 31)
# What the result of -x has in its sign bit that the result of x has not. The C library is slow for large angles: the
# errors of a mirrored function are measured over half the inputs.
MIRRORED = {"sin": SIGN, "cos": np.uint32(0), "tanh": SIGN, "erf": SIGN}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_over_all_inputs(name: str) -> None:
    """The statement is no larger than needed, too: within 0.01 ulp of the worst case."""
    error, pattern = worst_ulp(name, count=1 << 31 if name in MIRRORED else 1 << 32)
    print(f"{name}: {error:.4f} ulp at {pattern:#010x}")
    assert MAXIMUM_ULP[name] - 0.01 <= error <= MAXIMUM_ULP[name], f"{name}: {error} ulp at {pattern:#x}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_instruction_sets_agree_on_all_inputs(name: str) -> None:
    widest_first = native.instruction_sets()[::-1]
    for first in range(0, 1 << 32, CHUNK):
        x = (np.arange(CHUNK, dtype=np.uint32) + np.uint32(first)).view(np.float32)
        expected = elementary(name, x, instruction_set=widest_first[0]).view(np.uint32)
        for instruction_set in widest_first[1:]:
            actual = elementary(name, x, instruction_set=instruction_set).view(np.uint32)
            assert np.array_equal(actual, expected), f"{name}/{instruction_set} differs from {first:#x} on"


@pytest.mark.parametrize("name", MIRRORED)
def test_mirrored_on_all_inputs(name: str) -> None:
    for first in range(0, 1 << 31, CHUNK):
        pattern = np.arange(CHUNK, dtype=np.uint32) + np.uint32(first)
        of_x = elementary(name, pattern.view(np.float32))
        of_minus_x = elementary(name, (pattern | SIGN).view(np.float32)).view(np.uint32)
        expected = np.where(np.isnan(of_x), of_x.view(np.uint32), of_x.view(np.uint32) ^ MIRRORED[name])
        assert np.array_equal(of_minus_x, expected), f"{name} is not mirrored from {first:#x} on"


@pytest.mark.parametrize(("number", "name"), QUICK_FORMS)
def test_the_quick_form_agrees_on_all_inputs(number: int, name: str) -> None:
    assert quick_form_differs(number, 0, 1 << 32) == 0, name
