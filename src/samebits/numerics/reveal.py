"""The order in which any callable adds, found by probing and confirmed by replaying it on real numbers.

Knows only `run(values) -> number`. Probing alone proves nothing: compensated and wider sums answer like plain ones, so
a verdict always includes the replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from samebits.numerics.order import Fused, Leaf, Nearest, Node, Order, canonical, digest, leaves, nodes
from samebits.numerics.probes import (
    CannotJudgeError,
    Encoding,
    NonNegativeQuestions,
    ProbeValues,
    Run,
    SignedQuestions,
    Subject,
)
from samebits.numerics.replay import Replay, realisations, replay

PROBES = ("auto", "pair", "signed", "nonnegative")
FLOAT32_FRACTION_BITS = 23


@dataclass(frozen=True, kw_only=True, slots=True)
class Revelation:
    """What was found out about one callable."""

    order: Order | None
    """The order found; None where the answers describe none."""
    probe: str
    """pair, signed or nonnegative."""
    probes: int
    """Runs spent on probing."""
    replayed: int
    """Vectors on which the simulated order gave the callable's bits."""
    replay_total: int
    mutants: int
    """Slightly different orders that the replay data told apart."""
    output: str
    verdict: str
    """"holds", "does not hold: ..." or "could not be judged: ..."."""

    @property
    def holds(self) -> bool:
        return self.verdict == "holds"


def reveal(
    run: Run,
    n: int,
    *,
    leaf: str = "float32",
    output: str = "float32",
    probe: str = "auto",
    encoding: Encoding | None = None,
    values: ProbeValues | None = None,
    replays: int = 100,
    seed: int = 0,
) -> Revelation:
    """Finds the order in which run(values) adds its n values, and replays it on `replays` vectors of each recipe.

    `leaf` is the format the values must fit, `output` the format the result was rounded to. `probe="auto"` uses pair
    probes where counts up to n can be read in the output and agree, else signed triples; `probe="nonnegative"` needs an
    `encoding`. `values` replaces the probing numbers where the usual ones do not survive the callable's scaling."""
    if probe not in PROBES:
        raise ValueError(f"reveal: probe={probe!r} is unknown; allowed: {', '.join(PROBES)}")
    if (encoding is None) == (probe == "nonnegative"):
        given = "without an encoding" if encoding is None else "with an encoding"
        raise ValueError(f"reveal: probe={probe!r} {given}; non-negative probes need one, others take none")
    subject = Subject(run, n, leaf, output, values)
    used, shape = probe, None
    try:
        subject.check_steady(encoding)
        signed = None if encoding else SignedQuestions(subject)
        used, shape = _shape(subject, probe, signed, encoding)
        fused = _measured_kind(shape, signed)
        probes = subject.runs
        scale = signed.scale if signed else 1.0
        found = replay(subject, realisations(shape, fused), replays, scale=scale, encoding=encoding, seed=seed)
        subject.check_steady(encoding)
    except CannotJudgeError as reason:
        return Revelation(
            order=shape,
            probe=used,
            probes=subject.runs,
            replayed=0,
            replay_total=0,
            mutants=0,
            output=output,
            verdict=f"could not be judged: {reason}",
        )
    return Revelation(
        order=canonical(found.order),
        probe=used,
        probes=probes,
        replayed=found.matched,
        replay_total=found.total,
        mutants=found.mutants,
        output=output,
        verdict=_verdict(found, signed),
    )


def _shape(
    subject: Subject, probe: str, signed: SignedQuestions | None, encoding: Encoding | None
) -> tuple[str, Order]:
    """The kind of probe that answered, and the tree; nodes of three and more stand as fused, of two as nearest."""
    if encoding is not None:
        return "nonnegative", by_triples(subject.n, NonNegativeQuestions(subject, encoding).first)
    assert signed is not None
    if probe != "signed":
        readable = signed.counts_are_readable()
        if probe == "pair" and not readable:
            raise CannotJudgeError(f"counts up to {subject.n} cannot be read in {subject.output}; use signed triples")
        if readable:
            try:
                return "pair", by_pairs(subject.n, signed.span)
            except CannotJudgeError:
                if probe == "pair":
                    raise
    return "signed", by_triples(subject.n, signed.first)


def _join(*kids: Order) -> Node:
    return Node(Nearest() if len(kids) == 2 else Fused(), kids)


def by_pairs(n: int, span: Callable[[int, int], int]) -> Order:
    """The tree in which every two leaves meet over as many leaves as span() says (FPRev, arXiv 2411.00442).

    One leaf of a group is asked against all others; those it meets over equally many leaves form the next group. Pivots
    are taken from both ends in turn, so that neither a left nor a right fold costs a quadratic number of probes."""
    groups: list[tuple[list[int], int, bool]] = [(list(range(n)), n, False)]
    spines: list[tuple[int, list[tuple[int, int]]]] = []
    for members, above, from_end in groups:  # grows while it runs: groups of groups
        pivot = members[-1] if from_end else members[0]
        buckets: dict[int, list[int]] = {}
        for other in members:
            if other != pivot:
                buckets.setdefault(span(pivot, other), []).append(other)
        spine, count = [], 1
        for size in sorted(buckets):
            count += len(buckets[size])
            # The last bucket may hang on the node above, which is then one node of many kids.
            if size != count and not (size == above and count == len(members)):
                raise CannotJudgeError(f"leaf {pivot}: meets {count - 1} leaves over nodes of at most {size}")
            spine.append((size, len(groups)))
            groups.append((buckets[size], size, not from_end))
        spines.append((pivot, spine))
    built: dict[int, tuple[Order, int]] = {}
    for group in reversed(range(len(groups))):
        pivot, spine = spines[group]
        tree: Order = Leaf(pivot)
        top = 1
        for size, below in spine:
            sub, sub_top = built.pop(below)
            # A group that reaches beyond itself hangs on this very node: its kids are kids of the node.
            shared = sub_top != len(groups[below][0])
            tree, top = _join(tree, *(sub.kids if isinstance(sub, Node) and shared else (sub,))), size
        built[group] = tree, top
    return built[0][0]


class _Twig:
    """A tree that grows in place."""

    def __init__(self, leaf: int, kids: list[_Twig]) -> None:
        self.leaf, self.kids = leaf, kids  # any leaf below stands for all of them


def by_triples(n: int, first: Callable[[int, int, int], tuple[int, int] | None]) -> Order:
    """The tree grown leaf by leaf: first(a, b, x) says which two meet before the third, None that all meet at once."""
    root = _Twig(0, [])
    for x in range(1, n):
        here = root
        while (onward := _place(here, x, first)) is not None:
            here = onward
    return _grown(root)


def _place(here: _Twig, x: int, first: Callable[[int, int, int], tuple[int, int] | None]) -> _Twig | None:
    """Puts leaf x at this node and returns None, or returns the kid it belongs below."""
    met = None
    if here.kids:
        a, b = here.kids[0], here.kids[1]
        met = first(a.leaf, b.leaf, x)
        if met is None:
            for kid in here.kids[2:]:
                closer = first(a.leaf, kid.leaf, x)
                if closer is not None and a.leaf in closer:
                    raise CannotJudgeError(f"leaves {a.leaf}, {b.leaf}, {kid.leaf}, {x}: the answers fit no tree")
                if closer is not None:
                    return kid
            here.kids.append(_Twig(x, []))
            return None
        if x in met:
            return a if a.leaf in met else b
    here.kids = [_Twig(here.leaf, here.kids), _Twig(x, [])]
    return None


def _grown(root: _Twig) -> Order:
    done: list[Order] = []
    stack: list[tuple[_Twig, bool]] = [(root, False)]
    while stack:
        twig, ready = stack.pop()
        if not twig.kids:
            done.append(Leaf(twig.leaf))
        elif ready:
            kids = done[-len(twig.kids) :]
            del done[-len(twig.kids) :]
            done.append(_join(*kids))
        else:
            stack.append((twig, True))
            stack.extend((kid, False) for kid in reversed(twig.kids))
    return done[0]


def _measured_kind(shape: Order, signed: SignedQuestions | None) -> Fused:
    """Bits a fused node aligns to and keeps, measured on the first one; Hopper's where they cannot be measured."""
    usual = Fused()
    wide = next((part for part in nodes(shape) if isinstance(part, Node) and len(part.kids) > 2), None)
    if signed is None or wide is None:
        return usual
    a, b, c = (leaves(kid)[0] for kid in wide.kids[:3])
    aligned = signed.aligned_fraction_bits(a, b, c)
    outside = set(leaves(shape)) - set(leaves(wide))
    kept = 1 + signed.stored_fraction_bits(a, b, min(outside)) if outside else usual.keep_bits
    # Beyond what the simulator holds the node is no adder we know, and the replay will say so.
    return Fused(aligned, min(kept, usual.keep_bits)) if 1 <= aligned <= 40 else usual


def _verdict(found: Replay, signed: SignedQuestions | None) -> str:
    if found.matched < found.total:
        count = f"{found.matched} of {found.total} vectors replayed"
        return f"does not hold: {count}; not this tree ({_explanation(found.order, signed)}); {found.difference}"
    if found.survivors:
        return f"could not be judged: the replay data cannot tell this order from: {', '.join(found.survivors)}"
    return "holds"


def _explanation(order: Order, signed: SignedQuestions | None) -> str:
    """What the width of the first partial sum says about a replay that failed."""
    guess = "compensated or wider accumulator?"
    first = next((part for part in nodes(order) if isinstance(part, Node)), None)
    if signed is None or first is None or first is order:
        return guess
    a, b = leaves(first.kids[0])[0], leaves(first.kids[1])[0]
    width = signed.stored_fraction_bits(a, b, min(set(leaves(order)) - set(leaves(first))))
    if width == FLOAT32_FRACTION_BITS:
        return "a partial sum is float32, so the order may depend on the data"
    return f"{guess} a partial sum keeps {width} fraction bits, float32 {FLOAT32_FRACTION_BITS}"


@dataclass(frozen=True, slots=True)
class OrderGroup:
    """Callables (or sizes of one) that share an order and a verdict."""

    order: Order | None
    labels: tuple[str, ...]
    verdict: str


def group_orders(revelations: Mapping[str, Revelation]) -> tuple[OrderGroup, ...]:
    """The distinct orders, in the order of first appearance, and which labels share each."""
    groups: dict[tuple[str, str], OrderGroup] = {}
    for label, found in revelations.items():
        # What does not hold may differ in ways its tree does not show: only equal words stand together.
        key = (digest(found.order) if found.order else "", found.verdict)
        labels = (*groups[key].labels, label) if key in groups else (label,)
        groups[key] = OrderGroup(found.order, labels, found.verdict)
    return tuple(groups.values())
