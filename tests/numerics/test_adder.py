"""adder: the C++ chain equals the numpy chain bit for bit, on every instruction set and number of threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from samebits import native
from samebits.numerics.adder import HOPPER, HOPPER_FLOAT16, HOPPER_TFLOAT32, AdderModel, fused_chain
from samebits.numerics.bits import compare, numpy_bits, same_bits, to_bfloat16
from samebits.numerics.recipes import RECIPES, make
from samebits.numerics.simulate import simulate

MODELS = {"bfloat16": HOPPER, "float16": HOPPER_FLOAT16, "tfloat32": HOPPER_TFLOAT32}
# Sizes that fill no tile: K ends inside a fused node, N inside a vector.
M, K, N = 19, 71, 67


def operands(recipe: str, model: AdderModel, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    format = "float32" if model.operand == "tfloat32" else model.operand
    return make(recipe, (M, K), seed, format), make(recipe, (K, N), seed + 1, format)


def in_numpy(a: np.ndarray, b: np.ndarray, model: AdderModel) -> np.ndarray:
    return simulate(model.order(a.shape[1]), (a[:, None, :], b.T[None, :, :]), model=model)


@pytest.mark.parametrize("operand", MODELS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_kernel_equals_numpy(operand: str, recipe: str) -> None:
    model = MODELS[operand]
    a, b = operands(recipe, model)
    expected = in_numpy(a, b, model)
    for instruction_set in native.instruction_sets():
        for threads in (1, 2):
            result = fused_chain(a, b, model, threads=threads, instruction_set=instruction_set)
            assert compare(result, expected) is None, (instruction_set, threads)


CHOICES = {
    "F13": {"fraction_bits": 13, "keep_bits": 14},
    "F24": {"fraction_bits": 24},
    "F40": {"fraction_bits": 40},  # too long for 32-bit lanes
    "w4": {"width": 4},
    "w64": {"width": 64},
    "normalise": {"normalise_subnormals": True},
    "zeros": {"zeros_align": True},
    "floor": {"least_exponent": -126},
    "saturate": {"overflow_is_infinite": False},
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("operand", MODELS)
def test_every_choice_of_the_model_is_the_same_choice_in_both(operand: str, choice: str) -> None:
    """And is noticed: on some recipe the choice changes bits."""
    model = replace(MODELS[operand], **CHOICES[choice])
    noticed = False
    for a, b in corners(model):
        result = fused_chain(a, b, model)
        assert compare(result, in_numpy(a, b, model)) is None
        noticed |= not same_bits(result, fused_chain(a, b, MODELS[operand]))
    # float16 products neither overflow float32 nor underflow it.
    assert noticed or (operand == "float16" and choice in ("floor", "saturate")), "the data cannot tell this choice"


def corners(model: AdderModel) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ordinary products; sums beyond float32; subnormals and zeros beside large and beside small factors."""
    small, wide = operands("subnormal", model, seed=5)[0], operands("wide", model, seed=5)[1]
    small = np.where(np.abs(small) > 1, np.float32(0), small)
    largest = np.full((2, K), 60000 if model.operand == "float16" else 2.0**100, np.float32)
    lift = np.float32(1 if model.operand == "float16" else 2.0**100)
    drop = np.float32(1 if model.operand == "float16" else 2.0**-20)
    return [operands("normal", model), (largest, largest.T), (small, wide * lift), (small, wide * drop)]


def test_a_chain_resumes_from_its_accumulator() -> None:
    """Cut at a multiple of the width: equal bits. Planted fault: cut elsewhere, not."""
    a, b = make("normal", (16, 512), 1, "bfloat16"), make("normal", (512, 64), 2, "bfloat16")
    whole = fused_chain(a, b)
    assert same_bits(fused_chain(a[:, 160:], b[160:], accumulator=fused_chain(a[:, :160], b[:160])), whole)
    assert not same_bits(fused_chain(a[:, 165:], b[165:], accumulator=fused_chain(a[:, :165], b[:165])), whole)


def test_an_accumulator_that_is_not_finite_stays() -> None:
    accumulator = np.float32([[np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0]])
    ones = np.ones((1, 1), np.float32)
    result = fused_chain(ones, np.ones((1, 6), np.float32), accumulator=accumulator)
    assert same_bits(result, np.float32([[np.inf, -np.inf, np.nan, 1, 1, 2]]))
    assert accumulator[0, 5] == 1.0  # the caller's array is left alone


def test_products_are_not_renormalised() -> None:
    a, b = np.float32([[1.5, -1.5, 2.0**-12]]), np.float32([[1.5], [1.5], [2.0**-13]])
    assert fused_chain(a, b).tolist() == [[2.0**-25]]


def test_patterns_values_and_tensors_are_one_input() -> None:
    a, b = operands("normal", HOPPER)
    tensors = torch.from_numpy(a).bfloat16(), torch.from_numpy(b).bfloat16()
    expected = fused_chain(a, b)
    assert same_bits(fused_chain(*tensors), expected)
    assert same_bits(fused_chain(to_bfloat16(a), to_bfloat16(b)), expected)
    a, b = operands("normal", HOPPER_FLOAT16)
    halves = a.astype(np.float16), b.astype(np.float16)
    assert same_bits(fused_chain(*halves, HOPPER_FLOAT16), fused_chain(*map(numpy_bits, halves), HOPPER_FLOAT16))


def test_empty_sums_are_plus_zero() -> None:
    nothing = fused_chain(np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32))
    assert same_bits(nothing, np.zeros((2, 3), np.float32))
    assert fused_chain(np.zeros((0, 4), np.float32), np.zeros((4, 3), np.float32)).shape == (0, 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fused_chain(np.zeros((2, 3), np.float32), np.zeros((4, 5), np.float32)), "shapes [2, 3] and [4, 5]"),
        (lambda: fused_chain(np.full((1, 1), 1.001, np.float32), np.ones((1, 1), np.float32)), "a_MK: float32 values"),
        (lambda: fused_chain(np.zeros((1, 1)), np.zeros((1, 1))), "a_MK: dtype float64 cannot hold operand='bfloat16'"),
        (lambda: fused_chain(np.zeros((1, 1), np.float16), np.zeros((1, 1), np.float16)), "dtype float16 cannot hold"),
        (
            lambda: fused_chain(np.ones((1, 1), np.float32), np.ones((1, 1), np.float32), accumulator=np.zeros((1, 1))),
            "accumulator is float64 [1, 1]; needed: float32 [1, 1]",
        ),
        (lambda: AdderModel(width=0), "width must be in 1..64, got width=0"),
        (lambda: AdderModel(fraction_bits=41), "fraction_bits must be in 1..40"),
        (lambda: AdderModel(operand="float8"), "operand='float8' is unknown"),
    ],
)
def test_bad_input_is_refused_in_one_line(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        call()  # type: ignore[operator]
    assert words in str(error.value) and "\n" not in str(error.value)
