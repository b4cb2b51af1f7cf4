"""numpy(x) == C++ baseline(x) == AVX2(x) == AVX-512(x), bit for bit, and within the stated error of the true value."""

import ctypes
import math

import numpy as np
import pytest

from samebits import native
from samebits.numerics.elementary import FUNCTIONS, MAXIMUM_ULP, circular, elementary, evaluate, functions, worst_ulp
from samebits.numerics.elementary.evaluate import run
from samebits.numerics.elementary.philox import philox_uint32
from samebits.numerics.elementary.program import Kind, trace

NAN, INF = math.nan, math.inf
# Names of numpy's double functions, where the test needs a true value in Python.
DOUBLE = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": lambda x: np.array([math.erf(v) for v in x]),
}

# Pairs, not a dictionary: 0.0 and -0.0 are one key but two inputs.
SPECIAL_VALUES = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (88.73, INF), (-104.0, 0.0), (NAN, NAN)],
    "exp2": [
        (0.0, 1.0),
        (127.0, 2.0**127),
        (128.0, INF),
        (-149.0, 2.0**-149),
        (-150.0, 0.0),
        (INF, INF),
        (-INF, 0.0),
        (NAN, NAN),
    ],
    "log": [(1.0, 0.0), (0.0, -INF), (-0.0, -INF), (INF, INF), (-1.0, NAN), (-INF, NAN), (NAN, NAN)],
    "rsqrt": [
        (1.0, 1.0),
        (4.0, 0.5),
        (0.0, INF),
        (-0.0, -INF),
        (INF, 0.0),
        (2.0**-148, 2.0**74),
        (-1.0, NAN),
        (-INF, NAN),
        (NAN, NAN),
    ],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (2.0**-149, 2.0**-149), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (2.0**-149, 1.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (2.0**-149, 2.0**-149), (20.0, 1.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (2.0**-149, 2.0**-149), (5.0, 1.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (-105.0, 0.0), (NAN, NAN)],
}


def patterns(each: int) -> np.ndarray:
    """`each` random mantissas under every sign and exponent, plus both ends of every binade."""
    top = np.repeat(np.arange(512, dtype=np.uint32), each) << np.uint32(23)
    inside = philox_uint32(seed=2, stream=0, count=top.size) >> np.uint32(9)
    ends = np.concatenate(
        [
            (np.arange(512, dtype=np.uint32) << np.uint32(23)) | np.uint32(low)
            for low in (0, 1, 2, 0x3FFFFF, 0x400000, 0x7FFFFE, 0x7FFFFF)
        ]
    )
    return np.concatenate([top | inside, ends]).view(np.float32)


def ulps(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance in ulps of the exact value, for normal numbers."""
    return np.abs(result - exact) / np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numpy_and_every_instruction_set_agree(name: str) -> None:
    x = patterns(each=2048)
    expected = evaluate(name, x).view(np.uint32)
    assert native.instruction_sets()[0] == "baseline"
    for instruction_set in native.instruction_sets():
        actual = elementary(name, x, instruction_set=instruction_set).view(np.uint32)
        wrong = np.flatnonzero(actual != expected)
        first = [float(value).hex() for value in x[wrong[:1]]]
        assert wrong.size == 0, f"{name}/{instruction_set}: {wrong.size} of {x.size} differ; first x={first}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tails_and_thread_counts_keep_bits(name: str) -> None:
    """Position in the array, its length and the number of threads decide nothing."""
    x = patterns(each=128)
    whole = elementary(name, x, threads=1)
    assert np.array_equal(whole.view(np.uint32), elementary(name, x, threads=3).view(np.uint32))
    for instruction_set in native.instruction_sets():
        # Three elements are fewer than any vector holds: these run the form for a single float.
        for start, length in [(1000, 0), (1000, 1), (1000, 17), (1000, 33), *((i, 3) for i in range(0, x.size, 97))]:
            part = elementary(name, x[start : start + length], instruction_set=instruction_set, threads=1)
            assert np.array_equal(part.view(np.uint32), whole[start : start + length].view(np.uint32)), (start, length)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values(name: str) -> None:
    x, true = np.array(SPECIAL_VALUES[name], np.float32).T
    expected = np.ascontiguousarray(true).view(np.uint32)
    expected = np.where(np.isnan(expected.view(np.float32)), np.uint32(0x7FC00000), expected)
    actual = evaluate(name, x).view(np.uint32)
    assert [hex(bits) for bits in actual] == [hex(bits) for bits in expected]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_on_a_sample_of_every_binade(name: str) -> None:
    starts = philox_uint32(seed=3, stream=FUNCTIONS.index(name), count=512) % np.uint32((1 << 23) - 2048)
    blocks = (worst_ulp(name, (top << 23) + int(start), 2048) for top, start in enumerate(starts))
    error, pattern = max(blocks)
    assert 0.49 < error <= MAXIMUM_ULP[name], f"{name}: {error} ulp at {pattern:#x}; stated {MAXIMUM_ULP[name]}"


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "sin", "cos", "tanh", "erf", "log2_erfc", "power"])
def test_a_wrong_coefficient_exceeds_the_stated_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: one part in a thousand off the second coefficient of each polynomial."""
    function = "erf" if name in ("log2_erfc", "power") else name
    definition = getattr(functions, function)
    x = np.linspace(0.3, 2.5, 20001, dtype=np.float32)
    exact = DOUBLE[function](x.astype(np.float64))
    healthy = run(trace(function, definition, [Kind.FLOAT], ["x"]), x)[0]
    assert ulps(healthy, exact).max() <= MAXIMUM_ULP[function]
    home = circular if name in ("sin", "cos") else functions
    table = list(getattr(home, name.upper()))
    table[1] = float(np.float32(table[1] * 1.001))
    monkeypatch.setattr(home, name.upper(), tuple(table))
    sick = run(trace(function, definition, [Kind.FLOAT], ["x"]), x)[0]
    assert ulps(sick, exact).max() > 2 * MAXIMUM_ULP[function]


def test_erf_rises_to_one_and_stays_there() -> None:
    """Every float32 from 2 to 5: none below the one before it, and all 1 from where the true value rounds to 1."""
    x = np.arange(0x40000000, 0x40A00000, dtype=np.uint32).view(np.float32)
    y = elementary("erf", x)
    assert bool((np.diff(y) >= 0).all())
    first = int(np.argmax(y == 1))
    assert bool((y[first:] == 1).all()) and 3.91 < x[first] < 3.93


def test_the_measurement_sees_a_wrong_function() -> None:
    """Planted fault: exp's results held against exp2's true values are far off."""
    x = np.linspace(0.5, 2.0, 1001, dtype=np.float32)
    assert ulps(evaluate("exp", x), DOUBLE["exp2"](x.astype(np.float64))).max() > 1e5


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="name='gamma' is unknown; allowed: exp, exp2"):
        elementary("gamma", np.zeros(1, np.float32))
    with pytest.raises(ValueError, match="exp: x must be a numpy array of float32, got float64"):
        evaluate("exp", np.zeros(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="patterns must be in"):
        worst_ulp("exp", 1, 1 << 32)


def test_shapes_and_views() -> None:
    x = patterns(each=8)[:4096].reshape(64, 64)
    assert np.array_equal(elementary("log", x.T).view(np.uint32), elementary("log", x).T.view(np.uint32))
    assert evaluate("log", x[:, ::2]).shape == (64, 32)


QUICK_FORMS = [(0, "exp"), (1, "exp2"), (2, "erf")]


def quick_form_differs(number: int, first: int, count: int) -> int:
    """On how many of the patterns from `first` on the quick form, which the widest instruction set has, differs."""
    differing = ctypes.c_int64(-1)
    native.call("elementary_quick_differs", "iuqp", number, first, count, ctypes.addressof(differing), threads=2)
    return differing.value


@pytest.mark.parametrize(("number", "name"), QUICK_FORMS)
def test_the_quick_form_agrees(number: int, name: str) -> None:
    """A sixteenth of every binade's patterns, another one in each; `tests/long` has all 2^32."""
    for binade in range(512):
        assert quick_form_differs(number, (binade << 23) + (binade % 16 << 19), 1 << 19) == 0, f"{name}: {binade}"
