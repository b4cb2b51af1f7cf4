"""Steps of our own trainer, tensor x data parallel, for gloo processes and for the virtual cluster alike.

The only file here that knows the names of samebits' configuration, model and trainer."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.sim.programs import digest
from tests.train.small_run import TEXT

from samebits.parallel.grid import Grid
from samebits.parallel.world import World, join
from samebits.train.configuration import Configuration, read_text
from samebits.train.planning import data_of, model_of
from samebits.train.ranks import ranks_of
from samebits.train.trainer import Trainer

# One narrow layer on bytes, four short sequences a step, each a lane: a step takes milliseconds.
SETTINGS = ("training.micro_batch=1", "training.max_steps=8",
            "monitoring.compare_every=8", "data.length=16", "data.limit=4",
            "model.overrides={vocabulary: 272, hidden: 32, layers: 1, heads: 2, key_heads: 2, head_size: 16,"
            " intermediate: 32}")  # fmt: skip
GRIDS = {2: (2, 1), 3: (3, 1), 4: (2, 2), 8: (2, 4)}
"""(tensor, data) by number of ranks."""


@cache
def inputs(sequences: int) -> tuple[Configuration, Any, Any]:
    """Configuration, model and data, which trainers only read: made once a process."""
    config = read_text(TEXT, (*SETTINGS, f"training.lanes={sequences}", f"training.accumulation={sequences}"))
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
