"""Keys and values of sequences that grow: `DenseCache`, a row a sequence, and `PagedCache`, pages named by a table.

Storage belongs to whoever made it and may be shared by caches: two tables that name the same full pages share a prefix.
Knows no kernel. Where a key lies in memory decides no bit of what attends to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from samebits.ops.arguments import check_dimensions, check_equal, check_integer
from samebits.ops.attention.layout import Spread, dense, flat, packed, padded

# A block of keys is read in pieces of this many, each within one page.
PAGE_MULTIPLE = 16


class Cache(ABC):
    """What `attention` asks of a cache."""

    k: Tensor
    v: Tensor
    lengths: list[int]
    """Keys held of each sequence. Known on the host, so that a full cache is noticed without asking the device. May be
    set, to forget the last keys of a sequence say: whenever the cache is used they are checked against its storage."""

    @property
    @abstractmethod
    def capacity(self) -> list[int]:
        """The most keys that each sequence can hold."""

    @abstractmethod
    def places(self, sequence: int, first: int, stop: int) -> np.ndarray:
        """The rows of the flat storage that hold keys first..stop of a sequence."""

    @property
    def bytes(self) -> int:
        """Storage of keys and values, held or not: 2 * capacity * key heads * head size * bytes of a number."""
        return sum(each.numel() * each.element_size() for each in (self.k, self.v))

    @property
    def k_flat(self) -> Tensor:
        return flat(self.k)

    @property
    def v_flat(self) -> Tensor:
        return flat(self.v)

    def append(
        self,
        k: Tensor,
        v: Tensor,
        *,
        cu_seqlens: Tensor | Sequence[int] | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        padding: str | None = None,
    ) -> None:
        """Add new keys and values at the end of every sequence: (B, S, Hk, D), or packed (T, Hk, D) with cu_seqlens."""
        if k.shape != v.shape:
            raise ValueError(f"attention: k has shape {tuple(k.shape)}, v has {tuple(v.shape)}; they must agree")
        if cu_seqlens is not None:
            spread = packed("cu_seqlens", k, cu_seqlens)
        else:
            check_dimensions("attention", "k", k, 4)
            spread = dense(k) if lengths is None else padded(k, lengths, padding)
        self.append_spread(flat(k), flat(v), spread)

    def append_spread(self, k_THD: Tensor, v_THD: Tensor, spread: Spread) -> None:
        """The same, with the rows of the new keys already known."""
        self._check()
        starts, counts = spread.start.tolist(), spread.length.tolist()
        check_equal("attention", "the number of sequences", len(counts), "that of the cache", len(self.lengths))
        if k_THD.shape[1:] != self.k.shape[2:]:
            raise ValueError(
                f"attention: k has heads and head size {tuple(k_THD.shape[1:])}, the cache {tuple(self.k.shape[2:])};"
                " they must agree"
            )
        grown = [length + count for length, count in zip(self.lengths, counts, strict=True)]
        for n, (needed, most) in enumerate(zip(grown, self.capacity, strict=True)):
            if needed > most:
                raise ValueError(f"attention: sequence {n} needs {needed} keys, the cache holds at most {most}")
        if sum(counts) == 0:
            return
        self._check_writing(grown)
        pieces = [np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        places = [self.places(n, self.lengths[n], grown[n]) for n in range(len(grown))]
        taken, written = (torch.from_numpy(np.concatenate(each)).to(self.k.device) for each in (pieces, places))
        with torch.no_grad():
            self.k_flat.index_copy_(0, written, k_THD.index_select(0, taken))
            self.v_flat.index_copy_(0, written, v_THD.index_select(0, taken))
        self.lengths = grown

    def spread(self) -> Spread:
        """Every sequence's keys in the flat storage; the starts mean nothing where there are pages."""
        self._check()
        starts = [0 if self.pages is not None else n * self.k.shape[1] for n in range(len(self.lengths))]
        tables = (torch.tensor(each, dtype=torch.int64).to(self.k.device) for each in (starts, self.lengths))
        start, length = tables
        return Spread(start=start, length=length, longest=max(self.lengths, default=0))

    @property
    def pages(self) -> Tensor | None:
        return None

    @property
    def page_size(self) -> int:
        return 0

    def _check(self) -> None:
        """That no kernel can be sent outside the storage: all of it may have been set since the cache was made."""
        _check_storage(self.k, self.v)
        capacities = self.capacity
        check_equal("attention", "the number of lengths", len(self.lengths), "that of sequences", len(capacities))
        for n, (length, capacity) in enumerate(zip(self.lengths, capacities, strict=True)):
            if type(length) is not int or not 0 <= length <= capacity:
                wrong = ValueError if type(length) in (int, float) else TypeError
                raise wrong(
                    f"attention: lengths[{n}] is {length!r:.60}; allowed: 0 to {capacity}, the capacity of the cache"
                )

    @abstractmethod
    def _check_writing(self, grown: list[int]) -> None:
        """Raise where an append would write what another sequence reads."""


def _check_storage(k: Tensor, v: Tensor) -> None:
    check_dimensions("attention", "the cache's k", k, 4)
    if k.shape != v.shape or k.dtype != v.dtype or k.device != v.device:
        raise ValueError(
            f"attention: the cache's k is {tuple(k.shape)} {k.dtype} on {k.device}, its v {tuple(v.shape)} {v.dtype} on"
            f" {v.device}; they must agree"
        )
    if not (k.is_contiguous() and v.is_contiguous()):
        raise ValueError(f"attention: the cache's k has strides {k.stride()}, v {v.stride()}; allowed: contiguous")


class DenseCache(Cache):
    """k and v (B, capacity, Hk, D): sequence n in row n, from its first key on."""

    def __init__(self, k: Tensor, v: Tensor, lengths: Sequence[int] | None = None) -> None:
        self.k, self.v = k, v
        _check_storage(k, v)
        self.lengths = [0] * k.shape[0] if lengths is None else list(lengths)
        self._check()

    @classmethod
    def empty(
        cls,
        batch: int,
        capacity: int,
        key_heads: int,
        head: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> DenseCache:
        """Room for `capacity` keys of each of `batch` sequences, none of them held yet."""
        k, v = (torch.zeros(batch, capacity, key_heads, head, dtype=dtype, device=device) for _ in range(2))
        return cls(k, v)

    @property
    def capacity(self) -> list[int]:
        return [self.k.shape[1]] * self.k.shape[0]

    def places(self, sequence: int, first: int, stop: int) -> np.ndarray:
        return np.arange(first, stop) + sequence * self.k.shape[1]

    def _check_writing(self, grown: list[int]) -> None:
        """A row belongs to one sequence."""


class PagedCache(Cache):
    """k and v (pages, page_size, Hk, D): key j of sequence n lies in page tables[n][j // page_size]."""

    def __init__(
        self, k: Tensor, v: Tensor, tables: Sequence[Sequence[int]], lengths: Sequence[int] | None = None
    ) -> None:
        self.k, self.v = k, v
        self._tables = tuple(
            tuple(check_integer("attention", f"a page of tables[{n}]", page, 0, 2**31 - 1) for page in table)
            for n, table in enumerate(tables)
        )
        self.lengths = [0] * len(self._tables) if lengths is None else list(lengths)
        self._check()
        self._readers = Counter(page for table in self._tables for page in set(table))
        longest = max((len(table) for table in self._tables), default=0)
        rows = [[*table, *[0] * (max(longest, 1) - len(table))] for table in self._tables]
        self._pages = torch.tensor(rows, dtype=torch.int32).reshape(len(rows), max(longest, 1)).to(k.device)

    @classmethod
    def empty(
        cls,
        tables: Sequence[Sequence[int]],
        key_heads: int,
        head: int,
        *,
        pages: int,
        page_size: int = 64,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> PagedCache:
        """Storage of `pages` pages, and sequences that will use those their tables name."""
        k, v = (torch.zeros(pages, page_size, key_heads, head, dtype=dtype, device=device) for _ in range(2))
        return cls(k, v, tables)

    @property
    def capacity(self) -> list[int]:
        return [len(table) * self.page_size for table in self._tables]

    @property
    def tables(self) -> tuple[tuple[int, ...], ...]:
        """The pages of each sequence, in order. Another table is another cache, of the same storage."""
        return self._tables

    @property
    def pages(self) -> Tensor:
        """A copy: what is written into it afterwards leads no kernel anywhere."""
        return self._pages.clone()

    @property
    def page_size(self) -> int:
        return self.k.shape[1]

    def places(self, sequence: int, first: int, stop: int) -> np.ndarray:
        keys = np.arange(first, stop)
        table = np.asarray(self._tables[sequence], dtype=np.int64)
        return table[keys // self.page_size] * self.page_size + keys % self.page_size

    def _check(self) -> None:
        super()._check()
        if self.page_size % PAGE_MULTIPLE or self.page_size == 0:
            raise ValueError(f"attention: page size is {self.page_size}; allowed: a multiple of {PAGE_MULTIPLE}")
        pages = self.k.shape[0]
        for n, table in enumerate(self._tables):
            if max(table, default=-1) >= pages:
                raise ValueError(f"attention: tables[{n}] names page {max(table)}; allowed: 0 to {pages - 1}")

    def _check_writing(self, grown: list[int]) -> None:
        for n, table in enumerate(self._tables):
            if grown[n] == self.lengths[n]:
                continue
            for page in table[self.lengths[n] // self.page_size : (grown[n] - 1) // self.page_size + 1]:
                if self._readers[page] > 1:
                    raise ValueError(
                        f"attention: sequence {n} would write to page {page}, which {self._readers[page]} sequences"
                        " share; allowed: pages of its own"
                    )
