"""What may not change a row: the rows beside it, its place among them, padding, and how a prompt is cut.

Each comparison is forward and backward: the output rows and the gradients of row arguments, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from samebits.checker.cases import Case, batch_sizes, chunk_cuts, pad, pad_rows, take
from samebits.checker.driving import Prepared, Results, Setting, begin, difference, drive, everything, some_ways
from samebits.checker.outcome import Compared
from samebits.contracts.spec import Arguments

BUCKETS = (8, 16, 64)
POISON = float("nan")


def batch(setting: Setting, case: Case) -> Iterator[Compared]:
    """A row is the same alone, in any batch, at any position, beside any other rows."""
    spec = setting.spec
    prepared, whole = begin(setting, case, spec.row_arguments)
    arguments, dy, rows = prepared.arguments, prepared.cotangent, prepared.rows

    def judged(index: Sequence[int], given: Arguments, given_dy: Tensor, places: Sequence[int], words: str) -> Compared:
        part = _rows(drive(setting, given, given_dy, spec.row_arguments), places)
        found = difference(_rows(whole, index), part, index)
        return Compared(case, f"{words} against the whole batch: {found}" if found else "")

    def cut_out(start: int, size: int) -> Compared:
        cut = slice(start, start + size)
        words = f"row {start} alone" if size == 1 else f"rows {start} to {cut.stop - 1} as a batch of {size}"
        alone = {name: value.clone() for name, value in take(spec, arguments, cut).items()}
        return judged(range(start, cut.stop), alone, dy[cut].clone(), range(size), words)

    def shuffled() -> Compared:
        index = sorted(range(rows), key=lambda row: (row * 2654435761) % 2**32)
        return judged(index, take(spec, arguments, torch.tensor(index)), dy[index], range(rows), "rows shuffled")

    def moved(words: str, strangers: Callable[[], Arguments]) -> Compared:
        kept = list(range(0, rows, 3))
        mixed, mixed_dy, places = _among(setting, arguments, dy, kept, strangers())
        return judged(kept, mixed, mixed_dy, places, f"every third row, moved beside {words},")

    ways: list[Callable[[], Compared]] = [
        partial(cut_out, start, size)
        for size in batch_sizes(rows)
        for start in sorted({0, (rows - size) // 2, rows - size})
    ]
    ways += [
        shuffled,
        partial(moved, "other rows", lambda: _others(setting, case)),
        partial(moved, "rows of NaN", lambda: pad(spec, arguments, rows, 0, POISON)),
    ]
    for way in some_ways(setting, case, ways):
        yield way()


def _rows(results: Results, index: Sequence[int]) -> Results:
    picked = slice(index.start, index.stop) if isinstance(index, range) else list(index)
    return {name: value[picked] for name, value in results.items()}


def _others(setting: Setting, case: Case) -> Arguments:
    made = setting.spec.make(case.shape, case.recipe, case.format, case.seed + 1)
    return {name: value.to(setting.device) for name, value in made.items()}


def _among(
    setting: Setting, arguments: Arguments, dy: Tensor, kept: list[int], strangers: Arguments
) -> tuple[Arguments, Tensor, list[int]]:
    """The kept rows at other places, with strangers' rows on all the others."""
    rows = dy.shape[0]
    places = [(row + 1) % rows for row in kept]
    mixed = dict(arguments)
    for name in setting.spec.row_arguments:
        mixed[name] = strangers[name][:rows].clone()
        mixed[name][places] = arguments[name][kept]
    mixed_dy = dy.flip(0).clone()
    mixed_dy[places] = dy[kept]
    return mixed, mixed_dy, places


def padding(setting: Setting, case: Case) -> Iterator[Compared]:
    """Padding rows on the left, on the right or on both sides, of NaN or of zeros, change no row.

    Nor do zero rows on the right change a sum over rows: the chain has ended before them."""
    spec = setting.spec
    prepared, results = begin(setting, case, everything(spec))
    whole = {name: value for name, value in results.items() if name not in spec.shared_arguments}
    arguments, dy, rows = prepared.arguments, prepared.cotangent, prepared.rows
    ways = list(itertools.product(BUCKETS, (POISON, 0.0), ("the left", "the right", "both sides")))
    for bucket, fill, side in some_ways(setting, case, ways):
        extra = bucket - rows % bucket
        before, after = extra * (side != "the right"), extra * (side != "the left")
        padded = pad(spec, arguments, before, after, fill)
        found = drive(setting, padded, pad_rows(dy, before, after, 0.0), spec.row_arguments)
        kept = {name: value[before : before + rows] for name, value in found.items()}
        differs = difference(whole, kept)
        words = f"{before + after} rows of {'NaN' if fill != fill else 'zero'} on {side}"
        yield Compared(case, f"{words}: {differs}" if differs else "")
    if spec.differentiable:
        sums = {name: value for name, value in results.items() if name in spec.shared_arguments}
        yield from _padded_sums(setting, case, prepared, sums)


def _padded_sums(setting: Setting, case: Case, prepared: Prepared, sums: Results) -> Iterator[Compared]:
    spec, arguments, dy, rows = setting.spec, prepared.arguments, prepared.cotangent, prepared.rows
    if not sums:
        return
    for bucket in some_ways(setting, case, BUCKETS):
        extra = bucket - rows % bucket
        found = _sums(setting, pad(spec, arguments, 0, extra, 0.0), pad_rows(dy, 0, extra, 0.0))
        differs = difference(_signless(sums, sums), _signless(found, sums))
        yield Compared(case, f"{extra} rows of zero on the right: {differs}" if differs else "")


def _signless(results: Results, sums: Results) -> Results:
    """Without the sign of a zero where a sum is -0: what underflowed so is +0 once a padding row's +0 is added."""
    minus_zero = {name: (value == 0) & value.signbit() for name, value in sums.items()}
    return {name: torch.where(minus_zero[name], value + 0.0, value) for name, value in results.items()}


def _sums(setting: Setting, arguments: Arguments, dy: Tensor) -> Results:
    """Gradients that are sums over rows."""
    results = drive(setting, arguments, dy, setting.spec.shared_arguments)
    return {name: value for name, value in results.items() if name in setting.spec.shared_arguments}


def chunk(setting: Setting, case: Case) -> Iterator[Compared]:
    """Rows handed over in chunks give the rows of the whole. Chunks are views, so their addresses vary too."""
    spec = setting.spec
    prepared, whole = begin(setting, case, spec.row_arguments)
    arguments, dy = prepared.arguments, prepared.cotangent
    for cuts in some_ways(setting, case, list(chunk_cuts(prepared.rows))):
        parts = [drive(setting, take(spec, arguments, cut), dy[cut], spec.row_arguments) for cut in cuts]
        joined = {name: torch.cat([part[name] for part in parts]) for name in whole}
        differs = difference(whole, joined)
        lengths = " ".join(str(cut.stop - cut.start) for cut in cuts[:6]) + (" ..." if len(cuts) > 6 else "")
        yield Compared(case, f"chunks of {lengths} rows: {differs}" if differs else "")
