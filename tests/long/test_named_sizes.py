"""The trainer at the sizes that the stability tests name: 24 layers for 100 steps, 50M for one, 350M for five."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tests.train.small_run import small, trainer_of

from samebits.model.huggingface import save_folder
from samebits.model.weights import EMBEDDING, shapes
from samebits.parallel.schedules import Lanes
from samebits.train import lanes
from samebits.train.trainer import StepRecord, Trainer
from samebits.train.watch import norm_error

SHORT = (
    "data={source: stdlib, max_length: 32, max_train_samples: 40}",
    "training.micro_batch_size=2",
    "training.gradient_accumulation_steps=1",
    "optimizer.lr=1e-3",
    "training.waive=[CFG-OB6, CFG-OB7]",
)


def of_preset(preset: str, *settings: str) -> Trainer:
    return trainer_of(small("model={preset: " + preset + "}", *SHORT, *settings))


def assert_sound(trainer: Trainer, records: list[StepRecord]) -> None:
    """Weights finite, second moments not below zero, no norm above what is allowed."""
    assert all(bool(weight.isfinite().all()) for weight in trainer.weights.values())
    seconds = {name: each for name, each in trainer.moments().items() if name.startswith("exp_avg_sq.")}
    assert all(bool(((each >= 0) & each.isfinite()).all()) for each in seconds.values())
    assert bool((seconds[f"exp_avg_sq.{EMBEDDING}"] > 0).any())
    error = norm_error(tuple(weight.shape) for weight in trainer.weights.values())
    assert max(record.norm_after for record in records) <= 1 + error


def test_24_layers_from_random_weights_for_100_steps() -> None:
    """FALSIFY-STABLE-001: finite throughout, and something was learnt."""
    deep = "model={preset: tiny, overrides: {vocab_size: 272, num_hidden_layers: 24}}"
    trainer = trainer_of(small(deep, *SHORT, "training.max_steps=100", "optimizer.warmup_steps=10"))
    records = [trainer.step() for _ in range(100)]
    assert_sound(trainer, records)
    assert records[-1].loss < 0.75 * records[0].loss


def test_50m_has_every_gradient_and_float64_s(tmp_path: Path) -> None:
    """FALSIFY-GRADFLOW-001: one pass; every tensor is reached, within 1e-3 of transformers' gradient in float64."""
    trainer = of_preset("50m", "training.max_steps=5")
    model = trainer.model()
    save_folder(model, tmp_path / "model")
    inputs, targets = trainer.data.sequence(0)
    found = lanes.backward(model, [(inputs, targets)], lanes.Cut(lanes=Lanes(lanes=1, sequences=1), micro_batch=1))
    oracle = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float64)
    seen = targets >= 0
    logits = oracle(torch.from_numpy(inputs[seen])[None]).logits[0]
    torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets[seen])).backward()
    exact = {name: each.grad for name, each in oracle.named_parameters()}
    for name in shapes(model.config):
        largest = exact[name].abs().amax()
        assert largest > 0 and bool((found.gradients[name] != 0).any()), name
        assert float((found.gradients[name] - exact[name]).abs().amax() / largest) <= 1e-3, name


def test_350m_for_five_steps() -> None:
    """FALSIFY-EMBEDGRAD-001 and FALSIFY-GEMMARGS-001: 398,509,056 weights in 24 layers."""
    trainer = of_preset("350m", "training.max_steps=5")
    assert sum(weight.numel() for weight in trainer.weights.values()) == 398_509_056
    assert_sound(trainer, [trainer.step() for _ in range(5)])
