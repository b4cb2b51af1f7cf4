"""What changed between two states of a contract, whether that breaks a promise, and which version it needs.

Whatever asks for less is breaking, whatever asks for more is an addition, and what no check reads is text. Runs
nothing; where the two states come from is said in contracts/revisions.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from samebits.contracts.language import BACKENDS, Contract, Domain, Obligation, Subject, Test, Tolerance

KINDS: Final = ("breaking", "addition", "text")
"""From the heaviest: each needs another part of the version to grow."""
SECTIONS: Final = ("equations", "subjects", "domains", "obligations", "tests", "mutants", "proofs")


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One difference."""

    kind: str
    id: str
    what: str
    old: str
    new: str

    def __str__(self) -> str:
        values = f": {self.old or 'nothing'} -> {self.new or 'nothing'}" if self.old or self.new else ""
        return f"{self.kind:<8}  {self.id}  {self.what}{values}"


def diff(old: Contract, new: Contract) -> list[Change]:
    """Every change from `old` to `new`, the breaking ones first."""
    changes = [*_head(old, new)]
    for section in SECTIONS:
        before, after = getattr(old, section), getattr(new, section)
        changes += [_change("breaking", name, f"removed from {section}") for name in before if name not in after]
        changes += [_change("addition", name, f"new in {section}") for name in after if name not in before]
        for name in before:
            if name in after:
                changes += _ENTRIES[section](name, before[name], after[name])
    changes += _domains_of_obligations(old, new)
    return sorted(changes, key=lambda change: KINDS.index(change.kind))


def required_version(old: str, changes: Iterable[Change]) -> str:
    """The least version that fits: a major one for anything breaking, a minor one for additions, a patch for text."""
    kinds = {change.kind for change in changes}
    major, minor, patch = _numbers(old)
    if "breaking" in kinds:
        return f"{major + 1}.0.0"
    if "addition" in kinds:
        return f"{major}.{minor + 1}.0"
    return f"{major}.{minor}.{patch + 1}" if kinds else old


def findings(old: Contract, new: Contract, changes: Sequence[Change]) -> list[str]:
    """What is wrong with the new version, one line each; an empty list where it fits."""
    if not changes:
        said = f"version is {new.version} after {old.version}, but nothing changed"
        return [said] if new.version != old.version else []
    needed, found = required_version(old.version, changes), []
    if _numbers(new.version) < _numbers(needed):
        counted = ", ".join(f"{sum(each.kind == kind for each in changes)} {kind}" for kind in KINDS)
        found.append(f"version is {new.version} after {old.version}; changes ({counted}) need {needed} at least")
    broken = any(change.kind == "breaking" for change in changes)
    if broken and not any(entry.version == new.version for entry in new.changes):
        found.append(f"changes has no entry for {new.version}; what breaks needs a reason")
    return found


def _numbers(version: str) -> tuple[int, int, int]:
    major, minor, patch = (int(part) for part in version.split("."))
    return major, minor, patch


def _change(kind: str, identifier: str, what: str, old: Any = "", new: Any = "") -> Change:
    return Change(kind=kind, id=identifier, what=what, old=_shown(old), new=_shown(new))


def _shown(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple, set)) else str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _other(identifier: str, what: str, old: Any, new: Any, kind: str = "breaking") -> Iterator[Change]:
    """Any difference is of that kind."""
    if old != new:
        yield _change(kind, identifier, what, old, new)


def _amount(identifier: str, what: str, old: float, new: float) -> Iterator[Change]:
    """More is more."""
    if old != new:
        yield _change("breaking" if new < old else "addition", identifier, what, old, new)


def _set(identifier: str, what: str, old: Iterable[Any], new: Iterable[Any]) -> Iterator[Change]:
    """What is gone breaks, what came is added; the order means nothing."""
    before, after = [str(each) for each in old], [str(each) for each in new]
    if gone := [each for each in before if each not in set(after)]:
        yield _change("breaking", identifier, f"fewer {what}", gone, "")
    if came := [each for each in after if each not in set(before)]:
        yield _change("addition", identifier, f"more {what}", "", came)


def _head(old: Contract, new: Contract) -> Iterator[Change]:
    name = old.contract
    yield from _other(name, "contract", old.contract, new.contract)
    yield from _other(name, "prefix", old.prefix, new.prefix)
    for backend in BACKENDS:
        said = "requires_level" if old.backends == new.backends == [backend] else f"requires_level on {backend}"
        yield from _amount(name, said, old.required(backend), new.required(backend))
    yield from _set(name, "dependencies", old.depends_on, new.depends_on)
    for key in ("flush_to_zero", "tf32", "atomics"):
        before, after = getattr(old.numerics, key), getattr(new.numerics, key)
        if before != after:
            # What was ruled out and now may happen is looser.
            yield _change("breaking" if after else "addition", name, f"numerics.{key}", before, after)
    for key in ("accumulator", "fused"):
        yield from _other(name, f"numerics.{key}", getattr(old.numerics, key), getattr(new.numerics, key))
    yield from _other(name, "refs", [str(each) for each in old.refs], [str(each) for each in new.refs], "text")
    yield from _other(name, "changes", _versions(old), _versions(new), "text")


def _versions(contract: Contract) -> list[str]:
    return [f"{entry.version} {entry.reason}" for entry in contract.changes]


def _subject(name: str, old: Subject, new: Subject) -> Iterator[Change]:
    for key in ("object", "equation", "spec"):
        yield from _other(name, key, getattr(old, key), getattr(new, key))
    before, after = _orders(old), _orders(new)
    for place, order in before.items():
        yield from _other(name, f"order of {place}", order, after.get(place, ""))
    for place, order in after.items():
        if place not in before:
            yield _change("addition", name, f"order of {place}", "", order)


def _orders(subject: Subject) -> dict[str, str]:
    return {
        f"{backend} {format}": order for backend, orders in subject.orders.items() for format, order in orders.items()
    }


def _domain(name: str, old: Domain, new: Domain) -> Iterator[Change]:
    for key in ("shapes", "recipes", "formats", "seeds"):
        yield from _set(name, key, getattr(old, key), getattr(new, key))
    yield from _set(name, "draw.recipes", old.draw.recipes, new.draw.recipes)
    yield from _amount(name, "draw.calls", old.draw.calls, new.draw.calls)
    before, after = old.draw.axes(), new.draw.axes()
    if len(before) != len(after):
        yield _change("breaking", name, "draw.sizes", old.draw.sizes, new.draw.sizes)
        return
    for axis, (was, now) in enumerate(zip(before, after, strict=True)):
        if set(was) != set(now):
            kind = "addition" if set(was) < set(now) else "breaking"
            yield _change(kind, name, f"draw.sizes of axis {axis}", old.draw.sizes[axis], new.draw.sizes[axis])


def _obligation(name: str, old: Obligation, new: Obligation) -> Iterator[Change]:
    for key in ("subject", "predicate"):
        yield from _other(name, key, getattr(old, key), getattr(new, key))
    yield from _tolerance(name, old.tolerance, new.tolerance)
    yield from _set(name, "tests", old.tests, new.tests)
    yield from _set(name, "mutants", old.mutants, new.mutants)


def _tolerance(name: str, old: Tolerance, new: Tolerance) -> Iterator[Change]:
    if old.kind != new.kind:
        yield _change("addition" if new.kind == "bitwise" else "breaking", name, "tolerance", _said(old), _said(new))
        return
    if old.value is not None and new.value is not None and old.value != new.value:
        yield _change("breaking" if new.value > old.value else "addition", name, "tolerance", old.value, new.value)
    for key in ("to", "bound"):
        yield from _other(name, f"tolerance.{key}", getattr(old, key), getattr(new, key))
    yield from _other(name, "tolerance.why", old.why or "", new.why or "", "text")


def _said(tolerance: Tolerance) -> str:
    return f"{tolerance.kind} {tolerance.value if tolerance.value is not None else tolerance.bound or ''}".strip()


def _domains_of_obligations(old: Contract, new: Contract) -> Iterator[Change]:
    """An obligation on another domain asks for less unless that domain holds all of the one before."""
    for name, before in old.obligations.items():
        after = new.obligations.get(name)
        if after is not None and before.domain != after.domain:
            inside = _domain(name, old.domains[before.domain], new.domains[after.domain])
            kind = "breaking" if any(each.kind == "breaking" for each in inside) else "addition"
            yield _change(kind, name, "domain", before.domain, after.domain)


def _test(name: str, old: Test, new: Test) -> Iterator[Change]:
    yield from _other(name, "obligation", old.obligation, new.obligation)
    yield from _set(name, "examples", old.examples, new.examples)
    for key in ("prediction", "if_fails"):
        yield from _other(name, key, getattr(old, key), getattr(new, key), "text")


def _equation(name: str, old: Any, new: Any) -> Iterator[Change]:
    yield from _other(name, "reference", old.reference, new.reference)
    yield from _other(name, "text", old.text, new.text, "text")


def _mutant(name: str, old: Any, new: Any) -> Iterator[Change]:
    for key in ("of", "object"):
        yield from _other(name, key, getattr(old, key), getattr(new, key))


def _proof(name: str, old: Any, new: Any) -> Iterator[Change]:
    for key in ("kind", "object"):
        yield from _other(name, key, getattr(old, key), getattr(new, key))
    yield from _set(name, "obligations", old.obligations, new.obligations)
    yield from _set(name, "backends", old.backends, new.backends)


_ENTRIES: Final = {
    "equations": _equation,
    "subjects": _subject,
    "domains": _domain,
    "obligations": _obligation,
    "tests": _test,
    "mutants": _mutant,
    "proofs": _proof,
}
