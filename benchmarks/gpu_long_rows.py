"""The kernels of long_rows on a GPU: their bits, then their speed beside the one in use and torch's.

    PYTHONPATH=src python benchmarks/gpu_long_rows.py --output benchmarks/results/h200_long_rows.json

Softmax and its logarithm over vocabularies, bfloat16, by every launch that is listed here: the quickest of a case says
which one is to be chosen. Nothing is timed where a bit differs from the kernel in use. Without a GPU nothing is
judged, exit 3."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from attention_cases import all_differing
from long_rows.exponential import exponentials
from long_rows.launches import LongRowLaunch, forward
from provenance import provenance
from torch import Tensor

from samebits.bench.cuda_timing import copies, kernel_times, medians
from samebits.numerics.bits import compare
from samebits.ops.softmax import triton_kernel

LAUNCHES = [
    *(LongRowLaunch(shared=False, steps=steps, warps=warps) for steps in (16, 32) for warps in (4, 8, 16)),
    *(LongRowLaunch(shared=True, steps=steps, lanes=lanes) for steps in (16, 32, 64) for lanes in (16, 32, 64)),
]
ROWS, WIDTHS = (1, 16, 64, 256, 1024), (49152, 128256, 151936)
FORMATS = (torch.bfloat16, torch.float16, torch.float32)
# Of which the first is shorter than a step, and two are no multiples of what is read at once.
COMPARED = ((3, 100), (2, 4099), (5, 49152), (2, 128257))
TARGET = 0.95


def given(rows: int, width: int, dtype: torch.dtype, kind: str) -> Tensor:
    torch.manual_seed(rows + width)
    x = torch.randn(rows, width, device="cuda") * 8
    if kind == "not finite":
        x[0, width // 2], x[-1, :] = float("nan"), float("-inf")
    return x.to(dtype)


def differing(launch: LongRowLaunch) -> list[str]:
    """Every comparison of a launch with the kernel in use that does not hold."""
    found = []
    for (rows, width), dtype, kind in itertools.product(COMPARED, FORMATS, ("normal", "not finite")):
        x = given(rows, width, dtype, kind)
        for logarithm, out in itertools.product((False, True), {dtype, torch.float32}):
            expected = triton_kernel.forward(x, out, logarithm)
            parting = compare(forward(x, out, logarithm, launch).cpu(), expected.cpu())
            if parting is not None:
                found.append(f"{rows} x {width} {dtype} to {out} {kind} logarithm {logarithm} {launch}: {parting}")
    return found


def differing_exponentials() -> list[str]:
    """Inputs up to zero, all 2^31 of them and NaN, of which the shorter exponential and the generated one differ."""
    found, size, block = [], 1 << 26, 1024
    for first in range(2**31, 2**32, size):
        bits = torch.arange(first, first + size, device="cuda").to(torch.int32)
        shorter, generated = (torch.empty(size, device="cuda") for _ in range(2))
        exponentials[(size // block,)](bits, shorter, SHORTER=True, BLOCK=block)
        # Which has the CPU's bits for every input: tests/gpu/test_elementary.py.
        exponentials[(size // block,)](bits, generated, SHORTER=False, BLOCK=block)
        parting = compare(shorter.cpu(), generated.cpu())
        if parting is not None:
            found.append(f"exponential of bits {first:#x} and on: {parting}")
    return found


def measured(rows: int, width: int, logarithm: bool, rounds: int) -> dict[str, Any]:
    size = 2 * rows * width * 2
    sets = [torch.randn(rows, width, device="cuda", dtype=torch.bfloat16) for _ in range(copies(size))]
    torchs = torch.log_softmax if logarithm else torch.softmax
    sides: dict[str, list[Callable[[], Any]]] = {
        "torch": [partial(torchs, x, -1) for x in sets],
        "in_use": [partial(triton_kernel.forward, x, x.dtype, logarithm) for x in sets],
        **{str(launch): [partial(forward, x, x.dtype, logarithm, launch) for x in sets] for launch in LAUNCHES},
    }
    times = dict(zip(sides, medians(kernel_times(list(sides.values()), 10.0, rounds)), strict=True))
    quickest = min(map(str, LAUNCHES), key=lambda name: times[name])
    row = {
        "case": f"{'log_softmax' if logarithm else 'softmax'} {rows}x{width}",
        **{f"{name}_us": 1e3 * times[name] for name in ("torch", "in_use")},
        "quickest": quickest,
        "quickest_us": 1e3 * times[quickest],
        "ratio": times["torch"] / times["in_use"],
        "quickest_ratio": times["torch"] / times[quickest],
        "all_us": {name: 1e3 * each for name, each in times.items()},
        "target": TARGET,
    }
    shown = " ".join(f"{row[name]:8.1f}" for name in ("torch_us", "in_use_us", "quickest_us"))
    print(f"{row['case']:24s} {shown}  {row['ratio']:.2f} ({row['quickest_ratio']:.2f}) {quickest}", flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=3, help="alternations of the sides")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_long_rows: there is no GPU; could not be judged")
        return 3
    found = differing_exponentials() + all_differing(differing, [(launch,) for launch in LAUNCHES])
    if found:
        print("\n".join(found))
        print(f"{len(found)} comparisons do not hold; nothing is timed")
        return 1
    print("every bit is that of the kernel in use")
    print("us: torch, in use, quickest here; ratio of torch's to the one in use (to the quickest)", flush=True)
    cases = itertools.product(WIDTHS, ROWS, (False, True))
    rows = [measured(rows, width, logarithm, options.rounds) for width, rows, logarithm in cases]
    record = {
        **provenance(__file__, torch.cuda.get_device_name()),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "rows": rows,
    }
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
