"""Whether what C++ hands to the driver is what Python's path hands to it, call by call: a stub stands for the driver.

No GPU is needed: Triton compiles for one, and its own launcher in C is what the one in C++ is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from samebits.ops.contracts.host_launch import FOLDER
from samebits.ops.contracts.host_launch.attaching import attach
from samebits.ops.contracts.host_launch.cases import CASES, MORE, SEED, Given
from samebits.ops.contracts.host_launch.modes import MODES, PARTICULAR, answers_for, answers_within
from samebits.ops.contracts.host_launch.recording import record
from samebits.ops.contracts.host_launch.stub import Stub, standing_in

NEEDED = 3
"""Calls of a kind until one is launched in C++: one by Python, one that is recorded, this one."""
BIASED = "many rows and a bias"
"""The case whose tensors are made particular: it has one of each kind of operand."""
Record = Callable[..., Any]
Words = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What one pass over all calls and all modes found, by name."""

    differing: tuple[str, ...]
    unheard: tuple[str, ...]
    too_many: tuple[str, ...]
    """Calls launched in C++ that do more than launch."""


def results(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


def last_launch(stub: Stub, call: Callable[..., Any], given: Given) -> Words:
    """What the driver was asked for by one more call, and what the result looks like."""
    stub.expect_last()
    before = stub.launches()
    made = results(call(*given.positional, **given.named))
    names = {each.data_ptr(): name for name, each in given.tensors().items()}
    names |= {each.data_ptr(): f"result {place}" for place, each in enumerate(made)}
    looks = [(each.shape, each.stride(), each.dtype, each.requires_grad) for each in made]
    return stub.recorded(names) | {"looks": looks, "launches": stub.launches() - before}


def is_pythons(stub: Stub, function: Callable[..., Any], call: Any, given: Given) -> bool:
    """Whether a call is launched in C++ and hands over what Python's function does; `call` is that function in C++."""
    function(*given.positional, **given.named)
    expected = last_launch(stub, function, given)
    for _ in range(NEEDED - 1):
        call(*given.positional, **given.named)
    before, _ = call.counted()
    found = last_launch(stub, call, given)
    return call.counted()[0] == before + 1 and found == expected


def differing_cases(stub: Stub) -> Iterator[str]:
    """Calls that differ, each kind made at two sets of addresses, and again at the first."""
    calls = {case.function: stub.calls_of(case.function) for case in CASES.values()}
    for name, case in CASES.items():
        first, second = case.calls(), case.calls(SEED + 1)
        for place, given in enumerate((*first, *second, *first)):
            if not is_pythons(stub, case.function, calls[case.function], given):
                yield f"{name}, call {place}"


def unheard(call: Any, given: Given) -> Iterator[str]:
    """Modes and kinds of tensors for which the call is not left to Python. `call`: in C++, which launches `given`."""

    def refusal() -> str | None:
        return call.refusal(*given.positional)  # type: ignore[no-any-return]

    for mode in MODES:
        if refusal() is not None or answers_within(mode, refusal) != [mode]:
            yield mode
    for kind in PARTICULAR:
        if set(answers_for(kind, call.refusal, given.positional)) != {kind}:
            yield kind


def launched_though_more(call_of: Callable[[Callable[..., Any]], Any], device: str) -> Iterator[str]:
    """Calls of which a part would be left out."""
    for name, case in MORE.items():
        call = call_of(case.function)
        for given in case.calls():
            moved = given.moved(device)
            for _ in range(NEEDED):
                call(*moved.positional, **moved.named)
        if call.counted()[0]:
            yield name


@cache
def found(planted: str = "", record: Record = record, other_stream: bool = False) -> Found:
    """`planted`: a fault of the C++ by name. `record` and the stream that C++ asks for: replaced by other faults."""
    assert (FOLDER / "host_launch.cpp").is_file()
    with standing_in() as stub, torch.no_grad():
        attach(stub.module, lambda _: stub.stream + other_stream, record=record)
        stub.module.plant(*([planted] if planted else []))
        case = CASES[BIASED]
        return Found(
            differing=tuple(differing_cases(stub)),
            unheard=tuple(unheard(stub.calls_of(case.function), case.calls()[0])),
            too_many=tuple(launched_though_more(stub.calls_of, "cpu")),
        )


def dealt(told: Found, parts: Tensor) -> Tensor:
    """(parts, 3), dealt out to the parts: calls that are not Python's, modes and kinds of tensors that are not heard,
    calls launched in C++ that do more than launch."""
    counts = torch.zeros(len(parts), 3, dtype=torch.int64)
    for column, names in enumerate((told.differing, told.unheard, told.too_many)):
        for number, _ in enumerate(names):
            counts[number % len(parts), column] += 1
    return counts


def differing(parts: Tensor, **faults: Any) -> Tensor:
    """(parts, 3): what a stub of a driver saw."""
    return dealt(found(**faults), parts)
