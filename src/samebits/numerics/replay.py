"""Replay: an order simulated on real numbers against the callable it was revealed from, bit for bit.

Knows nothing of probing. The data is part of the evidence: orders slightly different from the one replayed (mutants)
must come out differently on it somewhere, else a match says nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Final

import numpy as np

from samebits.numerics.adder import HOPPER
from samebits.numerics.bits import BitsDifference, compare, round_to, same_bits
from samebits.numerics.order import (
    Cast,
    Fused,
    Kind,
    Leaf,
    Nearest,
    Node,
    Order,
    digest,
    fold_left,
    leaves,
    nodes,
    rebuild,
    relabel,
)
from samebits.numerics.probes import Encoding, Subject
from samebits.numerics.recipes import make
from samebits.numerics.simulate import Values, simulate

REPLAY_RECIPES: Final = ("normal", "wide", "cancelling")


@dataclass(frozen=True, slots=True)
class Replay:
    """The order that matched best, on how many vectors, and which mutants the data could not tell from it."""

    order: Order
    matched: int
    total: int
    mutants: int
    survivors: tuple[str, ...]
    difference: BitsDifference | None


def replay(
    subject: Subject,
    candidates: Sequence[Order],
    vectors: int,
    *,
    scale: float = 1.0,
    encoding: Encoding | None = None,
    seed: int = 0,
) -> Replay:
    """Runs the subject on `vectors` vectors of each recipe and simulates each candidate on the same."""
    drawn = [make(recipe, (vectors, subject.n), seed + i, subject.leaf) for i, recipe in enumerate(REPLAY_RECIPES)]
    inputs = np.concatenate(drawn)
    if encoding is not None:
        inputs = np.asarray(encoding.inputs(inputs), np.float32)
    measured = np.array([subject.read(row.copy()) for row in inputs], np.float32)
    simulators = _simulators(subject, inputs, scale, encoding)
    best: tuple[int, Order, Callable[[Order], np.ndarray], np.ndarray] | None = None
    for candidate, simulated in product(candidates, simulators):
        expected = simulated(candidate)
        difference = compare(measured, expected)
        matched = len(measured) - (difference.count if difference else 0)
        if best is None or matched > best[0]:
            best = matched, candidate, simulated, expected
        if matched == len(measured):
            break
    assert best is not None
    matched, order, simulated, expected = best
    mutants = list(_mutants(order))
    survivors = [name for name, mutant in mutants if same_bits(simulated(mutant), expected)]
    return Replay(order, matched, len(measured), len(mutants), tuple(survivors), compare(measured, expected))


def _simulators(
    subject: Subject, inputs: np.ndarray, scale: float, encoding: Encoding | None
) -> list[Callable[[Order], np.ndarray]]:
    """Functions from an order to the outputs it predicts: one, or two where it is open whether products are rounded."""
    values: Values = inputs if encoding is None else encoding.leaves(inputs)
    model, modes = HOPPER, ("exact", "rounded") if isinstance(values, tuple) else ("exact",)
    if encoding is None and subject.leaf != "float32":
        # A leaf times one: inside a fused node a 16-bit subnormal keeps the exponent of its own format.
        values, model = (inputs, np.ones_like(inputs)), replace(HOPPER, operand=subject.leaf)

    def simulated(products: str, order: Order) -> np.ndarray:
        with np.errstate(all="ignore"):
            total = simulate(order, values, products=products, model=model) * np.float32(scale)
            finished = encoding.finish(total) if encoding else total
        return round_to(np.asarray(finished, np.float32), subject.output)

    return [partial(simulated, mode) for mode in modes]


def realisations(shape: Order, fused: Fused) -> list[Order]:
    """The orders a shape may stand for: a node of two may round to nearest, or be a fused chain's short tail."""

    def with_binary(choose: Callable[[tuple[Order, ...]], Kind]) -> Order:
        def node(_: Kind, kids: tuple[Order, ...]) -> Order:
            return Node(fused if len(kids) > 2 else choose(kids), kids)

        rebuilt = rebuild(shape, lambda leaf: leaf, node)
        assert rebuilt is not None
        return rebuilt

    def tail(kids: tuple[Order, ...]) -> Kind:
        return fused if any(isinstance(kid, Leaf) for kid in kids) else Nearest()

    return [with_binary(lambda _: Nearest()), with_binary(tail), with_binary(lambda _: fused)]


def _mutants(order: Order) -> Iterator[tuple[str, Order]]:
    """Orders close to the given one that must not replay like it; those equal to it by construction are left out."""
    seen = {digest(order)}
    for name, mutant in _close_orders(order):
        if digest(mutant) not in seen:
            seen.add(digest(mutant))
            yield name, mutant


def _close_orders(order: Order) -> Iterator[tuple[str, Order]]:
    positions = leaves(order)
    n = len(positions)
    if n < 3:
        return  # two leaves have one order
    same = {position: position for position in positions}
    for i, j in ((0, n - 1), (0, n // 2), (n // 3, n - 1), (n // 2 - 1, n // 2)):
        a, b = positions[i], positions[j]
        yield f"leaves {a} and {b} swapped", relabel(order, same | {a: b, b: a})
    yield "positions rotated by one", relabel(order, dict(zip(positions, positions[1:] + positions[:1], strict=True)))
    inner = next(part for part in nodes(order) if isinstance(part, Node))
    if inner is not order:
        yield "a partial cast to bfloat16", _replaced(order, inner, Node(Cast("bfloat16"), (inner,)))
    widest = max((part for part in nodes(order) if isinstance(part, Node)), key=lambda node: len(node.kids))
    if len(widest.kids) > 2:
        half = len(widest.kids) // 2
        yield "one fused node added to nearest", _replaced(order, widest, fold_left(widest.kids))
        if half > 1:
            first = Node(widest.kind, widest.kids[:half])
            yield "one fused node halved", _replaced(order, widest, Node(widest.kind, (first, *widest.kids[half:])))


def _replaced(order: Order, old: Node, new: Order) -> Order:
    """The order with one node exchanged."""
    stand_in = Leaf(-1)
    done: list[Order] = []
    for part in nodes(order):
        if isinstance(part, Leaf):
            done.append(part)
            continue
        kids = tuple(done[-len(part.kids) :])
        del done[-len(part.kids) :]
        done.append(stand_in if part is old else Node(part.kind, kids))
    rebuilt = rebuild(done[0], lambda leaf: new if leaf is stand_in else leaf, Node)
    assert rebuilt is not None
    return rebuilt
