"""Attention's kernel on the CPU, called with records that are made here: by keyword, or with values by position.

Three records carry what a kernel is told besides tensors: where rows are, which sequences they make, who sees whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from samebits.ops.attention import cpu_kernel
from samebits.ops.attention.forms import Rule, Sequences
from samebits.ops.attention.layout import Spread

HEAD: Final = 16
RECORDS: Final[Mapping[str, type[Any]]] = MappingProxyType({"Spread": Spread, "Sequences": Sequences, "Rule": Rule})


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    by_position: Mapping[str, int] = MappingProxyType({}),
    records: Mapping[str, Callable[..., Any]] = RECORDS,
) -> Tensor:
    """(tokens, width): causal attention of one sequence.

    `by_position` says of a record how many of its values, in the order of its fields, are handed over without their
    names; `records` are what is made of them."""

    def made(name: str, values: Mapping[str, Any]) -> Any:
        count = by_position.get(name, 0)
        placed, named = list(values.values())[:count], dict(list(values.items())[count:])
        return records[name](*placed, **named)

    tokens = len(q)
    spread = made("Spread", {"start": torch.tensor([0]), "length": torch.tensor([tokens]), "longest": tokens})
    sequences = made(
        "Sequences",
        {
            "q_start": spread.start,
            "q_length": spread.length,
            "k_start": spread.start,
            "k_length": spread.length,
            "pages": None,
            "page_size": 0,
            "longest_query": spread.longest,
            "longest_key": spread.longest,
        },
    )
    # 2^-2 is the root of one head's size, inverted.
    rule = made("Rule", {"causal": True, "window": 0, "scale": 2.0**-2, "softcap": 0.0})
    q, k, v = (each.reshape(tokens, -1, HEAD) for each in (q, k, v))
    return cpu_kernel.forward(q, k, v, sequences, rule)[0].reshape(tokens, -1)
