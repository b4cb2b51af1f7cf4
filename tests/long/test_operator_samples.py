"""Every operator of which torch has samples, under invariant mode: none wrong, none crashes."""

from __future__ import annotations

import pytest
import torch
from tests.invariant import operator_samples


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_no_sample_is_wrong(dtype: torch.dtype) -> None:
    found = dict(operator_samples.judge(dtype))
    wrong = {name: [each for each in counts if each.startswith("WRONG")] for name, counts in found.items()}
    assert {name: each for name, each in wrong.items() if each} == {} and len(found) > 300
