"""What may not change a sum over rows: how a global batch is cut into micro-batches.

Cuts lie at multiples of the widest chain, where an accumulator can be stored and picked up without loss."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from samebits.checker.cases import Case, micro_cuts, take
from samebits.checker.driving import Setting, begin, difference, everything, some_ways
from samebits.checker.outcome import Compared
from samebits.records.report import UnjudgedError

# The tensor core adds 16 products at a time (see contracts/orders.py): a cut elsewhere would regroup them.
MULTIPLE = 16


def micro(setting: Setting, case: Case) -> Iterator[Compared]:
    """The gradients of one pass equal those of the resumed chain, and the chain resumed anywhere equals itself."""
    spec = setting.spec
    if spec.resume is None:
        raise UnjudgedError(f"{spec.name} has no sum over rows that can be resumed")
    if case.shape[0] <= MULTIPLE:
        return
    prepared, once = begin(setting, case, everything(spec))
    arguments, dy, rows = prepared.arguments, prepared.cotangent, prepared.rows
    whole = spec.resume(arguments, dy, None, setting.backend)
    rounded = {name: total.to(once[name].dtype) for name, total in whole.items()}
    differs = difference({name: once[name] for name in whole}, rounded)
    yield Compared(case, f"backward in one pass against the resumable sum: {differs}" if differs else "")
    for cuts in some_ways(setting, case, list(micro_cuts(rows, MULTIPLE))):
        sums: dict[str, Tensor] | None = None
        for cut in cuts:
            sums = spec.resume(take(spec, arguments, cut), dy[cut], sums, setting.backend)
        assert sums is not None
        differs = difference(whole, sums)
        lengths = " ".join(str(cut.stop - cut.start) for cut in cuts[:6]) + (" ..." if len(cuts) > 6 else "")
        yield Compared(case, f"micro-batches of {lengths} rows against one pass: {differs}" if differs else "")
