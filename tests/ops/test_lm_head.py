"""A language model's head on the CPU: its reference bit for bit, float32 logits, gradients, tied weights, bad input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.embedding import embedding, embedding_gradient_
from samebits.ops.lm_head import lm_head, tied_weight_gradient_
from samebits.ops.matmul import linear, matmul, matmul_accumulate_

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1, 1), (1, 300, 37), (13, 257, 33), (33, 100, 70))
RECIPES = ("normal", "wide", "cancelling", "subnormal", "infinite", "zeros_signed")


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype)


def outputs(hidden: Tensor, weight: Tensor, dlogits: Tensor, backend: str | None = None) -> list[Tensor]:
    """Logits, gradient of hidden, gradient of weight."""
    leaves = [leaf.detach().requires_grad_() for leaf in (hidden, weight)]
    logits = lm_head(*leaves, backend=backend)
    return [logits.detach(), *torch.autograd.grad(logits, leaves, dlogits)]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, recipe: str) -> None:
    """cpu == reference, bit for bit; logits are float32 whatever the storage."""
    for rows, depth, vocabulary in SHAPES:
        hidden, weight = tensor(recipe, (rows, depth), 1, dtype), tensor("normal", (vocabulary, depth), 2, dtype)
        dlogits = tensor("normal", (rows, vocabulary), 3)
        ours, reference = (outputs(hidden, weight, dlogits, backend) for backend in ("cpu", "reference"))
        assert ours[0].dtype == torch.float32 and ours[1].dtype == ours[2].dtype == dtype
        for name, left, right in zip(("logits", "hidden", "weight"), ours, reference, strict=True):
            difference = compare(left, right)
            assert difference is None, f"{(rows, depth, vocabulary)} {name}: {difference}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_is_the_product_before_it_is_rounded(dtype: torch.dtype) -> None:
    """Rounded, the logits are those of `linear`; unrounded, the accumulator; dlogits is rounded first."""
    hidden, weight = tensor("normal", (20, 96), 1, dtype), tensor("normal", (50, 96), 2, dtype)
    dlogits = tensor("normal", (20, 50), 3)
    logits, dhidden, dweight = outputs(hidden, weight, dlogits)
    assert compare(logits, matmul_accumulate_(torch.zeros(20, 50), hidden, weight.T)) is None
    assert compare(logits.to(dtype), linear(hidden, weight)) is None
    assert compare(dhidden, matmul(dlogits.to(dtype), weight)) is None
    assert compare(dweight, matmul(dlogits.to(dtype).T, hidden)) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tied_weight_has_one_chain(dtype: torch.dtype) -> None:
    """The head's rows, then the embedding's positions; resumed, and unlike the sum of two rounded gradients."""
    hidden, dembedding = tensor("normal", (18, 24), 1, dtype), tensor("normal", (18, 24), 2, dtype)
    dlogits, ids = tensor("normal", (18, 40), 3), torch.arange(18) * 7 % 11
    found = tied_weight_gradient_(torch.zeros(40, 24), hidden, dlogits, ids, dembedding)
    expected = matmul_accumulate_(torch.zeros(40, 24), dlogits.to(dtype).T, hidden)
    embedding_gradient_(expected, ids, dembedding)
    assert compare(found, expected) is None
    by_axes = tied_weight_gradient_(
        torch.zeros(40, 24), hidden.view(2, 9, 24), dlogits.view(2, 9, 40), ids.view(2, 9), dembedding.view(2, 9, 24)
    )
    assert compare(by_axes, found) is None
    weight = tensor("normal", (40, 24), 4, dtype).requires_grad_()
    (apart,) = torch.autograd.grad((lm_head(hidden, weight), embedding(ids, weight)), weight, (dlogits, dembedding))
    exact = dlogits.to(dtype).double().T @ hidden.double()
    exact.index_add_(0, ids, dembedding.double())
    assert compare(apart, found.to(dtype)) is not None
    assert float((found - exact).abs().max()) < 40 * 2.0**-24 * float(exact.abs().max())


def test_leading_axes_and_layouts_do_not_matter() -> None:
    hidden, weight = tensor("normal", (6, 40), 1), tensor("normal", (30, 40), 2)
    expected = lm_head(hidden, weight)
    assert compare(lm_head(hidden.view(2, 3, 40), weight), expected.view(2, 3, 30)) is None
    assert compare(lm_head(hidden[0], weight), expected[0]) is None
    assert compare(lm_head(hidden.T.contiguous().T, weight.T.contiguous().T), expected) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_rows(dtype: torch.dtype) -> None:
    hidden = torch.zeros(0, 8, dtype=dtype, requires_grad=True)
    weight = torch.ones(5, 8, dtype=dtype, requires_grad=True)
    logits = lm_head(hidden, weight)
    assert logits.shape == (0, 5) and logits.dtype == torch.float32
    logits.sum().backward()
    assert hidden.grad is not None and hidden.grad.shape == (0, 8)
    assert weight.grad is not None and not weight.grad.any()


def test_a_poisoned_row_stays_alone() -> None:
    hidden, weight, dlogits = tensor("normal", (4, 40), 1), tensor("normal", (30, 40), 2), torch.ones(4, 30)
    poisoned, kept = hidden.clone(), [0, 1, 3]
    poisoned[2] = torch.nan
    for left, right in zip(outputs(poisoned, weight, dlogits)[:2], outputs(hidden, weight, dlogits)[:2], strict=True):
        assert compare(left[kept], right[kept]) is None


def test_torch_accepts_the_operator() -> None:
    for dtype in DTYPES:
        hidden, weight = (torch.randn(shape).to(dtype).requires_grad_() for shape in ((6, 33), (20, 33)))
        torch.library.opcheck(torch.ops.samebits.lm_head.default, (hidden, weight, "cpu"))


def test_gradcheck() -> None:
    """The gradient formulas, in float64 on the reference path."""
    hidden, weight = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 6), (9, 6)))
    assert gradcheck(lambda h, w: lm_head(h, w, backend="reference"), (hidden, weight))


def test_compiled_equals_eager() -> None:
    leaves = [tensor("normal", shape, 1, torch.bfloat16).requires_grad_() for shape in ((20, 48), (30, 48))]
    compiled = torch.compile(lambda h, w: lm_head(h, w), fullgraph=True)
    eager_out, compiled_out, dlogits = lm_head(*leaves), compiled(*leaves), tensor("normal", (20, 30), 2)
    assert compare(compiled_out, eager_out) is None
    pairs = (torch.autograd.grad(out, leaves, dlogits) for out in (compiled_out, eager_out))
    for left, right in zip(*pairs, strict=True):
        assert compare(left, right) is None


H, W, IDS = torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0, 3])
BAD = {
    "width": (
        lambda: lm_head(H, torch.ones(4, 5)),
        "the last axis of hidden is 3, the last axis of weight is 5; they must agree",
    ),
    "weight dimensions": (lambda: lm_head(H, torch.ones(3)), r"weight has shape \(3,\); allowed: 2 dimensions"),
    "scalar": (lambda: lm_head(torch.tensor(1.0), W), r"hidden has shape \(\); allowed: at least 1 dimension"),
    "integers": (lambda: lm_head(H.int(), W.int()), "hidden has dtype int32; allowed with backend='cpu'"),
    "mixed dtypes": (lambda: lm_head(H, W.half()), "weight has dtype float16, hidden has float32; they must agree"),
    "wrong device": (
        lambda: lm_head(H, W, backend="triton"),
        "backend='triton' takes tensors on 'cuda', got one on 'cpu'",
    ),
    "dlogits": (
        lambda: tied_weight_gradient_(torch.zeros(4, 3), H, torch.ones(3, 4), IDS, H),
        r"dlogits has shape \(3, 4\) float32, hidden \(2, 3\); allowed: floating point, hidden's shape",
    ),
    "accumulator": (
        lambda: tied_weight_gradient_(torch.zeros(3, 4), H, torch.ones(2, 4), IDS, H),
        r"accumulator has shape \(3, 4\); allowed: \(4, 3\)",
    ),
    "embedding's dtype": (
        lambda: tied_weight_gradient_(torch.zeros(4, 3), H, torch.ones(2, 4), IDS, H.half()),
        "dembedding has dtype float16, hidden has float32; they must agree",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    call, text = BAD[case]
    with pytest.raises(ValueError, match=text) as caught:
        call()  # type: ignore[no-untyped-call]
    assert "\n" not in str(caught.value)
