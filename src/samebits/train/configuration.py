"""The configuration of a training run: five sections of typed keys, and which of them decide bits.

Knows neither the data nor a device, nor how a file is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

SOURCES: Final = ("stdlib", "text", "jsonl", "parquet")
DOCUMENTS: Final = ("joined", "apart")
COLLATIONS: Final = ("packed", "padded")
DTYPES: Final = ("float32", "bfloat16")
# Instead of a path to a tokenizer: a token for each byte.
IN_BYTES: Final = "bytes"
# What a run may break with open eyes: too few tokens for its weights. All other obligations would break the run itself.
WAIVABLE: Final = ("CFG-OB6", "CFG-OB7")


@dataclass(frozen=True, kw_only=True, slots=True)
class Overrides:
    """Sizes that differ from the preset's."""

    vocab_size: int | None = None
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    max_position_embeddings: int | None = None
    tie_word_embeddings: bool | None = None
    use_qk_norm: bool | None = None
    rms_norm_eps: float | None = None
    rope_theta: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSection:
    """A preset with overrides, or a folder with a model in Hugging Face's layout to start from."""

    preset: str | None = None
    folder: str | None = None
    overrides: Overrides = Overrides()


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSection:
    """Where documents come from and how they become sequences."""

    max_length: int
    """Targets of a sequence."""
    source: str = "stdlib"
    paths: list[str] = field(default_factory=list)
    """Files and folders; relative to where the command is run."""
    text_column: str = "text"
    """Of JSON lines and Parquet: what holds the document."""
    tokenizer: str | None = None
    """A tokenizer.json, a folder with one, a .gguf file, smollm2, or bytes. Left out: that of model.folder, with a
    preset bytes."""
    documents: str = "joined"
    """joined: end to end, cut into equal sequences. apart: no sequence holds two documents, and many are shorter."""
    max_train_samples: int | None = None
    """Take so many documents."""
    num_sequences: int | None = None
    """How many there are, for a plan without the data at hand. `train` refuses data that has another number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSection:
    """Every number of the optimizer and its schedule. What is left out is as in transformers' Trainer."""

    lr: float = 5e-5
    warmup_steps: int = 1
    """Updates up to the peak; 1: the first is at the peak."""
    min_lr_ratio: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    """Of matrices."""
    max_grad_norm: float = 1.0
    """The gradient is clipped to it as a whole."""
    norm_weight_decay: float = 0.0
    """The weight decay of the norms' weights."""
    eps: float = 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSection:
    """How a global batch is made and cut, and how long the run is."""

    seed: int = 42
    micro_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    num_train_epochs: int = 1
    max_repeats: int = 4
    """How often the data may be seen; beyond four times it teaches little."""
    save_steps: int = 500
    max_steps: int | None = None
    lanes: int = 1
    """Chains of the gradient's sum. Decides bits, which micro_batch does not."""
    collation: str = "packed"
    dtype: str = "float32"
    """In which the forward and backward pass compute; the weights that are updated are float32 always."""
    device: str = "cpu"
    save_total_limit: int | None = None
    """How many checkpoints stay."""
    waive: list[str] = field(default_factory=list)

    @property
    def global_batch_size(self) -> int:
        """Sequences of one update."""
        return self.micro_batch_size * self.gradient_accumulation_steps


@dataclass(frozen=True, kw_only=True, slots=True)
class MonitoringSection:
    """What is shown. Decides no bit."""

    logging_steps: int = 10
    """Steps from one printed line to the next, where no terminal shows all of them."""
    peak_flops: float | None = None
    """Of the device, for the utilisation; left out: measured with the product that the run uses."""
    compare_steps: int = 10
    """Steps from one comparison of all ranks' weights to the next: equal bits, or the run is stopped."""
    sample_steps: int = 10
    """Steps from one sample of every gradient to the next, for alarms; 0: none."""
    fingerprint_steps: int = 0
    """Steps from one fingerprint of every gradient to the next, by which `samebits diff` names an element; 0: none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """A whole run."""

    model: ModelSection
    data: DataSection
    optimizer: OptimizerSection = OptimizerSection()
    training: TrainingSection = TrainingSection()
    monitoring: MonitoringSection = MonitoringSection()

    def faults_of_kind(self) -> Iterator[tuple[str, str]]:
        """(key, what is wrong) in sections that only this kind of run has."""
        yield from ()


# Where a batch is cut, where checkpoints fall and what is shown change no bit; nor do paths: the tokens are compared.
FREE: Final = (
    "training.micro_batch_size",
    "training.gradient_accumulation_steps",
    "training.collation",
    "training.save_steps",
    "training.save_total_limit",
    "monitoring.logging_steps",
    "monitoring.peak_flops",
    "monitoring.compare_steps",
    "monitoring.sample_steps",
    "monitoring.fingerprint_steps",
    "data.num_sequences",
    "data.paths",
    "data.tokenizer",
    # Of a teacher its weights count, and of its logits what is left of them: see train/distill.py.
    "distillation.teacher_model_name_or_path",
    "distillation.teacher_logits",
    "distillation.top_k",
    "distillation.logits_dtype",
    "distillation.logits_tolerance",
)


def deciding(config: TrainConfig) -> dict[str, Any]:
    """Every setting that decides bits, by its path; a global batch counts as a whole."""
    flat = dict(_flat(asdict(config)))
    return {key: value for key, value in flat.items() if key not in FREE} | {
        "training.global_batch_size": config.training.global_batch_size
    }


# Ranks may see the same files at different places, and each has a device of its own: what is there is compared.
PLACES: Final = (
    "data.paths",
    "data.tokenizer",
    "model.folder",
    "distillation.teacher_model_name_or_path",
    "distillation.teacher_logits",
)


def comparable(config: TrainConfig) -> dict[str, Any]:
    """Every setting that the ranks of a run must have alike, by its path."""
    flat = {key: value for key, value in _flat(asdict(config)) if key not in PLACES}
    return flat | {"training.device": config.training.device.partition(":")[0]}


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
