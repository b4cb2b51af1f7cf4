"""What may not change anything: another run, another process, other launch numbers, another device.

Each comparison covers the output and every gradient, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from samebits.checker import fresh
from samebits.checker.cases import Case
from samebits.checker.driving import (
    CallError,
    Prepared,
    Results,
    Setting,
    begin,
    difference,
    drive,
    everything,
    some_ways,
)
from samebits.checker.outcome import CaseError, Compared
from samebits.native.launch_numbers import launching
from samebits.records.report import UnjudgedError

REPEATS = 4


def repeat(setting: Setting, cases: Iterable[Case]) -> Iterator[Compared]:
    """Equal inputs give equal bits: again in this process, and in a fresh one."""
    digests: dict[Case, str] = {}
    for case in cases:
        try:
            prepared, first = begin(setting, case, everything(setting.spec))
            for again in some_ways(setting, case, range(1, REPEATS)):
                differs = difference(first, _all(setting, prepared))
                yield Compared(case, f"run {again + 1} against run 1: {differs}" if differs else "")
        except CallError as reason:
            raise CaseError(case, reason) from reason
        digests[case] = fresh.digest(first)
    if not setting.importable:
        note = "this process only, another cannot import the function"
        yield from (Compared(case, note=note) for case in list(digests)[-1:])
        return
    elsewhere = fresh.digests(setting, list(digests))
    for (case, here), there in zip(digests.items(), elsewhere, strict=True):
        differs = f"digest {there[:12]} in a fresh process, {here[:12]} in this one" if here != there else ""
        yield Compared(case, differs)


def _all(setting: Setting, prepared: Prepared) -> Results:
    return drive(setting, prepared.arguments, prepared.cotangent, everything(setting.spec))


def tile(setting: Setting, case: Case) -> Iterator[Compared]:
    """Every launch the operator may choose gives the bits of the one it does choose."""
    prepared, chosen = begin(setting, case, everything(setting.spec))
    for numbers in some_ways(setting, case, setting.spec.launches(setting.backend, case.format)):
        with launching(**numbers):
            found = _all(setting, prepared)
        differs = difference(chosen, found)
        words = ", ".join(f"{name}={value}" for name, value in numbers.items())
        yield Compared(case, f"{words} against the launch chosen by size: {differs}" if differs else "")


def device(setting: Setting, case: Case) -> Iterator[Compared]:
    """float32 on the CPU equals float32 on the GPU. Other formats promise nothing here and are passed over."""
    if not torch.cuda.is_available():
        raise UnjudgedError("CPU and CUDA are compared and no CUDA GPU is visible")
    if case.format != "float32":
        return
    on_cpu, on_cuda = replace(setting, backend="cpu"), replace(setting, backend="triton")
    here, there = (begin(each, case, everything(each.spec))[1] for each in (on_cpu, on_cuda))
    differs = difference(here, {name: value.cpu() for name, value in there.items()})
    yield Compared(case, f"CPU against CUDA: {differs}" if differs else "")
