"""Whether SmolLM2 helps a student: `benchmarks/distillation.py FOLDER [--record]`. About an hour on two cores.

The same student with and without the teacher, seed by seed, on a few sources of Python's standard library; judged by
the mean loss on other sources, with a paired t-test, one-sided. No variance is no evidence. FOLDER keeps the teacher's
logits and every run, so that what was interrupted goes on."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from samebits.model import Batch, Model
from samebits.train import checkpoint
from samebits.train.assessment import shape_of
from samebits.train.configuration import DataSection, TrainConfig
from samebits.train.configuration_file import read_text
from samebits.train.contracts.distill_gain.reference import p_of_smaller
from samebits.train.data import Data, documents, load
from samebits.train.display import Lines
from samebits.train.distill_configuration import read_text as read_distillation
from samebits.train.distill_running import distill, prepare
from samebits.train.running import run

# Beside this file: the records in results/ are ratios of speed.
RECORD = Path(__file__).with_name("distillation.json")
SEEDS = (1, 2, 3, 4, 5)
HELD_OUT = 100
TEXT = """
model:
  preset: tiny
  overrides: {{vocab_size: 49152, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
              head_dim: 16, intermediate_size: 176}}
data: {{source: text, paths: ["{folder}/text"], max_length: 64, tokenizer: smollm2}}
optimizer: {{lr: 3e-3, warmup_steps: 4, min_lr_ratio: 0.1, beta2: 0.95, max_grad_norm: 1.0}}
training: {{seed: 1, micro_batch_size: 8, gradient_accumulation_steps: 1, num_train_epochs: 4, max_steps: 40,
           save_steps: 100, waive: [CFG-OB7]}}
monitoring: {{peak_flops: 1e12, logging_steps: 20}}
"""
TEACHER = """
distillation: {{teacher_model_name_or_path: smollm2, temperature: 1.0, alpha: {alpha}, teacher_logits: "{folder}/store",
               top_k: 2048}}
"""
ALPHA = 0.9
AT_ONCE = 10


def held_out_loss(config: TrainConfig, run: Path, data: Data, count: int) -> float:
    """Minus the mean logprob of the targets of the first `count` sequences, by a run's last weights."""
    model = Model(config=shape_of(config), weights=checkpoint.read(run).weights)
    losses: list[float] = []
    for start in range(0, count, AT_ONCE):
        examples = [data.sequence(place) for place in range(start, min(start + AT_ONCE, count))]
        batch = Batch.of([torch.from_numpy(inputs) for inputs, _ in examples])
        targets = torch.cat([torch.from_numpy(each) for _, each in examples])
        with torch.no_grad():
            logprobs = model.logprobs(model.hidden(batch), targets)
        losses += (-logprobs[targets != -100]).tolist()
    return math.fsum(losses) / len(losses)


def write_texts(folder: Path) -> Data:
    """The beginnings of 25 sources to learn from, and of 30 others to judge by, which are returned."""
    sources = list(islice(documents(DataSection(max_length=64, source="stdlib")), 60))
    for name, chosen, length in (("text", sources[:25], 4000), ("held", sources[30:60], 1200)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number, source in enumerate(chosen):
            (folder / name / f"{number}.txt").write_text(source[:length])
    return load(DataSection(max_length=64, source="text", paths=[str(folder / "held")], tokenizer="smollm2"))


def experiment(folder: Path, seeds: Sequence[int] = SEEDS, alpha: float = ALPHA) -> dict[str, Any]:
    """Losses on held-out text by seed, and how likely such a gain is by chance."""
    held, text = write_texts(folder), TEXT.format(folder=folder)
    found: dict[str, list[float]] = {"without": [], "with": []}
    error = 0.0
    for seed in seeds:
        settings = (f"training.seed={seed}",)
        plain = read_text(text, settings)
        run(plain, folder / f"plain-{seed}", resume=True, screen=Lines(20))
        found["without"].append(held_out_loss(plain, folder / f"plain-{seed}", held, HELD_OUT))
        taught = read_distillation(text + TEACHER.format(folder=folder, alpha=alpha), settings)
        prepared = prepare(taught)
        distill(prepared, folder / f"taught-{seed}", resume=True, screen=Lines(20))
        found["with"].append(held_out_loss(taught, folder / f"taught-{seed}", held, HELD_OUT))
        error = max(error, prepared.facts()["held"]["largest_error"])
        print(json.dumps({"seed": seed, **{name: losses[-1] for name, losses in found.items()}}), flush=True)
    gains = [before - after for before, after in zip(*found.values(), strict=True)]
    means = {f"mean_{name}": math.fsum(losses) / len(losses) for name, losses in found.items()}
    p = p_of_smaller(found["without"], found["with"])
    return {"seeds": list(seeds), "alpha": alpha, **found, **means, "gains": gains, "p": p, "largest_error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    found = experiment(given.folder)
    print(json.dumps(found, indent=2))
    if given.record:
        from provenance import processor, provenance

        origin = {**provenance(__file__, processor()), "torch": torch.__version__}
        RECORD.write_text(json.dumps({**origin, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
