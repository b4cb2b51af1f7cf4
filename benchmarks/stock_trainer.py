"""Training as stock code does it: the same model on torch's operators under DistributedDataParallel. Keeps no bits.

The baseline of `cpu_ranks.py`; made as fast as torch allows without another model."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from samebits.model import Batch, Model
from samebits.model.weights import EMBEDDING
from samebits.parallel.world import World
from samebits.parity.stock import STOCK
from samebits.train.configuration import TrainConfig
from samebits.train.data import Data
from samebits.train.data_order import sequences_of
from samebits.train.trainer import numbers_of


class Stock(torch.nn.Module):
    """The mean loss of the same model on torch's operators."""

    def __init__(self, base: Model) -> None:
        super().__init__()
        weights = {name: torch.nn.Parameter(weight.clone()) for name, weight in base.weights.items()}
        self.held = torch.nn.ParameterList(weights.values())
        self.model = replace(base, operators=STOCK, weights=weights)

    def forward(self, batch: Batch, targets: Tensor) -> Tensor:
        logits = torch.nn.functional.linear(self.model.hidden(batch), self.model.weights[EMBEDDING])
        return torch.nn.functional.cross_entropy(logits, targets)


class StockTrainer:
    """One update after another as stock code makes it."""

    def __init__(self, config: TrainConfig, model: Model, data: Data, world: World, passes: int) -> None:
        self.config, self.data, self.world, self.passes = config, data, world, passes
        self.module = DistributedDataParallel(Stock(model), gradient_as_bucket_view=True)
        held = list(self.module.parameters())
        groups = ([each for each in held if each.dim() > 1], [each for each in held if each.dim() == 1])
        numbers = numbers_of(config.optimizer, config.optimizer.lr)
        # The fastest that torch has for a CPU.
        self.optimizer = torch.optim.AdamW(
            [{"params": params, **each} for params, each in zip(groups, numbers, strict=True)], fused=True
        )
        self.done = 0

    def step(self) -> float:
        training, self.done = self.config.training, self.done + 1
        places = sequences_of(
            self.done, seed=training.seed, sequences=len(self.data), batch=training.global_batch_size
        ).tolist()
        share = len(places) // self.world.size
        own = [self.data.sequence(place) for place in places[self.world.rank * share :][:share]]
        each, total = share // self.passes, 0.0
        for first in range(0, share, each):
            examples = own[first : first + each]
            batch = Batch.of([torch.from_numpy(inputs) for inputs, _ in examples])
            targets = torch.cat([torch.from_numpy(targets) for _, targets in examples])
            last = first + each == share
            with nullcontext() if last else self.module.no_sync():
                loss = self.module(batch, targets) / self.passes
                loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.config.optimizer.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total
