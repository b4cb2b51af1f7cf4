"""Sampling on the CPU: its reference token for token, top_k and top_p by hand, distribution, torch's checks, errors."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from samebits import native
from samebits.native.launch_numbers import launching
from samebits.numerics.recipes import make
from samebits.ops.sample import sample

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1), (3, 7), (12, 255), (12, 257), (6, 1031))
RECIPES = ("normal", "wide", "cancelling", "subnormal", "infinite", "zeros_signed")


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype)


def drawn(logits: Tensor, **options: Any) -> Tensor:
    """Row m is request m at position 0, seed 1, unless said otherwise."""
    rows = logits.shape[0]
    given = {"seed": 1, "requests": torch.arange(rows), "positions": torch.zeros(rows, dtype=torch.int64)}
    return sample(logits, **(given | options))


def mixed(rows: int) -> dict[str, Tensor | int]:
    """Every row another way of drawing, and counters that use all their bits."""
    number = torch.arange(rows)
    return {
        "seed": 2**63 + 5,
        "requests": number * (2**33 + 1) - 3,
        "positions": number * 7 + 2**31,
        "temperature": torch.tensor([0.0, 0.5, 1.0, 1.7])[number % 4],
        "top_k": torch.tensor([0, 1, 5, 40, 300])[number % 5],
        "top_p": torch.tensor([1.0, 0.9, 0.3])[number % 3],
    }


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, recipe: str) -> None:
    """cpu == reference, token for token, all ways of drawing in one batch."""
    for shape in SHAPES:
        logits, options = tensor(recipe, shape, 1, dtype), mixed(shape[0])
        assert torch.equal(drawn(logits, **options), drawn(logits, **options, backend="reference")), shape


def test_threads_and_instruction_sets_do_not_matter() -> None:
    logits, options = tensor("normal", (41, 700), 1), mixed(41)
    with launching(threads=1, instruction_set="baseline"):
        expected = drawn(logits, **options)
    for instruction_set, threads in itertools.product(native.instruction_sets(), (1, 2, 9)):
        with launching(threads=threads, instruction_set=instruction_set):
            assert torch.equal(drawn(logits, **options), expected), (instruction_set, threads)


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, -1.0], [-0.0, 0.0, -1.0, -torch.inf]])
    assert drawn(logits, temperature=0.0).tolist() == [1, 0]
    wide = tensor("normal", (5, 1031), 1)
    assert torch.equal(drawn(wide, temperature=0.0), wide.argmax(-1))


def test_top_k_keeps_the_largest_and_their_ties() -> None:
    logits = torch.tensor([5.0, 4.0, 4.0, 4.0, 3.0, -torch.inf]).repeat(4000, 1)
    assert set(drawn(logits, top_k=1).tolist()) == {0}
    assert set(drawn(logits, top_k=2).tolist()) == {0, 1, 2, 3}
    assert set(drawn(logits, top_k=5).tolist()) == {0, 1, 2, 3, 4}
    assert set(drawn(logits, top_k=6).tolist()) == {0, 1, 2, 3, 4}
    assert torch.equal(drawn(logits, top_k=100), drawn(logits))


def test_top_p_keeps_the_most_likely_until_it_is_reached() -> None:
    """Probabilities 0.5, 0.25, 0.125, 0.0625 and 0.0625: the sets change where their sums do, exactly."""
    logits = torch.tensor([0.5, 0.0625, 0.25, 0.125, 0.0625]).log().repeat(4000, 1)
    for top_p, kept in (
        (1e-30, {0}),
        (0.49, {0}),
        (0.51, {0, 2}),
        (0.74, {0, 2}),
        (0.76, {0, 2, 3}),
        (0.9, set(range(5))),
    ):
        assert set(drawn(logits, top_p=top_p).tolist()) == kept, top_p
    assert set(drawn(logits, top_p=0.9, top_k=2).tolist()) == {0, 2}
    assert set(drawn(logits, top_p=0.6, top_k=2).tolist()) == {0}
    assert torch.equal(drawn(logits, top_p=1.0), drawn(logits))


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_tokens_are_drawn_by_their_probability(temperature: float) -> None:
    """Chi-square of 20000 draws against softmax, under its 99.9 % point for 19 degrees of freedom."""
    logits, draws = tensor("normal", (20,), 1), 20_000
    tokens = drawn(logits.repeat(draws, 1), temperature=temperature)
    expected = torch.softmax(logits.double() / temperature, -1) * draws
    found = torch.bincount(tokens, minlength=20).double()
    assert float(((found - expected) ** 2 / expected).sum()) < 43.82
    doubled = drawn(logits.repeat(draws, 1), temperature=2 * temperature)  # planted fault: another temperature
    assert float(((torch.bincount(doubled, minlength=20) - expected) ** 2 / expected).sum()) > 43.82


def test_requests_positions_and_seeds_draw_for_themselves() -> None:
    """Each of them changes the draw; the same of each draws the same, in whatever order."""
    logits, number = torch.zeros(200, 1000), torch.arange(200)
    one = drawn(logits)
    others = {
        "seed": drawn(logits, seed=2),
        "seed's high half": drawn(logits, seed=1 + 2**32),
        "requests": drawn(logits, requests=number + 1000),
        "requests' high half": drawn(logits, requests=number + 2**32),
        "positions": drawn(logits, positions=torch.ones(200, dtype=torch.int64)),
    }
    for (left_name, left), (right_name, right) in itertools.combinations({"one": one, **others}.items(), 2):
        assert float((left == right).float().mean()) < 0.05, (left_name, right_name)
    assert len(set(one.tolist())) > 150
    order = number.flip(0)
    assert torch.equal(drawn(logits, requests=order), one[order])
    assert torch.equal(drawn(logits[:1], requests=number[7:8]), one[7:8])


def test_rows_without_a_token_stay_alone() -> None:
    """NaN, +inf, nothing above -inf: -1, at any temperature; the other rows draw as before."""
    logits = tensor("normal", (6, 300), 1)
    poisoned = logits.clone()
    poisoned[1, 7], poisoned[3], poisoned[4, 299] = torch.nan, -torch.inf, torch.inf
    kept = torch.tensor([0, 2, 5])
    for options in ({"temperature": 0.0}, {}, {"top_k": 5, "top_p": 0.5}):
        tokens = drawn(poisoned, **options)
        assert tokens[[1, 3, 4]].tolist() == [-1, -1, -1]
        assert torch.equal(tokens[kept], drawn(logits, **options)[kept])


def test_no_rows_layouts_and_int32() -> None:
    assert drawn(torch.zeros(0, 8)).shape == (0,)
    logits = tensor("normal", (9, 40), 1)
    expected = drawn(logits, top_k=5)
    assert expected.dtype == torch.int64
    assert torch.equal(drawn(logits.T.contiguous().T, top_k=torch.full((9,), 5, dtype=torch.int32)), expected)
    assert torch.equal(drawn(torch.cat([logits, logits], -1)[:, :40], top_k=5), expected)


def test_torch_accepts_the_operator() -> None:
    number = torch.arange(4)
    options = (number, number, torch.ones(4), number, torch.full((4,), 0.5))
    torch.library.opcheck(torch.ops.samebits.sample.default, (torch.randn(33, 4).T, *options, -7 - number, "cpu"))


def test_a_seed_for_each_row_draws_as_one_seed_for_all() -> None:
    """sample(seed=[a, b])[m] == sample(seed=that of row m)[m], for seeds of 64 bits as signed numbers too."""
    seeds, logits = [3, 2**63 + 5, 0, 2**64 - 1], torch.randn(4, 300)
    signed = torch.tensor([each - 2**64 if each >= 2**63 else each for each in seeds])
    alone = [int(drawn(logits, seed=each)[row]) for row, each in enumerate(seeds)]
    assert drawn(logits, seed=signed).tolist() == alone
    assert drawn(logits, seed=signed.flip(0)).tolist() != alone


def test_compiled_equals_eager() -> None:
    compiled = torch.compile(lambda logits, requests: drawn(logits, requests=requests, top_k=9), fullgraph=True)
    for rows in (2, 5):
        logits = torch.randn(rows, 48)
        with torch.no_grad():
            found = compiled(logits, torch.arange(rows))
        assert torch.equal(found, drawn(logits, top_k=9))


ROWS = torch.zeros(2, 3)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": -1}, r"sample: seed is -1; allowed: a whole number, 0 to 2\^64 - 1"),
    "temperature": ({"temperature": -1.0}, "sample: temperature is -1 in row 0; allowed: 0, or finite and at least"),
    "tiny temperature": ({"temperature": 1e-9}, "temperature is 9.99999972e-10 in row 0"),
    "one temperature": ({"temperature": torch.tensor([1.0, torch.nan])}, "temperature is nan in row 1"),
    "top_k": ({"top_k": torch.tensor([3, -2])}, "top_k is -2 in row 1; allowed: at least 0"),
    "top_p": ({"top_p": 0.0}, "top_p is 0 in row 0; allowed: above 0, at most 1"),
    "large top_p": ({"top_p": 1.5}, "top_p is 1.5 in row 0; allowed: above 0, at most 1"),
    "positions": (
        {"positions": torch.tensor([0, 2**32])},
        r"positions is 4.2949673e\+09 in row 1; allowed: 0 to 2\^32",
    ),
    "requests": ({"requests": torch.zeros(2)}, "requests has dtype float32; allowed: int64, int32"),
    "rows": ({"requests": torch.zeros(3).long()}, r"requests has shape \(3,\); allowed: \(2,\), one for each row"),
    "other device": ({"backend": "triton"}, "backend='triton' takes tensors on 'cuda', got one on 'cpu'"),
    "shape": ({"logits": torch.zeros(3)}, r"logits has shape \(3,\); allowed: 2 dimensions"),
    "no tokens": ({"logits": torch.zeros(2, 0)}, r"logits has shape \(2, 0\); allowed: a last axis of at least 1"),
    "integers": ({"logits": ROWS.int()}, "logits has dtype int32; allowed with backend='cpu'"),
    "float64": ({"logits": ROWS.double(), "backend": "reference"}, "logits has dtype float64; allowed: float32"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    options, text = BAD[case]
    with pytest.raises(ValueError, match=text) as caught:
        drawn(**({"logits": ROWS} | options))
    assert "\n" not in str(caught.value)
