"""From a configuration to a verdict before a step is spent: what the run comes to, what is refused, what to change.

Knows no device but its memory, and no step. The algebra and its obligations are those of `algebra` and `plan`."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from samebits.model.config import ModelConfig
from samebits.model.huggingface import CONFIG, MOST_CONFIG_BYTES, load_folder
from samebits.model.json_file import read_json
from samebits.model.model import Model
from samebits.model.presets import PRESETS
from samebits.model.tokenizer import FILE, Tokenizer
from samebits.parallel.schedules import Lanes
from samebits.train import algebra
from samebits.train.advising import MEMORY, POSITIONS, WORDS, Change, change_for
from samebits.train.algebra import Architecture, Plan, Run
from samebits.train.configuration import IN_BYTES, TrainConfig
from samebits.train.data import Data, load, named_words
from samebits.train.plan_rules import Refusal, check


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes that a run takes, estimated from sizes."""

    weights: int
    """float32, and their roundings where the passes compute in 16 bits."""
    moments: int
    gradients: int
    activations: int
    """What one micro-batch keeps for its backward pass."""
    here: int | None
    """What the device has; None where there is no such device on this machine."""

    @property
    def total(self) -> int:
        return self.weights + self.moments + self.gradients + self.activations


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    """A plan, judged."""

    plan: Plan
    run: Run
    memory: Memory
    refusals: tuple[Refusal, ...]
    changes: tuple[Change, ...]
    """For each refusal what would mend it."""
    waived: tuple[Refusal, ...]
    """Broken, and allowed by name in the configuration."""

    @property
    def allowed(self) -> bool:
        return not self.refusals

    def as_dict(self) -> dict[str, Any]:
        said = [
            {
                "obligation": each.obligation,
                "message": each.message,
                "change": str(change),
                "settings": [dict(each) for each in change.settings],
            }
            for each, change in zip(self.refusals, self.changes, strict=True)
        ]
        peak, reached = self.rates()
        return {
            "allowed": self.allowed,
            "plan": asdict(self.plan),
            "run": asdict(self.run),
            "lr": peak,
            "highest_lr": reached,
            "memory": asdict(self.memory) | {"total": self.memory.total},
            "refusals": said,
            "waived": [asdict(each) for each in self.waived],
        }

    def rates(self) -> tuple[float, float]:
        """(the peak rate asked for, the highest that an update uses)."""
        plan, steps = self.plan, self.run.steps
        if steps < 1 or plan.warmup_steps < 1:
            return plan.lr, 0.0
        peak, warmup, floor = plan.lr, plan.warmup_steps, plan.min_lr_ratio
        highest = algebra.learning_rate(
            min(warmup, steps), lr=peak, warmup_steps=warmup, steps=steps, min_lr_ratio=floor
        )
        return peak, highest


def shape_of(config: TrainConfig) -> ModelConfig:
    """The shape of the model that a configuration names."""
    if config.model.preset is not None:
        given = {name: value for name, value in asdict(config.model.overrides).items() if value is not None}
        return replace(PRESETS[config.model.preset], **given)
    assert config.model.folder is not None
    values = read_json(Path(config.model.folder) / CONFIG, MOST_CONFIG_BYTES)
    return ModelConfig.from_huggingface(values)


def model_of(config: TrainConfig) -> Model:
    """The model before the first step: new weights by the seed, or those of a folder."""
    if config.model.folder is None:
        return Model.new(shape_of(config), config.training.seed)
    return load_folder(Path(config.model.folder))


def words_folder(config: TrainConfig) -> Path | None:
    """The folder whose tokenizer is this run's, with all that lies beside it; None where it is one file, or bytes."""
    named, folder = config.data.tokenizer, config.model.folder
    if named is None:
        return None if folder is None else Path(folder)
    path = Path(named)
    if folder is not None and path.name == FILE and path.parent.resolve() == Path(folder).resolve():
        return Path(folder)
    return path if named != IN_BYTES and path.is_dir() else None


def words_of(config: TrainConfig) -> Tokenizer:
    """The tokenizer of a run. A model that was trained on words is never trained on bytes unless told to."""
    folder = words_folder(config)
    if folder is None:
        return named_words(config.data.tokenizer)
    if not (folder / FILE).is_file():
        raise ValueError(
            f"data.tokenizer: is left out, and {folder} has no {FILE}; allowed: a path to the model's tokenizer,"
            f" or {IN_BYTES}"
        )
    return Tokenizer.load(folder)


def data_of(config: TrainConfig) -> Data:
    """The data, which must be what the configuration says of it."""
    data, declared = load(config.data, words_of(config)), config.data.num_sequences
    if declared is not None and declared != len(data):
        raise ValueError(f"data: {len(data)} sequences, data.num_sequences is {declared}; they must agree")
    return data


def plan_of(config: TrainConfig, shape: ModelConfig, data: Data | None) -> Plan:
    """The inputs of the algebra. Without data the number of sequences is what the configuration says."""
    if data is None:
        assert config.data.num_sequences is not None
        sequences, length = config.data.num_sequences, config.data.max_length
    else:
        # Documents apart are shorter than the longest: tokens are counted by the mean, rounded down.
        sequences, length = len(data), int(data.targets.sum()) // len(data)
    training, optimizer = config.training, config.optimizer
    return Plan(
        num_sequences=sequences,
        micro_batch_size=training.micro_batch_size,
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        ranks=1,
        max_length=length,
        num_train_epochs=training.num_train_epochs,
        max_steps=training.max_steps,
        warmup_steps=optimizer.warmup_steps,
        lr=optimizer.lr,
        min_lr_ratio=optimizer.min_lr_ratio,
        max_repeats=training.max_repeats,
        architecture=architecture_of(shape),
        pretrained=config.model.folder is not None,
    )


def architecture_of(shape: ModelConfig) -> Architecture:
    names = Architecture.__dataclass_fields__
    return Architecture(**{name: getattr(shape, name) for name in names})


def assess(config: TrainConfig, shape: ModelConfig, data: Data | None) -> Assessment:
    """Every obligation, those of the machine too; waived ones are set apart, not forgotten."""
    plan = plan_of(config, shape, data)
    found = check(plan)
    memory = memory_of(config, shape)
    if memory.here is not None and memory.total > memory.here:
        message = f"about {memory.total:,} bytes are needed on {config.training.device}, which has {memory.here:,}"
        found.append(Refusal(MEMORY, message))
    needed = data.vocabulary if data is not None else 0
    if needed > shape.vocab_size:
        message = f"the data needs vocab_size >= {needed}, got {shape.vocab_size}"
        found.append(Refusal(WORDS, message, about="vocab_size", allowed=needed))
    if config.data.max_length > shape.max_position_embeddings:
        message = (
            f"data.max_length is {config.data.max_length}, the model has {shape.max_position_embeddings} positions"
        )
        message = f"{message}; allowed: no more than those"
        found.append(Refusal(POSITIONS, message, about="max_length", allowed=shape.max_position_embeddings))
    refusals = tuple(each for each in found if each.obligation not in config.training.waive)
    # Without a whole step there is no run to compute: numbers below one are refused before that.
    counts = (
        plan.num_sequences,
        plan.micro_batch_size,
        plan.gradient_accumulation_steps,
        plan.num_train_epochs,
        plan.max_length,
    )
    run = Run.of(plan) if min(counts) >= 1 else Run.of(replace(plan, num_sequences=1, num_train_epochs=1, max_length=1))
    return Assessment(
        plan=plan,
        run=run,
        memory=memory,
        refusals=refusals,
        changes=tuple(change_for(config, plan, each) for each in refusals),
        waived=tuple(each for each in found if each.obligation in config.training.waive),
    )


def memory_of(config: TrainConfig, shape: ModelConfig) -> Memory:
    """Estimated from sizes: gradients of a pass's lanes and one a level of the tree over passes; what layers keep."""
    training, size = config.training, 4 if config.training.dtype == "float32" else 2
    count = algebra.parameters(architecture_of(shape))
    head = shape.vocab_size * shape.hidden_size if shape.tie_word_embeddings else 0
    lanes = Lanes(lanes=training.lanes, sequences=training.global_batch_size // training.lanes)
    together = lanes.together(training.lanes, training.micro_batch_size)
    levels = together + (training.lanes // together).bit_length() - 1
    sequences = min(training.micro_batch_size, together * lanes.sequences)
    query, key = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    # Kept by a layer: two inputs of norms and both normed, q, k, v before and after they turn, the attended, the gate's
    # two inputs and its output.
    layer = 4 * shape.hidden_size + 3 * query + 3 * key + 3 * shape.intermediate_size
    per_token = shape.num_hidden_layers * layer + 3 * shape.hidden_size
    return Memory(
        weights=4 * count + (size * count if size != 4 else 0),
        moments=8 * count,
        gradients=4 * levels * (count + head),
        activations=size * per_token * config.data.max_length * sequences,
        here=_memory_here(training.device),
    )


def _memory_here(device: str) -> int | None:
    if device == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return torch.cuda.mem_get_info(device)[1] if torch.cuda.is_available() else None
