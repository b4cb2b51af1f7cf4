"""torch on this CPU: the order of F.linear is revealed and replayed bit for bit, whatever it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from samebits.numerics.order import size
from samebits.numerics.reveal import Revelation, group_orders, reveal

K = 64


def linear(rows: int, dtype: torch.dtype) -> Callable[[np.ndarray], float]:
    weight = torch.ones(K, K, dtype=dtype)

    def run(values: np.ndarray) -> float:
        x = torch.zeros(rows, K, dtype=dtype)
        x[0] = torch.from_numpy(values)
        return float(torch.nn.functional.linear(x, weight)[0, 0])

    return run


@pytest.fixture(scope="module")
def found() -> dict[str, Revelation]:
    return {str(rows): reveal(linear(rows, torch.float32), K) for rows in (1, 2, 3, 8)}


@pytest.mark.parametrize("rows", ["1", "2", "3", "8"])
def test_linear_replays_bit_for_bit(found: dict[str, Revelation], rows: str) -> None:
    assert found[rows].verdict == "holds" and found[rows].replayed == found[rows].replay_total == 300
    assert found[rows].order is not None and size(found[rows].order) == K


def test_every_row_count_falls_into_one_group(found: dict[str, Revelation]) -> None:
    groups = group_orders(found)
    assert sorted(label for group in groups for label in group.labels) == ["1", "2", "3", "8"]
