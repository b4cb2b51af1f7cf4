"""A run without interruption, what a checkpoint must hold by the model's shape, and where a run stands by counting."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.model.contracts.small_model import SMALL
from samebits.train.contracts.small_run import config_of, trainer_of


def uninterrupted(text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor, seed: Tensor) -> Tensor:
    """Losses, the steps counted, weights and moments of a run that nothing stops."""
    config = config_of(2, 2, 2.0**-7, int(steps), width=text.shape[1] - 1, seed=int(seed))
    trainer = trainer_of(config, text, counts, weights)
    losses = [trainer.step().loss for _ in range(int(steps))]
    tensors = [*trainer.weights.values(), *trainer.moments().values()]
    return torch.cat(
        [torch.tensor([*losses, float(steps)], dtype=torch.float64), *(each.reshape(-1).double() for each in tensors)]
    )


def held64(layers: Tensor, seed: Tensor) -> Tensor:
    """Two moments of nine tensors a layer, of the embedding, the last norm and the head."""
    hidden, inner, words = SMALL.hidden_size, SMALL.intermediate_size, SMALL.vocab_size
    heads, shared, size = SMALL.num_attention_heads, SMALL.num_key_value_heads, SMALL.head_dim
    layer = 2 * hidden + 2 * hidden * heads * size + 2 * hidden * shared * size + 3 * hidden * inner
    count, numbers = 9 * int(layers) + 3, int(layers) * layer + 2 * words * hidden + hidden
    return torch.tensor([2 * count, 2 * numbers, 2 * count, count])


def position64(steps: Tensor, sequences: Tensor, batch: Tensor) -> Tensor:
    """Counted one update at a time: an epoch ends where what is left of it makes no update."""
    rows = []
    for made, there, each in zip(steps.tolist(), sequences.tolist(), batch.tolist(), strict=True):
        epoch, place = 0, 0
        for _ in range(made):
            place += each
            if place + each > there:
                epoch, place = epoch + 1, 0
        rows.append((epoch, place))
    return torch.tensor(rows)
