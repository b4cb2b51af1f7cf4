"""What would mend a refused plan: settings that, each set as it is said, satisfy the rule that refused it.

Knows no data and no device. One rule at a time: what is set for one may be refused by another, which then says so."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from samebits.model.batch import ALIGNMENT
from samebits.train import algebra
from samebits.train.algebra import Plan, Run
from samebits.train.checkpoint import MOST_STEPS
from samebits.train.configuration import TrainConfig
from samebits.train.plan_rules import LEAST_TOKENS_PER_STEP, TOKENS_PER_PARAMETER, Refusal, longest_warmup

MEMORY: Final = "MEMORY"
WORDS: Final = "VOCABULARY"
POSITIONS: Final = "POSITIONS"
Settings = Mapping[str, Any]
"""Keys of a configuration and the values that they would have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Ways to mend one refusal; each of the settings is one, and so may be what no setting says."""

    settings: tuple[Settings, ...] = ()
    words: str = ""

    def __str__(self) -> str:
        said = [" and ".join(f"{key}: {value}" for key, value in each.items()) for each in self.settings]
        return ", or ".join([*said, *([self.words] if self.words else [])])


def change_for(config: TrainConfig, plan: Plan, refusal: Refusal) -> Change:
    """What to set so that this refusal goes."""
    found = _BY_RULE[refusal.obligation](config, plan, refusal)
    possible = tuple(each for each in found.settings if max(each.values()) <= MOST_STEPS)
    return Change(settings=possible, words=found.words or ("" if possible else "more data"))


def _steps(plan: Plan, run: Run, wanted: int) -> Settings:
    """Settings by which a run makes so many steps."""
    found: dict[str, Any] = {}
    if plan.max_steps is not None and plan.max_steps < wanted:
        found["training.max_steps"] = wanted
    if run.reach < wanted:
        found["training.num_train_epochs"] = algebra.least_epochs(wanted, run.per_epoch)
    return found


def _reach(config: TrainConfig, plan: Plan, refusal: Refusal) -> Change:
    """CFG-OB1."""
    if refusal.about == "max_steps":
        return Change(settings=({"training.max_steps": refusal.allowed},), words="no max_steps")
    batch = algebra.batch_sequences(plan.micro_batch_size, plan.gradient_accumulation_steps, plan.ranks)
    per_epoch = plan.num_sequences // batch if batch > 0 else 0
    if plan.num_train_epochs < 1:
        wanted = max(1, plan.max_steps or 1)
        return Change(settings=({"training.num_train_epochs": algebra.least_epochs(wanted, max(1, per_epoch))},))
    assert plan.max_steps is not None
    epochs = {"training.num_train_epochs": algebra.least_epochs(plan.max_steps, per_epoch)}
    return Change(settings=(epochs, {"training.max_steps": plan.num_train_epochs * per_epoch}), words="more data")


def _warmup(config: TrainConfig, plan: Plan, refusal: Refusal) -> Change:
    """CFG-OB2 to CFG-OB5: rates go up, then down, which takes two steps at least."""
    if (
        min(
            plan.num_sequences,
            plan.micro_batch_size,
            plan.gradient_accumulation_steps,
            plan.num_train_epochs,
            plan.max_length,
        )
        < 1
    ):
        return Change(settings=({"optimizer.warmup_steps": 1},))
    run = Run.of(plan)
    if run.steps >= 2:
        return Change(settings=({"optimizer.warmup_steps": longest_warmup(run.steps)},), words="more steps")
    if run.per_epoch < 1:
        return Change(settings=({"optimizer.warmup_steps": 1},), words="more data")
    return Change(settings=({"optimizer.warmup_steps": 1, **_steps(plan, run, 2)},), words="more data")


def _tokens_of_a_step(config: TrainConfig, plan: Plan, refusal: Refusal) -> Change:
    """CFG-OB6."""
    if plan.max_length < 1:
        return Change(settings=({"data.max_length": ALIGNMENT},))
    each = algebra.tokens_per_step(plan.micro_batch_size, 1, plan.ranks, plan.max_length)
    lanes = config.training.lanes
    whole = lanes // math.gcd(lanes, plan.micro_batch_size)
    accumulation = -(-LEAST_TOKENS_PER_STEP // (each * whole)) * whole
    return Change(
        settings=({"training.gradient_accumulation_steps": accumulation},),
        words="training.waive: [CFG-OB6] for a mere test",
    )


def _tokens(config: TrainConfig, plan: Plan, refusal: Refusal) -> Change:
    """CFG-OB7: the data is seen too often, or there is too little of it for new weights."""
    if (
        min(
            plan.num_sequences,
            plan.micro_batch_size,
            plan.gradient_accumulation_steps,
            plan.num_train_epochs,
            plan.max_length,
        )
        < 1
    ):
        return Change(settings=({"training.max_repeats": 1},))
    run = Run.of(plan)
    if run.per_epoch < 1 or run.steps < 1:
        return Change(settings=({"training.max_repeats": 1},))
    if refusal.about == "max_repeats":
        repeats = math.ceil(algebra.repeats(run.steps, run.per_epoch))
        return Change(settings=({"training.max_repeats": repeats},), words="more data")
    steps = -(-TOKENS_PER_PARAMETER * run.parameters // run.per_step)
    enough: dict[str, Any] = dict(_steps(plan, run, steps))
    if (repeats := math.ceil(algebra.repeats(steps, run.per_epoch))) > plan.max_repeats:
        enough["training.max_repeats"] = repeats
    return Change(settings=(enough,), words="more data, a smaller model, or training.waive: [CFG-OB7] for a mere test")


def _batch(config: TrainConfig, plan: Plan, refusal: Refusal) -> Change:
    """CFG-OB8: fewer sequences than an update takes."""
    if refusal.about in ("micro_batch_size", "gradient_accumulation_steps"):
        return Change(settings=({f"training.{refusal.about}": refusal.allowed},))
    if plan.num_sequences < 1:
        return Change(words="more data")
    micro = min(plan.micro_batch_size, plan.num_sequences)
    accumulation = max(1, min(plan.gradient_accumulation_steps, plan.num_sequences // micro))
    found = {"training.micro_batch_size": micro, "training.gradient_accumulation_steps": accumulation}
    if micro * accumulation % config.training.lanes:
        found["training.lanes"] = math.gcd(micro * accumulation, config.training.lanes)
    return Change(settings=(found,), words="more data")


def _heads(config: TrainConfig, plan: Plan, refusal: Refusal) -> Change:
    """CFG-OB11."""
    return Change(words="model.overrides: num_attention_heads, num_key_value_heads and head_dim that fit")


def _memory(config: TrainConfig, plan: Plan, refusal: Refusal) -> Change:
    return Change(words="a smaller training.micro_batch_size, training.lanes or model")


def _words(config: TrainConfig, plan: Plan, refusal: Refusal) -> Change:
    if config.model.folder is not None:
        return Change(words="data.tokenizer: that of the model, or one with as few words")
    return Change(settings=({"model.overrides.vocab_size": refusal.allowed},))


def _positions(config: TrainConfig, plan: Plan, refusal: Refusal) -> Change:
    shorter = refusal.allowed // ALIGNMENT * ALIGNMENT
    settings: list[Settings] = [{"data.max_length": shorter}] if shorter else []
    if config.model.folder is None:
        settings.append({"model.overrides.max_position_embeddings": config.data.max_length})
    return Change(settings=tuple(settings), words="" if settings else "a model with more positions")


_BY_RULE: Final[dict[str, Callable[[TrainConfig, Plan, Refusal], Change]]] = {
    "CFG-OB1": _reach,
    "CFG-OB2": _warmup,
    "CFG-OB3": _warmup,
    "CFG-OB4": _warmup,
    "CFG-OB5": _warmup,
    "CFG-OB6": _tokens_of_a_step,
    "CFG-OB7": _tokens,
    "CFG-OB8": _batch,
    "CFG-OB11": _heads,
    MEMORY: _memory,
    WORDS: _words,
    POSITIONS: _positions,
}
