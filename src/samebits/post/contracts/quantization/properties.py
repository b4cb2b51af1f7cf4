"""What few bits must do: fill their blocks exactly, stay finite, have no offset unasked, lose half a step at most."""

from __future__ import annotations

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.post.contracts.quantization import IN_FILES, kind_of

LARGEST = 66_028_032
"""Beyond this no block format goes whose scales are float16."""
HALF_ULP, HALF_SUBNORMAL = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}, 2.0**-25
ROUNDINGS = 8 * 2.0**-24


def fills_its_blocks(call: Call, tolerance: Tolerance) -> str:
    """A row has the bytes of its blocks, and formats of fewer bits have fewer: Q4_0, Q4_1, Q8_0, float32."""
    weight = call.arguments["weight"]
    wanted = call.reference(*call.arguments.values())
    if call.output.shape != (len(weight), wanted):
        return f"bytes have shape {list(call.output.shape)}; allowed: {[len(weight), wanted]}"
    sizes = [call.again(kind=torch.tensor([kind])).numel() for kind in range(IN_FILES)] + [4 * weight.numel()]
    return "" if sizes == sorted({*sizes}) else f"bytes of the formats are {sizes}; allowed: ascending"


def never_fewer_bytes(call: Call, tolerance: Tolerance) -> str:
    """Another group of columns is another block, wherever the row ends."""
    weight, kind = call.arguments["weight"], call.arguments["kind"]
    before = 0
    for groups in range(1, weight.shape[1] // 32 + 2):
        columns = torch.cat([weight, weight[:, :32]], 1)[:, : 32 * groups]
        size = call.again(weight=columns.contiguous()).shape[1]
        if size - before != call.reference(columns[:, :32], kind):
            return f"{32 * groups} columns have {size} bytes a row after {before}; allowed: a block more"
        before = size
    return ""


def stays_finite(call: Call, tolerance: Tolerance) -> str:
    """Whatever finite scales a file has: finite numbers, the nearest to those of float64, up to what the format can
    reach."""
    format = kind_of(call.arguments["kind"])
    scale, minimum = (float(call.arguments[name].double().abs().max()) for name in ("scale", "minimum"))
    most = max(-format.least, format.most) * scale + int(format.minimum) * minimum
    if not bool(call.output.isfinite().all()):
        return "a number is not finite; allowed: finite ones"
    largest = float(call.output.abs().max())
    if not largest <= min(most, LARGEST):
        return f"a number is {largest}; allowed: up to {min(most, LARGEST)}"
    exact = call.reference(*call.arguments.values())
    # The product is exact in float32; the sum is rounded once.
    return difference(call.output, exact.float(), tolerance, words="numbers")


def no_offset_unasked(call: Call, tolerance: Tolerance) -> str:
    """A code of 0 is the minimum, and 0 where there is none; a minimum of 0 changes no number."""
    scale, minimum = call.arguments["scale"], call.arguments["minimum"]
    kind = kind_of(call.arguments["kind"])
    silent = call.again(codes=torch.zeros_like(call.arguments["codes"]))
    offset = minimum.float() if kind.minimum else torch.zeros_like(scale.float())
    wrong = difference(silent + 0.0, offset.repeat_interleave(kind.group, 1) + 0.0, tolerance, words="codes of 0")
    plain = call.reference(call.arguments["codes"], scale, torch.zeros_like(minimum), call.arguments["kind"])
    without = call.again(minimum=torch.zeros_like(minimum))
    return wrong or difference(without + 0.0, plain.float() + 0.0, tolerance, words="a minimum of 0")


def comes_back_near(call: Call, tolerance: Tolerance) -> str:
    """Within what the codes lose, what the scale and the minimum lose to their storage, and a few roundings."""
    weight, kind = call.arguments["weight"].double(), kind_of(call.arguments["kind"])
    lost, most, offset = call.reference(*call.arguments.values())
    unit = HALF_ULP[kind.store]
    stored = (most + offset.abs()) * unit + (1 + max(-kind.least, kind.most)) * HALF_SUBNORMAL
    allowed = lost + stored + (most + offset.abs()) * ROUNDINGS
    return difference(call.output, weight, tolerance, allowed=allowed, words="numbers")


def patterns_come_back(call: Call, tolerance: Tolerance) -> str:
    """Every pattern is again what it was, subnormal numbers and zeros of both signs too."""
    return difference(call.output, call.reference(*call.arguments.values()), tolerance, words="patterns")
