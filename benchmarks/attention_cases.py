"""What the benchmarks of attention share: sequences on the GPU, and comparisons of bits in several processes.

Compiling takes longer than running: a kernel of each kind is compiled by a process of its own."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import torch
from torch import Tensor

from samebits.ops.attention.forms import Sequences


def sequences_of(queries: Sequence[int], keys: Sequence[int], page_size: int = 0) -> Sequences:
    """Sequences one behind the other; with `page_size`, keys on pages that are dealt at random."""

    def table(numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device="cuda")

    starts = [list(itertools.accumulate(lengths, initial=0))[:-1] for lengths in (queries, keys)]
    pages = None
    if page_size:
        most = -(-max(keys) // page_size)
        pages = torch.randperm(most * len(keys), device="cuda").to(torch.int32).reshape(len(keys), most)
    return Sequences(
        q_start=table(starts[0]),
        q_length=table(queries),
        k_start=table(starts[1]),
        k_length=table(keys),
        pages=pages,
        page_size=page_size,
        longest_query=max(queries),
        longest_key=max(keys),
    )


def all_differing(differing: Callable[..., list[str]], parts: Sequence[tuple[Any, ...]]) -> list[str]:
    """What `differing` finds in any part; a line is printed as each part ends."""
    found = []
    processes = min(len(parts), os.cpu_count() or 1)
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(differing, *part): part for part in parts}
        for number, done in enumerate(as_completed(running), 1):
            found += done.result()
            print(f"{number}/{len(parts)} {running[done]}: {len(done.result())} differ", flush=True)
    return found
