"""Which cases of operators a run measures: operators, models, rows and tokens, with defaults that fit the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from samebits.bench import attending, end_to_end, products, row_wise
from samebits.bench.cases import Planned
from samebits.bench.shapes import PUBLISHED, weights
from samebits.model.config import ModelConfig

POWERS: Final = tuple(2**each for each in range(15))
ODD: Final = (3, 7, 48, 100, 333, 1000, 5000)
TOKENS_AT_ONCE: Final = 16384
"""Tokens of a batch of attention on a GPU: longer sequences, fewer of them."""
DECODED: Final = ((1, 4096), (1, 32768), (1, 131072), (8, 4096), (8, 32768), (64, 4096))
"""Sequences, and keys of each."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What is measured where nothing is said."""

    models: tuple[str, ...]
    dtype: torch.dtype
    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    decoded: tuple[tuple[int, int], ...]


DEFAULTS: Final[dict[str, Defaults]] = {
    "cuda": Defaults(
        ("llama-3-8b", "smollm2-135m"), torch.bfloat16, (1, 7, 64, 512, 4096), (1024, 4096, 16384), DECODED[::2]
    ),
    "cpu": Defaults(("smollm2-135m",), torch.float32, (1, 16, 256), (256,), ((1, 1024),)),
}
ALL_SIZES: Final = Defaults(tuple(PUBLISHED), torch.bfloat16, tuple(sorted(POWERS + ODD)), (1024, 4096, 16384), DECODED)
"""Hundreds of cases an operator, for a record: on a GPU."""

Planner = Callable[[str, ModelConfig, "Sizes"], list[Planned]]


@dataclass(frozen=True, slots=True)
class Sizes:
    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    decoded: tuple[tuple[int, int], ...]
    at_once: int


def _products(make: Callable[..., Planned]) -> Planner:
    return lambda model, config, sizes: [make(model, each, rows) for each in weights(config) for rows in sizes.rows]


def _sequences(make: Callable[..., Planned]) -> Planner:
    return lambda model, config, sizes: [
        make(model, config, max(1, sizes.at_once // tokens), tokens) for tokens in sizes.tokens
    ]


def _of_rows(operator: str) -> Planner:
    return lambda model, config, sizes: [
        each for rows in sizes.rows for each in row_wise.planned(model, config, rows) if each.operator == operator
    ]


PLANNERS: Final[Mapping[str, Planner]] = {
    "linear": _products(products.forward),
    "linear-dx": _products(products.gradient_of_rows),
    "linear-dw": _products(products.gradient_of_weight),
    "attention": _sequences(attending.forward),
    "attention-backward": _sequences(attending.backward),
    "decode-attention": lambda model, config, sizes: [
        attending.decode(model, config, batch, keys) for batch, keys in sizes.decoded
    ],
    **{name: _of_rows(name) for name in ("rmsnorm", "swiglu", "gelu", "softmax", "rope", "embedding")},
    "logprob": lambda model, config, sizes: [
        row_wise.logprob(model, config, rows) for rows in sizes.rows if rows >= max(sizes.rows) // 4
    ],
}


def planned(operators: Sequence[str], models: Mapping[str, ModelConfig], sizes: Sizes) -> list[Planned]:
    """The cases, operator by operator; all operators where nothing is named. What is named end to end is not one."""
    for each in operators:
        if each not in PLANNERS and each not in end_to_end.PLANNERS:
            allowed = ", ".join((*PLANNERS, *end_to_end.PLANNERS))
            raise ValueError(f"bench: no operator {each!r:.60}; allowed: {allowed}")
    wanted = [PLANNERS[name] for name in PLANNERS if not operators or name in operators]
    return [case for planner in wanted for name, config in models.items() for case in planner(name, config, sizes)]
