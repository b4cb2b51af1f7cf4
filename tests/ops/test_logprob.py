"""Log-probabilities on the CPU: their reference bit for bit, chunks, gradients, ignored rows, torch, bad input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.functional import pad

from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.lm_head import lm_head
from samebits.ops.logprob import gradients, logprob_of_logits, selected_logprob, selected_logprob_weight_gradient_

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1, 1), (3, 7, 255), (5, 33, 256), (6, 64, 257), (17, 40, 700))
RECIPES = ("normal", "wide", "cancelling", "subnormal", "infinite", "zeros_signed")


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype)


def inputs(
    rows: int, depth: int, vocabulary: int, dtype: torch.dtype = torch.float32, recipe: str = "normal"
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """hidden, weight, ids (every fourth ignored) and what flows back."""
    ids = torch.arange(rows) * 7919 % vocabulary
    ids[3::4] = -100
    hidden, weight = tensor(recipe, (rows, depth), 1, dtype), tensor("normal", (vocabulary, depth), 2, dtype) * 0.125
    return hidden, weight, ids, tensor("normal", (rows,), 3)


def outputs(hidden: Tensor, weight: Tensor, ids: Tensor, dy: Tensor, backend: str | None = None) -> dict[str, Tensor]:
    """Everything the spec computes."""
    leaves = [leaf.detach().requires_grad_() for leaf in (hidden, weight)]
    logprob = selected_logprob(*leaves, ids, backend=backend)
    dhidden, dweight = torch.autograd.grad(logprob, leaves, dy)
    return {"logprob": logprob.detach(), "dhidden": dhidden, "dweight": dweight}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, recipe: str) -> None:
    """cpu == reference, bit for bit, forward and backward; logprobs are float32 whatever the storage."""
    for shape in SHAPES:
        given = inputs(*shape, dtype, recipe)
        ours, reference = outputs(*given), outputs(*given, backend="reference")
        assert ours["logprob"].dtype == reference["logprob"].dtype == torch.float32
        assert ours["dhidden"].dtype == ours["dweight"].dtype == dtype
        for name in reference:
            difference = compare(ours[name], reference[name])
            assert difference is None, f"{shape} {name}: {difference}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_size_of_a_chunk_does_not_matter(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """One chunk of the vocabulary == chunks of 256, 512 and 1024 columns."""
    given = inputs(20, 48, 1500, dtype)
    expected = outputs(*given)
    for columns in (1, 512, 1024):
        monkeypatch.setattr(gradients, "SCRATCH_BYTES", columns * 20 * dtype.itemsize)
        for name, value in outputs(*given).items():
            assert compare(value, expected[name]) is None, (columns, name)


def test_a_changed_order_is_noticed() -> None:
    """Planted fault: the vocabulary turned by one column, so that other columns share a fold."""
    hidden, weight, _, _ = inputs(64, 40, 700)
    ids = torch.arange(64)
    turned = selected_logprob(hidden, weight.roll(1, 0), ids + 1)
    assert compare(turned, selected_logprob(hidden, weight, ids)) is not None


def test_close_to_torch() -> None:
    """Against log_softmax in float64: logits of a few units, 24 bits."""
    hidden, weight, _, _ = inputs(50, 64, 3000)
    ids = torch.arange(50) * 59
    exact = (hidden.double() @ weight.double().T).log_softmax(-1).gather(1, ids[:, None])[:, 0]
    assert float((selected_logprob(hidden, weight, ids) - exact).abs().max()) < 64 * 2.0**-24 * float(exact.abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_weight_gradient_resumes(dtype: torch.dtype) -> None:
    """dweight in one pass == dweight over any cut of the rows; rounded, it is autograd's."""
    hidden, weight, ids, dy = inputs(37, 24, 300, dtype)
    whole = selected_logprob_weight_gradient_(torch.zeros(300, 24), dy, hidden, weight, ids)
    for cuts in ([16], [1, 2, 3, 20], list(range(1, 37))):
        pieces = torch.zeros(300, 24)
        for rows in torch.arange(37).tensor_split(cuts):
            selected_logprob_weight_gradient_(pieces, dy[rows], hidden[rows], weight, ids[rows])
        assert compare(pieces, whole) is None, cuts
    found = outputs(hidden, weight, ids, dy)
    assert compare(found["dweight"], whole.to(dtype)) is None
    operators, resumed = torch.ops.samebits, torch.zeros(300, 24)
    _, lse = operators.selected_logprob(hidden, weight, ids, -100, "cpu")
    dhidden = operators.selected_logprob_gradients_(resumed, dy, hidden, weight, ids, lse, -100, True, "cpu")
    assert compare(resumed, whole) is None and compare(dhidden, found["dhidden"]) is None


def test_ignored_rows_leave_nothing() -> None:
    """+0, no gradient, and whatever is in them reaches no sum."""
    hidden, weight, ids, dy = inputs(12, 24, 300)
    expected = outputs(hidden, weight, ids, dy)
    poisoned = hidden.clone()
    poisoned[3::4] = torch.nan
    for name, value in outputs(poisoned, weight, ids, dy).items():
        assert compare(value, expected[name]) is None, name
    assert compare(expected["logprob"][3::4], torch.zeros(3)) is None
    assert compare(expected["dhidden"][3::4], torch.zeros(3, 24)) is None
    zeroth = selected_logprob(hidden, weight, ids.masked_fill(ids == -100, 0), ignore_index=0)
    assert compare(zeroth[1:], expected["logprob"][1:]) is None


def test_infinite_logits() -> None:
    """-inf among others has probability 0, in a block of its own too; +inf, or nothing but -inf, gives NaN."""
    weight = torch.zeros(600, 2)
    weight[:, 0], weight[5, 1] = -1.0, 1.0
    few, most = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    weight[256:, 1] = -torch.inf
    assert bool(selected_logprob(most, weight, torch.tensor([5])).isfinite())
    assert selected_logprob(most, weight, torch.tensor([300])).item() == -torch.inf
    assert bool(selected_logprob(torch.tensor([[1.0, -1.0]]), weight, torch.tensor([5])).isnan())
    assert bool(selected_logprob(most, weight[256:], torch.tensor([5])).isnan())
    assert bool(selected_logprob(few, weight, torch.tensor([5])).isnan())


def test_a_poisoned_row_stays_alone() -> None:
    hidden, weight, ids, dy = inputs(5, 24, 300)
    poisoned, kept = hidden.clone(), [0, 1, 4]
    poisoned[2] = torch.nan
    found, expected = outputs(poisoned, weight, ids, dy), outputs(hidden, weight, ids, dy)
    for name in ("logprob", "dhidden"):
        assert compare(found[name][kept], expected[name][kept]) is None
        assert bool(found[name][2].isnan().all())


def test_layouts_and_leading_axes_do_not_matter() -> None:
    hidden, weight, ids, _ = inputs(6, 40, 300)
    expected = selected_logprob(hidden, weight, ids)
    assert compare(selected_logprob(hidden.T.contiguous().T, weight.T.contiguous().T, ids.int()), expected) is None
    assert compare(selected_logprob(hidden.view(2, 3, 40), weight, ids.view(2, 3)), expected.view(2, 3)) is None
    assert compare(selected_logprob(hidden[0], weight, ids[0]), expected[0]) is None


def test_no_rows() -> None:
    hidden, weight = torch.zeros(0, 8, requires_grad=True), torch.ones(5, 8, requires_grad=True)
    logprob = selected_logprob(hidden, weight, torch.zeros(0, dtype=torch.long))
    assert logprob.shape == (0,) and logprob.dtype == torch.float32
    logprob.sum().backward()
    assert hidden.grad is not None and hidden.grad.shape == (0, 8)
    assert weight.grad is not None and compare(weight.grad, torch.zeros(5, 8)) is None


def test_torch_accepts_the_operators() -> None:
    hidden, weight, ids, dy = inputs(6, 33, 300)
    operators = torch.ops.samebits
    for given in (hidden, torch.randn(33, 6).T):
        leaves = [leaf.detach().requires_grad_() for leaf in (given, weight)]
        torch.library.opcheck(operators.selected_logprob.default, (*leaves, ids, -100, "cpu"))
    lse = (hidden @ weight.T).logsumexp(-1)
    for both in ((True, True), (True, False), (False, True)):
        torch.library.opcheck(
            operators.selected_logprob_gradients.default, (dy, hidden, weight, ids, lse, -100, *both, "cpu")
        )
    for wanted in (True, False):
        given = (torch.zeros(300, 33), dy, hidden, weight, ids, lse, -100, wanted, "cpu")
        torch.library.opcheck(operators.selected_logprob_gradients_.default, given)


def test_gradcheck() -> None:
    """The gradient formulas, in float64 on the reference path."""
    hidden, weight = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 6), (9, 6)))
    ids = torch.tensor([0, 8, -100, 3])
    assert gradcheck(lambda h, w: selected_logprob(h, w, ids, backend="reference"), (hidden, weight))


def test_compiled_equals_eager() -> None:
    _, weight, _, _ = inputs(1, 48, 300)
    weight.requires_grad_()
    compiled = torch.compile(lambda h, ids: selected_logprob(h, weight, ids), fullgraph=True, dynamic=True)
    for rows in (2, 5, 64):
        hidden, _, ids, dy = inputs(rows, 48, 300)
        hidden.requires_grad_()
        eager_out, compiled_out = selected_logprob(hidden, weight, ids), compiled(hidden, ids)
        assert compare(compiled_out, eager_out) is None
        eager = torch.autograd.grad(eager_out, (hidden, weight), dy)
        for left, right in zip(torch.autograd.grad(compiled_out, (hidden, weight), dy), eager, strict=True):
            assert compare(left, right) is None


H, W, IDS = torch.ones(2, 3), torch.ones(4, 3), torch.tensor([0, 3])
BAD = {
    "token too large": (
        lambda: selected_logprob(H, W, torch.tensor([1, 4])),
        "token 4 in row 1 is outside the vocabulary of 4; allowed: 0 to 3, or ignore_index=-100",
    ),
    "negative token": (lambda: selected_logprob(H, W, torch.tensor([-1, 9])), "token -1 in row 0 is outside"),
    "width": (
        lambda: selected_logprob(H, torch.ones(4, 5), IDS),
        "the last axis of hidden is 3, the last axis of weight is 5; they must agree",
    ),
    "weight dimensions": (lambda: selected_logprob(H, torch.ones(3), IDS), r"weight has shape \(3,\); allowed: 2"),
    "no vocabulary": (
        lambda: selected_logprob(H, torch.ones(0, 3), IDS),
        r"weight \(0, 3\); allowed: at least 1 token and a last axis of at least 1",
    ),
    "scalar": (lambda: selected_logprob(torch.tensor(1.0), W, IDS), r"hidden has shape \(\)"),
    "integers": (lambda: selected_logprob(H.int(), W.int(), IDS), "hidden has dtype int32; allowed with backend='cpu'"),
    "mixed dtypes": (lambda: selected_logprob(H, W.half(), IDS), "weight has dtype float16, hidden has float32"),
    "ids as floats": (lambda: selected_logprob(H, W, IDS.float()), "ids has dtype float32; allowed: int64, int32"),
    "ids shape": (
        lambda: selected_logprob(H, W, IDS[:1]),
        r"ids has shape \(1,\), hidden \(2, 3\); allowed: hidden's without the last axis",
    ),
    "wrong device": (
        lambda: selected_logprob(H, W, IDS, backend="triton"),
        "backend='triton' takes tensors on 'cuda', got one on 'cpu'",
    ),
    "dlogprob": (
        lambda: selected_logprob_weight_gradient_(torch.zeros(4, 3), torch.ones(2).half(), H, W, IDS),
        "allowed: float32 in the shape of ids",
    ),
    "accumulator": (
        lambda: selected_logprob_weight_gradient_(torch.zeros(3, 4), torch.ones(2), H, W, IDS),
        r"accumulator has shape \(3, 4\); allowed: \(4, 3\)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    call, text = BAD[case]
    with pytest.raises(ValueError, match=text) as caught:
        call()  # type: ignore[no-untyped-call]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_give_the_logprobs_of_hidden_states(shape: tuple[int, int, int], recipe: str) -> None:
    """logprob_of_logits(lm_head(h, w), ids) == selected_logprob(h, w, ids), by both backends of a CPU."""
    rows, depth, vocabulary = shape
    hidden, weight, ids, _ = inputs(rows, depth, vocabulary, recipe=recipe)
    logits, wanted = lm_head(hidden, weight), selected_logprob(hidden, weight, ids)
    for backend in ("cpu", "reference"):
        assert not compare(logprob_of_logits(logits, ids, backend=backend), wanted)


def test_one_logit_more_is_noticed() -> None:
    """Planted: a column of -inf beside a block changes nothing, one of a number does."""
    hidden, weight, ids, _ = inputs(5, 33, 256)
    logits = lm_head(hidden, weight)
    wanted = logprob_of_logits(logits, ids)
    assert not compare(logprob_of_logits(pad(logits, (0, 1), value=-torch.inf), ids), wanted)
    assert compare(logprob_of_logits(pad(logits, (0, 1), value=0.0), ids), wanted)


def test_logits_of_another_kind_are_refused() -> None:
    logits, ids = torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64)
    for wrong in (
        (logits.bfloat16(), ids),
        (logits[0], ids),
        (logits, ids[:2]),
        (logits, ids.float()),
        (logits, ids + 5),
    ):
        with pytest.raises(ValueError, match=r"logprob_of_logits: .*allowed:"):
            logprob_of_logits(*wrong)
