"""reveal: any tree is recovered by every kind of probe, and what is no such tree is not passed off as one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from samebits.numerics.bits import round_to
from samebits.numerics.order import Fused, Order, balanced, blocked, canonical, chain, lanes, relabel, size, text
from samebits.numerics.probes import (
    SQUARES,
    CannotJudgeError,
    Encoding,
    NonNegativeQuestions,
    ProbeValues,
    SignedQuestions,
    Subject,
)
from samebits.numerics.reveal import by_pairs, by_triples, group_orders, reveal
from samebits.numerics.simulate import simulate

Sum = Callable[[np.ndarray], float]
Random = Callable[..., Order]


def left_fold(values: np.ndarray) -> np.float32:
    total = np.float32(0)
    for value in values:
        total = np.float32(total + value)
    return total


def kahan(values: np.ndarray) -> np.float32:
    total, lost = np.float32(0), np.float32(0)
    for value in values:
        term = np.float32(value - lost)
        new = np.float32(total + term)
        lost = np.float32(np.float32(new - total) - term)
        total = new
    return total


@pytest.mark.parametrize("probe", ["pair", "signed", "nonnegative"])
def test_every_random_tree_is_recovered(probe: str, random_order: Random, slow_sum: Callable[..., float]) -> None:
    """200 trees a kind of probe, up to 24 leaves, up to 6 kids a node."""
    for seed in range(200):
        n = 1 + seed % 24
        order = random_order(n, seed)
        subject = Subject(lambda values, order=order: slow_sum(order, values), n, "float32", "float32", None)  # type: ignore[misc]
        if probe == "pair":
            found = by_pairs(n, SignedQuestions(subject).span)
        elif probe == "signed":
            found = by_triples(n, SignedQuestions(subject).first)
        else:
            plain = Encoding(one=1.0, small=2.0**-24, zero=0.0, leaves=lambda x: x)
            found = by_triples(n, NonNegativeQuestions(subject, plain).first)
        assert text(canonical(found)) == text(canonical(order)), seed


SHAPES = {
    "chain": chain(24),
    "from the end": relabel(chain(24), range(23, -1, -1)),
    "fused": chain(48, 16),
    "fused, short tail": chain(33, 16),
    "fused, other bits": chain(24, 8, Fused(23, 22)),
    "lanes": lanes(32, 8),
    "blocks of fused": blocked(40, 20, lambda n: chain(n, 10)),
    "two": chain(2),
    "one": chain(1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_verdict_includes_the_replay(name: str) -> None:
    order = SHAPES[name]
    found = reveal(lambda values: float(simulate(order, values)), size(order))
    assert found.verdict == "holds" and found.holds and found.order == canonical(order)
    assert found.replayed == found.replay_total == 300 and found.mutants >= (5 if size(order) > 2 else 0)


def test_neither_fold_costs_a_quadratic_number_of_probes() -> None:
    for name in ("chain", "from the end"):
        order = relabel(SHAPES[name], range(24))
        assert reveal(lambda values, order=order: float(simulate(order, values)), 24).probes < 24 * 4  # type: ignore[misc]


def test_a_sum_of_squares_is_revealed_by_non_negative_probes() -> None:
    """With exact or rounded products, with a scale and a root behind it."""
    order = lanes(16, 4)
    finish = Encoding(
        one=1.0,
        small=2.0**-12,
        zero=0.0,
        leaves=lambda x: (x, x),
        finish=lambda total: np.float32(4 / np.sqrt(total.astype(np.float64))),
    )
    for encoding, products in ((SQUARES, "exact"), (SQUARES, "rounded"), (finish, "exact")):

        def run(values: np.ndarray, encoding: Encoding = encoding, products: str = products) -> float:
            return float(encoding.finish(simulate(order, (values, values), products=products)))

        found = reveal(run, 16, probe="nonnegative", encoding=encoding)
        assert (found.verdict, found.order, found.probe) == ("holds", canonical(order), "nonnegative")


def test_narrow_outputs_need_signed_triples() -> None:
    """bfloat16 cannot count to 300: pair probes are refused, auto takes triples, the answer is right."""
    order = blocked(300, 100)

    def run(values: np.ndarray) -> float:
        return float(round_to(simulate(order, values), "bfloat16"))

    found = reveal(run, 300, leaf="bfloat16", output="bfloat16")
    assert (found.verdict, found.probe, found.order) == ("holds", "signed", order)
    refused = reveal(run, 300, leaf="bfloat16", output="bfloat16", probe="pair")
    assert refused.verdict == "could not be judged: counts up to 300 cannot be read in bfloat16; use signed triples"


def test_half_precision_leaves() -> None:
    order = chain(40, 16)
    found = reveal(lambda v: float(round_to(simulate(order, v), "float16")), 40, leaf="float16", output="float16")
    assert (found.verdict, found.order) == ("holds", order)


def test_a_power_of_two_behind_the_sum_is_allowed() -> None:
    values = ProbeValues(large=2.0**100)
    assert reveal(lambda v: float(simulate(chain(16), v) / 16), 16, values=values).holds
    third = reveal(lambda v: float(np.float32(simulate(chain(16), v) / np.float32(3))), 16)
    assert third.verdict.startswith("could not be judged: a unit alone gives 0.3333")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (kahan, "compensated or wider accumulator? a partial sum keeps 24 fraction bits, float32 23"),
        (lambda v: np.float32(sum(v.tolist())), "wider accumulator? a partial sum keeps 52 fraction bits"),
        (lambda v: np.float32(math.fsum(v.tolist())), "not this tree"),
        (lambda v: left_fold(np.array(sorted(v, key=abs))), "not this tree"),
    ],
    ids=["kahan", "float64", "fsum", "sorted"],
)
def test_what_only_looks_like_a_tree_does_not_hold(run: Sum, words: str) -> None:
    found = reveal(run, 20)
    assert found.verdict.startswith(f"does not hold: {found.replayed} of 300 vectors replayed; not this tree")
    assert words in found.verdict and found.replayed < 250 and not found.holds


def test_a_sum_in_random_order_cannot_be_judged() -> None:
    chance = random.Random(0)
    found = reveal(lambda v: left_fold(np.array(chance.sample(list(v), len(v)))), 32)
    assert found.verdict.startswith("could not be judged: two runs on equal values differ: ") and found.order is None


def test_answers_that_fit_no_tree_cannot_be_judged() -> None:
    """The direction of the fold depends on where the smallest value lies."""

    def turned(values: np.ndarray) -> np.float32:
        return left_fold(values[:: 1 - 2 * (int(np.argmin(values)) % 2)])

    assert reveal(turned, 12, probe="pair").verdict.startswith("could not be judged: leaf 0: meets 1 leaves")
    assert not reveal(turned, 12).holds
    with pytest.raises(CannotJudgeError, match="fit no tree"):
        by_triples(4, lambda a, b, c: {(0, 1, 2): None, (0, 1, 3): None, (0, 2, 3): (0, 3)}[a, b, c])


def test_data_that_cannot_tell_mutants_apart_is_no_evidence() -> None:
    """Planted fault: an output of nothing but zeros and probes replays any order."""
    probes = {2.0**127, 1.0}

    def run(values: np.ndarray) -> np.float32:
        return left_fold(values) if {abs(float(v)) for v in values} <= {*probes, 0.0} else np.float32(0)

    assert not reveal(run, 8).holds
    nothing = Encoding(one=1.0, small=2.0**-12, zero=0.0, leaves=lambda x: (x, x), inputs=lambda x: x * np.float32(0))
    found = reveal(lambda v: float(simulate(chain(8), (v, v))), 8, probe="nonnegative", encoding=nothing)
    words = "could not be judged: the replay data cannot tell this order from: leaves 0 and 7 swapped"
    assert found.verdict.startswith(words)


def test_groups_say_which_sizes_share_an_order() -> None:
    orders = {"rows 1": chain(16), "rows 2": balanced(16), "rows 8": chain(16)}
    found = {label: reveal(lambda v, o=order: float(simulate(o, v)), 16) for label, order in orders.items()}  # type: ignore[misc]
    groups = group_orders(found)
    assert [group.order for group in groups] == [chain(16), balanced(16)]
    assert [group.labels for group in groups] == [("rows 1", "rows 8"), ("rows 2",)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n": 0}, "n must be at least 1"),
        ({"n": 4, "leaf": "float64"}, "leaf='float64' is unknown"),
        ({"n": 4, "probe": "triple"}, "probe='triple' is unknown"),
        ({"n": 4, "probe": "nonnegative"}, "non-negative probes need one"),
        ({"n": 4, "run": lambda v: v}, "returned shape [4]; one number is needed"),
        ({"n": 4, "run": lambda v: float(v.astype(float).sum()) + 1e-9}, "which is no float32; round it first"),
    ],
)
def test_bad_questions_are_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match="reveal: ") as error:
        reveal(**{"run": left_fold, **arguments})  # type: ignore[arg-type]
    assert words in str(error.value)
