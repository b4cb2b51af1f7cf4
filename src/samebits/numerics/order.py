"""The order of a sum as data: leaves, and nodes that say how their kids are added.

Knows neither values nor kernels. Orders may be thousands of nodes deep, so nothing here recurses."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Nearest:
    """One float32 addition of two kids, nearest even."""

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Fused:
    """One addition of many: aligned to the largest exponent, cut at `fraction_bits`, the sum cut to `keep_bits`."""

    fraction_bits: int = 25
    keep_bits: int = 24

    def __str__(self) -> str:
        return f"fused{self.fraction_bits}.{self.keep_bits}"


@dataclass(frozen=True, slots=True)
class Cast:
    """A partial sum rounded to a narrower format (nearest even) and widened again."""

    format: str

    def __post_init__(self) -> None:
        if self.format not in ("bfloat16", "float16"):
            raise ValueError(f"Cast: format={self.format!r} is not a narrower format; allowed: bfloat16, float16")

    def __str__(self) -> str:
        return self.format


Kind: TypeAlias = Nearest | Fused | Cast


@dataclass(frozen=True, slots=True)
class Leaf:
    """One term of the sum, by its position."""

    index: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Node:
    """One addition (or cast). Equal when the texts are equal, kids compared in the order they are written."""

    kind: Kind
    kids: tuple[Order, ...]

    def __post_init__(self) -> None:
        count = len(self.kids)
        if isinstance(self.kind, Fused):
            fits, allowed = count >= 2, "2 or more"
        else:
            allowed = "2" if isinstance(self.kind, Nearest) else "1"
            fits = count == int(allowed)
        if not fits:
            raise ValueError(f"Node: {type(self.kind).__name__} with {count} kids; allowed: {allowed}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and text(self) == text(other)

    def __hash__(self) -> int:
        return hash(text(self))

    def __repr__(self) -> str:
        return text(self)


Order: TypeAlias = Leaf | Node


def nodes(order: Order) -> Iterator[Order]:
    """Every part of the order, kids before their parent, from left to right."""
    stack: list[tuple[Order, bool]] = [(order, False)]
    while stack:
        part, ready = stack.pop()
        if ready or isinstance(part, Leaf):
            yield part
        else:
            stack.append((part, True))
            stack.extend((kid, False) for kid in reversed(part.kids))


def rebuild(
    order: Order, leaf: Callable[[Leaf], Order | None], node: Callable[[Kind, tuple[Order, ...]], Order | None]
) -> Order | None:
    """A new order from the leaves up; a part whose function returns None is left out."""
    done: list[Order | None] = []
    for part in nodes(order):
        if isinstance(part, Leaf):
            done.append(leaf(part))
        else:
            kids = done[-len(part.kids) :]
            del done[-len(part.kids) :]
            done.append(node(part.kind, tuple(kid for kid in kids if kid is not None)))
    return done[0]


def _present(order: Order | None) -> Order:
    assert order is not None
    return order


def leaves(order: Order) -> list[int]:
    """The positions summed, in the order they are written."""
    return [part.index for part in nodes(order) if isinstance(part, Leaf)]


def size(order: Order) -> int:
    """How many leaves the order has."""
    return len(leaves(order))


def text(order: Order) -> str:
    """The order in one line: ((0 1) 2) adds one at a time, fused25.24(0 1 2) adds three at once, bfloat16(0) casts."""
    pieces: list[str] = []
    stack: list[Order | str] = [order]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, Leaf):
            pieces.append(str(part.index))
        else:
            pieces.append(f"{part.kind}(")
            stack.append(")")
            for position, kid in enumerate(reversed(part.kids)):
                stack.extend([kid] if position == len(part.kids) - 1 else [kid, " "])
    return "".join(pieces)


def canonical(order: Order) -> Order:
    """Kids sorted by their smallest leaf. Bits stay: addition commutes, and a fused sum is exact inside."""
    done: list[tuple[int, Order]] = []
    for part in nodes(order):
        if isinstance(part, Leaf):
            done.append((part.index, part))
        else:
            kids = sorted(done[-len(part.kids) :], key=lambda entry: entry[0])
            del done[-len(part.kids) :]
            done.append((kids[0][0], Node(part.kind, tuple(kid for _, kid in kids))))
    return done[0][1]


def digest(order: Order) -> str:
    """SHA-256 of the canonical text: equal for orders that give equal bits by construction."""
    return hashlib.sha256(text(canonical(order)).encode()).hexdigest()


def height(order: Order) -> int:
    """Roundings on the longest way from a leaf to the root: the number that error bounds need."""
    done: list[int] = []
    for part in nodes(order):
        if isinstance(part, Leaf):
            done.append(0)
        else:
            tallest = max(done[-len(part.kids) :])
            del done[-len(part.kids) :]
            done.append(tallest + 1)
    return done[0]


def prune(order: Order, zeros: set[int] | frozenset[int]) -> Order | None:
    """The order without leaves known to be zero; None where nothing is left.

    Equal pruned orders give equal bits except for the sign of zero. A fused node left with two kids stays fused, since
    it truncates where a nearest addition does not; one left with a single kid passes it on unchanged."""

    def node(kind: Kind, kids: tuple[Order, ...]) -> Order | None:
        if not kids or (len(kids) == 1 and not isinstance(kind, Cast)):
            return kids[0] if kids else None
        return Node(kind, kids)

    return rebuild(order, lambda leaf: None if leaf.index in zeros else leaf, node)


def relabel(order: Order, position: Sequence[int] | Mapping[int, int]) -> Order:
    """The same order over other positions: leaf i becomes leaf position[i]."""
    return _present(rebuild(order, lambda leaf: Leaf(position[leaf.index]), Node))


def compose(outer: Order, inners: Sequence[Order] | Mapping[int, Order]) -> Order:
    """`outer` with its leaf i replaced by inners[i]: local sums inside a sum over blocks, lanes or ranks."""
    return _present(rebuild(outer, lambda leaf: inners[leaf.index], Node))


def _require_positive(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {name}={value}")


def fold_left(terms: Sequence[Order]) -> Order:
    """Terms added one at a time, first to last."""
    _require_positive(terms=len(terms))
    total = terms[0]
    for term in terms[1:]:
        total = Node(Nearest(), (total, term))
    return total


def fold_by_halves(terms: Sequence[Order | None]) -> Order:
    """Term i takes in term i + half, and again, until one is left; None stands for a term that is zero."""
    _require_positive(terms=sum(term is not None for term in terms))
    rest = list(terms)
    while len(rest) > 1:
        half = (len(rest) + 1) // 2
        low, high = rest[:half], [*rest[half:], *[None] * (2 * half - len(rest))]
        rest = [Node(Nearest(), (a, b)) if a and b else a or b for a, b in zip(low, high, strict=True)]
    return _present(rest[0])


def fold_by_neighbours(terms: Sequence[Order]) -> Order:
    """Neighbours joined pairwise, an odd one moves up, until one is left."""
    _require_positive(terms=len(terms))
    rest = list(terms)
    while len(rest) > 1:
        pairs = [Node(Nearest(), (rest[i], rest[i + 1])) for i in range(0, len(rest) - 1, 2)]
        rest = [*pairs, *rest[2 * len(pairs) :]]
    return rest[0]


def chain(n: int, width: int = 1, kind: Nearest | Fused | None = None) -> Order:
    """The accumulator takes in `width` leaves at a time, ascending; one at a time is a nearest addition by default."""
    _require_positive(n=n, width=width)
    kind = kind or (Nearest() if width == 1 else Fused())
    if width > 1 and isinstance(kind, Nearest):
        raise ValueError(f"chain: a nearest addition takes one leaf at a time, got width={width}; use kind=Fused()")
    total: Order | None = None
    for start in range(0, n, width):
        block = tuple(Leaf(i) for i in range(start, min(start + width, n)))
        kids = block if total is None else (total, *block)
        total = kids[0] if len(kids) == 1 else Node(kind, kids)
    return _present(total)


def lanes(n: int, width: int, join: Callable[[Sequence[Order]], Order] = fold_by_halves) -> Order:
    """Lane l adds leaves l, l + width, l + 2 width, ... one at a time; then `join` adds the lanes.

    A lane without a leaf is zero: fold_by_halves is told where it stands, so that halving starts from `width`."""
    _require_positive(n=n, width=width)
    sums = [fold_left([Leaf(i) for i in range(lane, n, width)]) for lane in range(min(width, n))]
    if join is fold_by_halves:
        return fold_by_halves([*sums, *[None] * (width - len(sums))])
    return join(sums)


def balanced(n: int) -> Order:
    """Neighbours joined pairwise, level by level."""
    _require_positive(n=n)
    return fold_by_neighbours([Leaf(i) for i in range(n)])


def blocked(
    n: int, block: int, inside: Callable[[int], Order] = chain, across: Callable[[int], Order] = chain
) -> Order:
    """Leaves cut into blocks (the last may be short), each ordered by `inside`, their sums by `across`."""
    _require_positive(n=n, block=block)
    cuts = [range(start, min(start + block, n)) for start in range(0, n, block)]
    inners = [relabel(inside(len(cut)), cut) for cut in cuts]
    return compose(across(len(inners)), inners)
