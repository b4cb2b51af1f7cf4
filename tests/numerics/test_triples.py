"""The questions of triples.py fix an order: no other tree over as many leaves answers yes to all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from samebits.numerics.order import Fused, Leaf, Nearest, Node, Order, chain, lanes, nodes
from samebits.numerics.triples import triples


def all_trees(members: list[int]) -> Iterator[Order]:
    """Every way to add these leaves two by two."""
    first, *rest = members
    if not rest:
        yield Leaf(first)
    for count in range(1, len(rest) + 1):
        for others in itertools.combinations(rest, count):
            own = [first, *(leaf for leaf in rest if leaf not in others)]
            for left, right in itertools.product(all_trees(own), all_trees(list(others))):
                yield Node(Nearest(), (left, right))


def groups(order: Order) -> list[frozenset[int]]:
    """The leaves below each node."""
    done: list[frozenset[int]] = []
    found = []
    for part in nodes(order):
        if isinstance(part, Leaf):
            done.append(frozenset([part.index]))
        else:
            below = done[-2] | done[-1]
            del done[-2:]
            done.append(below)
            found.append(below)
    return found


def answers_yes(order: Order, questions: np.ndarray) -> bool:
    below = groups(order)
    return all(any(a in group and b in group and c not in group for group in below) for a, b, c in questions)


@pytest.mark.parametrize(("leaves", "trees"), [(2, 1), (3, 3), (4, 15), (5, 105)])
def test_one_tree_alone_answers_yes_to_all(leaves: int, trees: int) -> None:
    known = list(all_trees(list(range(leaves))))
    assert len(known) == trees
    for order in known:
        questions = triples(order)
        assert questions.shape == (leaves - 2, 3)
        assert [other for other in known if answers_yes(other, questions)] == [order]


def test_declared_orders_answer_their_own_questions_and_not_each_others() -> None:
    for n in (3, 17, 300):
        assert answers_yes(lanes(n, 256), triples(lanes(n, 256)))
        assert not answers_yes(lanes(n, 256), triples(chain(n)))


def test_a_fused_node_has_no_such_questions() -> None:
    with pytest.raises(ValueError, match="a node of kind Fused; allowed: Nearest"):
        triples(chain(40, 16, Fused()))
