"""How a checker drives the validator of training plans: rows of numbers near the places where answers change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from samebits.contracts.spec import Arguments
from samebits.model.contracts.specs import fractions, spec
from samebits.train.contracts.training_config import COLUMNS

# Every fifth model is large: 398,509,056 weights.
LARGE = {
    "vocab_size": 32768,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 4096,
}
# (least, most) of a uniform whole number.
RANGES = {
    "num_sequences": (1, 4000),
    "micro_batch_size": (1, 6),
    "gradient_accumulation_steps": (1, 8),
    "ranks": (1, 4),
    "max_length": (64, 2048),
    "num_train_epochs": (1, 12),
    "max_repeats": (1, 14),
    "vocab_size": (50, 400),
    "hidden_size": (2, 40),
    "num_hidden_layers": (1, 3),
    "num_attention_heads": (1, 6),
    "num_key_value_heads": (1, 4),
    "intermediate_size": (8, 120),
    "tie_word_embeddings": (0, 1),
}


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    rows = shape[0]
    drawn = dict(zip(COLUMNS, fractions((len(COLUMNS), rows), seed), strict=True))
    spare, size = fractions((2, rows), 2**40 + seed)
    made = {name: np.floor(low + drawn[name] * (high - low + 1)) for name, (low, high) in RANGES.items()}
    # Three models in four have heads that fit.
    fits = spare < 0.75
    made["num_key_value_heads"] = np.where(
        fits, 1 + np.floor(drawn["num_key_value_heads"] * 2), made["num_key_value_heads"]
    )
    made["num_attention_heads"] = np.where(
        fits, made["num_key_value_heads"] * np.floor(1 + 3 * drawn["num_attention_heads"]), made["num_attention_heads"]
    )
    made["hidden_size"] = np.where(
        fits, made["num_attention_heads"] * 2 * np.floor(1 + 8 * drawn["hidden_size"]), made["hidden_size"]
    )
    for name, value in LARGE.items():
        made[name] = np.where(size < 0.2, value, made[name])
    per_epoch = made["num_sequences"] // (
        made["micro_batch_size"] * made["gradient_accumulation_steps"] * made["ranks"]
    )
    reach = per_epoch * made["num_train_epochs"]
    # From a quarter of what is reached to 32 times as much.
    asked = 2.0 ** (10 * drawn["max_steps"] - 5)
    made["max_steps"] = np.where(drawn["max_steps"] < 0.3, 0, np.floor(1 + reach * asked))
    steps = np.where(made["max_steps"] > 0, np.minimum(made["max_steps"], reach), reach)
    made["warmup_steps"] = np.floor(1 + np.maximum(steps, made["max_steps"]) * drawn["warmup_steps"] ** 3 * 1.25)
    made["lr"], made["min_lr_ratio"] = 1e-4 + 1e-3 * drawn["lr"], np.floor(drawn["min_lr_ratio"] * 4) / 10
    made["updates"] = np.maximum(0, steps + np.where(drawn["updates"] < 0.8, 0, np.sign(drawn["updates"] - 0.9)))
    made["stray"] = (drawn["stray"] < 0.05).astype(np.float64)
    return {"plans": torch.from_numpy(np.stack([made[name] for name in COLUMNS], 1))}


SPECS = {"training_config": spec("training_config", "M", _make, rows=("plans",))}
