"""What was made for the latest cases, kept for the obligations that are tried on them side by side.

A memory and nothing else: what was forgotten is made again, so whoever asks gets the same, alone or beside others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from samebits.checker.cases import Case

Value = TypeVar("Value")
MOST: Final = 1024


class Recent:
    """Inputs, first calls and the like by kind, backend and case; the oldest are forgotten."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str, Case], Any] = {}
        self._depth = 0
        self.seconds = 0.0
        """Spent on making what was asked for."""

    def of(self, kind: str, backend: str, case: Case, make: Callable[[], Value]) -> Value:
        """What `make` gives, made once while it is remembered."""
        key = (kind, backend, case)
        if key in self._kept:
            found: Value = self._kept[key]
            return found
        started, outermost = time.perf_counter(), not self._depth
        self._depth += 1
        try:
            value = make()
        finally:
            self._depth -= 1
            self.seconds += (time.perf_counter() - started) * outermost
        self._kept[key] = value
        if len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]
        return value
