"""Shared by all tests: memory that no kernel wrote is poisoned, so that it cannot look right by luck."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.empty and its kin return NaN (or 85 for integers)."""
    for name in ("empty", "empty_like", "empty_strided"):

        def poisoned(*arguments: object, real: object = getattr(torch, name), **options: object) -> torch.Tensor:
            fresh = real(*arguments, **options)  # type: ignore[operator]
            return fresh.fill_(torch.nan) if fresh.is_floating_point() else fresh.fill_(85)

        monkeypatch.setattr(torch, name, poisoned)
