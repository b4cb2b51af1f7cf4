"""Softmax's launches on a GPU: their bits beside the CPU's, then their speed beside torch's.

    PYTHONPATH=src python benchmarks/gpu_long_rows.py --output benchmarks/results/h200_long_rows.json

Softmax and its logarithm over vocabularies, bfloat16, by every launch that is listed here: the quickest of a case says
which one is to be chosen; the gradients by launches of whole rows. Nothing is timed where a bit differs. Without a GPU
nothing is judged, exit 3."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from attention_cases import all_differing
from provenance import provenance
from torch import Tensor

from samebits.bench.cuda_timing import copies, kernel_times, medians
from samebits.numerics.bits import compare
from samebits.numerics.elementary.triton_generated import exp
from samebits.ops._triton.exponential import exp_up_to_zero
from samebits.ops._triton.rows import RowLaunch
from samebits.ops.softmax import cpu_kernel, triton_kernel
from samebits.ops.softmax.triton_kernel import SharedLaunch, chosen_launch

Launch = RowLaunch | SharedLaunch
WHOLE = [RowLaunch(rows=1, columns=columns, warps=warps) for columns in (2048, 4096, 8192) for warps in (4, 8)]
SHARED = [
    *(SharedLaunch(lanes=16, steps=steps, adding=4) for steps in (64, 128)),
    *(SharedLaunch(lanes=32, steps=64, adding=warps) for warps in (1, 2)),
    *(SharedLaunch(lanes=64, steps=steps, adding=warps) for steps in (32, 64) for warps in (2, 4)),
    *(SharedLaunch(lanes=256, steps=steps, adding=8) for steps in (16, 32)),
    SharedLaunch(block=4096),
]
ROWS, WIDTHS = (1, 16, 64, 128, 256, 1024), (49152, 128256, 151936)
FORMATS = (torch.bfloat16, torch.float16, torch.float32)
# Of which the first is shorter than a step, and two are no multiples of what is read at once.
COMPARED = ((3, 100), (2, 4099), (5, 49152), (2, 128257))
TARGET = 0.95


@triton.jit
def exponentials(bits_ptr, y_ptr, SHORTER: tl.constexpr, BLOCK: tl.constexpr):
    """y = e to the power of the float32 with these bits, by the shorter function or the generated one."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(bits_ptr + offsets).to(tl.float32, bitcast=True)
    tl.store(y_ptr + offsets, exp_up_to_zero(x) if SHORTER else exp(x))


def given(rows: int, width: int, dtype: torch.dtype, kind: str) -> Tensor:
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows + width)) * 8
    if kind == "not finite":
        x[0, width // 2], x[-1, :] = float("nan"), float("-inf")
    return x.to(dtype)


def differing(launch: Launch) -> list[str]:
    """Every comparison of a launch with the CPU that does not hold."""
    found = []
    for (rows, width), dtype, kind in itertools.product(COMPARED, FORMATS, ("normal", "not finite")):
        x = given(rows, width, dtype, kind)
        for logarithm, out in itertools.product((False, True), {dtype, torch.float32}):
            name = f"{rows} x {width} {dtype} to {out} {kind} logarithm {logarithm} {launch}"
            y = cpu_kernel.forward(x, out, logarithm)
            sides = [("", triton_kernel.forward(x.cuda(), out, logarithm, launch=launch), y)]
            if isinstance(launch, RowLaunch):
                dy = given(width, rows, out, "normal").reshape(x.shape)
                dx = triton_kernel.backward(dy.cuda(), y.cuda(), dtype, logarithm, launch=launch)
                sides += [("its gradient: ", dx, cpu_kernel.backward(dy, y, dtype, logarithm))]
            parted = ((what, compare(ours.cpu(), expected)) for what, ours, expected in sides)
            found += [f"{name}: {what}{parting}" for what, parting in parted if parting is not None]
    return found


def differing_exponentials() -> list[str]:
    """Numbers with a sign, all 2^31 of them and NaN, and +0, of which the shorter exponential gives other bits."""
    found, size, block = [], 1 << 26, 1024
    for first in (*range(2**31, 2**32, size), 0):
        count = size if first else block
        bits = torch.arange(first, first + (count if first else 1), device="cuda").to(torch.int32).expand(count)
        bits = bits.contiguous()
        shorter, generated = (torch.empty(count, device="cuda") for _ in range(2))
        exponentials[(count // block,)](bits, shorter, SHORTER=True, BLOCK=block, enable_fp_fusion=False)
        # Which has the CPU's bits for every input: tests/gpu/test_elementary.py.
        exponentials[(count // block,)](bits, generated, SHORTER=False, BLOCK=block, enable_fp_fusion=False)
        parting = compare(shorter.cpu(), generated.cpu())
        if parting is not None:
            found.append(f"exponential of bits {first:#x} and on: {parting}")
    return found


def beyond_32_bits() -> list[str]:
    """A row behind the element 2^31: each launch's bits are those of that row alone."""
    width, rows = 1 << 20, (1 << 11) + 2
    x = torch.zeros(rows, width, device="cuda", dtype=torch.bfloat16)
    x[-1] = torch.randn(width, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).to(x.dtype)
    expected, found = cpu_kernel.forward(x[-1:].cpu(), x.dtype, False), []
    for launch in (WHOLE[0], SHARED[0], SHARED[-1]):
        parting = compare(triton_kernel.forward(x, x.dtype, False, launch=launch)[-1:].cpu(), expected)
        found += [f"beyond 2^31, {launch}: {parting}"] if parting is not None else []
    return found


def measured(rows: int, width: int, what: str, rounds: int) -> dict[str, Any]:
    """Times of torch, of the launch that is chosen, and of all."""
    logarithm, gradient = what.startswith("log"), what.endswith("gradient")
    number = 3 if gradient else 2
    sets = [torch.randn(rows, width, device="cuda").bfloat16() for _ in range(copies(number * rows * width * 2))]
    ours: Callable[..., Tensor] = triton_kernel.forward
    launches: Sequence[Launch] = [*WHOLE, *SHARED]
    torchs: list[Callable[[], Any]]
    if gradient:
        softmaxes = [(torch.log_softmax if logarithm else torch.softmax)(x, -1) for x in sets]
        back = torch.ops.aten._log_softmax_backward_data if logarithm else torch.ops.aten._softmax_backward_data
        torchs = [partial(back, x, y, -1, x.dtype) for x, y in zip(sets, softmaxes, strict=True)]
        arguments = [(x, y, x.dtype, logarithm) for x, y in zip(sets, softmaxes, strict=True)]
        ours, launches = triton_kernel.backward, WHOLE
        chosen: Launch = triton_kernel.row_launch(width)
    else:
        torchs = [partial(torch.log_softmax if logarithm else torch.softmax, x, -1) for x in sets]
        arguments = [(x, x.dtype, logarithm) for x in sets]
        chosen = chosen_launch(rows, width, sets[0].device)
    named = {str(each): [partial(ours, *some, launch=each) for some in arguments] for each in (*launches, chosen)}
    sides: dict[str, list[Callable[[], Any]]] = {"torch": torchs, **named}
    times = dict(zip(sides, medians(kernel_times(list(sides.values()), 10.0, rounds)), strict=True))
    quickest = min(named, key=lambda name: times[name])
    row = {
        "case": f"{what} {rows}x{width}",
        "torch_us": 1e3 * times["torch"],
        "in_use_us": 1e3 * times[str(chosen)],
        "in_use": str(chosen),
        "quickest": quickest,
        "quickest_us": 1e3 * times[quickest],
        "ratio": times["torch"] / times[str(chosen)],
        "quickest_ratio": times["torch"] / times[quickest],
        "all_us": {name: 1e3 * each for name, each in times.items()},
        "target": TARGET,
    }
    shown = " ".join(f"{row[name]:8.1f}" for name in ("torch_us", "in_use_us", "quickest_us"))
    print(f"{row['case']:32s} {shown}  {row['ratio']:.2f} ({row['quickest_ratio']:.2f}) {quickest}", flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=3, help="alternations of the sides")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_long_rows: there is no GPU; could not be judged")
        return 3
    found = differing_exponentials() + beyond_32_bits()
    found += all_differing(differing, [(launch,) for launch in (*WHOLE, *SHARED)])
    if found:
        print("\n".join(found))
        print(f"{len(found)} comparisons do not hold; nothing is timed")
        return 1
    print("every bit is the CPU's")
    print("us: torch, in use, quickest here; ratio of torch's to the one in use (to the quickest)", flush=True)
    cases = [
        *itertools.product(WIDTHS, ROWS, ("softmax", "log_softmax")),
        *itertools.product(WIDTHS[1:2], (1, 64, 1024), ("softmax gradient", "log_softmax gradient")),
    ]
    rows = [measured(rows, width, what, options.rounds) for width, rows, what in cases]
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
