"""picture: well-formed SVG, every leaf and node drawn, and words that name an order exactly."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import Counter

import pytest

from samebits.numerics.order import (
    Cast,
    Fused,
    Node,
    Order,
    balanced,
    blocked,
    chain,
    compose,
    digest,
    fold_by_neighbours,
    fold_left,
    lanes,
    relabel,
)
from samebits.numerics.picture import describe, svg

SHAPES = {
    "one leaf": chain(1),
    "one addition": chain(2),
    "chain of 64, one at a time": chain(64),
    "chain of 64, one at a time, last to first": relabel(chain(64), range(63, -1, -1)),
    "chain of 64, 16 fused at a time": chain(64, 16),
    "chain of 33, 16 fused at a time": chain(33, 16),
    "chain of 9, 1 fused at a time": chain(9, 1, Fused()),
    "chain of 32, 8 fused at a time (24 fraction bits, 24 kept)": chain(32, 8, Fused(24, 24)),
    "16 fused at once": chain(16, 16),
    "balanced tree of 64": balanced(64),
    "8 folded by halves": lanes(8, 256),
    "16 lanes, folded by halves": lanes(64, 16),
    "256 lanes, folded by halves": lanes(1000, 256),
    "8 lanes of 8, joined by balanced tree of 8": lanes(64, 8, fold_by_neighbours),
    "4 lanes of 16, joined by chain of 4, one at a time": lanes(64, 4, fold_left),
    "2 blocks of 32 (chain of 32, one at a time), joined by one addition": blocked(64, 32),
    "2 blocks of 32 (8 lanes, folded by halves), joined by one addition": blocked(64, 32, lambda n: lanes(n, 8)),
    "4 blocks of 32 (chain of 32, 16 fused at a time), joined by balanced tree of 4": blocked(
        128, 32, lambda n: chain(n, 16), balanced
    ),
    "2 blocks of 8 (chain of 8, one at a time, cast to bfloat16), joined by one addition": compose(
        chain(2), [Node(Cast("bfloat16"), (relabel(chain(8), range(r, r + 8)),)) for r in (0, 8)]
    ),
}


@pytest.mark.parametrize("words", SHAPES)
def test_known_shapes_have_names(words: str) -> None:
    assert describe(SHAPES[words]) == words


def test_no_name_for_a_near_miss() -> None:
    """Planted fault: a chain with two leaves exchanged is no chain."""
    swapped = relabel(chain(64), [*range(10), 40, *range(11, 40), 10, *range(41, 64)])
    assert "chain" not in describe(swapped) and describe(swapped).endswith(f"({digest(swapped)[:12]})")
    assert describe(relabel(chain(4), [0, 2, 1, 3])) == "(((0 2) 1) 3)"


def test_every_random_order_gets_words_and_a_picture(random_order: object) -> None:
    for seed in range(20):
        order: Order = random_order(8 + 6 * seed, seed, casts=True)  # type: ignore[operator]
        assert describe(order) and ElementTree.fromstring(svg(order)) is not None


@pytest.mark.parametrize("order", [chain(8), chain(64, 16), lanes(128, 16), chain(128)], ids=describe)
def test_every_part_is_drawn_inside_the_frame(order: Order) -> None:
    root = ElementTree.fromstring(svg(order, title="a < b & c"))
    tags = Counter(element.tag.split("}")[1] for element in root)
    assert root[0].text == "a < b & c" and tags["circle"] + tags["rect"] - 1 >= 8
    wide, tall = float(root.get("width", 0)), float(root.get("height", 0))
    assert wide < 1100 and tall < 520
    for circle in (element for element in root if element.tag.endswith("circle")):
        assert 0 < float(circle.get("cx", -1)) < wide and 0 < float(circle.get("cy", -1)) < tall
