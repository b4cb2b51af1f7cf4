"""Whether an access of a launch can leave its buffer: a certificate that it cannot, or sizes at which it does.

Knows no kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from samebits.contracts.symbolic import solver_module
from samebits.train.contracts.attention_indices.certificates import Certifier
from samebits.train.contracts.attention_indices.machine import OneWay, ways
from samebits.train.contracts.attention_indices.polynomials import Polynomial, added
from samebits.train.contracts.launch_indices.machine import Access

Launch = Callable[[OneWay], None]
# A question with numbers for sizes takes a hundredth of a second of a core's time; a busy machine gives it a tenth.
TIMEOUT_SECONDS: Final = 60
_KEYS: Final = {
    "key_tokens": 2240,
    "longest_key": 2240,
    "pages": 140,
    "page_size": 16,
    "most_pages": 140,
    "pages_row": 140,
}
_HEADS: Final = {"heads": 4, "key_heads": 2, "GROUP": 2, "HEAD": 8, "PADDED": 16}
_STRIDES: Final = {"q": 40, "do": 48, "k": 16, "v": 24}
SIZES: Final = {
    "sequences": 2,
    "tokens": 9,
    "longest": 8,
    "pitch": 8,
    "window": 5,
    "line_marks": 35,
    "TILE": 16,
    "ROWS": 16,
    "rows": 16,
    "first_tile": 32,
    **(_KEYS | _HEADS),
    **{f"stride_{name}_token": stride for name, stride in _STRIDES.items()},
    **{f"stride_{name}_head": 8 for name in _STRIDES},
}
"""At which buffers are filled to their ends, and at which what has no certificate is tried: small, by name."""
BEYOND: Final = {64: 2**20, 32: 1}
Quotients = Sequence[tuple[Any, Any, Any, Any]]
"""Number, divisor, quotient, rest: of a machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """Of one kernel."""

    questions: int
    """Different ones."""
    outside: tuple[str, ...]
    """Accesses with a counterexample, at SIZES."""
    open: tuple[str, ...]
    """Accesses with neither a certificate nor a counterexample."""
    buffers: int
    untouched: tuple[str, ...]
    """Buffers of which no access is found that needs their last element."""


def _parts(z3: Any, term: Any) -> Iterator[Any]:
    """What is joined by And."""
    if term.decl().kind() == z3.Z3_OP_AND:
        for each in term.children():
            yield from _parts(z3, each)
    elif not z3.is_true(term):
        yield term


@cache
def shown(launch: Launch) -> Shown:
    """Every access of a launch, on every way through its kernel, for all sizes."""
    z3 = solver_module()
    context = z3.Context()
    certifier = Certifier(z3, context)
    failed: dict[str, list[Access]] = {}
    ends: dict[str, list[Access]] = {}
    for way in ways(launch, context):
        for access in way.accesses:
            if not certified(certifier, access, way.quotients):
                failed.setdefault(f"{access.where}, {access.buffer or 'no buffer'}", []).append(access)
            if access.buffer:
                ends.setdefault(access.buffer, []).append(access)
    outside = [place for place, some in failed.items() if _goes_wrong(z3, some)]
    return Shown(
        questions=len(certifier.answers),
        outside=tuple(outside),
        open=tuple(place for place in failed if place not in outside),
        buffers=len(ends),
        untouched=tuple(name for name, some in ends.items() if not _end_is_reached(z3, some)),
    )


def certified(certifier: Certifier, access: Access, quotients: Quotients) -> bool:
    """Whether all that must be so of an access follows.

    Sums and products that leave 64 bits on the way come back to an address that does not: of numbers of 64 bits only
    those that are divided must fit."""
    z3, naming = certifier.z3, certifier.naming
    known = certifier.facts(access.known, quotients)
    if not all(certifier.follows(naming.least(each), certifier.yes, known) for each in _parts(z3, access.sound)):
        return False
    if not access.buffer:
        return True
    first, below, *needs = _parts(z3, access.inside)
    place, after = naming.least(first), naming.least(below)
    length = added(added(after, place), {(): 1})
    divided = {each[0].get_id() for each in quotients}
    wide = added({(): 2**62}, length, -1)
    if not all(certifier.follows(each, access.mask, known) for each in (place, after, wide)):
        return False
    short = added({(): 2**31}, length, -1)
    for each in needs:
        least, bits = naming.least(each), 64 if _is_wide(z3, each) else 32
        ways = [least]
        if bits == 64:
            ways = [_nearer(least, place, 64)] if each.children()[0].get_id() in divided else []
        elif not certifier.follows(least, access.mask, known):
            ways = [short, _nearer(least, place, 32)]
        if not all(certifier.follows(way, access.mask, known) for way in ways):
            return False
    return True


def _nearer(least: Polynomial, place: Polynomial, bits: int) -> Polynomial:
    """That a number fits is shown of less: that it is not negative, or not beyond the place that it is on its way to.

    Of 64 bits not far beyond: places are below 2^62."""
    less = added(least, {(): -(2 ** (bits - 1))})
    return less if all(count > 0 for count in less.values()) else added(added(less, {(): BEYOND[bits]}), place)


def _is_wide(z3: Any, need: Any) -> bool:
    """Whether it says that a number fits into 64 bits."""
    return any(z3.is_int_value(each) and abs(each.as_long()) >= 2**62 for each in need.children())


def _goes_wrong(z3: Any, some: Sequence[Access]) -> bool:
    """Whether one of the accesses leaves its buffer at the sizes that are tried."""
    wrong = ([*each.known, z3.Not(z3.And(each.sound, z3.Implies(each.mask, each.inside)))] for each in some)
    return any(_possible(z3, each) for each in wrong)


def _end_is_reached(z3: Any, some: Sequence[Access]) -> bool:
    """Planted fault: the buffer is one element shorter, and an access must be found that leaves it."""
    return any(_possible(z3, [*each.known, each.mask, each.last]) for each in some)


def _possible(z3: Any, terms: Sequence[Any]) -> bool:
    """With numbers for the sizes: what is left of the products is small."""
    context = terms[0].ctx
    solver = z3.Solver(ctx=context)
    solver.set("timeout", TIMEOUT_SECONDS * 1000)
    solver.add(*(z3.Int(name, context) == value for name, value in SIZES.items()), *terms)
    return bool(solver.check() == z3.sat)
