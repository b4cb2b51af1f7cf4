"""order: builders build what their docstrings say, and the digest names an order up to commutation."""

from __future__ import annotations

import pickle

import pytest

from samebits.numerics.order import (
    Cast,
    Fused,
    Leaf,
    Nearest,
    Node,
    balanced,
    blocked,
    canonical,
    chain,
    compose,
    digest,
    fold_by_halves,
    fold_by_neighbours,
    fold_left,
    height,
    lanes,
    leaves,
    prune,
    relabel,
    size,
    text,
)


@pytest.mark.parametrize(
    ("order", "spelled"),
    [
        (chain(1), "0"),
        (chain(4), "(((0 1) 2) 3)"),
        (chain(5, 2), "fused25.24(fused25.24(fused25.24(0 1) 2 3) 4)"),
        (chain(3, 1, Fused(24, 24)), "fused24.24(fused24.24(0 1) 2)"),
        (chain(3, 16), "fused25.24(0 1 2)"),
        (lanes(6, 2), "(((0 2) 4) ((1 3) 5))"),
        (lanes(8, 4), "(((0 4) (2 6)) ((1 5) (3 7)))"),
        (lanes(3, 8), "((0 2) 1)"),
        (lanes(6, 3, fold_left), "(((0 3) (1 4)) (2 5))"),
        (balanced(5), "(((0 1) (2 3)) 4)"),
        (balanced(6), "(((0 1) (2 3)) (4 5))"),
        (blocked(5, 2), "(((0 1) (2 3)) 4)"),
        (blocked(8, 4, across=balanced, inside=balanced), "(((0 1) (2 3)) ((4 5) (6 7)))"),
        (fold_by_halves([Leaf(i) for i in range(5)]), "(((0 3) 2) (1 4))"),
        (Node(Cast("bfloat16"), (chain(2),)), "bfloat16((0 1))"),
    ],
)
def test_builders_spelled_out(order: Node, spelled: str) -> None:
    assert text(order) == spelled


def test_composition_puts_a_rank_s_sum_in_the_place_of_its_leaf() -> None:
    wire = [Node(Cast("bfloat16"), (relabel(chain(2), [2 * rank, 2 * rank + 1]),)) for rank in range(2)]
    assert text(compose(chain(2), wire)) == "(bfloat16((0 1)) bfloat16((2 3)))"
    assert blocked(64, 16) == compose(chain(4), [relabel(chain(16), range(i, i + 16)) for i in range(0, 64, 16)])


def test_canonical_form_forgets_the_order_of_kids_and_nothing_else() -> None:
    left, right = Node(Nearest(), (Leaf(0), Leaf(1))), Node(Nearest(), (Leaf(1), Leaf(0)))
    assert left != right and canonical(right) == left and digest(left) == digest(right)
    assert digest(chain(4)) != digest(balanced(4)) and digest(chain(4, 4)) != digest(chain(4, 4, Fused(24, 24)))


def test_digests_are_stable() -> None:
    """They are written into records: a change of text is a change of every record."""
    assert digest(chain(64)) == "0baac1cb5d30a02392d7f0f1901a2107471d323ad69efa776059b08b114b81d9"
    assert digest(chain(64, 16)) == "d9d6f67d55e6221e00c4d896ce0cfca7366a65b8d5020b0107720247ebd9048f"
    assert digest(lanes(768, 256)) == "2667d14871dd451f1dea82d85e1d022f827a6bc41924bc284629a8394dc5ca00"


def test_prune() -> None:
    """Zero leaves go, single kids move up, a fused node of two stays fused, a cast stays."""
    assert text(prune(chain(6, 2), {1, 4, 5})) == "fused25.24(0 2 3)"
    assert text(prune(chain(6, 2), {1, 3, 4, 5})) == "fused25.24(0 2)"
    assert text(prune(Node(Nearest(), (Node(Cast("float16"), (chain(2),)), Leaf(2))), {1, 2})) == "float16(0)"
    assert prune(chain(3), {0, 1, 2}) is None
    assert prune(lanes(1024, 256), set(range(100, 1024))) == lanes(100, 256)


def test_height_counts_roundings() -> None:
    orders = (chain(1), chain(64), chain(64, 16), balanced(64), lanes(768, 256), Node(Cast("float16"), (chain(2),)))
    assert [height(order) for order in orders] == [0, 63, 4, 6, 2 + 8, 2]


def test_deep_orders_need_no_deep_stack() -> None:
    """A chain of 20000: text, equality, hash, repr, every walk; and it dies in peace."""
    order = chain(20_000)
    assert order == chain(20_000) and hash(order) == hash(chain(20_000)) and repr(order) == text(order)
    assert size(order) == 20_000 and height(order) == 19_999 and leaves(relabel(order, range(1, 20_001)))[-1] == 20_000
    assert size(prune(canonical(order), set(range(10_000)))) == 10_000
    assert pickle.loads(pickle.dumps(chain(8))) == chain(8)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Node(Nearest(), (Leaf(0),)), "Nearest with 1 kids; allowed: 2"),
        (lambda: Node(Fused(), (Leaf(0),)), "Fused with 1 kids; allowed: 2 or more"),
        (lambda: Node(Cast("float16"), (Leaf(0), Leaf(1))), "Cast with 2 kids; allowed: 1"),
        (lambda: Cast("float32"), "format='float32' is not a narrower format"),
        (lambda: chain(0), "n must be at least 1, got n=0"),
        (lambda: chain(8, 2, Nearest()), "one leaf at a time, got width=2"),
        (lambda: lanes(4, 0), "width must be at least 1"),
        (lambda: fold_by_neighbours([]), "terms must be at least 1"),
        (lambda: fold_by_halves([None, None]), "terms must be at least 1"),
    ],
)
def test_what_is_no_order_is_refused(build: object, words: str) -> None:
    with pytest.raises(ValueError, match=r"allowed|must|takes|narrower") as error:
        build()  # type: ignore[operator]
    assert words in str(error.value)
