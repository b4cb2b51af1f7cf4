"""The configuration of a distillation: that of a training run, and a section that names the teacher and the loss.

Knows no teacher, only where it is. Keys have the names that TRL and transformers give them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from samebits.contracts.strict_yaml import load, parse
from samebits.model.presets import PRESETS
from samebits.ops.distill_loss import HIGHEST_TEMPERATURE, LOWEST_TEMPERATURE
from samebits.train.configuration import DTYPES, IN_BYTES, TrainConfig
from samebits.train.configuration_file import configuration

# FALSIFY-ALBOR-006: how far a stored probability of the teacher may be from the live one.
TOLERANCES: Final = {
    "float32": 1e-4,
    # Eight bits of a logit that is d below the largest move its probability by up to d exp(-d) 2^-9 < 7.2e-4.
    "bfloat16": 1e-3,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DistillationSection:
    """loss = alpha * temperature^2 * KL(teacher || student) + (1 - alpha) * cross-entropy, target by target."""

    teacher_model_name_or_path: str
    """A folder with config.json, a .gguf file, smollm2, or a preset with its seed, as in tiny@0."""
    temperature: float = 1.0
    alpha: float = 0.5
    """1: the teacher alone; 0: the targets alone."""
    teacher_dtype: str = "float32"
    """In which the teacher computes; its logits are float32 always."""
    teacher_logits: str | None = None
    """A folder that keeps them, filled first where it is not full yet. Left out: computed at every step."""
    top_k: int | None = None
    """Of each row keep the k largest, and the exact sum of all other probabilities. Left out: keep all."""
    logits_dtype: str = "float32"
    """In which they are kept."""
    logits_tolerance: float | None = None
    """The most that a kept probability may be off; left out: 1e-4, in bfloat16 1e-3."""

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.logits_dtype] if self.logits_tolerance is None else self.logits_tolerance


LIVE: Final = DistillationSection(teacher_model_name_or_path="")
"""What is left out of a section whose teacher computes at every step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DistillConfig(TrainConfig):
    """A whole run with a teacher."""

    distillation: DistillationSection

    def faults_of_kind(self) -> Iterator[tuple[str, str]]:
        section = self.distillation
        if not LOWEST_TEMPERATURE <= section.temperature <= HIGHEST_TEMPERATURE:
            yield "distillation.temperature", f"is {section.temperature}; allowed: 2^-20 to 2^20"
        if not 0.0 <= section.alpha <= 1.0:
            yield "distillation.alpha", f"is {section.alpha}; allowed: 0 to 1"
        for key, value in (("teacher_dtype", section.teacher_dtype), ("logits_dtype", section.logits_dtype)):
            if value not in DTYPES:
                yield f"distillation.{key}", f"is {value!r}; allowed: {', '.join(DTYPES)}"
        if section.top_k is not None and section.top_k < 1:
            yield "distillation.top_k", f"is {section.top_k}; allowed: at least 1"
        if section.logits_tolerance is not None and not 0.0 < section.logits_tolerance <= 1.0:
            yield "distillation.logits_tolerance", f"is {section.logits_tolerance}; allowed: above 0, at most 1"
        if section.teacher_logits is None:
            for key in ("top_k", "logits_dtype", "logits_tolerance"):
                if getattr(section, key) != getattr(LIVE, key):
                    yield f"distillation.{key}", "is of logits that are kept; allowed: with teacher_logits, a folder"


def read(path: Path, settings: Sequence[str] = ()) -> DistillConfig:
    """The configuration in a file, with `key.path=value` settings on top; a ContractError in one line otherwise."""
    return with_words(configuration(DistillConfig, load(path), path, settings))


def read_text(text: str, settings: Sequence[str] = (), path: Path = Path("configuration")) -> DistillConfig:
    """The same of a text; `path` is only named in errors."""
    return with_words(configuration(DistillConfig, parse(text.encode(), path), path, settings))


def with_words(config: DistillConfig) -> DistillConfig:
    """A new student speaks its teacher's tokens, unless a tokenizer is named."""
    if config.data.tokenizer is not None or config.model.folder is not None:
        return config
    teacher = config.distillation.teacher_model_name_or_path
    name, _, seed = teacher.partition("@")
    words = IN_BYTES if name in PRESETS and seed else teacher
    return replace(config, data=replace(config.data, tokenizer=words))
