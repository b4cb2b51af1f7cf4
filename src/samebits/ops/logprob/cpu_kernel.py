"""Log-probabilities of selected tokens on the CPU: hands pointers to the C++ kernel beside this file.

Matrices, ids and row statistics come contiguous; where a logit's gradient goes, only the columns must be."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.ops._cpu import FORMATS, pointer, run
from samebits.ops.logprob.reference import BLOCK


def forward(
    hidden_MK: Tensor, weight_VK: Tensor, ids_M: Tensor, ignore_index: int, kept_MV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(logprob, log-sum-exp) of every row; the logits are written to `kept_MV` (float32) where it is given."""
    (rows, depth), vocabulary = hidden_MK.shape, weight_VK.shape[0]
    logprob_M, lse_M = torch.empty(rows, dtype=torch.float32), torch.empty(rows, dtype=torch.float32)
    parts = torch.empty(2, rows, -(-vocabulary // BLOCK), dtype=torch.float32)
    run(
        "logprob_forward",
        "iqqqpppqpppp",
        FORMATS[hidden_MK.dtype],
        rows,
        vocabulary,
        depth,
        *map(pointer, (hidden_MK, weight_VK, ids_M)),
        ignore_index,
        *map(pointer, (kept_MV, parts, logprob_M, lse_M)),
    )
    return logprob_M, lse_M


def of_logits(logits_MV: Tensor, ids_M: Tensor, ignore_index: int) -> Tensor:
    """Logits as the weight of a hidden row of one number, which is 1: the product's chain leaves them as they are."""
    one = torch.ones(1, 1)
    rows = zip(logits_MV, torch.split(ids_M, 1), strict=True)
    return torch.cat([forward(one, logits_V[:, None], id, ignore_index)[0] for logits_V, id in rows])


def logit_gradient(
    dlogprob_M: Tensor,
    hidden_MK: Tensor,
    weight_CK: Tensor,
    ids_M: Tensor,
    lse_M: Tensor,
    ignore_index: int,
    first: int,
    dz_MC: Tensor,
) -> None:
    """The gradient of the logits of columns `first`, `first` + 1, ..., whose weights are given, into dz."""
    (rows, depth), columns = hidden_MK.shape, weight_CK.shape[0]
    run(
        "logprob_gradient",
        "iqqqpppqqpppq",
        FORMATS[hidden_MK.dtype],
        rows,
        columns,
        depth,
        *map(pointer, (hidden_MK, weight_CK, ids_M)),
        ignore_index,
        first,
        *map(pointer, (lse_M, dlogprob_M, dz_MC)),
        dz_MC.stride(0),
    )


def logit_gradient_in_place(
    dlogprob_M: Tensor, logits_MV: Tensor, ids_M: Tensor, lse_M: Tensor, ignore_index: int, dtype: torch.dtype
) -> Tensor:
    """The gradient of known float32 logits, in their own memory; the view of it in `dtype` is returned."""
    rows, vocabulary = logits_MV.shape
    run(
        "logprob_gradient_in_place",
        "iqqppqpp",
        FORMATS[dtype],
        rows,
        vocabulary,
        logits_MV.data_ptr(),
        ids_M.data_ptr(),
        ignore_index,
        lse_M.data_ptr(),
        dlogprob_M.data_ptr(),
    )
    return logits_MV.view(dtype)[:, :vocabulary]
