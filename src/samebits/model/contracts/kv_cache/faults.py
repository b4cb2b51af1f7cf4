"""Planted faults of a cache: positions that lag behind, and keys that are kept with fewer digits."""

from __future__ import annotations

from torch import Tensor

from samebits.model import Model
from samebits.model.contracts.kv_cache import decoded, paged
from samebits.ops.attention.cache import Cache
from samebits.ops.attention.layout import Spread


def positions_lag(ids: Tensor, steps: Tensor, weights: Tensor) -> Tensor:
    """From the second step on a token is turned as if it came one earlier."""
    return decoded(ids, steps, weights, late=1)


def keys_are_rounded(ids: Tensor, steps: Tensor, weights: Tensor) -> Tensor:
    """What was kept of earlier steps has eight digits."""
    return decoded(ids, steps, weights, caches=_rounding)


def _rounding(model: Model, sequences: int, tokens: int) -> list[Cache]:
    kept = paged(model, sequences, tokens)
    for cache in kept:
        vars(cache)["append_spread"] = _rounded(cache)
    return kept


def _rounded(cache: Cache) -> object:
    plain = cache.append_spread

    def append(k_THD: Tensor, v_THD: Tensor, spread: Spread) -> None:
        """Keys of this step stay as they are until the next one comes."""
        cache.k.copy_(cache.k.bfloat16())
        plain(k_THD, v_THD, spread)

    return append
