"""Who holds and reads what among ranks, as the schedules and the algebra of a run say it: chunks, files, updates.

What needs several processes is no part of it."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.parallel.schedules import chunk_size, chunk_start, files_of, owned_chunk, ring_sums
from samebits.train.algebra import steps_per_epoch


def chunks(length: Tensor, ranks: Tensor) -> Tensor:
    """(ranks, 3): where each chunk of so many numbers begins, how many it has, and who holds it whole after a ring."""
    numbers, count = int(length), int(ranks)
    owner = {owned_chunk(rank, count): rank for rank in range(count)}
    return torch.tensor(
        [[chunk_start(each, numbers, count), chunk_size(each, numbers, count), owner[each]] for each in range(count)]
    )


def parts(length: Tensor, ranks: Tensor) -> Tensor:
    """(ranks, ranks): for each chunk the ranks whose parts its owner's sum holds, in the order of the additions."""
    return torch.tensor(ring_sums(int(ranks)))


def dealt(files: Tensor, ranks: Tensor, sequences: Tensor, micro: Tensor) -> Tensor:
    """For each file how many ranks read it and which one did last, and at the end the updates of an epoch."""
    return told([files_of(rank, int(files), int(ranks)) for rank in range(int(ranks))], files, ranks, sequences, micro)


def told(lists: list[list[int]], files: Tensor, ranks: Tensor, sequences: Tensor, micro: Tensor) -> Tensor:
    """The same of any deal, each rank's files in a list."""
    readers, reader = [0] * int(files), [-1] * int(files)
    for rank, read in enumerate(lists):
        for file in read:
            readers[file], reader[file] = readers[file] + 1, rank
    steps = steps_per_epoch(int(sequences), int(micro), 1, int(ranks))
    return torch.tensor([*readers, *reader, steps])
