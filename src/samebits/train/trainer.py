"""The trainer: one update after another, a pure function of configuration, data and seed. Watches every step.

Knows no folder and no screen; `running` does. Weights that are updated are float32; the passes may compute in bfloat16
copies of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from samebits.model import Model
from samebits.model.weights import EMBEDDING, shapes
from samebits.ops.adamw import AdamW
from samebits.ops.arguments import choose_backend
from samebits.parallel.schedules import Lanes
from samebits.trace import span
from samebits.train import lanes, watch
from samebits.train.algebra import Run, learning_rate, position_after
from samebits.train.assessment import plan_of
from samebits.train.checkpoint import Checkpoint
from samebits.train.configuration import OptimizerSection, TrainConfig, deciding
from samebits.train.data import Data
from samebits.train.data_order import sequences_of
from samebits.train.ranks import ALONE, Ranks
from samebits.train.updating import OneByOne, Update

if TYPE_CHECKING:
    from samebits.train.triton_passes import CapturedPasses

MOMENTS: Final = ("exp_avg", "exp_avg_sq")
STATE_FORMAT: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """The numbers that one update applied."""

    step: int
    loss: float
    norm: float
    """Of the gradient, before clipping."""
    norm_after: float
    rate: float
    tokens: int
    """Targets of the update."""
    without_gradient: int
    """Weights that no gradient reached."""
    seconds: float


def clipped(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    """Clips all gradients by their norm as one, in place."""
    backend = choose_backend("clip", gradients[0], None)
    torch.ops.samebits.grad_norm_clip_(gradients, norm, max_norm, backend)


def numbers_of(section: OptimizerSection, rate: float) -> list[dict[str, Any]]:
    """The hyperparameters of the two groups, matrices and norms, as the configuration has them."""
    shared = {"lr": rate, "betas": (section.beta1, section.beta2), "eps": section.eps}
    return [{**shared, "weight_decay": decay} for decay in (section.weight_decay, section.norm_weight_decay)]


def made(weights: dict[str, Tensor], section: OptimizerSection) -> AdamW:
    """AdamW with every number said. The first rate is set before the first step."""
    matrices = [weight for weight in weights.values() if weight.dim() > 1]
    norms = [weight for weight in weights.values() if weight.dim() == 1]
    groups = zip((matrices, norms), numbers_of(section, section.lr), strict=True)
    return AdamW([{"params": params, **numbers} for params, numbers in groups])


def captured(device: torch.device, ranks: Ranks) -> CapturedPasses | None:
    """How passes are captured there; None where each is made operator by operator: on the CPU, on several ranks."""
    if device.type != "cuda" or ranks is not ALONE:
        return None
    from samebits.train.triton_passes import CapturedPasses

    return CapturedPasses()


def zero_moment(weight: Tensor) -> Tensor:
    return torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a trainer is made of. A faulty part can stand in, to see that it is noticed."""

    backward: Callable[[Model, list[lanes.Example], lanes.Cut], lanes.Backward] = lanes.backward
    clip: Callable[[list[Tensor], Tensor, float], None] = clipped
    optimizer: Callable[[dict[str, Tensor], OptimizerSection], AdamW] = made
    moment: Callable[[Tensor], Tensor] = zero_moment
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What of these parts decides bits beside the configuration, by name: it may not change when a run is resumed."""


OURS: Final = Parts()


class Trainer:
    """A run in memory."""

    def __init__(
        self, config: TrainConfig, model: Model, data: Data, parts: Parts = OURS, ranks: Ranks = ALONE
    ) -> None:
        """Takes a copy of the model's weights, of which this rank keeps what it updates. Everything that can be checked
        before a step is."""
        self.config, self.data, self.parts, self.ranks = config, data, parts, ranks
        self.plan = plan_of(config, model.config, data)
        self.run = Run.of(self.plan)
        self.done = 0
        device = torch.device(config.training.device)
        self.weights = {
            name: ranks.take(name, model.weights[name].detach().to(device, torch.float32)).contiguous()
            for name in shapes(model.config)
        }
        self._model = model
        self._passes = False
        """Whether the weights of `_model` are those that were updated last."""
        self.captured = captured(device, ranks)
        """Decides speed alone. May be set to None at any time."""
        kept = {name: weight for name, weight in self.weights.items() if weight.numel()}
        self.optimizer = parts.optimizer(kept, config.optimizer)
        watch.hyperparameters_reach(0, self.optimizer.param_groups, numbers_of(config.optimizer, self.peak))
        self._begin(
            {f"{kind}.{name}": parts.moment(weight) for name, weight in self.weights.items() for kind in MOMENTS}
        )
        watch.moments_are_zero(self.moments())
        training = config.training
        each = Lanes(lanes=training.lanes, sequences=training.global_batch_size // training.lanes)
        self.cut = lanes.Cut(
            lanes=each,
            micro_batch=training.micro_batch_size,
            padded=training.collation == "padded",
            width=config.data.max_length,
            ranks=ranks,
        )
        self.observers: list[Callable[[int, Mapping[str, Tensor]], None]] = []
        """Told of every step's gradients as they are before clipping; they change nothing, and keep copies alone."""
        self._norm_error = watch.norm_error(shapes(model.config).values())
        self._data_digest = data.digest()

    @property
    def peak(self) -> float:
        return self.config.optimizer.lr

    def model(self) -> Model:
        """This rank's part of the model as it is: float32 weights, or roundings that the next update writes over."""
        if not self._passes:
            dtype = getattr(torch, self.config.training.dtype)
            make = (self.captured or self.ranks).model
            self._model, self._passes = make(self._model, self.weights, dtype), True
        return self._model

    def moments(self) -> dict[str, Tensor]:
        """Both moments of every weight, by kind and name."""
        return {
            f"{kind}.{name}": self.optimizer.state[weight][kind]
            for name, weight in self.weights.items()
            for kind in MOMENTS
        }

    def rate(self, step: int) -> float:
        warmup, floor = self.plan.warmup_steps, self.plan.min_lr_ratio
        return learning_rate(step, lr=self.peak, warmup_steps=warmup, steps=self.run.steps, min_lr_ratio=floor)

    def step(self) -> StepRecord:
        """One update, or a BreachError; after a breach this trainer is of no further use."""
        began, number = time.perf_counter(), self.done + 1
        training, max_norm = self.config.training, self.config.optimizer.max_grad_norm
        places = sequences_of(number, seed=training.seed, sequences=len(self.data), batch=training.global_batch_size)
        with span("forward and backward"):
            examples = [self.data.sequence(place) for place in places.tolist()]
            cut = self.cut if self.captured is None else replace(self.cut, passes=self.captured)
            found = self.parts.backward(self.model(), examples, cut)
        for observe in self.observers:
            observe(number, found.gradients)
        watch.loss_is_finite(number, found.loss)
        update = self._update_by(found.gradients)
        with span("norm and clipping"):
            norm, magnitudes = update.seen()
            missing = watch.without_gradient(number, found.gradients, magnitudes, self.ranks.sums)
            watch.gradients_flow(number, missing)
            before = float(norm)
        rate = self.rate(number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        watch.hyperparameters_reach(number, self.optimizer.param_groups, numbers_of(self.config.optimizer, rate))
        shorter, magnitudes = update.made(norm, max_norm)
        self._passes = update.rounded
        # Looked at after everything was asked for: the host waits once from the clipping on.
        after = self._watch_clipped(number, shorter, before, max_norm)
        watch.are_finite(number, "weight", self.weights, magnitudes, self.ranks.sums)
        if number % self.config.monitoring.compare_steps == 0:
            watch.copies_are_equal(number, self.ranks.digests(self.model()))
        self.done = number
        return StepRecord(
            step=number,
            loss=found.loss,
            norm=before,
            norm_after=after,
            rate=rate,
            tokens=found.targets,
            without_gradient=len(missing),
            seconds=time.perf_counter() - began,
        )

    def _update_by(self, gradients: lanes.Gradients) -> Update:
        """How weights become those of the next update. The captured passes do it where all parts are our own."""
        parts, passes, few = self.parts, self.captured, list(gradients.values())
        if passes and parts.clip is clipped:
            if (parts.optimizer, parts.moment) == (made, zero_moment):
                found = passes.update(gradients, self.weights, self.optimizer, self._model)
                if found is not None:
                    return found
            few = passes.few(gradients)
        norms = (passes or self.ranks).norms
        return OneByOne(gradients, self.weights, self.optimizer, parts.clip, norms, few)

    def _watch_clipped(self, step: int, norms: Tensor, before: float, max_norm: float) -> float:
        """No longer than allowed as a whole, and the embedding's part of it neither, nor no number; the norm after."""
        whole, embedding = norms.tolist()
        limits = (max_norm, self._norm_error)
        watch.norm_is_clipped(step, watch.EMBEDDING_GRADIENT, "the embedding's gradient", embedding, *limits)
        watch.norm_is_clipped(step, watch.STABLE, "the gradient", whole, *limits)
        watch.clipping_is_by_the_norm(step, before, whole, *limits)
        return float(whole)

    def counted(self) -> dict[str, int]:
        """Updates of each weight, as the optimizer counted them."""
        updated = [(name, weight) for name, weight in self.weights.items() if weight.numel()]
        return {name: self.optimizer.state[weight]["step"] for name, weight in updated}

    def facts(self) -> dict[str, Any]:
        """All that the next update depends on beside tensors: settings that decide bits, the data, and the position."""
        epoch, within = position_after(self.done, self.run.per_epoch, self.config.training.global_batch_size)
        position = {"position.epoch": epoch, "position.sequence": within}
        return {**deciding(self.config), **self.parts.facts, "data.digest": self._data_digest, **position}

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint of this moment holds: weights, optimizer, state; on one of several ranks, None elsewhere.

        No time of day and no number of ranks: equal runs are equal."""
        facts = {"format": STATE_FORMAT, "step": self.done, "waived": list(self.config.training.waive)}
        weights = self.ranks.whole(self.weights, {name: name for name in self.weights})
        moments = self.ranks.whole(self.moments(), dict(self._moment_names()))
        if weights is None or moments is None:
            return None
        return {"weights": weights, "optimizer": moments, "state": {**facts, "facts": self.facts()}}

    def _moment_names(self) -> Iterator[tuple[str, str]]:
        """Every moment's name, and its weight's."""
        for name in self.weights:
            for kind in MOMENTS:
                yield f"{kind}.{name}", name

    def restore(self, checkpoint: Checkpoint, allow_changes: tuple[str, ...] = ()) -> None:
        """Goes on from a checkpoint. Whatever decides bits must be as it was, unless the change is allowed by name."""
        if checkpoint.state.get("format") != STATE_FORMAT:
            raise ValueError(f"checkpoint: format is {checkpoint.state.get('format')!r}; allowed: {STATE_FORMAT}")
        self.done, self._passes = checkpoint.step, False
        _refuse_changes(checkpoint.state["facts"], self.facts(), allow_changes)
        wanted = shapes(self._model.config)
        for name, weight in self.weights.items():
            weight.copy_(self.ranks.take(name, _held("weights", checkpoint.weights, name, wanted[name])))
        device = self.weights[EMBEDDING].device
        self._begin(
            {
                key: self.ranks.take(name, _held("optimizer", checkpoint.optimizer, key, wanted[name])).to(device)
                for key, name in self._moment_names()
            }
        )

    def _begin(self, moments: dict[str, Tensor]) -> None:
        """Puts moments into the optimizer, which then counts from the steps done."""
        for name, weight in self.weights.items():
            kept = {kind: moments[f"{kind}.{name}"] for kind in MOMENTS}
            self.optimizer.state[weight] = {"step": self.done, **kept}


def _held(where: str, tensors: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    found = tensors.get(name)
    if found is None or found.shape != shape or found.dtype != torch.float32:
        seen = None if found is None else (*found.shape, str(found.dtype))
        wanted = (*shape, "torch.float32")
        raise ValueError(f"checkpoint: {name} in {where} is {seen}; allowed: {wanted}")
    return found


def _refuse_changes(before: dict[str, Any], now: dict[str, Any], allowed: tuple[str, ...]) -> None:
    keys = sorted(before.keys() | now.keys())
    for key in allowed:
        if key not in keys:
            raise ValueError(f"--allow-changes {key}: no such setting decides bits; allowed: {', '.join(keys)}")
    for key in keys:
        if before.get(key) != now.get(key) and key not in allowed:
            message = f"{key} was {before.get(key)!r} and is now {now.get(key)!r}; allowed: as it was"
            raise ValueError(f"resume: {message}, or --allow-changes {key}")
