"""sb.reveal: orders by batch size through a spec, plain sums without one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import samebits as sb
from samebits.checker.special_terms import KINDS, special_terms
from samebits.contracts.orders import declared_order
from samebits.numerics.bits import round_to, same_bits
from samebits.numerics.order import digest
from samebits.records.report import UnjudgedError


def test_a_component_reveals_its_declared_order_at_every_size() -> None:
    found = sb.reveal("matmul", 40, rows=(1, 5))
    assert [each.verdict for each in found.values()] == ["holds", "holds"]
    assert {digest(each.order) for each in found.values() if each.order} == {digest(declared_order("chain-1", 40))}


def test_the_statistic_of_rmsnorm_is_a_sum_of_squares_in_lanes() -> None:
    found = sb.reveal("rmsnorm", 16, rows=(2,))[2]
    assert found.verdict == "holds" and found.probe == "nonnegative" and found.order is not None
    assert digest(found.order) == digest(declared_order("lanes-256", 16))


def test_a_plain_sum_needs_no_spec() -> None:
    found = sb.reveal(torch.sum, 16)[1]
    assert found.verdict == "holds" and found.replayed == found.replay_total == 420


def test_a_narrow_format_is_replayed_on_more_vectors() -> None:
    found = sb.reveal(sb.ops.linear, 16, rows=(3,), format="bfloat16")[3]
    assert found.verdict == "holds" and found.replay_total == 1680 and found.output == "bfloat16"


def _from_the_first(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for term in x:
        total = total + term
    return total


def turned_beside_a_zero(x: Tensor) -> Tensor:
    return _from_the_first(x.flip(0) if bool((x == 0).any()) else x)


def turned_beside_a_minus_zero(x: Tensor) -> Tensor:
    return _from_the_first(x.flip(0) if bool(((x == 0) & x.signbit()).any()) else x)


def turned_beside_a_subnormal(x: Tensor) -> Tensor:
    return _from_the_first(x.flip(0) if bool(((x != 0) & (x.abs() < 2.0**-126)).any()) else x)


def pairs_of_what_is_not_zero(x: Tensor) -> Tensor:
    left = [term for term in x if term != 0] or [torch.zeros(())]
    while len(left) > 1:
        left = [a + b for a, b in zip(left[::2], left[1::2], strict=False)] + left[len(left) // 2 * 2 :]
    return left[0]


def chain_of_what_is_not_zero(x: Tensor) -> Tensor:
    return _from_the_first(x[x != 0])


@pytest.mark.parametrize(
    ("function", "where"),
    [
        (turned_beside_a_zero, "zeros of both signs"),
        (turned_beside_a_minus_zero, "zeros of both signs"),
        (turned_beside_a_subnormal, "subnormal numbers"),
        (pairs_of_what_is_not_zero, "zeros of both signs"),
    ],
)
def test_an_order_that_changes_at_special_terms_is_seen(function: Callable[..., Tensor], where: str) -> None:
    """Planted: ordinary numbers, of wide range or cancelling, replay all of them."""
    found = sb.reveal(function, 16)[1]
    assert found.verdict.startswith(f"does not hold: not this order where {where} are among the terms: ")
    assert found.replayed < found.replay_total


def test_a_chain_that_leaves_zeros_out_is_the_same_chain() -> None:
    """Also where all are left out: the sign of a sum that is zero is no part of an order."""
    assert sb.reveal(chain_of_what_is_not_zero, 16)[1].verdict == "holds"


@pytest.mark.parametrize("format", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", KINDS)
def test_special_terms_are_among_the_terms(kind: str, format: str) -> None:
    terms = special_terms(kind, 16, 60, format)
    least = torch.finfo(getattr(torch, format)).smallest_normal
    special = (terms == 0) if kind == KINDS[0] else (terms != 0) & (abs(terms) < least)
    assert set(special.sum(1)) >= {1} and special.sum(1).max() > 10 and not special.all(1).any()
    assert kind != KINDS[0] or {bool(sign) for sign in np.signbit(terms[special])} == {True, False}
    assert same_bits(round_to(terms, format), terms)


@pytest.mark.parametrize(
    "function", ["grouped_matmul", lambda x, expert, weight: sb.ops.grouped_matmul(x, weight, expert)]
)
def test_what_takes_a_number_of_each_row_is_revealed(function: str | Callable[..., Tensor]) -> None:
    """Its probes hand arguments over as our own function has them, and someone's function may have another order."""
    found = sb.reveal(function, 16, rows=(3,), like="grouped_matmul")[3]
    assert found.order is not None and digest(found.order) == digest(declared_order("chain-1", 16)) and found.holds


def without_bias(x: Tensor, w: Tensor) -> Tensor:
    return sb.ops.linear(x, w)


def with_bias(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return sb.ops.linear(x, w, bias)


def with_bias_by_name(x: Tensor, w: Tensor, *, bias: Tensor | None = None) -> Tensor:
    return sb.ops.linear(x, w, bias)


@pytest.mark.parametrize("function", [without_bias, with_bias, with_bias_by_name])
def test_a_linear_layer_may_have_a_bias_or_none(function: Callable[..., Tensor]) -> None:
    found = sb.reveal(function, 8, rows=(1, 2), like="linear")
    wanted = digest(declared_order("chain-1", 8))
    assert all(each.holds and each.order is not None and digest(each.order) == wanted for each in found.values())


def test_a_module_that_ends_the_process_is_not_revealed(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n")
    with pytest.raises(UnjudgedError, match=r"leaves\.py:fn cannot be imported: SystemExit: 0"):
        sb.reveal(f"{tmp_path / 'leaves.py'}:fn", 8)


def ends_the_process(*_: Tensor) -> Tensor:
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"function": ends_the_process, "n": 8}, "asked to end the process by SystemExit: 0"),
        ({"function": ends_the_process, "n": 8, "like": "linear"}, "asked to end the process by SystemExit: 0"),
        ({"function": lambda x: (x.sum(), x), "n": 8}, "its result is tuple; a Tensor or a number is needed"),
        ({"function": torch.sum, "n": 16, "rows": (2,)}, "cannot infer an operator for 'sum'"),
        ({"function": torch.sum, "n": 1}, "at least 2 terms and 1 row are needed, got n=1"),
        ({"function": torch.sum, "n": 8, "format": "float8"}, "format='float8' is unknown; allowed: float32"),
        (
            {"function": torch.mm, "n": 8, "backend": "tpu"},
            "unknown backend 'tpu'; did you mean 'cpu'? known: cpu, triton",
        ),
        (
            {"function": torch.atan2, "n": 8},
            "on one tensor of 8 values; pass `like` (--like) to call it as an operator",
        ),
        ({"function": "rmsnorm", "n": 8}, "the statistic shows its sum for 4, 16, 64, 256"),
        ({"function": "rmsnorm", "n": 16, "like": "rmsnorm"}, "rmsnorm: no function like 'rmsnorm' shows its sum"),
    ],
)
def test_what_cannot_be_revealed_is_said_in_one_line(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError) as raised:
        sb.reveal(**arguments)  # type: ignore[arg-type]
    assert words in str(raised.value) and "\n" not in str(raised.value)
