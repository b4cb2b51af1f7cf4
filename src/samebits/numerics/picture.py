"""Pictures of orders: a self-contained SVG, and one line of words that recognises the well-known shapes.

Knows no kernel and draws no values."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Final

from samebits.numerics.order import (
    Cast,
    Fused,
    Leaf,
    Nearest,
    Node,
    Order,
    balanced,
    canonical,
    chain,
    compose,
    digest,
    fold_by_halves,
    height,
    lanes,
    leaves,
    nodes,
    relabel,
    size,
    text,
)

LONGEST_TEXT: Final = 60


def describe(order: Order) -> str:
    """The order in a few words, exact: a name is given only to an order equal to the one it names."""
    order = canonical(order)
    n = size(order)
    if leaves(order) and sorted(leaves(order)) != list(range(n)):
        order = relabel(order, {old: new for new, old in enumerate(sorted(leaves(order)))})
    if isinstance(order, Node) and isinstance(order.kind, Cast):
        return f"{describe(order.kids[0])}, cast to {order.kind.format}"
    return _simple(order, n) or _grouped(order, n) or _spelled(order)


def _spelled(order: Order) -> str:
    spelled = text(order)
    return spelled if len(spelled) <= LONGEST_TEXT else f"{spelled[:LONGEST_TEXT]}... ({digest(order)[:12]})"


def _bits(kind: Fused) -> str:
    return "" if kind == Fused() else f" ({kind.fraction_bits} fraction bits, {kind.keep_bits} kept)"


def _simple(order: Order, n: int) -> str | None:
    """Shapes that need no second part."""
    if isinstance(order, Leaf):
        return "one leaf"
    if n == 2 and isinstance(order.kind, Nearest):
        return "one addition"
    if order == chain(n):
        return f"chain of {n}, one at a time"
    if order == canonical(relabel(chain(n), range(n - 1, -1, -1))):
        return f"chain of {n}, one at a time, last to first"
    if order == balanced(n):
        return f"balanced tree of {n}"
    if order == canonical(fold_by_halves([Leaf(i) for i in range(n)])):
        return f"{n} folded by halves"
    for width in (4, 8, 16, 32, 64, 128, 256):
        # Uneven lanes too, which are no equal parts.
        if width < n and order == canonical(lanes(n, width)):
            return f"{width} lanes, folded by halves"
    return _simple_fused(order, order.kind, n) if isinstance(order.kind, Fused) else None


def _simple_fused(order: Node, kind: Fused, n: int) -> str | None:
    if len(order.kids) == n:
        return f"{n} fused at once{_bits(kind)}"
    deepest = next(part for part in nodes(order) if isinstance(part, Node))
    for width in (len(deepest.kids), 1):  # the first node of a chain one wide holds two leaves
        if order == chain(n, width, kind):
            return f"chain of {n}, {width} fused at a time{_bits(kind)}"
    return None


def _grouped(order: Order, n: int) -> str | None:
    """Equal parts joined by a second order: blocks of neighbours, or lanes of every w-th leaf; the shortest words."""
    parts = {frozenset(leaves(part)): part for part in nodes(order) if isinstance(part, Node)}
    found: list[str] = []
    for count in (count for count in range(2, n // 2 + 1) if n % count == 0):
        length = n // count
        blocks = [range(i * length, (i + 1) * length) for i in range(count)]
        strided = [range(i, n, count) for i in range(count)]
        for noun, groups in (("blocks", blocks), ("lanes", strided)):
            inner = [part for group in groups if (part := parts.get(frozenset(group))) is not None]
            named = _named_group(order, noun, groups, inner)
            found.extend([named] if named else [])
    return min(found, key=len, default=None)


def _named_group(order: Order, noun: str, groups: list[range], inner: list[Node]) -> str | None:
    if len(inner) < len(groups):
        return None
    alike = {
        text(canonical(relabel(part, {leaf: i for i, leaf in enumerate(group)})))
        for part, group in zip(inner, groups, strict=True)
    }
    if len(alike) > 1:
        return None
    inside = describe(relabel(inner[0], {leaf: i for i, leaf in enumerate(groups[0])}))
    outer = canonical(_collapsed(order, inner))
    assert canonical(compose(outer, inner)) == order
    count, length = len(groups), len(groups[0])
    across = describe(outer)
    joined = f"joined by ({across})" if "joined" in across else f"joined by {across}"
    if across == f"{count} folded by halves":
        joined = "folded by halves"
    plain = noun == "lanes" and inside in ("one addition", f"chain of {length}, one at a time")
    within = "" if plain else f" ({inside})"
    return f"{count} {noun} of {length}{within}, {joined}"


def _collapsed(order: Order, inner: list[Node]) -> Order:
    """The order with each of these parts put together into one leaf."""
    place = {id(part): i for i, part in enumerate(inner)}
    done: list[Order] = []
    for part in nodes(order):
        kids = () if isinstance(part, Leaf) else tuple(done[len(done) - len(part.kids) :])
        del done[len(done) - len(kids) :]
        if isinstance(part, Leaf):
            done.append(part)
        else:
            done.append(Leaf(place[id(part)]) if id(part) in place else Node(part.kind, kids))
    return done[0]


# Drawing. Sizes in pixels.
MARGIN: Final = 28
HEADING: Final = 62
WIDEST: Final = 980
TALLEST: Final = 300
SHALLOW, DEEP = (37, 99, 235), (219, 39, 119)  # colour of the first joins and of the root
INK, FAINT, PAPER = "#1f2937", "#6b7280", "#ffffff"


@dataclass(frozen=True, slots=True)
class _Placed:
    x: float
    level: int


def svg(order: Order, title: str = "") -> str:
    """The order as an SVG: leaves at the bottom, joins above them, fused additions as bars, colour by height."""
    order = canonical(order)
    n, tallest = size(order), max(height(order), 1)
    step = min(max(WIDEST / n, 7.0), 34.0)
    rise = min(max(TALLEST / tallest, 3.0), 26.0)  # a chain stays a diagonal that fits a screen
    width, base = 2 * MARGIN + step * max(n - 1, 12), HEADING + MARGIN + rise * tallest
    drawing: list[str] = []
    dots: list[str] = []
    done: list[_Placed] = []
    drawn = 0
    for part in nodes(order):
        if isinstance(part, Leaf):
            here = _Placed(MARGIN + step * drawn, 0)
            dots.append(_leaf(here.x, base, part.index, labelled=n <= 32 or drawn % max(n // 16, 1) == 0))
            drawn += 1
        else:
            kids = done[-len(part.kids) :]
            del done[-len(part.kids) :]
            # A bar hands its sum on at its right end, so that the next bar of a chain begins beside it and not over it.
            x = kids[-1].x if isinstance(part.kind, Fused) else (kids[0].x + kids[-1].x) / 2
            here = _Placed(x, 1 + max(kid.level for kid in kids))
            colour = _colour(here.level / tallest)
            drawing.extend(_elbow(kid, here, base, rise, colour, bar=isinstance(part.kind, Fused)) for kid in kids)
            dots.append(_mark(part, kids, here, base, rise, colour))
        done.append(here)
    root = done[0]
    top = base - rise * root.level
    drawing.append(f'<path d="M{root.x:.1f} {top:.1f}V{top - 12:.1f}" stroke="{INK}" stroke-width="1.6"/>')
    words = f"{describe(order)} | height {height(order)} | {digest(order)[:12]}"
    opening = _opening(width, base + MARGIN, title or "order of a sum", words)
    return "\n".join([*opening, *drawing, *dots, "</svg>", ""])


def _opening(width: float, tall: float, title: str, words: str) -> list[str]:
    # A long line of words may be wider than a small tree.
    width = max(width, 7.2 * len(words) + 2 * MARGIN, 10.0 * len(title) + 2 * MARGIN)
    box = f'viewBox="0 0 {width:.0f} {tall:.0f}" width="{width:.0f}" height="{tall:.0f}"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box} fill="none" font-family="system-ui, sans-serif" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width:.0f}" height="{tall:.0f}" rx="10" fill="{PAPER}"/>',
        f'<text x="{MARGIN}" y="30" font-size="17" font-weight="600" fill="{INK}">{escape(title)}</text>',
        f'<text x="{MARGIN}" y="50" font-size="12.5" fill="{FAINT}">{escape(words)}</text>',
    ]


def _colour(share: float) -> str:
    red, green, blue = (round(low + (high - low) * share) for low, high in zip(SHALLOW, DEEP, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _leaf(x: float, base: float, index: int, labelled: bool) -> str:
    dot = f'<circle cx="{x:.1f}" cy="{base:.1f}" r="2.6" fill="{INK}"/>'
    if not labelled:
        return dot
    place = f'x="{x:.1f}" y="{base + 15:.1f}" font-size="9" text-anchor="middle"'
    return f'{dot}<text {place} fill="{FAINT}">{index}</text>'


def _elbow(kid: _Placed, here: _Placed, base: float, rise: float, colour: str, bar: bool) -> str:
    """From a kid straight up, then round the corner to the join; under a bar, straight up only."""
    low, high = base - rise * kid.level, base - rise * here.level
    path = f"M{kid.x:.1f} {low:.1f}V{high:.1f}"
    if not bar and kid.x != here.x:
        bend = min(5.0, abs(here.x - kid.x), low - high)
        side = bend if here.x > kid.x else -bend
        corner = f"Q{kid.x:.1f} {high:.1f} {kid.x + side:.1f} {high:.1f}"
        path = f"M{kid.x:.1f} {low:.1f}V{high + bend:.1f}{corner}H{here.x:.1f}"
    return f'<path d="{path}" stroke="{colour}" stroke-width="1.3"/>'


def _mark(node: Node, kids: list[_Placed], here: _Placed, base: float, rise: float, colour: str) -> str:
    """A dot for a nearest addition, a bar for a fused one, a square for a cast."""
    y = base - rise * here.level
    if isinstance(node.kind, Fused):
        thick = min(8.0, max(4.0, rise * 0.5))
        left, right = min(kid.x for kid in kids) - 4, max(kid.x for kid in kids) + 4
        box = f'x="{left:.1f}" y="{y - thick / 2:.1f}" width="{right - left:.1f}" height="{thick:.1f}"'
        return f'<rect {box} rx="{thick / 2:.1f}" fill="{colour}"/>'
    if isinstance(node.kind, Cast):
        return f'<rect x="{here.x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" fill="{PAPER}" stroke="{colour}"/>'
    return f'<circle cx="{here.x:.1f}" cy="{y:.1f}" r="{min(2.6, max(1.4, rise / 3)):.1f}" fill="{colour}"/>'
