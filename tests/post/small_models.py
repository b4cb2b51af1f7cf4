"""Three small models whose weights are a function of a seed, in folders of Hugging Face's layout, and recipes for
them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from samebits.model.config import ModelConfig
from samebits.model.huggingface import save_folder
from samebits.model.model import Model
from samebits.model.tokenizer import Tokenizer

CONFIG = ModelConfig(
    vocab_size=257,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    intermediate_size=40,
    max_position_embeddings=64,
    tie_word_embeddings=True,
    eos_token_id=(256,),
)


def model(seed: int) -> Model:
    """The first of a seed; models 1 and 2 are the first with some of another added, as a fine-tuned one has."""
    if seed == 0 or seed == 9:
        return Model.new(CONFIG, seed)
    first, other = Model.new(CONFIG, 0), Model.new(CONFIG, seed)
    weights = {name: first.weights[name] + 0.25 * other.weights[name] for name in first.weights}
    return replace(first, weights=weights)


def save(folder: Path, seed: int, dtype: torch.dtype) -> None:
    save_folder(model(seed).to(dtype=dtype), folder, Tokenizer.of_bytes())


def models(folder: Path, dtype: torch.dtype = torch.bfloat16) -> dict[str, str]:
    """Folders a, b, c (of one family) and d (of none)."""
    for name, seed in {"a": 0, "b": 1, "c": 2, "d": 9}.items():
        save(folder / name, seed, dtype)
    return {name: str(folder / name) for name in "abcd"}


def recipes(at: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Recipes that go through every form of a parameter."""
    a, b, c, d = (at[name] for name in "abcd")
    family = {"a": a, "b": b, "c": c}
    return {
        "linear": {
            "models": [
                {"model": a, "parameters": {"weight": 0.3}},
                {"model": b, "parameters": {"weight": [0.7, 0.2, 1.1]}},
                {"model": c, "parameters": {"weight": [{"filter": "self_attn", "value": 0.45}, {"value": 0.2}]}},
            ],
            "merge_method": "linear",
        },
        "slerp": {
            "slices": [{"sources": [{"model": family[each], "layer_range": [0, 3]} for each in ("a", "c")]}],
            "merge_method": "slerp",
            "base_model": a,
            "parameters": {
                "t": [
                    {"filter": "self_attn", "value": [0, 0.5, 0.3]},
                    {"filter": "mlp", "value": [1, 0.5, 0.7]},
                    {"value": 0.4},
                ]
            },
        },
        "slerp_far": {
            "models": [{"model": a}, {"model": d}],
            "merge_method": "slerp",
            "base_model": d,
            "parameters": {"t": [0.1, 0.8]},
        },
        "slices": {
            "slices": [
                {
                    "sources": [
                        {"model": a, "layer_range": [0, 2], "parameters": {"weight": 0.4}},
                        {"model": b, "layer_range": [1, 3], "parameters": {"weight": 0.6}},
                    ]
                },
                {
                    "sources": [
                        {"model": c, "layer_range": [0, 3], "parameters": {"weight": [1.0, 0.5]}},
                        {"model": b, "layer_range": [0, 3], "parameters": {"weight": 1.5}},
                    ],
                    "parameters": {"normalize": False},
                },
            ],
            "merge_method": "linear",
        },
        "task_arithmetic": {
            "models": [{"model": b, "parameters": {"weight": 0.6}}, {"model": c, "parameters": {"weight": 0.7}}],
            "merge_method": "task_arithmetic",
            "base_model": a,
            "parameters": {"lambda": 0.9},
        },
        "ties": {
            "models": [
                {"model": a},
                {"model": b, "parameters": {"density": [1, 0.7, 0.1], "weight": 1.0}},
                {
                    "model": c,
                    "parameters": {"density": 0.33, "weight": [{"filter": "mlp", "value": 0.5}, {"value": 0.3}]},
                },
            ],
            "merge_method": "ties",
            "base_model": a,
            "parameters": {"normalize": True, "int8_mask": True},
        },
        "ties_plain": {
            "models": [
                {"model": b, "parameters": {"density": 0.5, "weight": 0.5}},
                {"model": c, "parameters": {"density": 0.5, "weight": 0.5}},
            ],
            "merge_method": "ties",
            "base_model": a,
            "parameters": {"normalize": False},
        },
    }
