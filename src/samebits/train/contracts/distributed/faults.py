"""Planted faults of a division among ranks: a chunk lost, parts added backwards, files divided, ranks without any."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.parallel.schedules import files_of
from samebits.train.contracts.distributed import chunks, parts, told


def last_chunk_lost(length: Tensor, ranks: Tensor) -> Tensor:
    """All chunks are as long as the shortest."""
    found = chunks(length, ranks)
    each = int(length) // int(ranks)
    found[:, 0], found[:, 1] = torch.arange(int(ranks)) * each, each
    return found


def added_backwards(length: Tensor, ranks: Tensor) -> Tensor:
    """Parts go round the ring the other way."""
    return parts(length, ranks).flip(1)


def files_divided(files: Tensor, ranks: Tensor, sequences: Tensor, micro: Tensor) -> Tensor:
    """Rank r reads the r-th run of files, the last one what is left."""
    count, each = int(ranks), int(files) // int(ranks)
    if each == 0:
        files_of(0, int(files), count)
    borders = [*(each * rank for rank in range(count)), int(files)]
    lists = [list(range(borders[rank], borders[rank + 1])) for rank in range(count)]
    return told(lists, files, ranks, sequences, micro)


def ranks_without_files(files: Tensor, ranks: Tensor, sequences: Tensor, micro: Tensor) -> Tensor:
    """Files are dealt as long as there are any."""
    count = int(ranks)
    return told([list(range(rank, int(files), count)) for rank in range(count)], files, ranks, sequences, micro)
