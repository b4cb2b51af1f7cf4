"""Speed of matmul and rmsnorm on a Hopper GPU beside torch, in one run, and whether the bounds of the table hold.

    PYTHONPATH=src python benchmarks/gpu_matmul.py --output benchmarks/results/h200_matmul.json

Everything goes through the functions that users call, after the bits of both were looked at: ours equal for one row and
for all. Rounds of ours and theirs alternate, so that both meet the same clocks; a figure is the median over rounds."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from provenance import provenance
from torch.nn import functional

from samebits.bench.cuda_timing import Calls, call_times, copies, kernel_times, medians
from samebits.numerics.bits import compare as bits_differ
from samebits.numerics.order import Fused, chain, digest, lanes
from samebits.ops import linear, matmul, matmul_accumulate_, rmsnorm
from samebits.ops._triton.launch import compiled_count, launch_count
from samebits.ops.matmul.launch_table import CHAIN_WIDTH, select
from samebits.ops.rmsnorm import rmsnorm_statistic, rmsnorm_weight_gradient_
from samebits.ops.rmsnorm.triton_kernel import LANES

SHAPES_MKN = (
    (8192, 4096, 4096),
    (8192, 4096, 14336),
    (8192, 14336, 4096),
    (2048, 4096, 4096),
    (512, 4096, 4096),
    (128, 4096, 14336),
    (16, 4096, 14336),
    (1, 4096, 14336),
    (1, 14336, 4096),
    (4096, 4096, 128256),
)
LEAST_MEAN, LEAST_FORWARD, LEAST_BACKWARD = 0.97, 0.85, 0.9


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def compare(name: str, ours: Calls, theirs: Calls, work: float, rounds: int) -> dict[str, Any]:
    """Milliseconds of kernels (graph replays) and of calls (host included). `work`: operations, or bytes."""
    kernels = kernel_times((ours, theirs), 30.0, rounds)
    calls = call_times((ours, theirs), 30.0, rounds)
    (ours_ms, theirs_ms), (ours_call, theirs_call) = medians(kernels), medians(calls)
    speeds = f"{work / ours_ms / 1e9:7.1f} {work / theirs_ms / 1e9:7.1f}"
    print(f"{name:32s} {speeds} {theirs_ms / ours_ms:7.3f} {theirs_call / ours_call:7.3f}", flush=True)
    return {
        "name": name,
        "ours_ms": ours_ms,
        "torch_ms": theirs_ms,
        "ratio": theirs_ms / ours_ms,
        "call_ours_ms": ours_call,
        "call_torch_ms": theirs_call,
        "call_ratio": theirs_call / ours_call,
        "ours_rounds_ms": kernels[0],
        "torch_rounds_ms": kernels[1],
    }


def forward(shape: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    m, k, n = shape
    sets = [(random(m, k), random(n, k)) for _ in range(copies(2 * n * k))]
    ours = [partial(linear, x, weight) for x, weight in sets]
    theirs = [partial(functional.linear, x, weight) for x, weight in sets]
    launch = select(m, n, k, dtype="bfloat16", described=True, wide=False)
    return {**compare(f"linear {shape}", ours, theirs, 2.0 * m * k * n, rounds), "launch": str(launch)}


def backward(rounds: int) -> list[dict[str, Any]]:
    m, k, n = 8192, 4096, 4096
    x, weight, dy = random(m, k), random(n, k), random(m, n)
    work, total = 2.0 * m * k * n, torch.zeros(n, k, device="cuda")
    return [
        compare("dX (8192, 4096, 4096)", [lambda: matmul(dy, weight)], [lambda: dy @ weight], work, rounds),
        compare("dW (8192, 4096, 4096)", [lambda: matmul(dy.T, x)], [lambda: dy.T @ x], work, rounds),
        compare(
            "dW onto float32 (torch: bf16)",
            [lambda: matmul_accumulate_(total, dy.T, x)],
            [lambda: dy.T @ x],
            work,
            rounds,
        ),
    ]


def norm(rounds: int) -> list[dict[str, Any]]:
    m, width, eps = 8192, 4096, 1e-5
    x, weight, dy = random(m, width), random(width), random(m, width)
    fused = torch.ops.aten
    _, torch_rstd = fused._fused_rms_norm(x, [width], weight, eps)
    rstd, size = rmsnorm_statistic(x, weight, eps), 2.0 * m * width

    def ours() -> None:
        torch.ops.samebits.rmsnorm_dx(dy, x, weight, rstd, None, "triton")
        rmsnorm_weight_gradient_(torch.zeros(width, device="cuda"), dy, x, rstd)

    def theirs() -> None:
        fused._fused_rms_norm_backward(dy, x, [width], torch_rstd, weight, [True, True])

    plain = [lambda: functional.rms_norm(x, (width,), weight, eps)]
    return [
        compare("rmsnorm forward (8192, 4096)", [lambda: rmsnorm(x, weight, eps)], plain, 2 * size, rounds),
        compare("rmsnorm backward (8192, 4096)", [ours], [theirs], 3 * size, rounds),
    ]


def check_bits() -> None:
    """No figure without equal bits: a row alone, and among all others, for every shape that is timed."""
    for m, k, n in SHAPES_MKN:
        x, weight = random(m, k), random(n, k)
        whole = linear(x, weight)
        for row in {0, m // 2, m - 1}:
            difference = bits_differ(linear(x[row : row + 1], weight).cpu(), whole[row : row + 1].cpu())
            if difference is not None:
                raise SystemExit(f"linear {(m, k, n)} row {row}: {difference}; nothing is timed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=9, help="alternations of ours and theirs")
    options = parser.parse_args()
    torch.manual_seed(0)
    check_bits()
    print(
        f"{'bfloat16':32s} {'ours':>7s} {'torch':>7s} {'kernels':>7s} {'calls':>7s}   (TFLOP/s or TB/s; ratios)",
        flush=True,
    )
    with torch.no_grad():
        forwards = [forward(shape, options.rounds) for shape in SHAPES_MKN]
        backwards, norms = backward(options.rounds), norm(options.rounds)
    mean = math.exp(statistics.fmean(math.log(each["ratio"]) for each in forwards))
    least, least_backward = (min(each["ratio"] for each in some) for some in (forwards, backwards[:2]))
    holds = mean >= LEAST_MEAN and least >= LEAST_FORWARD and least_backward >= LEAST_BACKWARD
    verdict = "holds" if holds else "does not hold"
    print(f"geometric mean {mean:.3f}, lowest {least:.3f}, lowest of dX and dW {least_backward:.3f}: {verdict}")
    report = {
        **provenance(__file__, torch.cuda.get_device_name()),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "orders": {
            **{f"matmul K={k}": digest(chain(k, CHAIN_WIDTH, Fused())) for k in (4096, 14336)},
            "rmsnorm H=4096": digest(lanes(4096, LANES)),
        },
        "kernels": {"compiled": compiled_count(), "launched": launch_count()},
        "bounds": {"geometric_mean": LEAST_MEAN, "forward": LEAST_FORWARD, "backward": LEAST_BACKWARD},
        "geometric_mean": mean,
        "lowest": least,
        "verdict": verdict,
        "matmul": forwards,
        "gradients": backwards,
        "rmsnorm": norms,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
