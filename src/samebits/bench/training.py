"""Training end to end: one update by samebits' trainer, beside transformers' model with torch's AdamW and clipping.

Same configuration, sequences and hyperparameters, float32 weights; in bfloat16 samebits' passes compute in copies of
the weights, transformers' by autocast. On a GPU transformers runs as it is and by torch.compile, on a CPU as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from samebits.bench import memory
from samebits.bench.cases import EndToEnd, Planned, Setting, Side
from samebits.bench.stock_model import SEED, random_weights, transformers_model
from samebits.bench.timing import seconds_of
from samebits.model.batch import IGNORED
from samebits.model.config import ModelConfig
from samebits.model.model import Model
from samebits.parallel.agreeing import digest_of
from samebits.records.report import UnjudgedError
from samebits.train.assessment import memory_of
from samebits.train.configuration import (
    DTYPES,
    DataSection,
    ModelSection,
    OptimizerSection,
    TrainConfig,
    TrainingSection,
)
from samebits.train.data import Data, cut_joined
from samebits.train.data_order import sequences_of
from samebits.train.trainer import Trainer, numbers_of

UPDATES: Final = 8
"""Until the same sequences come again."""
EPOCHS: Final = 10**6
"""More than are made: the rate does not reach its end."""
OPTIMIZER: Final = OptimizerSection(lr=3e-4, beta2=0.95, weight_decay=0.1, max_grad_norm=1.0)


def planned(model: str, shape: ModelConfig, sequences: int, tokens: int) -> Planned:
    """An update of so many sequences, in one pass."""

    def make(setting: Setting) -> EndToEnd:
        name = str(setting.dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise UnjudgedError(f"training in {name}; allowed: {', '.join(DTYPES)}")
        config = config_of(setting, name, sequences, tokens)
        memory.require(shape, tokens, bytes_needed(config, shape, setting.device), setting.device)
        data = random_data(shape, max(2, sequences), tokens)
        full = Setting(setting.device, torch.float32)

        def ours() -> Side:
            return partial(seconds_of, trainer_of(config, shape, data, full).step, setting.device)

        def theirs(compiled: bool) -> Side:
            stock = transformers_model(shape, random_weights(shape, full))
            return partial(seconds_of, StockTraining(config, stock, data, compiled).step, setting.device)

        beside: dict[str, Callable[[], Side]] = {"transformers": partial(theirs, False)}
        if setting.device.type == "cuda":
            beside["transformers compiled"] = partial(theirs, True)
        return EndToEnd(
            ours=ours,
            theirs=beside,
            difference=lambda: difference(config_of(setting, name, max(2, sequences), tokens), shape, data, full),
            tokens=sequences * tokens,
            peaks=True,
        )

    return Planned("training", model, f"{sequences} x {tokens} tokens", sequences * tokens, make)


def config_of(setting: Setting, dtype: str, sequences: int, tokens: int, passes: int = 1) -> TrainConfig:
    return TrainConfig(
        model=ModelSection(),
        data=DataSection(max_length=tokens),
        optimizer=OPTIMIZER,
        training=TrainingSection(
            seed=SEED,
            micro_batch_size=sequences // passes,
            gradient_accumulation_steps=passes,
            num_train_epochs=EPOCHS,
            dtype=dtype,
            device=setting.device.type,
        ),
    )


def random_data(shape: ModelConfig, sequences: int, tokens: int) -> Data:
    """Sequences of some updates, no two alike."""
    count = UPDATES * sequences * tokens + 1
    drawn = np.random.default_rng(SEED).integers(shape.vocab_size, size=count, dtype=np.uint32)
    starts, targets = cut_joined(count, tokens)
    return Data(tokens=drawn, starts=starts, targets=targets, vocabulary=shape.vocab_size, end=0)


def trainer_of(config: TrainConfig, shape: ModelConfig, data: Data, full: Setting) -> Trainer:
    return Trainer(config, Model(config=shape, weights=random_weights(shape, full)), data)


def difference(config: TrainConfig, shape: ModelConfig, data: Data, full: Setting) -> str | None:
    """Whether an update has the same weights in one pass and in passes of one sequence each."""
    sequences, tokens = config.training.global_batch_size, config.data.max_length

    def digest(passes: int) -> str:
        trainer = trainer_of(config_of(full, config.training.dtype, sequences, tokens, passes), shape, data, full)
        trainer.step()
        return digest_of(trainer.weights.items())

    whole, one_by_one = digest(1), digest(sequences)
    if whole == one_by_one:
        return None
    return f"an update of {sequences} sequences makes weights {whole} in one pass, {one_by_one} in {sequences}"


class StockTraining:
    """transformers' model and torch's optimizer, on the trainer's sequences in their order."""

    def __init__(self, config: TrainConfig, model: Any, data: Data, compiled: bool) -> None:
        self.config, self.model, self.data, self.done = config, model.train(), data, 0
        held = list(model.parameters())
        self.device = held[0].device
        groups = ([each for each in held if each.dim() > 1], [each for each in held if each.dim() == 1])
        numbers = numbers_of(config.optimizer, config.optimizer.lr)
        # The fastest that torch has.
        self.optimizer = torch.optim.AdamW(
            [{"params": params, **each} for params, each in zip(groups, numbers, strict=True)], fused=True
        )
        self.compute: Callable[[Tensor, Tensor], Tensor] = self._loss
        if compiled:
            torch.compiler.reset()
            self.compute = torch.compile(self._loss)

    def _loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        logits = self.model(input_ids=ids, use_cache=False).logits
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    def step(self) -> float:
        training, self.done = self.config.training, self.done + 1
        batch = training.global_batch_size
        places = sequences_of(self.done, seed=training.seed, sequences=len(self.data), batch=batch).tolist()
        examples = [self.data.sequence(place) for place in places]
        ids, targets = (torch.from_numpy(np.stack(each)).to(self.device) for each in zip(*examples, strict=True))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=training.dtype == "bfloat16"):
            loss = self.compute(ids, targets)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optimizer.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach())


def bytes_needed(config: TrainConfig, shape: ModelConfig, device: torch.device) -> int:
    """The trainer's, with the weights that it copies, and for each side beside it as much, with logits in float32."""
    ours = memory_of(config, shape)
    logits = 3 * 4 * config.training.global_batch_size * config.data.max_length * shape.vocab_size
    beside = 2 if device.type == "cuda" else 1
    return ours.total + ours.weights + beside * (ours.total + logits)
