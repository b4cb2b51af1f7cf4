"""The two gates of training over ranks, judged on what a run recorded: equal parameters on every rank, and the loss of
one worker.

The verdicts know no process and no model, only records: a fact that is missing is never a pass. `recorded` makes them
on the ranks of a real world."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from samebits.model.model import Model
from samebits.model.weights import shapes
from samebits.parallel.grid import Grid
from samebits.parallel.layout import Block, whole
from samebits.parallel.world import World
from samebits.train.assessment import data_of, model_of
from samebits.train.configuration import TrainConfig
from samebits.train.ranks import Ranks, ranks_of
from samebits.train.trainer import Trainer

PARAMETERS: Final = "DIST-001"
LOSSES: Final = "DIST-002"
# What the gate asks of a loss. We hold it bitwise, and report this beside it.
GATE: Final = 1e-4
Held = tuple[Block, str]
"""The block of a parameter that a rank has, and the digest of its bits."""
Parameters = Mapping[str, Held]


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What one rank saw of a run."""

    losses: tuple[float, ...]
    """Of every step."""
    parameters: tuple[Parameters, ...]
    """After every step, by name."""
    state: str | None
    """The digest of all weights and moments after the last step, on rank 0; None on the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterVerdict:
    """DIST-001: after every step every rank's parameters have the bits of rank 0."""

    holds: bool
    compared: int
    """Digests held against another rank's."""
    detail: str
    """The first difference, or what is missing; empty where it holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossVerdict:
    """DIST-002: the loss of every step is that of one worker."""

    holds: bool
    """Bitwise."""
    within_gate: bool
    """No further away than the gate allows, at any step."""
    step: int | None = None
    """The first at which the two differ, from 1; None: at none of those that both have."""
    distributed: float | None = None
    alone: float | None = None
    detail: str
    """The first difference, or what is missing; empty where it holds."""


def parameters_agree(by_rank: Sequence[Sequence[Parameters]]) -> ParameterVerdict:
    """DIST-001 on what every rank had after every step.

    Parts of a parameter that rank 0 has otherwise cut are held against the first rank that has the same part."""
    compared, missing = 0, _missing(by_rank)
    if missing:
        return ParameterVerdict(holds=False, compared=0, detail=f"{PARAMETERS}: {missing}")
    for step, held in enumerate(zip(*by_rank, strict=True), 1):
        first: dict[tuple[str, Block], tuple[int, str]] = {}
        for rank, parameters in enumerate(held):
            for name, (block, digest) in parameters.items():
                known, wanted = first.setdefault((name, block), (rank, digest))
                compared += known != rank
                if digest != wanted:
                    words = f"step {step}: {name} is {digest} on rank {rank}, {wanted} on rank {known}"
                    detail = f"{PARAMETERS}: {words}; allowed: the same bits"
                    return ParameterVerdict(holds=False, compared=compared, detail=detail)
    detail = "" if compared else f"{PARAMETERS}: no two ranks have the same part of a parameter; allowed: at least two"
    return ParameterVerdict(holds=compared > 0, compared=compared, detail=detail)


def _missing(by_rank: Sequence[Sequence[Parameters]]) -> str:
    """What of the facts is not there, against rank 0; empty: all of them are."""
    if len(by_rank) < 2:
        return f"there are parameters of {len(by_rank)} ranks; allowed: at least 2"
    if not by_rank[0]:
        return "there are parameters of 0 steps; allowed: at least 1"
    for rank, steps in enumerate(by_rank):
        if len(steps) != len(by_rank[0]):
            return f"rank {rank} has {len(steps)} steps, rank 0 {len(by_rank[0])}; allowed: equally many"
        for step, parameters in enumerate(steps, 1):
            if not parameters or parameters.keys() != by_rank[0][0].keys():
                words = f"step {step}: rank {rank} has {len(parameters)} parameters, rank 0 has {len(by_rank[0][0])}"
                return f"{words}; allowed: the same names, at least 1"
    return ""


def losses_agree(distributed: Sequence[float], alone: Sequence[float]) -> LossVerdict:
    """DIST-002 on the losses of ranks and of one worker, step by step. A loss that is not finite agrees with none."""
    if not alone or len(distributed) != len(alone):
        words = f"{len(distributed)} losses of ranks, {len(alone)} of one worker; allowed: equally many, at least 1"
        return LossVerdict(holds=False, within_gate=False, detail=f"{LOSSES}: {words}")
    pairs = list(zip(distributed, alone, strict=True))
    # An infinity less itself is not a number, which is below no bound.
    within = all(abs(left - right) <= GATE for left, right in pairs)
    for step, (left, right) in enumerate(pairs, 1):
        if not math.isfinite(left) or left.hex() != right.hex():
            words = f"step {step}: the loss is {left!r}, that of one worker {right!r}"
            return LossVerdict(
                holds=False,
                within_gate=within,
                step=step,
                distributed=left,
                alone=right,
                detail=f"{LOSSES}: {words}; allowed: the same bits",
            )
    return LossVerdict(holds=True, within_gate=within, detail="")


def recorded(
    world: World, config: TrainConfig, tensor: int, steps: int, ranks: Callable[[Grid, Model], Ranks] = ranks_of
) -> Record:
    """Trains so many steps on every rank of a world at once, `tensor` of them to a copy of the weights.

    `ranks` makes this rank's part of the run: a faulty one can stand in, to see that it is noticed."""
    grid, model = Grid(world=world, tensor=tensor), model_of(config)
    trainer = Trainer(config, model, data_of(config), ranks=ranks(grid, model))
    losses, parameters = [], []
    for _ in range(steps):
        losses.append(trainer.step().loss)
        parameters.append(_held(trainer.model(), grid.place))
    state = trainer.state()
    final = None if state is None else digest(state["weights"] | state["optimizer"])
    return Record(losses=tuple(losses), parameters=tuple(parameters), state=final)


def _held(model: Model, place: int) -> Parameters:
    """The parameters with which this rank computes."""
    blocks = {
        name: whole(shape) if model.split is None else model.split.held(name, place)
        for name, shape in shapes(model.config).items()
    }
    return {name: (block, digest({name: model.weights[name]})) for name, block in blocks.items()}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Of the bits, shapes and names of tensors."""
    state = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        state.update(tensor.detach().reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
    return state.hexdigest()
