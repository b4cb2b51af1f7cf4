"""The store of a run: torch's key-value store in memory, whose waits give the baton away.

torch's own stores block the thread that asks. Under a baton that thread is the only one that runs, and what it waits
for would never be set."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from samebits.sim.engine import Handle
from samebits.sim.errors import SimError
from samebits.sim.rank import current


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class YieldingStore(Store):
    """One dictionary for all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        self._timeout = timedelta(seconds=300)

    def _touch(self, key: str) -> None:
        rank = current()
        if rank is not None:
            rank.scheduler.touched.add(f"store key {key}")

    def set(self, key: str, value: str | bytes) -> None:
        self._touch(key)
        self._values[key] = _bytes(value)

    def get(self, key: str) -> bytes:
        self._touch(key)
        self.wait([key])
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        self._touch(key)
        total = int(self._values.get(key, b"0")) + amount
        self._values[key] = str(total).encode()
        return total

    def append(self, key: str, value: str | bytes) -> None:
        self._touch(key)
        self._values[key] = self._values.get(key, b"") + _bytes(value)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        self._touch(key)
        known = self._values.get(key)
        if known == _bytes(expected) or (known is None and not expected):
            self._values[key] = _bytes(desired)
        return self._values.get(key, _bytes(expected))

    def check(self, keys: Sequence[str]) -> bool:
        for key in keys:
            self._touch(key)
        return self._has(keys)

    def _has(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        rank = current()
        handle = Handle(f"store.wait({', '.join(keys)})", ready=lambda: self._has(keys))
        if rank is not None:
            rank.wait(handle)
        elif not handle.ready():
            raise SimError(f"{handle.what}: no rank has set it, and none can run while the main context waits")

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        return True

    def delete_key(self, key: str) -> bool:
        self._touch(key)
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._values)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def clone(self) -> Any:
        return self
