"""A training configuration as the virtual cluster sees it: sizes and a batch. The only file that knows both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from samebits.sim.decoder_cost import Decoder
from samebits.sim.layouts import Training
from samebits.train.configuration import read
from samebits.train.planning import shape_of


def training_of(config: Path, settings: Sequence[str], batch: int | None = None) -> Training:
    """The update that a recipe makes; `batch`: other sequences an update than it says."""
    chosen = read(config, settings)
    shape, training = shape_of(chosen), chosen.training
    found = Training(
        decoder=Decoder(
            vocabulary=shape.vocabulary, hidden=shape.hidden, layers=shape.layers, heads=shape.heads,
            key_heads=shape.key_heads, head_size=shape.head_size, intermediate=shape.intermediate, tied=shape.tied,
        ),
        sequences=training.batch, length=chosen.data.length, micro_batch=training.micro_batch, lanes=training.lanes,
        dtype=training.dtype,
    )  # fmt: skip
    if batch is None:
        return found
    if batch % training.lanes:
        raise ValueError(f"batch is {batch}; allowed: a multiple of the {training.lanes} lanes (training.lanes)")
    return replace(found, sequences=batch)
