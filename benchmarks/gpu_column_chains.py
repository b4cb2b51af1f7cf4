"""The kernel of column_chains on a GPU: its bits, then its speed beside the one in use.

    PYTHONPATH=src python benchmarks/gpu_column_chains.py --output benchmarks/results/h200_column_chains.json

Gradients of a normalisation's weight over the rows of training steps, bfloat16, by every launch that is listed here, of
this kernel and of the one in use: the quickest of a case says which one is to be chosen. Nothing is timed where a bit
differs from the kernel in use. Without a GPU nothing is judged, exit 3."""

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
from column_chains import launches as specialised
from column_chains.launches import ChainLaunch
from provenance import provenance
from torch import Tensor

from samebits.bench.cuda_timing import copies, kernel_times, medians
from samebits.numerics.bits import compare
from samebits.ops._triton import columns as in_use
from samebits.ops._triton.rows import RowLaunch

Launch = ChainLaunch | RowLaunch
LAUNCHES: list[Launch] = [
    *(ChainLaunch(columns=columns) for columns in (8, 16, 32)),
    *(ChainLaunch(columns=columns, warps=8) for columns in (16, 32)),
    ChainLaunch(columns=16, stages=5),
    ChainLaunch(columns=16, slots=3),
    ChainLaunch(columns=32, stages=2, slots=3),
    *(ChainLaunch(rows=128, columns=columns, stages=6, slots=3) for columns in (16, 32)),
]
# Of the kernel in use: fewer columns a program, so that its warps, all of which add, make fewer terms in between.
NARROW: list[Launch] = [
    RowLaunch(rows=128, columns=8, warps=1, stages=4),
    RowLaunch(rows=128, columns=16, warps=2, stages=4),
    RowLaunch(rows=256, columns=8, warps=4, stages=3),
    RowLaunch(rows=256, columns=16, warps=4, stages=3),
    RowLaunch(rows=512, columns=8, warps=4, stages=2),
    RowLaunch(rows=512, columns=16, warps=4, stages=2),
    RowLaunch(rows=256, columns=32, warps=4, stages=3),
]
SHAPES = ((16384, 1024), (8192, 2048), (131072, 128), (65536, 128), (8192, 4096))
"""Rows and columns: of whole hidden states, and of Qwen3's q_norm and k_norm, whose rows are heads."""
FORMATS = (torch.bfloat16, torch.float16, torch.float32)
# Less than a block, one, many; the last two are no multiples of what a program reads at once, or not of 16 bytes.
COMPARED = ((1, 8), (256, 64), (5000, 128), (1031, 200), (777, 131))
KINDS = ("normal", "not finite", "zeros", "unaligned")
CLOCK_GHZ = 1.755
"""Of an H200 at work, to say cycles a row: a chain takes 4 at least."""
Operands = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def given(rows: int, width: int, dtype: torch.dtype, kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dy, x, means, reciprocals, and accumulators to resume from."""
    torch.manual_seed(rows + width)
    first = 1 if kind == "unaligned" else 0
    dy, x = (torch.randn(first + rows * width, device="cuda").to(dtype)[first:].view(rows, width) for _ in range(2))
    mean, rstd = torch.randn(first + rows, device="cuda")[first:], torch.rand(first + rows, device="cuda")[first:] + 0.5
    start = torch.randn(first + width, device="cuda")[first:]
    if kind == "not finite":
        dy[rows // 2, 0], dy[0, 1], x[-1, 2], dy[0, 3], dy[-1, 3] = (
            float(each) for each in ("nan", "inf", "-inf", "inf", "-inf")
        )
    if kind == "zeros":
        # A sum of -0 stays one, whatever stands behind the last row.
        dy.fill_(-0.0), x.abs_(), mean.zero_(), start.fill_(-0.0)
    return dy, x, mean, rstd, start


def differing(launch: Launch) -> list[str]:
    """Every comparison of a launch with the launch in use that does not hold."""
    found = []
    for (rows, width), dtype, kind in itertools.product(COMPARED, FORMATS, KINDS):
        dy, x, mean, rstd, start = given(rows, width, dtype, kind)
        forms: dict[str, Operands] = {
            "sum": (dy, None, None, None),
            "rms": (dy, x, None, rstd),
            "layer": (dy, x, mean, rstd),
        }
        for form, operands in forms.items():
            sums, expected = start.clone(), start.clone()
            in_use.add_rows(*operands, expected, in_use.COLUMN_LAUNCH)
            add(launch, operands, sums)
            parting = compare(sums.cpu(), expected.cpu())
            if parting is not None:
                found.append(f"{form} {rows} x {width} {dtype} {kind} {launch}: {parting}")
    return found


def add(launch: Launch, operands: Operands, sums: Tensor) -> None:
    if isinstance(launch, ChainLaunch):
        specialised.add_rows(*operands, sums, launch)
    else:
        in_use.add_rows(*operands, sums, launch)


def measured(rows: int, width: int, rounds: int) -> dict[str, Any]:
    sets = []
    for _ in range(copies(2 * rows * width * 2)):
        dy, x = (torch.randn(rows, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        sets.append(((dy, x, None, torch.rand(rows, device="cuda")), torch.zeros(width, device="cuda")))
    tried = {str(launch): launch for launch in (*LAUNCHES, *NARROW)}
    sides: dict[str, list[Callable[[], Any]]] = {
        "in_use": [partial(in_use.add_rows, *operands, sums) for operands, sums in sets],
        **{name: [partial(add, launch, *each) for each in sets] for name, launch in tried.items()},
    }
    times = dict(zip(sides, medians(kernel_times(list(sides.values()), 10.0, rounds)), strict=True))
    quickest = min(tried, key=lambda name: times[name])
    row = {
        "case": f"{rows}x{width}",
        "in_use_us": 1e3 * times["in_use"],
        "quickest": quickest,
        "quickest_us": 1e3 * times[quickest],
        "cycles_a_row": 1e6 * times[quickest] * CLOCK_GHZ / rows,
        "chosen_us": 1e3 * times[str(specialised.chosen_launch(width))],
        "ratio": times["in_use"] / times[quickest],
        "all_us": {name: 1e3 * each for name, each in times.items()},
    }
    shown = " ".join(f"{row[name]:8.1f}" for name in ("in_use_us", "chosen_us", "quickest_us", "cycles_a_row"))
    print(f"{row['case']:12s} {shown}  {row['ratio']:.2f} {quickest}", flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=3, help="alternations of the sides")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_column_chains: there is no GPU; could not be judged")
        return 3
    found = all_differing(differing, [(launch,) for launch in (*LAUNCHES, *NARROW)])
    if found:
        print("\n".join(found))
        print(f"{len(found)} comparisons do not hold; nothing is timed")
        return 1
    print("every bit is that of the kernel in use")
    print("us: in use, chosen, quickest; cycles a row of the quickest, and how many times quicker it is", flush=True)
    rows = [measured(rows, width, options.rounds) for rows, width in SHAPES]
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
