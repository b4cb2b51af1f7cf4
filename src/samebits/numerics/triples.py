"""The questions that fix an order of two-by-two additions: as many as it has nodes that are not its root.

Knows neither values nor kernels. A question is three leaves (a, b, c): do a and b meet before either meets c?"""

from __future__ import annotations

import numpy as np

from samebits.numerics.order import Leaf, Nearest, Order, nodes


def triples(order: Order) -> np.ndarray:
    """(n - 2, 3) leaves; no other order of two-by-two additions answers yes to all of them.

    A node below the root gives one question: the smallest leaf of each of its kids, and that of the node beside it.
    Why these are enough: take two leaves a < b that meet first of all. b is smallest nowhere but in itself, so exactly
    one question names it, and all others ask about the order without b. If those fix the order without b, then "a and
    b before c", c being smallest in the node beside (a b), leaves b one place only: beside a."""
    done: list[tuple[int, tuple[int, int] | None]] = []
    found: list[tuple[int, int, int]] = []
    for part in nodes(order):
        if isinstance(part, Leaf):
            done.append((part.index, None))
            continue
        if not isinstance(part.kind, Nearest):
            raise ValueError(f"triples: a node of kind {type(part.kind).__name__}; allowed: Nearest")
        (left, below_left), (right, below_right) = done[-2:]
        del done[-2:]
        if below_left is not None:
            found.append((*below_left, right))
        if below_right is not None:
            found.append((*below_right, left))
        done.append((min(left, right), (left, right)))
    return np.array(found, np.int64).reshape(-1, 3)
