"""What a grouped product must be, whatever it is built of: predicates that its contract names and the checker executes.

Each takes a call that happened and says in one line what is wrong, or nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference, not_refused
from samebits.ops.matmul import matmul


def _mixed(call: Call) -> Tensor:
    """Experts such that neighbours differ: the call's own, moved on by the row's number."""
    expert: Tensor = call.arguments["expert"]
    return (expert + torch.arange(expert.shape[0], device=expert.device)) % call.arguments["weight"].shape[0]


def rows_are_products(call: Call, tolerance: Tolerance) -> str:
    """y[m] is matmul(x[m:m+1], weight[expert[m]]) and dx[m] matmul(dy[m:m+1], weight[expert[m]].T), bit for bit."""
    x, weight, expert = call.arguments["x"], call.arguments["weight"], _mixed(call)
    y, dy = call.again(expert=expert), weight[expert, -1]
    dx = call.gradients(dy, ["x"], expert=expert)["x"]
    for row in call.some_of(range(x.shape[0])):
        own = weight[int(expert[row])]
        found = (y[row : row + 1], dx[row : row + 1])
        alone = (x[row : row + 1], own), (dy[row : row + 1], own.T)
        for what, part, factors in zip(("row", "gradient of row"), found, alone, strict=True):
            wrong = difference(part, matmul(*factors, backend=call.backend), tolerance, words=f"{what} {row}")
            if wrong:
                return wrong
    return ""


def permuted_rows_permute_outputs(call: Call, tolerance: Tolerance) -> str:
    """Rows in another order, or by expert, give the same outputs in that order."""
    x, expert = call.arguments["x"], _mixed(call)
    y = call.again(expert=expert)
    backwards = torch.arange(x.shape[0] - 1, -1, -1, device=x.device)
    sorted_by_expert = torch.argsort(expert, stable=True)
    spread = torch.argsort(backwards * 2654435761 % 2**32, stable=True)
    orders = {"backwards": backwards, "by expert": sorted_by_expert, "spread": spread}
    found = (
        difference(call.again(x=x[order], expert=expert[order]), y[order], tolerance, words=f"rows {words}")
        for words, order in orders.items()
    )
    return next(filter(None, found), "")


def experts_gradients_are_products(call: Call, tolerance: Tolerance) -> str:
    """dW[e] is matmul over the rows of e, in their order; an expert without rows gets +0."""
    x, weight, expert = call.arguments["x"], call.arguments["weight"], _mixed(call)
    # Every second expert has no rows; what flows back is made of the weights.
    expert, dy = expert // 2 * 2, weight[expert, 0].flip(0)
    found = call.gradients(dy, ["weight"], expert=expert)["weight"]
    expected = torch.zeros_like(weight)
    for number in set(expert.tolist()):
        rows = expert == number
        expected[number] = matmul(x[rows].T, dy[rows], backend=call.backend)
    return difference(found, expected, tolerance, words="gradient of the weights")


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """Experts that there are not, sizes that do not meet, wrong dtypes and axes: one line each, and no output."""
    x, weight, expert = call.arguments["x"], call.arguments["weight"], call.arguments["expert"]
    bad: dict[str, dict[str, Any]] = {
        "expert -1": {"expert": torch.full_like(expert, -1)},
        "expert E": {"expert": torch.full_like(expert, weight.shape[0])},
        "experts of int16": {"expert": expert.to(torch.int16)},
        "one expert too many": {"expert": torch.cat([expert, expert[:1]])},
        "no experts": {"weight": weight[:0]},
        "weights of another dtype": {"weight": weight.double()},
        "weights of two axes": {"weight": weight[0]},
        "weights with one row more": {"weight": torch.cat([weight, weight[:, :1]], 1)},
        "x of one axis": {"x": x[:, 0]},
    }
    answers = {what: call.refusal(**changed) for what, changed in bad.items()}
    return not_refused(answers)
