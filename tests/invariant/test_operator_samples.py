"""torch's samples of the operators that invariant mode routes: none wrong, none crashes. All operators: tests/long."""

from __future__ import annotations

import pytest
import torch
from tests.invariant import operator_samples
from torch import Tensor

from samebits.invariant.routed import ROUTED

NAMES = {
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "mv",
    "addmv",
    "dot",
    "sum",
    "mean",
    "var",
    "std",
    "linalg.vector_norm",
    "logsumexp",
    "nn.functional.layer_norm",
    "nn.functional.rms_norm",
    "softmax",
    "log_softmax",
    "index_put",
    "index_add",
    "scatter_add",
    "cumsum",
    "topk",
    "sort",
    "argsort",
    "kthvalue",
    "nn.functional.scaled_dot_product_attention",
    "nn.functional.linear",
    "matmul",
    "add",
    "sub",
    "rsub",
    "addcmul",
    "addcdiv",
    "lerp",
    "sqrt",
    "pow",
    "gather",
    "nn.functional.embedding",
    "nn.functional.nll_loss",
    "nn.functional.gelu",
    "nn.functional.silu",
    "take_along_dim",
    "nn.functional.softplus",
    "nn.functional.glu",
    "nn.functional.mse_loss",
    "nn.functional.binary_cross_entropy_with_logits",
    "polar",
    "__rpow__",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_no_sample_of_a_routed_operator_is_wrong(dtype: torch.dtype) -> None:
    found = dict(operator_samples.judge(dtype, NAMES, most=4))
    wrong = {name: [each for each in counts if each.startswith("WRONG")] for name, counts in found.items()}
    assert {name: each for name, each in wrong.items() if each} == {}
    assert len(found) >= 35 and sum(counts["right"] for counts in found.values()) > 100


def test_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a sum that forgets its first row."""
    right = ROUTED["sum"]

    def forgetful(x: Tensor, *args: object, **kwargs: object) -> Tensor:
        return right(x[1:] if x.dim() and len(x) > 1 else x, *args, **kwargs)  # type: ignore[no-any-return]

    monkeypatch.setitem(ROUTED, "sum", forgetful)
    (_, counts), *_ = operator_samples.judge(torch.float32, {"sum"})
    assert any(outcome.startswith("WRONG") for outcome in counts)
