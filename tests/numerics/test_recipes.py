"""recipes: the name, the shape and the seed fix every bit; every recipe holds what it says."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from samebits.numerics.bits import numpy_bits, round_to, same_bits
from samebits.numerics.recipes import FORMATS, RECIPES, make

SMALLEST_NORMAL = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_values_fit_the_format_and_repeat(recipe: str, format: str) -> None:
    values = make(recipe, (33, 65), 7, format)
    assert values.dtype == np.float32 and values.shape == (33, 65)
    assert same_bits(round_to(values, format), values) and same_bits(make(recipe, (33, 65), 7, format), values)
    assert not same_bits(make(recipe, (33, 65), 8, format), values)


def test_bits_are_the_same_everywhere() -> None:
    """Recorded goldens are keyed by recipe and seed: these digests must never move."""
    digests = {}
    for recipe in RECIPES:
        whole = hashlib.sha256()
        for format in FORMATS:
            values = make(recipe, (16, 48), 2024, format)
            whole.update(numpy_bits(np.where(np.isnan(values), np.float32(np.nan), values)).tobytes())
        digests[recipe] = whole.hexdigest()[:16]
    assert digests == {
        "normal": "0e499e8635989cc1",
        "wide": "f8567d7f8adff1ae",
        "cancelling": "7893da62d5bd8877",
        "subnormal": "236d6ea16721b807",
        "infinite": "2b68905b74a7858b",
        "random_bits": "20b5d432782a6d24",
        "zeros_signed": "40683e11d66b9aff",
        "wide_gap": "4ec8e531ca89b3cd",
        "near_tie": "bc8e71ffdef95adf",
        "constant": "45b5388e3e5ef88e",
        "one_hot": "1b83e9a4ab3e5016",
        "extremes": "ba2966ed198bf585",
    }


@pytest.mark.parametrize("format", FORMATS)
def test_recipes_hold_what_they_say(format: str) -> None:
    shape = (64, 96)
    normal = make("normal", shape, 1, format)
    assert abs(normal.mean()) < 0.1 and 1.1 < normal.std() < 1.2 and np.abs(normal).max() <= 4
    wide = np.frexp(make("wide", shape, 1, format))[1] - 1
    spread = 12 if format == "float16" else 20
    assert wide.min() == -spread and wide.max() in (spread, spread + 1)
    subnormal = np.abs(make("subnormal", shape, 1, format))
    assert 0.4 < (subnormal < SMALLEST_NORMAL[format]).mean() < 0.6 and subnormal.max() > 1e4
    infinite = make("infinite", shape, 1, format)
    assert {str(v) for v in infinite[~np.isfinite(infinite)]} == {"inf", "-inf", "nan"}
    assert np.isfinite(infinite).mean() > 0.99
    zeros = make("zeros_signed", shape, 1, format)
    assert (np.signbit(zeros) & (zeros == 0)).any() and (~np.signbit(zeros) & (zeros == 0)).any() and (zeros != 0).any()
    assert np.isnan(make("random_bits", shape, 1, format)).any()


def test_cancelling_rows_cancel() -> None:
    """The large values of a row sum to exactly zero; what is left is of size one."""
    values = make("cancelling", (50, 60), 3).astype(np.float64)
    assert np.abs(values).max() > 2**23 and np.abs(values.sum(axis=1)).max() < 30
    large = np.where(np.abs(values) >= 16, values, 0)
    assert not large.sum(axis=1).any() and (large != 0).any(axis=1).all()


def test_small_and_empty_shapes() -> None:
    for recipe in RECIPES:
        for shape in ((), (0,), (1,), (2,), (0, 5)):
            assert make(recipe, shape, 1).shape == shape


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gauss", (2,), 1), "recipe='gauss' is unknown; allowed: normal, wide"),
        (("normal", (2,), 1, "float64"), "format='float64' is unknown"),
        (("normal", (2,), -1), "got seed=-1"),
    ],
)
def test_unknown_names_are_refused(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(ValueError, match=r"allowed|seed") as error:
        make(*arguments)  # type: ignore[arg-type]
    assert words in str(error.value)
