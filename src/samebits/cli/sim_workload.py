"""A training configuration as the virtual cluster sees it: sizes and a batch. The only file that knows both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from samebits.sim.decoder_cost import Decoder
from samebits.sim.layouts import Training
from samebits.train.assessment import shape_of
from samebits.train.configuration_file import read


def training_of(config: Path, settings: Sequence[str], batch: int | None = None) -> Training:
    """The update that a recipe makes; `batch`: other sequences an update than it says."""
    chosen = read(config, settings)
    shape, training = shape_of(chosen), chosen.training
    found = Training(
        decoder=Decoder(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            num_hidden_layers=shape.num_hidden_layers,
            num_attention_heads=shape.num_attention_heads,
            num_key_value_heads=shape.num_key_value_heads,
            head_dim=shape.head_dim,
            intermediate_size=shape.intermediate_size,
            tie_word_embeddings=shape.tie_word_embeddings,
        ),
        sequences=training.global_batch_size,
        length=chosen.data.max_length,
        micro_batch=training.micro_batch_size,
        lanes=training.lanes,
        dtype=training.dtype,
    )
    if batch is None:
        return found
    if batch % training.lanes:
        raise ValueError(f"batch is {batch}; allowed: a multiple of the {training.lanes} lanes (training.lanes)")
    return replace(found, sequences=batch)
