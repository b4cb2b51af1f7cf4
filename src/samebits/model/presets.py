"""Shapes by name, from one that trains in seconds on two cores to the 350M of the stability work."""

from __future__ import annotations

from typing import Final

from samebits.model.config import ModelConfig

PRESETS: Final[dict[str, ModelConfig]] = {
    "tiny": ModelConfig(
        vocab_size=2048,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=352,
        max_position_embeddings=1024,
    ),
    "small": ModelConfig(
        vocab_size=8192,
        hidden_size=320,
        num_hidden_layers=8,
        num_attention_heads=10,
        num_key_value_heads=5,
        head_dim=32,
        intermediate_size=864,
        max_position_embeddings=2048,
    ),
    "50m": ModelConfig(
        vocab_size=32768,
        hidden_size=512,
        num_hidden_layers=12,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        intermediate_size=1376,
        max_position_embeddings=2048,
    ),
    "135m": ModelConfig(
        vocab_size=49152,
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        intermediate_size=1536,
        max_position_embeddings=8192,
        rope_theta=100000.0,
    ),
    "350m": ModelConfig(
        vocab_size=32768,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        intermediate_size=4096,
        max_position_embeddings=2048,
    ),
}
