"""Whether calls launched in C++ have the bits of Python's function, on the GPU of this machine.

New memory holds NaN: what a launch leaves out is seen. Knows no stub; the calls are those of cases.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from samebits.ops.contracts.host_launch.attaching import attach, attached, calls_of
from samebits.ops.contracts.host_launch.cases import CASES, SEED, Given
from samebits.ops.contracts.host_launch.compared import (
    BIASED,
    NEEDED,
    Found,
    Record,
    dealt,
    launched_though_more,
    results,
    unheard,
)
from samebits.ops.contracts.host_launch.poisoning import poisoned_memory
from samebits.ops.contracts.host_launch.recording import record
from samebits.records.report import UnjudgedError

DEVICE = "cuda"


def same_bits(left: Any, right: Any) -> bool:
    """Of a tensor, or of each of several: sizes, strides, and every bit."""
    pairs = list(zip(results(left), results(right), strict=True))
    return all(
        a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))
        for a, b in pairs
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32 if tensor.element_size() == 4 else torch.int16)


def is_pythons(function: Any, call: Any, given: Given) -> bool:
    """Whether every call has the bits of Python's function, and the last was launched in C++."""
    expected = function(*given.positional, **given.named)
    made = [call(*given.positional, **given.named) for _ in range(NEEDED - 1)]
    before, _ = call.counted()
    made.append(call(*given.positional, **given.named))
    return call.counted()[0] == before + 1 and all(same_bits(expected, each) for each in made)


def differing_cases(module: Any) -> Iterator[str]:
    calls = {case.function: calls_of(module, case.function) for case in CASES.values()}
    for name, case in CASES.items():
        given = [each.moved(DEVICE) for seed in (SEED, SEED + 1) for each in case.calls(seed)]
        for place, each in enumerate((*given, *given)):
            if not is_pythons(case.function, calls[case.function], each):
                yield f"{name}, call {place}"


def found(record: Record = record) -> Found:
    """`record`: replaced by planted faults."""
    if not torch.cuda.is_available():
        raise UnjudgedError("bits on a GPU need one, and none is visible")
    module = attached()
    attach(module, torch._C._cuda_getCurrentRawStream, record=record)
    case = CASES[BIASED]
    with torch.no_grad(), poisoned_memory():
        return Found(
            differing=tuple(differing_cases(module)),
            unheard=tuple(unheard(calls_of(module, case.function), case.calls()[0].moved(DEVICE))),
            too_many=tuple(launched_though_more(lambda function: calls_of(module, function), DEVICE)),
        )


def differing_on_device(parts: Tensor, *, record: Record = record) -> Tensor:
    """(parts, 3): what the bits on a GPU tell."""
    return dealt(found(record), parts).to(parts.device)
