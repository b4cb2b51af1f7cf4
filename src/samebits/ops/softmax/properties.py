"""What a softmax must be, whatever it is built of: predicates that its contract names and the checker executes.

Each takes a call that happened and says in one line what is wrong, or nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference, ulp

# exp(-70) is a normal float32 even after division by a sum of 2^24 ones.
SURELY_POSITIVE = -70.0
# No sum over these has a declared order.
OTHER_DTYPES = (
    torch.float64,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


def in_unit_interval(call: Call, tolerance: Tolerance) -> str:
    """0 <= y <= 1 without slack, and y > 0 where x is near enough to the row's maximum for the format."""
    x, y = call.arguments["x"].double(), call.output
    outside = ~((y >= 0) & (y <= 1))
    if bool(outside.any()):
        return f"{int(outside.sum())} of {y.numel()} outside 0 to 1; first {float(y[outside][0])}"
    least = max(SURELY_POSITIVE, -6.0 if call.format == "float16" else SURELY_POSITIVE)
    near = (x - x.amax(-1, keepdim=True) >= least) & (x.shape[-1] < 2**14)
    lost = near & (y == 0)
    return f"{int(lost.sum())} of {y.numel()} are 0 within {-least} of the maximum" if bool(lost.any()) else ""


def keeps_order(call: Call, tolerance: Tolerance) -> str:
    """A larger logit never has a smaller weight, but for the tolerance; the largest has the largest, bit for bit."""
    x, y = call.arguments["x"].double(), call.output.double()
    sorted_x, places = x.sort(-1)
    along = y.gather(-1, places)
    fall = along[..., :-1] - along[..., 1:]
    allowed = float(tolerance.value or 0.0) * ulp(along[..., :-1], call.output.dtype)
    if bool((fall > allowed).any()):
        index = tuple(int(place[0]) for place in torch.nonzero(fall > allowed, as_tuple=True))
        return f"row {index[0]}: logit {float(sorted_x[index])} weighs {float(along[index])}, the next larger less"
    at_maximum = y.gather(-1, x.argmax(-1, keepdim=True))
    return "" if bool((at_maximum == y.amax(-1, keepdim=True)).all()) else "the largest logit lacks the largest weight"


def ignores_exact_shifts(call: Call, tolerance: Tolerance, *, shift: float) -> str:
    """softmax(x + c) = softmax(x) where every x + c is exact: whole numbers of few bits."""
    whole = call.arguments["x"].float().nan_to_num().clamp(-64, 64).round()
    moved = (whole + shift).to(call.output.dtype)
    assert bool((moved.float() == whole + shift).all())  # the shift is exact by construction
    return difference(call.again(x=moved), call.again(x=whole.to(call.output.dtype)), tolerance, words=f"x + {shift}")


def one_alone_is_one(call: Call, tolerance: Tolerance) -> str:
    """A row of one element gives exactly 1."""
    column = call.arguments["x"][:, :1].nan_to_num()
    return difference(call.again(x=column), torch.ones_like(column), tolerance, words="rows of one element")


def constant_rows_share(call: Call, tolerance: Tolerance) -> str:
    """n equal elements give 1/n, rounded once to float32 and once to the format."""
    x = call.arguments["x"]
    constant = x[:, :1].nan_to_num().expand(x.shape).contiguous()
    share = torch.full_like(constant, 1.0 / x.shape[-1], dtype=torch.float32).to(x.dtype)
    return difference(call.again(x=constant), share, tolerance, words="equal elements")


def logarithm_is_not_positive(call: Call, tolerance: Tolerance) -> str:
    """log_softmax <= 0 without slack: the sum contains exp(0)."""
    above: Tensor = call.output > 0
    return f"{int(above.sum())} of {above.numel()} above 0" if bool(above.any()) else ""


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """A dtype without a declared order, an axis that x does not have, an empty one: each is refused in one line."""
    x = call.arguments["x"].nan_to_num().clamp(-64, 64)
    said = {f"x of {dtype}": call.refusal(x=x.to(dtype)) for dtype in OTHER_DTYPES}
    said |= {f"dim={dim}": call.refusal({"dim": dim}) for dim in (2, -3)}
    said["dtype=torch.float64"] = call.refusal({"dtype": torch.float64})
    said["an empty axis"] = call.refusal(x=x[:, :0])
    wrong = [words for words, refusal in said.items() if not refusal or "\n" in refusal]
    return f"{wrong[0]} is not refused in one line" if wrong else ""
