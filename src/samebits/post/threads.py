"""Tensors side by side: as many at a time as torch has threads, each computed by one thread from its first number on.

A tensor's numbers depend on no other tensor, so nothing here decides a bit. Knows no arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from samebits.native.launch_numbers import launching

Item = TypeVar("Item")


def in_threads(work: Callable[[Item], None], items: Sequence[Item]) -> None:
    """Does `work` with each item; after an error no further one is begun, and the error is raised."""
    with launching(threads=1), ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
        pending = [pool.submit(work, item) for item in items]
        try:
            for each in pending:
                each.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
