"""A training configuration read strictly from YAML, with `key=value` on top.

A key that nothing reads is refused with its line, a value with what is allowed. What is merely unwise is the plan's to
refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

from samebits.contracts.strict_yaml import ContractError, Located, load, parse
from samebits.contracts.structure import Place, build
from samebits.model.batch import ALIGNMENT
from samebits.model.presets import PRESETS
from samebits.ops.adamw.arguments import check_numbers
from samebits.train.checkpoint import LEAST_KEPT, MOST_STEPS
from samebits.train.configuration import (
    COLLATIONS,
    DOCUMENTS,
    DTYPES,
    SOURCES,
    WAIVABLE,
    OptimizerSection,
    Overrides,
    TrainConfig,
)

# A larger one is a mistake, or more than a float holds.
LARGEST_RATE: Final = 1e6
# Keys have the names that transformers and torch give them. An earlier name is refused, never read.
EARLIER_NAMES: Final = {
    "model.overrides.vocabulary": "vocab_size",
    "model.overrides.hidden": "hidden_size",
    "model.overrides.layers": "num_hidden_layers",
    "model.overrides.heads": "num_attention_heads",
    "model.overrides.key_heads": "num_key_value_heads",
    "model.overrides.head_size": "head_dim",
    "model.overrides.intermediate": "intermediate_size",
    "model.overrides.max_positions": "max_position_embeddings",
    "model.overrides.tied": "tie_word_embeddings",
    "model.overrides.norms_of_heads": "use_qk_norm",
    "model.overrides.eps": "rms_norm_eps",
    "model.overrides.theta": "rope_theta",
    "data.length": "max_length",
    "data.column": "text_column",
    "data.limit": "max_train_samples",
    "data.sequences": "num_sequences",
    "optimizer.peak_rate": "lr",
    "optimizer.warmup": "warmup_steps",
    "optimizer.floor_ratio": "min_lr_ratio",
    "optimizer.max_norm": "max_grad_norm",
    "optimizer.norm_decay": "norm_weight_decay",
    "training.micro_batch": "micro_batch_size",
    "training.accumulation": "gradient_accumulation_steps",
    "training.epochs": "num_train_epochs",
    "training.checkpoint_every": "save_steps",
    "training.keep": "save_total_limit",
    "monitoring.every": "logging_steps",
    "monitoring.compare_every": "compare_steps",
}
# Where a value came from the command line there is no line of the file to name.
COMMAND_LINE: Final = 0
Config = TypeVar("Config", bound=TrainConfig)


def read(path: Path, settings: Sequence[str] = ()) -> TrainConfig:
    """The configuration in a file, with `key.path=value` settings on top; a ContractError in one line otherwise."""
    return configuration(TrainConfig, load(path), path, settings)


def read_text(text: str, settings: Sequence[str] = (), path: Path = Path("configuration")) -> TrainConfig:
    """The same of a text; `path` is only named in errors."""
    return configuration(TrainConfig, parse(text.encode(), path), path, settings)


def configuration(kind: type[Config], document: Located, path: Path, settings: Sequence[str]) -> Config:
    """A document as a configuration of this kind."""
    for setting in settings:
        _set(document, setting)
    try:
        _refuse_earlier_names(document, path)
        config = build(kind, document, Place(path, 1))
        for key, message in chain(_faults(config), config.faults_of_kind()):
            raise Place(path, _line(document, key), key).fail(message)
    except ContractError as error:
        raise ContractError(str(error).replace(f"{path}:{COMMAND_LINE}:", "--set", 1)) from error
    return config


def _refuse_earlier_names(document: Located, path: Path) -> None:
    """A key of samebits 0.0 is refused with its present name."""
    for key, now in EARLIER_NAMES.items():
        inner: Any = document
        for name in key.split("."):
            inner = inner.get(name) if isinstance(inner, Located) else None
        if inner is not None:
            raise Place(path, _line(document, key), key).fail(f"is now {key.rpartition('.')[0]}.{now}")


def _set(document: Located, setting: str) -> None:
    """Puts one `key.path=value` into the document; the value is read as YAML would."""
    key, equals, text = setting.partition("=")
    names = key.split(".")
    if not equals or not all(names):
        raise ContractError(f"--set {setting}: cannot be read; allowed: key.path=value, like training.seed=1")
    value = parse(f"value: {text}".encode(), Path(f"--set {key}"))["value"]
    for name in names[:-1]:
        document.lines.setdefault(name, COMMAND_LINE)
        inner = document.setdefault(name, Located())
        if not isinstance(inner, Located):
            raise ContractError(f"--set {setting}: {name} is {inner!r}, which holds no keys")
        document = inner
    document[names[-1]] = value
    document.lines[names[-1]] = COMMAND_LINE


def _line(document: Located, key: str) -> int:
    """The line of a key, or of the section where it was left out."""
    line, inner = 1, document
    for name in key.split("."):
        if not isinstance(inner, Located) or name not in inner:
            break
        line, inner = inner.lines[name], inner[name]
    return line


def _faults(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) for values that no run can have."""
    model, data, training, optimizer = config.model, config.data, config.training, config.optimizer
    if (model.preset is None) == (model.folder is None):
        yield "model", "holds both preset and folder or neither; allowed: one of them"
    if model.preset is not None and model.preset not in PRESETS:
        yield "model.preset", f"is {model.preset!r}; allowed: {', '.join(PRESETS)}"
    if model.folder is not None and model.overrides != Overrides():
        yield "model.overrides", "goes with a preset; a folder says its own sizes"
    if data.max_length < 1 or data.max_length % ALIGNMENT:
        yield ("data.max_length", f"is {data.max_length}; allowed: a multiple of {ALIGNMENT}, where a chain can be cut")
    if (data.source == "stdlib") == bool(data.paths):
        yield (
            "data.paths",
            f"has {len(data.paths)} entries for source {data.source}; allowed: none for stdlib, else some",
        )
    for key, value, allowed in (
        ("data.source", data.source, SOURCES),
        ("data.documents", data.documents, DOCUMENTS),
        ("training.collation", training.collation, COLLATIONS),
        ("training.dtype", training.dtype, DTYPES),
        *(("training.waive", each, WAIVABLE) for each in training.waive),
    ):
        if value not in allowed:
            yield key, f"is {value!r}; allowed: {', '.join(allowed)}"
    if training.device != "cpu" and training.device.split(":")[0] != "cuda":
        yield "training.device", f"is {training.device!r}; allowed: cpu, cuda, cuda:N"
    for key, count in (
        ("training.micro_batch_size", training.micro_batch_size),
        ("training.gradient_accumulation_steps", training.gradient_accumulation_steps),
        ("training.lanes", training.lanes),
        ("training.save_steps", training.save_steps),
        ("data.max_train_samples", data.max_train_samples),
        ("data.num_sequences", data.num_sequences),
        ("monitoring.logging_steps", config.monitoring.logging_steps),
        ("monitoring.compare_steps", config.monitoring.compare_steps),
    ):
        if count is not None and count < 1:
            yield key, f"is {count}; allowed: at least 1"
    for name in ("sample_steps", "fingerprint_steps"):
        steps = getattr(config.monitoring, name)
        if steps < 0:
            yield f"monitoring.{name}", f"is {steps}; allowed: 1 for every step, n for every n-th, 0 for none"
    if training.save_total_limit is not None and training.save_total_limit < LEAST_KEPT:
        yield "training.save_total_limit", f"is {training.save_total_limit}; allowed: at least {LEAST_KEPT}"
    if training.lanes & (training.lanes - 1) or training.global_batch_size % training.lanes:
        divisor = f"a power of two that divides the {training.global_batch_size} sequences of an update"
        yield "training.lanes", f"is {training.lanes}; allowed: {divisor}"
    if not 0 <= training.seed < 2**32:
        yield "training.seed", f"is {training.seed}; allowed: 0 to {2**32 - 1}"
    yield from _optimizer_faults(optimizer)
    if config.monitoring.peak_flops is not None and not config.monitoring.peak_flops > 0:
        yield "monitoring.peak_flops", f"is {config.monitoring.peak_flops}; allowed: above 0"
    for section, names in (
        ("training", ("num_train_epochs", "max_repeats", "max_steps")),
        ("optimizer", ("warmup_steps",)),
    ):
        for name in names:
            value = getattr(getattr(config, section), name)
            if value is not None and value > MOST_STEPS:
                yield f"{section}.{name}", f"is {value}; allowed: at most {MOST_STEPS}"


def _optimizer_faults(optimizer: OptimizerSection) -> Iterator[tuple[str, str]]:
    for name in ("lr", "max_grad_norm"):
        value = getattr(optimizer, name)
        if not 0 < value <= LARGEST_RATE:
            yield f"optimizer.{name}", f"is {value}; allowed: above 0, at most {LARGEST_RATE:g}"
    if not 0 <= optimizer.min_lr_ratio <= 1:
        yield "optimizer.min_lr_ratio", f"is {optimizer.min_lr_ratio}; allowed: 0 to 1"
    try:
        for decay in (optimizer.weight_decay, optimizer.norm_weight_decay):
            check_numbers("optimizer", optimizer.lr, optimizer.beta1, optimizer.beta2, optimizer.eps, decay)
    except ValueError as error:
        yield "optimizer", str(error).removeprefix("optimizer: ")
