"""Additions at places, running sums, choices among equals, lists of tensors, empty tensors: declared, and computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samebits.invariant import invariant_mode
from samebits.numerics.bits import same_bits
from samebits.numerics.recipes import make
from samebits.ops.softmax import softmax

FORMATS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])


def rows(dtype: torch.dtype, count: int = 40, width: int = 7) -> Tensor:
    return torch.from_numpy(make("normal", (count, width), 3)).to(dtype)


def in_order(start: Tensor, ids: Tensor, given: Tensor) -> Tensor:
    """What is said: float32, one after the other, rounded once."""
    sums = start.float().clone()
    for place, each in zip(ids.tolist(), given.float(), strict=True):
        sums[place] += each
    return sums.to(start.dtype)


@FORMATS
def test_values_are_added_at_their_places_in_order(dtype: torch.dtype) -> None:
    given, ids = rows(dtype), torch.arange(40) * 7 % 5
    start = rows(dtype, 5)
    wanted = in_order(start, ids, given)
    with invariant_mode():
        found = {
            "index_add": start.index_add(0, ids, given),
            "index_add of columns": start.T.index_add(1, ids, given.T).T,
            "index_put": start.index_put((ids,), given, accumulate=True),
            "scatter_add": start.scatter_add(0, ids[:, None].expand(40, 7), given),
        }
        x = start.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(x[ids], x, given)
    assert [name for name, each in found.items() if not same_bits(each, wanted)] == []
    assert same_bits(gradient, in_order(torch.zeros_like(start), ids, given))


def test_an_index_of_several_axes_is_added_too() -> None:
    x, first, second = torch.zeros(3, 4, 5), torch.tensor([0, 2, 0]), torch.tensor([1, 1, 1])
    given = rows(torch.float32, 3, 5)
    with invariant_mode():
        found = x.index_put((first, second), given, accumulate=True)
        middle = torch.ops.aten.index_put(x, [None, second], torch.ones(3, 3, 5), True)
    assert same_bits(found[0, 1], given[0] + given[2]) and same_bits(found[2, 1], given[1])
    assert float(middle.sum()) == 45 and float(middle[:, 1].min()) == 3


@FORMATS
def test_a_running_sum_is_one_chain(dtype: torch.dtype) -> None:
    given = rows(dtype)
    sums, wanted = torch.zeros(7), []
    for row in given.float():
        sums = sums + row
        wanted.append(sums)
    with invariant_mode():
        assert same_bits(given.cumsum(0), torch.stack(wanted).to(dtype))
        assert same_bits(given.cumsum(0)[:11], given[:11].cumsum(0))


def test_of_equal_values_the_lower_index_comes_first() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        x = torch.tensor([1, 3, 3, 2, 3, 1] * 50, dtype=dtype)
        with invariant_mode():
            assert x.topk(4).indices.tolist() == [1, 2, 4, 7] and x.topk(2, largest=False).indices.tolist() == [0, 5]
            assert x.sort(descending=True).indices[:4].tolist() == [1, 2, 4, 7] and x.argsort()[1] == 5
            assert x.kthvalue(2).indices == 5 and x.argmax() == 1 and x.max(0).indices == 1
    with invariant_mode():
        assert torch.tensor([1.0, torch.nan, 2.0]).topk(2).indices.tolist() == [1, 2]


def test_topk_has_a_gradient() -> None:
    x = rows(torch.float32).requires_grad_()
    with invariant_mode():
        x.topk(3).values.sum().backward()
    assert float(x.grad.sum()) == 120 and float(x.grad.max()) == 1


def test_empty_tensors_are_no_error() -> None:
    linear, norm = nn.Linear(4, 3), nn.LayerNorm(4)
    with invariant_mode():
        assert torch.zeros(0).sum() == 0 and torch.zeros(0).mean().isnan() and torch.zeros(()).sum(0) == 0
        assert torch.zeros(3, 0).sum(1).tolist() == [0, 0, 0] and torch.zeros(0, 3).sum(0).tolist() == [0, 0, 0]
        assert torch.linalg.vector_norm(torch.zeros(0)) == 0 and torch.zeros(0, 5).softmax(-1).shape == (0, 5)
        for layer in (linear, norm):
            layer(torch.zeros(0, 4)).sum().backward()
            assert not layer.weight.grad.any() and not layer.bias.grad.any()


OPTIMIZERS: dict[type[torch.optim.Optimizer], dict[str, Any]] = {
    torch.optim.AdamW: {},
    torch.optim.Adam: {"amsgrad": True},
    torch.optim.SGD: {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    torch.optim.Adamax: {},
    torch.optim.RMSprop: {"centered": True},
    torch.optim.Adafactor: {},
    torch.optim.Rprop: {},
}


@pytest.mark.parametrize("foreach", [None, True, False])
def test_clipping_and_optimizers_work_in_every_form(foreach: bool | None) -> None:
    def step(form: bool | None) -> list[Tensor]:
        weights = [nn.Parameter(rows(torch.float32, count)) for count in (5, 9, 40)]
        with invariant_mode() as mode:
            for kind, options in OPTIMIZERS.items():
                for weight in weights:  # again: on lists some write into the gradients
                    weight.grad = torch.cos(weight.detach() * 3)
                norm = nn.utils.clip_grad_norm_(weights, 1.0, foreach=form)
                kind(weights, foreach=form, **options).step()
        assert not mode.unverified
        return [norm, *(weight.detach() for weight in weights)]

    assert all(same_bits(a, b) for a, b in zip(step(foreach), step(False), strict=True))


@FORMATS
def test_a_masked_row_of_softmax_is_the_same_wherever_it_begins(dtype: torch.dtype) -> None:
    """Eager attention with padding on the left: masked keys before a row move no weight to another lane."""
    x, given = rows(dtype, 9, 300), rows(dtype, 9, 300)
    with invariant_mode():
        alone = x.clone().requires_grad_()
        y = alone.softmax(-1)
        y.backward(given)
        for before, after in ((7, 0), (300, 5), (1, 9)):
            parts = [
                torch.full((9, before), -torch.inf, dtype=dtype),
                x,
                torch.full((9, after), torch.finfo(dtype).min),
            ]
            padded = torch.cat([each.to(dtype) for each in parts], 1).requires_grad_()
            z = padded.softmax(-1)
            ones = [torch.ones(9, before, dtype=dtype), given, torch.ones(9, after, dtype=dtype)]
            z.backward(torch.cat(ones, 1))
            place = slice(before, before + 300)
            assert same_bits(z[:, place].detach(), y.detach()) and same_bits(padded.grad[:, place], alone.grad)


@FORMATS
def test_a_sink_behind_padding_is_summed_where_it_is_alone(dtype: torch.dtype) -> None:
    """A weight at the end of each row, as an attention sink, with masked keys in front of it."""
    x, given = rows(dtype, 9, 300), rows(dtype, 9, 300)
    hidden = torch.full((9, 41), torch.finfo(dtype).min, dtype=dtype)
    padded_x = torch.cat([x[:, :-1], hidden, x[:, -1:]], 1)
    keys = [*range(299), 340]
    with invariant_mode():
        alone, padded = x.clone().requires_grad_(), padded_x.clone().requires_grad_()
        y, z = alone.softmax(-1), padded.softmax(-1)
        y.backward(given)
        z.backward(torch.cat([given[:, :-1], torch.ones_like(hidden), given[:, -1:]], 1))
    assert same_bits(z.detach()[:, keys], y.detach()) and same_bits(padded.grad[:, keys], alone.grad)
    assert not z.detach()[:, 299:340].any() and not padded.grad[:, 299:340].any()
    # By places, as the operator itself counts, the sums are others.
    assert not same_bits(softmax(padded_x, dtype=torch.float32)[:, keys], softmax(x, dtype=torch.float32))


def test_powers_of_a_number_are_right_and_the_same_wherever_they_lie() -> None:
    """As rotary frequencies are written: 10000 ** (place / size)."""
    y = torch.cat([torch.linspace(-33, 31, 999), torch.randn(500, generator=torch.Generator().manual_seed(1))])
    for base in (2, 0.5, 10000.0, 1e-6):
        with invariant_mode():
            found = base**y
            assert all(same_bits(base ** y[i : i + 3].clone(), found[i : i + 3]) for i in range(0, 200, 7))
        exact = torch.tensor(base, dtype=torch.float64) ** y.double()
        normal = (exact > 2.0**-126) & (exact < 2.0**127)
        # The rounding of f, of 2^f and of the product.
        assert float(((found - exact) / exact)[normal].abs().max()) < 2 * 2.0**-24


def test_softplus_and_its_gradient() -> None:
    x = torch.cat([torch.linspace(-80, 40, 777), torch.zeros(3)])
    with invariant_mode():
        leaf = x.clone().requires_grad_()
        y = torch.nn.functional.softplus(leaf, beta=1.5, threshold=15)
        (gradient,) = torch.autograd.grad(y.sum(), leaf)
        assert all(
            same_bits(torch.nn.functional.softplus(x[i : i + 1], 1.5, 15), y[i : i + 1]) for i in range(0, 780, 13)
        )
    wide = x.double().requires_grad_()
    exact = torch.nn.functional.softplus(wide, beta=1.5, threshold=15)
    (slope,) = torch.autograd.grad(exact.sum(), wide)
    # x times beta, at most 120, is rounded before its exponential is taken.
    torch.testing.assert_close(y.double(), exact, rtol=128 * 2.0**-24, atol=1e-37)
    torch.testing.assert_close(gradient.double(), slope, rtol=128 * 2.0**-24, atol=1e-37)


def test_quotients_of_whole_numbers_may_be_rounded() -> None:
    with invariant_mode() as mode:
        assert torch.div(torch.arange(9), 2, rounding_mode="floor").tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4]
        assert int(torch.div(7, 2, rounding_mode="trunc")) == 3
    assert not mode.unverified
