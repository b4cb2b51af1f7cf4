"""`samebits bench` on the GPU: every operator on small sizes, kernels and calls timed, bits equal."""

from __future__ import annotations

import pytest
import torch

from samebits.bench.cases import Setting
from samebits.bench.measuring import HOLDS, measured
from samebits.bench.planning import PLANNERS, Sizes, planned
from samebits.bench.shapes import MODELS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")

SIZES = Sizes(rows=(3, 64), tokens=(256,), decoded=((2, 512),), at_once=512)


@pytest.mark.parametrize("operator", PLANNERS)
def test_every_operator_is_measured(operator: str) -> None:
    cases = planned([operator], {"smollm2-135m": MODELS["smollm2-135m"]}, SIZES)
    for line in measured(cases, Setting(torch.device("cuda"), torch.bfloat16), 0.002, 2):
        assert line.bits == HOLDS, line
        assert line.ratio and line.call_ratio and line.best in line.seconds, line
