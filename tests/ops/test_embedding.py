"""The embedding on the CPU: its reference bit for bit, the resumed gradient, padding, torch's checks, bad input."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.embedding import embedding, embedding_gradient_

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Positions, vocabulary, width.
SHAPES = ((1, 1, 1), (40, 3, 7), (5, 100, 33), (97, 11, 130), (64, 64, 576))
RECIPES = ("normal", "wide", "cancelling", "subnormal", "infinite", "zeros_signed")


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype)


def some_ids(count: int, vocabulary: int) -> Tensor:
    return torch.arange(count) ** 2 * 7 % vocabulary


def outputs(ids: Tensor, weight: Tensor, dy: Tensor, **options: object) -> dict[str, Tensor]:
    leaf = weight.detach().requires_grad_()
    y = embedding(ids, leaf, **options)  # type: ignore[arg-type]
    return {"y": y.detach(), "dweight": torch.autograd.grad(y, leaf, dy)[0]}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, recipe: str) -> None:
    """cpu == reference, bit for bit, forward and backward, with and without padding."""
    for (positions, vocabulary, width), padding in itertools.product(SHAPES, (None, 0, -1)):
        ids, weight = some_ids(positions, vocabulary), tensor(recipe, (vocabulary, width), 1, dtype)
        dy = tensor(recipe, (positions, width), 2, dtype)
        ours = outputs(ids, weight, dy, padding_idx=padding)
        reference = outputs(ids, weight, dy, padding_idx=padding, backend="reference")
        for name in reference:
            difference = compare(ours[name], reference[name])
            assert difference is None, f"{(positions, vocabulary, width)} {padding} {name}: {difference}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_result_is_torchs(dtype: torch.dtype) -> None:
    """A copy is a copy; and with every id once, so is the gradient."""
    ids, weight = some_ids(30, 50).reshape(5, 6), tensor("normal", (50, 33), 1, dtype)
    assert compare(embedding(ids, weight), torch.nn.functional.embedding(ids, weight)) is None
    assert compare(embedding(ids.int(), weight), embedding(ids, weight)) is None
    once, dy = torch.arange(50).flip(0), tensor("normal", (50, 33), 2, dtype)
    assert compare(outputs(once, weight, dy)["dweight"], dy.flip(0)) is None


def test_a_changed_order_is_noticed() -> None:
    """Planted fault: positions in descending order."""
    ids, weight, dy = torch.zeros(64, dtype=torch.int64), torch.ones(1, 40), tensor("normal", (64, 40), 1)
    assert compare(outputs(ids, weight, dy.flip(0))["dweight"], outputs(ids, weight, dy)["dweight"]) is not None


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_resumes(dtype: torch.dtype) -> None:
    """One pass == any cut of the positions; rounded, it is autograd's."""
    ids, dy = some_ids(97, 5), tensor("cancelling", (97, 30), 1, dtype)
    whole = embedding_gradient_(torch.zeros(5, 30), ids, dy, 2)
    for cuts in ([16], [1, 2, 3, 50], [96], list(range(1, 97))):
        pieces = torch.zeros(5, 30)
        for rows in torch.arange(97).tensor_split(cuts):
            embedding_gradient_(pieces, ids[rows], dy[rows], 2)
        assert compare(pieces, whole) is None, cuts
    assert compare(outputs(ids, torch.ones(5, 30, dtype=dtype), dy, padding_idx=2)["dweight"], whole.to(dtype)) is None
    reference = embedding_gradient_(torch.zeros(5, 30), ids, dy, 2, backend="reference")
    assert compare(reference, whole) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding_gets_no_gradient(dtype: torch.dtype) -> None:
    """Whatever flows into it, NaN too; from the end, where the number is negative."""
    ids, weight = torch.tensor([0, 3, 1, 3]), torch.ones(4, 8, dtype=dtype)
    dy = torch.ones(4, 8, dtype=dtype)
    dy[1] = torch.nan
    expected = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=dtype)[:, None].expand(4, 8)
    for padding in (3, -1):
        assert compare(outputs(ids, weight, dy, padding_idx=padding)["dweight"], expected.contiguous()) is None


def test_torch_accepts_the_operators() -> None:
    ids, weight = torch.tensor([2, 0, 2, 1]), torch.randn(33, 6)
    torch.library.opcheck(
        torch.ops.samebits.embedding.default, (ids, torch.randn(6, 3, requires_grad=True).T, 1, "cpu")
    )
    dy = torch.randn(6, 4).T
    torch.library.opcheck(torch.ops.samebits.embedding_dweight.default, (dy, ids, 33, -1, "cpu"))
    torch.library.opcheck(torch.ops.samebits.embedding_dweight_.default, (torch.zeros(33, 6), dy, ids, -1, "cpu"))
    assert gradcheck(lambda w: embedding(ids, w, backend="reference"), (weight.double().requires_grad_(),))


def test_compiled_equals_eager() -> None:
    weight = torch.randn(50, 24, requires_grad=True)
    compiled = torch.compile(lambda ids: embedding(ids, weight), fullgraph=True, dynamic=True)
    for rows in (2, 5, 64):
        ids, dy = some_ids(2 * rows, 50).reshape(rows, 2), torch.randn(rows, 2, 24)
        eager_out, compiled_out = embedding(ids, weight), compiled(ids)
        assert compare(compiled_out, eager_out) is None
        (eager,), (found,) = torch.autograd.grad(eager_out, weight, dy), torch.autograd.grad(compiled_out, weight, dy)
        assert compare(found, eager) is None


def test_no_positions() -> None:
    weight = torch.ones(4, 8, requires_grad=True)
    y = embedding(torch.zeros(0, 3, dtype=torch.int64), weight)
    y.sum().backward()
    assert y.shape == (0, 3, 8) and weight.grad is not None and compare(weight.grad, torch.zeros(4, 8)) is None


def test_a_poisoned_row_stays_alone() -> None:
    weight, ids = tensor("normal", (4, 30), 1), torch.tensor([0, 2, 1, 3])
    poisoned = weight.clone()
    poisoned[2] = torch.nan
    kept = [0, 2, 3]
    assert compare(embedding(ids, poisoned)[kept], embedding(ids, weight)[kept]) is None
    dy = tensor("normal", (4, 30), 2)
    poisoned_dy = dy.clone()
    poisoned_dy[1] = torch.nan
    clean, found = (outputs(ids, weight, each)["dweight"] for each in (dy, poisoned_dy))
    assert compare(found[[0, 1, 3]], clean[[0, 1, 3]]) is None and bool(found[2].isnan().all())


IDS = torch.tensor([0, 1])
TABLE = torch.ones(4, 3)
BAD = {
    "id too large": (
        lambda: embedding(torch.tensor([[0, 1], [4, 9]]), TABLE),
        "embedding: id 4 at position 2, the vocabulary is 4; allowed: 0 to 3",
    ),
    "negative id": (lambda: embedding(torch.tensor([1, -1]), TABLE), "id -1 at position 1, the vocabulary is 4"),
    "float ids": (lambda: embedding(IDS.float(), TABLE), "ids has dtype float32; allowed: int64, int32"),
    "table": (lambda: embedding(IDS, torch.ones(3)), r"weight has shape \(3,\); allowed: 2 dimensions"),
    "empty table": (
        lambda: embedding(IDS, torch.ones(4, 0)),
        r"weight has shape \(4, 0\); allowed: axes of at least 1",
    ),
    "integers": (lambda: embedding(IDS, TABLE.int()), "weight has dtype int32; allowed with backend='cpu'"),
    "padding": (lambda: embedding(IDS, TABLE, 4), "padding_idx is 4; allowed: a whole number, -4 to 3, or None"),
    "other device": (
        lambda: embedding(IDS, TABLE, backend="triton"),
        "backend='triton' takes tensors on 'cuda', got one on 'cpu'",
    ),
    "gradient's id": (
        lambda: embedding_gradient_(torch.zeros(4, 3), torch.tensor([0, 7]), torch.ones(2, 3)),
        "embedding_gradient_: id 7 at position 1, the vocabulary is 4; allowed: 0 to 3",
    ),
    "gradient's shape": (
        lambda: embedding_gradient_(torch.zeros(4, 3), IDS, torch.ones(3, 3)),
        r"dy has shape \(3, 3\), ids \(2,\), accumulator \(4, 3\); allowed: dy like ids",
    ),
    "accumulator": (
        lambda: embedding_gradient_(TABLE.half(), IDS, torch.ones(2, 3)),
        "accumulator has dtype float16; allowed: float32",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    call, text = BAD[case]
    with pytest.raises(ValueError, match=text) as caught:
        call()  # type: ignore[no-untyped-call]
    assert "\n" not in str(caught.value)
