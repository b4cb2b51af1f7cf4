"""The promises that every operator makes: a line a subject under `standard` becomes obligations, tests, planted faults.

The line names the domain of each promise. What is asked, what a failure means and a fault that must be caught are the
same for all operators and are written here once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from samebits.contracts.language import Document, Domain, Mutant, Obligation, Test, Tolerance

BITWISE: Final = Tolerance(kind="bitwise")
# Of an id, after the subject's number: S1 has OB101 to OB107, S2 has OB201 to OB207.
FAULTS: Final = "samebits.contracts.standard_faults"


@dataclass(frozen=True, kw_only=True, slots=True)
class Standard:
    """What one promise says of any operator."""

    number: int
    prediction: str
    if_fails: str
    fault: str
    """The function of `standard_faults` that breaks it in any function."""
    tolerance: Tolerance = BITWISE


STANDARD: Final[Mapping[str, Standard]] = {
    "repeat": Standard(
        number=1,
        prediction="equal inputs give equal bits, in this process and in a fresh one",
        if_fails="an order that depends on time: atomics, thread arrival, uninitialised memory",
        fault="other_bits_every_second_call",
    ),
    "batch": Standard(
        number=2,
        prediction="a row alone has the bits it has in any batch, at any place",
        if_fails="the order of a row's sum depends on how many rows there are or on its neighbours",
        fault="other_bits_for_few_rows",
    ),
    "padding": Standard(
        number=3,
        prediction="rows of padding change no other row",
        if_fails="a row reads its padding, or the padding shifts the groups of a sum",
        fault="other_bits_beside_padding",
    ),
    "chunk": Standard(
        number=4,
        prediction="rows handed over in chunks have the bits of the whole",
        if_fails="an order that starts anew at a chunk's border",
        fault="other_bits_for_odd_sizes",
    ),
    "tile": Standard(
        number=5,
        prediction="launch numbers change no bit",
        if_fails="a tile, a warp or a thread count shapes a sum",
        fault="other_bits_for_other_launches",
    ),
    "accuracy": Standard(
        number=6,
        prediction="every result lies within the bound that follows from its order",
        if_fails="a term is lost, a product is rounded too early, or an elementary function is too coarse",
        fault="too_large",
        tolerance=Tolerance(kind="derived", bound="order"),
    ),
    "device": Standard(
        number=7,
        prediction="float32 on the CPU has the bits of float32 on the GPU",
        if_fails="one of the two adds in another order, or uses another elementary function",
        fault="other_bits_on_cuda",
    ),
}


def expanded(document: Document) -> Document:
    """The document with what was left out, and with the obligations, tests and mutants that `standard` stands for."""
    document = _filled_in(document)
    obligations, tests, mutants = dict(document.obligations), dict(document.tests), dict(document.mutants)
    for subject, promises in document.standard.items():
        for promise, domain in promises.items():
            standard, number = STANDARD[promise], _number(subject, promise)
            identifier, mutant = f"{document.prefix}-OB{number}", f"{document.prefix}-MU{number}"
            own = [name for name, test in document.tests.items() if test.obligation == identifier]
            if not own:
                own = [f"FALSIFY-{document.prefix}-{number}"]
                tests[own[0]] = Test(
                    obligation=identifier,
                    prediction=standard.prediction,
                    if_fails=standard.if_fails,
                    examples=_examples(document.domains.get(domain)),
                )
            planted = [name for name, each in document.mutants.items() if (each.of, each.breaks) == (subject, promise)]
            if subject in document.subjects:
                object = f"{FAULTS}:{standard.fault}({document.subjects[subject].object})"
                mutants[mutant] = Mutant(of=subject, object=object, breaks=promise)
            obligations[identifier] = Obligation(
                subject=subject,
                predicate={"name": promise},
                domain=domain,
                tolerance=standard.tolerance,
                tests=own,
                mutants=[mutant, *planted],
            )
    return replace(document, obligations=obligations, tests=tests, mutants=mutants)


def _filled_in(document: Document) -> Document:
    """Obligations with their subject and tests, and tests with their examples, where these follow from the rest."""
    only = next(iter(document.subjects)) if len(document.subjects) == 1 else ""
    obligations = {
        name: replace(
            each,
            subject=each.subject or only,
            tests=each.tests or [test for test, one in document.tests.items() if one.obligation == name],
        )
        for name, each in document.obligations.items()
    }
    asked = {name: each.domain for name, each in obligations.items()}
    for subject, promises in document.standard.items():
        asked |= {f"{document.prefix}-OB{_number(subject, name)}": domain for name, domain in promises.items()}
    tests = {
        name: replace(each, examples=each.examples or _examples(document.domains.get(asked.get(each.obligation, ""))))
        for name, each in document.tests.items()
    }
    return replace(document, obligations=obligations, tests=tests)


def standard_ids(document: Document) -> set[str]:
    """The ids that the `standard` section takes."""
    numbers = [_number(subject, each) for subject, promises in document.standard.items() for each in promises]
    return {f"{document.prefix}-{kind}{number}" for number in numbers for kind in ("OB", "MU")}


def _number(subject: str, promise: str) -> int:
    return 100 * int(subject.rpartition("S")[2]) + STANDARD[promise].number


def _examples(domain: Domain | None) -> list[str]:
    """The first and the last case of a domain, as the checker prints them; none where there is no such domain."""
    if domain is None:
        return []
    return [
        f"{'x'.join(map(str, domain.shapes[end]))} {domain.recipes[end]} {domain.formats[end]} seed {domain.seeds[end]}"
        for end in (0, -1)
    ]
