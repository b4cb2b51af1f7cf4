"""SwiGLU on the CPU: its reference bit for bit, gradients, torch's checks and values, bad input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.swiglu import swiglu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1), (3, 7), (2, 255), (5, 257), (3, 4, 40))
RECIPES = ("normal", "wide", "cancelling", "subnormal", "infinite", "zeros_signed", "random_bits")


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype)


def outputs(gate: Tensor, up: Tensor, dy: Tensor, **options: str) -> dict[str, Tensor]:
    """Everything the spec computes: output and both gradients."""
    leaves = [leaf.detach().requires_grad_() for leaf in (gate, up)]
    y = swiglu(*leaves, **options)
    dgate, dup = torch.autograd.grad(y, leaves, dy)
    return {"y": y, "dgate": dgate, "dup": dup}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, recipe: str) -> None:
    """cpu == reference, bit for bit, forward and backward."""
    for shape in SHAPES:
        gate, up, dy = (tensor(recipe, shape, seed, dtype) for seed in (1, 2, 3))
        ours, reference = outputs(gate, up, dy), outputs(gate, up, dy, backend="reference")
        for name in reference:
            difference = compare(ours[name], reference[name])
            assert difference is None, f"{shape} {name}: {difference}"


def test_another_grouping_is_noticed() -> None:
    """Planted fault: gate * up first."""
    gate, up = tensor("normal", (64, 70), 1), tensor("normal", (64, 70), 2)
    assert compare(swiglu(gate, up), gate * up * torch.sigmoid(gate)) is not None


def test_values_are_torchs() -> None:
    """Ours: a sigmoid within 1.5 ulps and two roundings, 5 half-ulps; theirs: no more than twice that."""
    gate, up = tensor("normal", (64, 300), 1), tensor("normal", (64, 300), 2)
    torch.testing.assert_close(
        swiglu(gate, up), torch.nn.functional.silu(gate) * up, rtol=16 * 2.0**-24, atol=2.0**-140
    )


def test_infinite_gates_are_as_documented() -> None:
    gate = torch.tensor([torch.inf, -torch.inf, torch.nan, -200.0, 2.0]).requires_grad_()
    y = swiglu(gate, torch.ones(5))
    (dgate,) = torch.autograd.grad(y.sum(), gate)
    assert y[0] == torch.inf and bool(y[1:3].isnan().all()) and y[3] == 0 and bool(y[4].isfinite())
    assert bool(dgate[:3].isnan().all()) and bool(dgate[3:].isfinite().all())


def test_layouts_do_not_matter() -> None:
    both = tensor("normal", (6, 5, 80), 1)
    gate, up = both[..., :40], both[..., 40:]
    expected = swiglu(gate.contiguous(), up.contiguous())
    assert compare(swiglu(gate, up), expected) is None
    turned = swiglu(gate.transpose(0, 1), up.transpose(0, 1))
    assert compare(turned.transpose(0, 1).contiguous(), expected) is None
    assert swiglu(gate[0, 0, 0], up[0, 0, 0]).shape == ()


def test_torch_accepts_the_operators() -> None:
    gate, up = (torch.randn(6, 33, requires_grad=True) for _ in range(2))
    turned = torch.randn(33, 6, requires_grad=True).T
    for given in (gate, turned):
        torch.library.opcheck(torch.ops.samebits.swiglu.default, (given, up, "cpu"))
        torch.library.opcheck(
            torch.ops.samebits.swiglu_backward.default, (given.detach(), turned.detach(), up.detach(), "cpu")
        )


def test_gradcheck() -> None:
    """The gradient formulas, in float64 on the reference path."""
    gate, up = (torch.randn(4, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert gradcheck(lambda *given: swiglu(*given, backend="reference"), (gate, up))


def test_compiled_equals_eager() -> None:
    compiled = torch.compile(lambda gate, up: swiglu(gate, up) * 2, dynamic=True, fullgraph=True)
    for rows in (2, 5, 64):
        gate, up = (torch.randn(rows, 48, requires_grad=True) for _ in range(2))
        dy = torch.randn(rows, 48)
        eager_out, compiled_out = swiglu(gate, up) * 2, compiled(gate, up)
        assert compare(compiled_out, eager_out) is None
        eager = torch.autograd.grad(eager_out, (gate, up), dy)
        for left, right in zip(torch.autograd.grad(compiled_out, (gate, up), dy), eager, strict=True):
            assert compare(left, right) is None


def test_no_rows() -> None:
    gate, up = (torch.zeros(0, 8, requires_grad=True) for _ in range(2))
    y = swiglu(gate, up)
    y.sum().backward()
    assert y.shape == (0, 8)
    assert gate.grad is not None and gate.grad.shape == (0, 8)


def test_a_poisoned_row_stays_alone() -> None:
    gate, up, dy = (tensor("normal", (4, 300), seed) for seed in (1, 2, 3))
    poisoned = gate.clone()
    poisoned[2] = torch.nan
    clean, found = outputs(gate, up, dy), outputs(poisoned, up, dy)
    for name, value in found.items():
        assert compare(value[[0, 1, 3]], clean[name][[0, 1, 3]]) is None
        assert bool(value[2].isnan().all())


ROW = torch.ones(2, 3)
BAD = {
    "shapes": (lambda: swiglu(ROW, torch.ones(3)), r"up has shape \(3,\), gate has \(2, 3\); they must agree"),
    "mixed dtypes": (lambda: swiglu(ROW, ROW.half()), "up has dtype float16, gate has float32; they must agree"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    call, text = BAD[case]
    with pytest.raises(ValueError, match=text) as caught:
        call()  # type: ignore[no-untyped-call]
    assert "\n" not in str(caught.value)
