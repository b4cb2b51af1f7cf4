"""The same by dealing one at a time: numbers to chunks, files to ranks, sequences to updates."""

from __future__ import annotations

import torch
from torch import Tensor


def chunks64(length: Tensor, ranks: Tensor) -> Tensor:
    """Numbers are dealt round and round; then each chunk begins where the one before ends. Its owner is the rank
    before the first that adds to it."""
    count = int(ranks)
    sizes = [0] * count
    for number in range(int(length)):
        sizes[number % count] += 1
    rows, start = [], 0
    for chunk, size in enumerate(sizes):
        rows.append((start, size, (chunk - 1) % count))
        start += size
    return torch.tensor(rows)


def parts64(length: Tensor, ranks: Tensor) -> Tensor:
    """Chunk c is added up from rank c on, round the ring, each rank once."""
    count = int(ranks)
    return torch.tensor([[(chunk + place) % count for place in range(count)] for chunk in range(count)])


def dealt64(files: Tensor, ranks: Tensor, sequences: Tensor, micro: Tensor) -> Tensor:
    """Files are dealt round and round; an update takes a pass from every rank, as long as there is one for each."""
    count, steps, left = int(ranks), 0, int(sequences)
    while left >= count * int(micro):
        left -= count * int(micro)
        steps += 1
    return torch.tensor([1] * int(files) + [file % count for file in range(int(files))] + [steps])
