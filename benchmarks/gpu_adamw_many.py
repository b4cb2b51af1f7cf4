"""AdamW of a model's weights in one launch on a GPU: its bits, then its speed beside the one in use and torch's.

    PYTHONPATH=src python benchmarks/gpu_adamw_many.py --output benchmarks/results/h200_adamw.json

Weights, gradients and moments in float32, as a trainer has them. Times are those of whole updates with what the host
does, waited for at the end. Nothing is timed where a bit differs from the kernel in use. Without a GPU nothing is
judged, exit 3."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from adamw_many.launches import update
from provenance import provenance
from torch import Tensor

from samebits.bench.shapes import MODELS
from samebits.bench.timing import seconds_of
from samebits.model.weights import shapes
from samebits.numerics.bits import compare
from samebits.ops._triton.rows import RowLaunch
from samebits.ops.adamw import triton_kernel
from samebits.ops.adamw.reference import Numbers

CASES = ("350m", "qwen3-1.7b")
LAUNCHES = [RowLaunch(columns=columns, warps=warps) for columns, warps in ((1024, 4), (2048, 4), (2048, 8), (4096, 8))]
NUMBERS = Numbers.of(3, 0.01, 0.9, 0.95, 1e-8, 0.1)
Form = tuple[torch.dtype, torch.dtype, bool]
FORMS: tuple[Form, ...] = (
    (torch.float32, torch.float32, False),
    (torch.bfloat16, torch.bfloat16, True),
    (torch.bfloat16, torch.float32, False),
    (torch.float16, torch.float32, True),
)
"""Of a parameter and its gradient, and whether there is a master."""
TARGET = 1.0
COULD_NOT_BE_JUDGED = 3


def given(sizes: list[int], form: Form = FORMS[0]) -> list[list[Tensor]]:
    """Params, gradients, both moments, and masters or none; each in memory of its own."""
    torch.manual_seed(1)
    param, grad, master = form
    kinds = (param, grad, torch.float32, torch.float32, *([torch.float32] if master else []))
    drawn = [[torch.randn(size, device="cuda").to(kind) for size in sizes] for kind in kinds]
    drawn[3] = [each.abs_() for each in drawn[3]]
    return drawn if master else [*drawn, []]


def differing(sizes: list[int], form: Form, launch: RowLaunch) -> list[str]:
    ours, expected = given(sizes, form), given(sizes, form)
    update(*ours, NUMBERS, launch=launch)
    triton_kernel.update(*expected, NUMBERS)
    found = []
    for mine, theirs in zip(ours, expected, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            parting = compare(one.cpu(), other.cpu())
            if parting is not None:
                found.append(f"{len(sizes)} tensors, {form}, {launch}: {parting}")
    return found


def measured(name: str, updates: int) -> dict[str, Any]:
    sizes = [math.prod(shape) for shape in shapes(MODELS[name]).values()]
    tensors = given(sizes)
    parameters = [torch.nn.Parameter(each) for each in tensors[0]]
    for parameter, gradient in zip(parameters, tensors[1], strict=True):
        parameter.grad = gradient
    sides: dict[str, Callable[[], Any]] = {
        "torch": torch.optim.AdamW(parameters, lr=1e-9, fused=True).step,
        "in_use": partial(triton_kernel.update, *tensors, NUMBERS),
        **{str(launch): partial(update, *tensors, NUMBERS, launch=launch) for launch in LAUNCHES},
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(updates + 2):
        for side, call in sides.items():
            taken = seconds_of(call, torch.device("cuda"))
            if turn >= 2:
                seconds[side].append(taken)
    times = {side: 1e3 * statistics.median(each) for side, each in seconds.items()}
    quickest = min(map(str, LAUNCHES), key=lambda side: times[side])
    row = {
        "case": f"{name}, {len(sizes)} tensors of {sum(sizes)} weights",
        **{f"{side}_ms": times[side] for side in ("torch", "in_use")},
        "quickest": quickest,
        "quickest_ms": times[quickest],
        "ratio": times["torch"] / times["in_use"],
        "quickest_ratio": times["torch"] / times[quickest],
        "all_ms": times,
        "target": TARGET,
    }
    print(json.dumps(row), flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--updates", type=int, default=15, help="timed of each side")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_adamw_many: there is no GPU; could not be judged")
        return COULD_NOT_BE_JUDGED
    compared = ([3, 8, 4096, 1 << 20, 1001, 65536 + 8], [1 << 16])
    found = [line for case in itertools.product(compared, FORMS, LAUNCHES) for line in differing(*case)]
    if found:
        print("\n".join(found))
        print(f"{len(found)} comparisons do not hold; nothing is timed")
        return 1
    print("every bit is that of the kernel in use", flush=True)
    rows = [measured(name, options.updates) for name in CASES]
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    record = {**provenance(__file__, torch.cuda.get_device_name()), **versions, "rows": rows}
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
