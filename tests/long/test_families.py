"""Every transformers family of tests/invariant/families.py under invariant mode by default attention: all are kept."""

from __future__ import annotations

import pytest
import torch
from tests.invariant.families import FAMILIES, KEPT, judge, verdict


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_kept(name: str, dtype: torch.dtype) -> None:
    assert verdict(judge(name, dtype)) == KEPT
