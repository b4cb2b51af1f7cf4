"""What a clipped gradient must be: no longer than allowed at each step, untouched where small, and what is added up."""

from __future__ import annotations

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.orders import UNIT_ROUNDOFF
from samebits.contracts.predicates import difference
from samebits.train.contracts.embed_grad import MAX_NORM, VOCABULARY


def is_clipped_each_step(call: Call, tolerance: Tolerance) -> str:
    """The norm over all rows of a step is at most the largest allowed, at every step."""
    steps, tokens, width = call.arguments["dy"].shape
    norms = call.output[:, :tokens].double().flatten(1).norm(dim=1)
    # The norm's sum halved by the root, the root, 1e-6 added, the quotient, the product; pieces are added once more.
    most = MAX_NORM * (1 + call.sum_error(tokens * width) / 2 + 16 * UNIT_ROUNDOFF)
    over = norms > most
    if bool(over.any()):
        step = int(over.nonzero()[0])
        return f"step {step + 1} of {steps}: the norm is {float(norms[step])}; allowed: at most {most}"
    return ""


def is_scaled_as_a_whole(call: Call, tolerance: Tolerance) -> str:
    """The factor is max_norm / norm: clipped gradients against float64."""
    tokens = call.arguments["dy"].shape[1]
    expected = call.reference(*call.arguments.values())[:, :tokens]
    return difference(call.output[:, :tokens], expected, tolerance, words="clipped gradient")


def small_ones_keep_their_bits(call: Call, tolerance: Tolerance) -> str:
    """Gradients shorter than the largest norm pass unchanged."""
    dy = call.arguments["dy"]
    norm = dy.double().flatten(1).norm(dim=1).clamp(min=2.0**-100)
    shrunk = dy * torch.exp2(-torch.ceil(torch.log2(norm)) - 1).to(dy.dtype)[:, None, None]
    return difference(call.again(dy=shrunk)[:, : dy.shape[1]], shrunk, tolerance, words="a gradient of norm below 1")


def table_is_their_sum(call: Call, tolerance: Tolerance) -> str:
    """The table holds the sum of the clipped gradients by token, and of no others."""
    dy, ids = call.arguments["dy"], call.arguments["ids"]
    rows, table = call.output[:, : dy.shape[1]].double(), call.output[:, dy.shape[1] :]
    expected, magnitude = (
        torch.zeros(*table.shape, dtype=torch.float64, device=dy.device).scatter_add_(
            1, ids[..., None].expand_as(each), each
        )
        for each in (rows, rows.abs())
    )
    assert table.shape[1] == VOCABULARY
    allowed = dy.shape[1] * UNIT_ROUNDOFF * magnitude
    return difference(table, expected, tolerance, allowed=allowed, words="table")


def table_stays_finite(call: Call, tolerance: Tolerance) -> str:
    """After the run every element of the table is a number, and no further off than its steps can move it."""
    found, most = call.output.double().abs(), call.reference(*call.arguments.values())
    lost = ~(found <= most)
    if not bool(lost.any()):
        return ""
    return f"{int(lost.sum())} of {lost.numel()} elements of the table are no number or beyond their bound"
