"""Sizes that models ask of operators, from a configuration: nothing is measured on a list of shapes made for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from samebits.model.config import ModelConfig
from samebits.model.json_file import read_json
from samebits.model.presets import PRESETS

PUBLISHED: Final[dict[str, ModelConfig]] = {
    "llama-3-8b": ModelConfig(
        vocab_size=128256,
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=14336,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
    ),
    "qwen3-8b": ModelConfig(
        vocab_size=151936,
        hidden_size=4096,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=12288,
        max_position_embeddings=40960,
        tie_word_embeddings=False,
        use_qk_norm=True,
    ),
    "qwen3-1.7b": ModelConfig(
        vocab_size=151936,
        hidden_size=2048,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=6144,
        max_position_embeddings=40960,
        use_qk_norm=True,
    ),
    "smollm2-135m": PRESETS["135m"],
}
MODELS: Final = {**PUBLISHED, **{name: PRESETS[name] for name in ("tiny", "350m")}}
"""By name: published ones, and two of our presets that are small enough to be trained."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A linear layer: `name` of what it makes, N outputs, K inputs."""

    name: str
    n: int
    k: int


def weights(config: ModelConfig) -> tuple[Weight, ...]:
    """The products of a pass, with queries, keys and values joined, and gate and up."""
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    attended = config.num_attention_heads * config.head_dim
    return (
        Weight("qkv", heads * config.head_dim, config.hidden_size),
        Weight("out", config.hidden_size, attended),
        Weight("gate_up", 2 * config.intermediate_size, config.hidden_size),
        Weight("down", config.hidden_size, config.intermediate_size),
        Weight("lm_head", config.vocab_size, config.hidden_size),
    )


def read_model(source: str) -> tuple[str, ModelConfig]:
    """(name, configuration) of a model known by name, a config.json, or a folder that holds one."""
    if source in MODELS:
        return source, MODELS[source]
    path = Path(source)
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"bench: no model {source!r:.200}; allowed: {', '.join(MODELS)}, or a config.json of your own")
    return file.resolve().parent.name, ModelConfig.from_huggingface(read_json(file))
