"""One function a promise, and the closed table that pairs them with the words of the contract language.

rows.py      batch, padding, chunk: what may not change a row
forms.py     cache, and the same three where a spec knows other ways to ask
sums.py      micro: what may not change a sum over rows
launch.py    repeat, tile, device: what may not change anything
accuracy.py  accuracy: the bound that follows from the order
orders.py    order: the order found by measurement"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from samebits.checker.cases import Case
from samebits.checker.driving import CallError, Setting
from samebits.checker.outcome import CaseError, Compared
from samebits.checker.promises.accuracy import accuracy
from samebits.checker.promises.forms import forms
from samebits.checker.promises.launch import device, repeat, tile
from samebits.checker.promises.orders import order
from samebits.checker.promises.rows import batch, chunk, padding
from samebits.checker.promises.sums import micro

# Cases come one by one: what is compared for one may decide whether there is another.
Check: TypeAlias = Callable[[Setting, Iterable[Case]], Iterator[Compared]]


def _case_by_case(check: Callable[[Setting, Case], Iterator[Compared]]) -> Check:
    """A check of one case, over all of them; what the function raises is tied to the case it raised on."""

    def over_all(setting: Setting, cases: Iterable[Case]) -> Iterator[Compared]:
        for case in cases:
            try:
                yield from check(setting, case)
            except CallError as reason:
                raise CaseError(case, reason) from reason

    return over_all


# A promise of the language that is missing here cannot be judged yet; it never passes.
CHECKS: dict[str, Check] = {
    "repeat": repeat,
    "batch": _case_by_case(forms("batch", batch)),
    "padding": _case_by_case(forms("padding", padding)),
    "chunk": _case_by_case(forms("chunk", chunk)),
    "cache": _case_by_case(forms("cache")),
    "micro": _case_by_case(micro),
    "tile": _case_by_case(tile),
    "device": _case_by_case(device),
    "accuracy": _case_by_case(accuracy),
    "order": order,
}
# Where each promise is judged: what a receipt of it is tied to, beside what these import.
MODULES: dict[str, tuple[str, ...]] = {
    "repeat": ("samebits.checker.promises.launch", "samebits.checker.fresh_process"),
    "batch": ("samebits.checker.promises.rows", "samebits.checker.promises.forms"),
    "padding": ("samebits.checker.promises.rows", "samebits.checker.promises.forms"),
    "chunk": ("samebits.checker.promises.rows", "samebits.checker.promises.forms"),
    "cache": ("samebits.checker.promises.forms",),
    "micro": ("samebits.checker.promises.sums",),
    "tile": ("samebits.checker.promises.launch",),
    "device": ("samebits.checker.promises.launch",),
    "accuracy": ("samebits.checker.promises.accuracy",),
    "order": ("samebits.checker.promises.orders",),
}
