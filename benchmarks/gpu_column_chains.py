"""Sums over rows, column by column, on a GPU: the bits of the kernel for Hopper, then its speed beside that by Triton.

    PYTHONPATH=src python benchmarks/gpu_column_chains.py --output benchmarks/results/h200_column_chains.json

Gradients of a normalisation's weight, bfloat16: over the rows of training steps, over few, and over more columns than
are summed at once; by the kernel by Triton, by the launch that is chosen, and by every one that is listed here: the
quickest of a case says which one is to be chosen. Nothing is timed where a bit differs from the kernel by Triton.
Without a GPU nothing is judged, exit 3."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from attention_cases import all_differing
from provenance import provenance
from torch import Tensor

from samebits.bench.cuda_timing import copies, kernel_times, medians
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.ops._triton import columns, hopper_columns
from samebits.ops._triton.hopper_columns import ChainLaunch

LAUNCHES = [
    *(ChainLaunch(columns=each) for each in (8, 16, 32)),
    ChainLaunch(columns=16, stages=5),
    ChainLaunch(columns=16, slots=3),
    ChainLaunch(columns=32, stages=2, slots=3),
    *(ChainLaunch(rows=128, columns=each) for each in (8, 16, 32)),
    ChainLaunch(rows=128, columns=32, stages=6, slots=3),
    *(ChainLaunch(rows=64, columns=each) for each in (8, 16, 32)),
]
SHAPES = (
    *((16384, 1024), (8192, 2048), (131072, 128), (65536, 128), (8192, 4096)),
    *((33, 1024), (64, 1024), (128, 1024), (256, 1024), (512, 1024), (1024, 1024), (512, 128), (512, 4096)),
    *((8192, 5120), (8192, 8192)),
)
"""Rows and columns: of whole hidden states, and of Qwen3's q_norm and k_norm, whose rows are heads; few rows; many
columns, which are left to the kernel by Triton."""
FORMATS = (torch.bfloat16, torch.float16, torch.float32)
# Less than a block, one, many; columns that are no multiple of what a program reads at once, that are not of 16 bytes,
# and that are more than are summed at once.
COMPARED = ((1, 8), (33, 64), (256, 64), (5000, 128), (1031, 200), (777, 131), (300, 4240))
KINDS = ("normal", "not finite", "zeros", "unaligned", "unaligned sums")
CLOCK_GHZ = 1.755
"""Of an H200 at work, to say cycles a row: a chain takes 4 at least."""
Operands = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def given(rows: int, width: int, dtype: torch.dtype, kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """dy, x, means, reciprocals, and accumulators to resume from."""
    torch.manual_seed(rows + width)
    first = 1 if kind == "unaligned" else 0
    dy, x = (torch.randn(first + rows * width, device="cuda").to(dtype)[first:].view(rows, width) for _ in range(2))
    mean, rstd = torch.randn(first + rows, device="cuda")[first:], torch.rand(first + rows, device="cuda")[first:] + 0.5
    start = torch.randn(1 + width, device="cuda")[1 if kind.startswith("unaligned") else 0 :][:width]
    if kind == "not finite":
        dy[rows // 2, 0], dy[0, 1], x[-1, 2], dy[0, 3], dy[-1, 3], start[4] = (
            float(each) for each in ("nan", "inf", "-inf", "inf", "-inf", "nan")
        )
    if kind == "zeros":
        # A sum of -0 stays one, whatever stands behind the last row.
        dy.fill_(-0.0), x.abs_(), mean.zero_(), start.fill_(-0.0)
    return dy, x, mean, rstd, start


def differing(launch: ChainLaunch | None) -> list[str]:
    """Every comparison of a launch, or of the chosen one, with the kernel by Triton that does not hold."""
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
            add(launch, operands, sums)
            columns.add_rows(*operands, expected, columns.COLUMN_LAUNCH)
            parting = compare(sums.cpu(), expected.cpu())
            if parting is not None:
                found.append(f"{form} {rows} x {width} {dtype} {kind} {launch or 'as chosen'}: {parting}")
    return found


def add(launch: ChainLaunch | None, operands: Operands, sums: Tensor) -> None:
    with nullcontext() if launch is None else launching(launch=launch):
        columns.add_rows(*operands, sums)


def measured(rows: int, width: int, rounds: int) -> dict[str, Any]:
    sets = []
    for _ in range(copies(2 * rows * width * 2)):
        dy, x = (torch.randn(rows, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        sets.append(((dy, x, None, torch.rand(rows, device="cuda")), torch.zeros(width, device="cuda")))
    tried = {str(launch): launch for launch in LAUNCHES}
    sides: dict[str, list[Callable[[], Any]]] = {
        "by Triton": [partial(columns.add_rows, *operands, sums, columns.COLUMN_LAUNCH) for operands, sums in sets],
        "chosen": [partial(columns.add_rows, *operands, sums) for operands, sums in sets],
        **{
            name: [partial(hopper_columns.add_rows, *operands, sums, launch) for operands, sums in sets]
            for name, launch in tried.items()
        },
    }
    times = dict(zip(sides, medians(kernel_times(list(sides.values()), 10.0, rounds)), strict=True))
    quickest = min(tried, key=lambda name: times[name])
    row = {
        "case": f"{rows}x{width}",
        "by_triton_us": 1e3 * times["by Triton"],
        "chosen": str(hopper_columns.launch_for(*sets[0][0]) or "by Triton"),
        "chosen_us": 1e3 * times["chosen"],
        "quickest": quickest,
        "quickest_us": 1e3 * times[quickest],
        "cycles_a_row": 1e6 * times[quickest] * CLOCK_GHZ / rows,
        "ratio": times["by Triton"] / times["chosen"],
        "all_us": {name: 1e3 * each for name, each in times.items()},
    }
    shown = " ".join(f"{row[name]:8.1f}" for name in ("by_triton_us", "chosen_us", "quickest_us", "cycles_a_row"))
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
    found = all_differing(differing, [(launch,) for launch in (None, *LAUNCHES)])
    if found:
        print("\n".join(found))
        print(f"{len(found)} comparisons do not hold; nothing is timed")
        return 1
    print("every bit is that of the kernel by Triton")
    print(
        "us: by Triton, chosen, quickest; cycles a row of the quickest; by Triton over chosen; the quickest", flush=True
    )
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
