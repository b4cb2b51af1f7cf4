"""Steps of our own trainer, tensor x data parallel, for gloo processes and for the virtual cluster alike.

The only file here that knows the names of samebits' configuration, model and trainer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from tests.sim.programs import digest
from tests.train.small_run import TEXT
from torch import Tensor

from samebits.parallel.grid import Grid
from samebits.parallel.shards import Shards
from samebits.parallel.world import World, join
from samebits.train.assessment import data_of, model_of
from samebits.train.configuration import TrainConfig
from samebits.train.configuration_file import read_text
from samebits.train.ranks import Gridded, ranks_of
from samebits.train.trainer import Trainer

# One narrow layer on bytes, four short sequences a step, each a lane: a step takes milliseconds.
SETTINGS = (
    "training.micro_batch_size=1",
    "training.max_steps=8",
    "monitoring.compare_steps=8",
    "data.max_length=16",
    "data.max_train_samples=4",
    "model.overrides={vocab_size: 272, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2,"
    " num_key_value_heads: 2, head_dim: 16, intermediate_size: 32}",
)
GRIDS = {2: (2, 1), 3: (3, 1), 4: (2, 2), 8: (2, 4)}
"""(tensor, data) by number of ranks."""


@cache
def inputs(sequences: int) -> tuple[TrainConfig, Any, Any]:
    """Configuration, model and data, which trainers only read: made once a process."""
    cut = (f"training.lanes={sequences}", f"training.gradient_accumulation_steps={sequences}")
    config = read_text(TEXT, (*SETTINGS, *cut))
    return config, model_of(config), data_of(config)


def train(world: World, tensor: int, steps: int, sequences: int = 4) -> str:
    """Trains, and returns a digest of all weights and moments on rank 0; of this rank's own part on others."""
    config, model, data = inputs(sequences)
    trainer = Trainer(config, model, data, ranks=ranks_of(Grid(world=world, tensor=tensor), model))
    for _ in range(steps):
        trainer.step()
    state = trainer.state()
    if state is None:
        return digest(trainer.weights.values())
    return digest({**state["weights"], **state["optimizer"]}.values())


def simulated_step(rank: int, tensor: int) -> str:
    """One step of two sequences, one a copy of the weights where there are two; a digest of this rank's own part."""
    config, model, data = inputs(2)
    trainer = Trainer(config, model, data, ranks=ranks_of(Grid(world=join(), tensor=tensor), model))
    trainer.step()
    return digest(trainer.weights.values())


def simulated(rank: int, tensor: int, steps: int, sequences: int = 4) -> str:
    """The same on a rank of the virtual cluster."""
    return train(join(), tensor, steps, sequences)


class AddedOnArrival(Shards):
    """Planted fault: a rank adds the copies' gradients in the order in which their messages come."""

    def to_owners(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        like = next(iter(gradients.values()))
        packed = [
            torch.cat([like.new_empty(0), *(each.of_block(gradients).reshape(-1) for each in routes)])
            for routes in self._given
        ]
        coming = {rank: like.new_empty(packed[self._me].numel()) for rank in self._others}
        under_way = {
            rank: self.grid.world.group.post("gradients", [(packed[rank], rank)], [(coming[rank], rank)])
            for rank in self._others
        }
        total = packed[self._me].clone()
        while under_way:
            for rank in [rank for rank, each in under_way.items() if all(work.is_completed() for work in each.works)]:
                under_way.pop(rank).wait()
                total += coming[rank]
        return self._ranges(total)


def faulty_step(rank: int) -> str:
    """`simulated_step` on four copies of the weights, with the planted fault."""
    config, model, data = inputs(4)
    own = ranks_of(Grid(world=join(), tensor=1), model)
    assert isinstance(own, Gridded)
    own.shards = AddedOnArrival(grid=own.grid, shapes=own.shards.shapes, holding=own.shards.holding)
    trainer = Trainer(config, model, data, ranks=own)
    trainer.step()
    return digest(trainer.weights.values())
