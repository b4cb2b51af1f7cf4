"""Which whole models a run measures: training, decode, invariant. Asked for by name, since each takes a minute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from samebits.bench import decoding, invariance, training
from samebits.bench.cases import Planned
from samebits.bench.shapes import PUBLISHED
from samebits.model.config import ModelConfig

Planner = Callable[[str, ModelConfig, int, int], list[Planned]]


@dataclass(frozen=True, slots=True)
class Usual:
    """What is measured where nothing is said: batches of `rows`, sequences of `tokens`, or prompts."""

    models: tuple[str, ...]
    rows: tuple[int, ...]
    tokens: tuple[int, ...]


PLANNERS: Final[Mapping[str, Planner]] = {
    "training": lambda *sizes: [training.planned(*sizes)],
    "decode": lambda *sizes: [decoding.planned(*sizes)],
    "invariant": invariance.planned,
}
# Those of a GPU are those of our records.
DEFAULTS: Final[Mapping[str, Mapping[str, Usual]]] = {
    "cpu": {
        "training": Usual(("tiny",), (8,), (256,)),
        "decode": Usual(("smollm2-135m",), (1, 16), (64,)),
        "invariant": Usual(("smollm2-135m",), (2,), (16,)),
    },
    "cuda": {
        "training": Usual(("350m",), (16,), (1024,)),
        "decode": Usual(("llama-3-8b",), (1, 16, 128), (128,)),
        "invariant": Usual(("qwen3-1.7b",), (8,), (1024,)),
    },
    "all sizes": {
        "training": Usual(("smollm2-135m", "350m", "qwen3-1.7b"), (1, 16), (1024, 4096)),
        "decode": Usual(tuple(PUBLISHED), (1, 2, 16, 64, 128, 256), (128,)),
        "invariant": Usual(tuple(PUBLISHED), (8,), (1024,)),
    },
}


def planned(
    names: Sequence[str],
    usual: Mapping[str, Usual],
    model_of: Callable[[str], tuple[str, ModelConfig]],
    models: Sequence[str],
    rows: Sequence[int],
    tokens: Sequence[int],
) -> list[Planned]:
    """The cases of these names, in our order; of models, rows and tokens what is usual, where none are given."""
    return [
        case
        for name in PLANNERS
        if name in names
        for model, config in map(model_of, models or usual[name].models)
        for batch in rows or usual[name].rows
        for length in tokens or usual[name].tokens
        for case in PLANNERS[name](model, config, batch, length)
    ]
