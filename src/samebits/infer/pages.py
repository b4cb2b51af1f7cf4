"""The engine's memory: which page of the key-value cache is whose, and what one step reads and writes of it.

`PagePool` counts and names pages and holds no number; `LayerCache` is a layer's storage, told once a step where to
write. Where a key lies decides no bit."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from samebits.ops.attention.cache import Cache
from samebits.ops.attention.layout import Spread

# What the first page of a sequence comes after.
ROOT = b""


def chain_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a full page: its tokens and all before them, for keys depend on both."""
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=32).digest()


class PagePool:
    """Pages 0 to count - 1: free, held by some requests, or kept for their contents until the room is needed."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._holders: Counter[int] = Counter()
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        # Pages that nobody holds and that have a name, least recently used first.
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Pages that `take` can give."""
        return len(self._free) + len(self._kept)

    @property
    def kept(self) -> int:
        """Of these, pages whose contents a later request may still share."""
        return len(self._kept)

    def take(self) -> int | None:
        """A page to write to, held once; the least recently used kept page if no other is left."""
        if self._free:
            page = self._free.pop()
        elif self._kept:
            page, _ = self._kept.popitem(last=False)
            del self._page_of[self._key_of.pop(page)]
        else:
            return None
        self._holders[page] = 1
        return page

    def share(self, key: bytes) -> int | None:
        """The page of that name, held once more."""
        page = self._page_of.get(key)
        if page is not None:
            self._kept.pop(page, None)
            self._holders[page] += 1
        return page

    def name(self, page: int, key: bytes) -> None:
        """A full page may be shared from now on. Of two pages with equal contents the first keeps the name."""
        if page not in self._key_of and key not in self._page_of:
            self._page_of[key], self._key_of[page] = page, key

    def release(self, pages: Sequence[int]) -> None:
        """Held once less. The last pages of a sequence go first, so that its beginning is kept longest."""
        for page in reversed(pages):
            if self._holders[page] < 1:
                raise ValueError(
                    f"pages: page {page} is released and {self._holders[page]} hold it; allowed: once each"
                )
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            del self._holders[page]
            if page in self._key_of:
                self._kept[page] = None
            else:
                self._free.append(page)

    def forget(self) -> None:
        """No page has a name any more: its contents belong to other weights."""
        self._free.extend(self._kept)
        self._kept.clear()
        self._page_of.clear()
        self._key_of.clear()

    def problems(self, tables: Iterable[Sequence[int]]) -> list[str]:
        """What does not add up, if these are the tables of all requests that hold pages."""
        named, free, found = Counter(page for table in tables for page in table), Counter(self._free), []
        for page in range(self.count):
            if named[page] != self._holders[page]:
                found.append(f"page {page} is in {named[page]} tables and {self._holders[page]} hold it")
            places = (page in self._kept) + free[page] + (self._holders[page] > 0)
            if places != 1:
                found.append(f"page {page} is free, kept or held in {places} ways; it must be 1")
        if {page: key for key, page in self._page_of.items()} != self._key_of:
            found.append("the names of pages and the pages of names are not the reverse of one another")
        found.extend(f"page {page} is kept without a name" for page in self._kept if page not in self._key_of)
        return found


def places(table: Sequence[int], first: int, stop: int, page_size: int) -> list[int]:
    """The rows of a layer's storage that hold keys first..stop of a sequence."""
    return [table[key // page_size] * page_size + key % page_size for key in range(first, stop)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """Where one step reads and writes: made once, used by every layer."""

    held: list[int]
    """Keys of each sequence before the step."""
    grown: list[int]
    """And after it."""
    tables: list[Sequence[int]]
    written: Tensor
    """int64 (T): the storage row of each new key."""
    pages: Tensor
    """int32 (sequences, most pages)."""
    spread: Spread

    @classmethod
    def of(
        cls,
        tables: Sequence[Sequence[int]],
        held: Sequence[int],
        counts: Sequence[int],
        page_size: int,
        device: torch.device,
    ) -> Tables:
        """Sequences that hold some keys each and get `counts` more, in pages that their tables name already."""
        grown = [before + count for before, count in zip(held, counts, strict=True)]
        rows = [
            row
            for table, before, after in zip(tables, held, grown, strict=True)
            for row in places(table, before, after, page_size)
        ]
        most = max(map(len, tables))
        padded = [[*table, *[0] * (most - len(table))] for table in tables]
        written = torch.tensor(rows, dtype=torch.int64).to(device)
        pages = torch.tensor(padded, dtype=torch.int32).to(device)
        length = torch.tensor(grown, dtype=torch.int64).to(device)
        spread = Spread(start=torch.zeros_like(length), length=length, longest=max(grown))
        return cls(held=list(held), grown=grown, tables=list(tables), written=written, pages=pages, spread=spread)


class LayerCache(Cache):
    """A layer's keys and values (pages, page_size, Hk, D) for all requests; `at` says whose turn it is."""

    def __init__(
        self, pages: int, page_size: int, key_heads: int, head: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.k, self.v = (torch.zeros(pages, page_size, key_heads, head, dtype=dtype, device=device) for _ in range(2))
        self._flat = self.k.flatten(0, 1), self.v.flatten(0, 1)
        self._tables: Tables | None = None
        self.lengths: list[int] = []

    def at(self, tables: Tables) -> None:
        self._tables, self.lengths = tables, tables.held

    @property
    def _now(self) -> Tables:
        if self._tables is None:
            raise ValueError("pages: the cache has no tables yet; allowed: after at()")
        return self._tables

    @property
    def k_flat(self) -> Tensor:
        return self._flat[0]

    @property
    def v_flat(self) -> Tensor:
        return self._flat[1]

    @property
    def pages(self) -> Tensor:
        return self._now.pages

    @property
    def page_size(self) -> int:
        return self.k.shape[1]

    @property
    def capacity(self) -> list[int]:
        return [len(table) * self.page_size for table in self._now.tables]

    def places(self, sequence: int, first: int, stop: int) -> np.ndarray:
        return np.asarray(places(self._now.tables[sequence], first, stop, self.page_size), dtype=np.int64)

    def append_spread(self, k_THD: Tensor, v_THD: Tensor, spread: Spread) -> None:
        """The step's new keys, packed in the order of its tables."""
        added, expected = k_THD.shape[0], self._now.written.shape[0]
        if self.lengths is not self._now.held or added != expected:
            raise ValueError(f"pages: {added} keys are added, the step is for {expected}, once; they must agree")
        with torch.no_grad():
            self._flat[0].index_copy_(0, self._now.written, k_THD)
            self._flat[1].index_copy_(0, self._now.written, v_THD)
        self.lengths = self._now.grown

    def spread(self) -> Spread:
        return self._now.spread

    def _check_writing(self, grown: list[int]) -> None:
        """The pool gives a page to write to one request; only full ones are shared."""
