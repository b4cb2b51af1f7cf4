"""Search of launch numbers for matmul and rmsnorm on a Hopper GPU: first that all give the same bits, then their speed.

    PYTHONPATH=src python benchmarks/gpu_explore.py --output DIR

Writes DIR/explore.json and prints, per shape, the fastest launches beside cuBLAS in the same run. The winners are
copied by hand into src/samebits/ops/matmul/launch_table.py."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from triton.errors import TritonError

from samebits.bench.cuda_timing import Calls, copies, kernel_times, medians
from samebits.ops._triton.launch import compiled_kernels
from samebits.ops.matmul import reference as matmul_reference
from samebits.ops.matmul.launch_table import SIXTEEN_BIT, TABLE, Launch
from samebits.ops.matmul.triton_kernel import gemm
from samebits.ops.rmsnorm import reference as rmsnorm_reference
from samebits.ops.rmsnorm import triton_kernel as rmsnorm

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
# Shapes between those of the table, to see where one row of it should hand over to the next.
BETWEEN_MKN = (
    (16, 4096, 4096),
    (32, 4096, 14336),
    (64, 4096, 4096),
    (64, 4096, 14336),
    (128, 4096, 4096),
    (256, 4096, 4096),
    (256, 4096, 14336),
    (1024, 4096, 4096),
    (512, 4096, 14336),
)


def tile(m: int, n: int, k: int, warps: int, stages: int, **rest: Any) -> Launch:
    return Launch(tile_m=m, tile_n=n, tile_k=k, warps=warps, stages=stages, **rest)


LARGE = (
    tile(128, 256, 64, 8, 3, parts=2, programs_per_sm=1),
    tile(128, 256, 64, 8, 4, parts=2, programs_per_sm=1),
    tile(128, 256, 64, 8, 3, programs_per_sm=1),
    tile(128, 256, 64, 8, 4, parts=2, programs_per_sm=1, group=4),
    tile(128, 256, 64, 8, 4, parts=2, programs_per_sm=1, group=16),
    tile(128, 256, 64, 8, 4, parts=2),
    tile(128, 256, 64, 8, 3, parts=2, programs_per_sm=1, group=16),
    tile(256, 128, 64, 8, 4, parts=2, programs_per_sm=1),
    tile(256, 128, 64, 8, 4, parts=2, programs_per_sm=1, group=4),
    tile(256, 128, 64, 8, 4, parts=2),
    tile(128, 256, 128, 8, 2, parts=2, programs_per_sm=1),
    tile(128, 128, 64, 4, 3, parts=2, programs_per_sm=2),
    tile(128, 128, 64, 4, 3, parts=2),
    tile(128, 128, 64, 8, 4, programs_per_sm=1),
    tile(128, 128, 128, 8, 3, programs_per_sm=1),
)
MIDDLE = (
    tile(128, 128, 64, 8, 6),
    tile(128, 128, 64, 8, 6, parts=2),
    tile(128, 128, 64, 8, 4),
    tile(128, 128, 64, 4, 6),
    tile(128, 128, 128, 8, 3),
    tile(128, 128, 128, 4, 3),
    tile(128, 128, 64, 8, 6, group=1),
    tile(128, 128, 64, 8, 6, group=4),
    tile(64, 256, 64, 4, 4),
    tile(256, 64, 64, 8, 4),
    tile(128, 128, 64, 8, 6, swap=True),
    tile(128, 64, 64, 4, 4),
    tile(128, 64, 128, 4, 4),
    tile(64, 128, 64, 4, 4),
    tile(64, 128, 128, 4, 4),
    tile(128, 128, 64, 4, 3, parts=2),
    tile(128, 256, 64, 8, 4, parts=2),
    tile(128, 256, 64, 8, 3),
)
SMALL = (
    tile(128, 64, 64, 4, 4),
    tile(128, 64, 64, 4, 8),
    tile(128, 64, 128, 4, 4),
    tile(128, 64, 128, 8, 4),
    tile(128, 128, 64, 8, 6),
    tile(128, 128, 128, 8, 3),
    tile(64, 128, 64, 4, 4, swap=True),
    tile(64, 128, 64, 4, 8, swap=True),
    tile(64, 128, 128, 4, 4, swap=True),
    tile(128, 128, 64, 8, 6, swap=True),
    tile(64, 64, 128, 4, 3, swap=True),
    tile(64, 64, 128, 4, 6, swap=True),
    tile(64, 64, 64, 4, 6, swap=True),
    tile(128, 64, 128, 8, 4, swap=True),
    tile(64, 32, 128, 4, 4, swap=True),
    tile(64, 32, 256, 4, 4, swap=True),
    tile(64, 128, 64, 4, 4),
    tile(64, 64, 128, 4, 3),
)
FEW = (
    tile(64, 16, 128, 4, 4, swap=True),
    tile(64, 16, 128, 4, 8, swap=True),
    tile(64, 16, 256, 4, 3, swap=True),
    tile(64, 16, 256, 4, 5, swap=True),
    tile(128, 16, 128, 4, 4, swap=True),
    tile(128, 16, 128, 8, 6, swap=True),
    tile(64, 8, 256, 4, 4, swap=True),
    tile(32, 8, 256, 2, 6, swap=True),
    tile(32, 8, 512, 2, 4, swap=True),
    tile(32, 8, 512, 2, 6, swap=True),
    tile(16, 8, 512, 1, 6, swap=True),
    tile(16, 16, 256, 2, 6),
    tile(16, 16, 512, 2, 4),
    tile(16, 32, 128, 4, 8),
    tile(16, 32, 256, 4, 4),
    tile(16, 32, 256, 4, 6),
    tile(16, 32, 512, 4, 3),
    tile(16, 64, 128, 4, 6),
    tile(16, 64, 256, 4, 3),
    tile(16, 64, 256, 4, 5),
    tile(16, 128, 128, 4, 4),
    tile(16, 128, 64, 8, 8),
)
FLOAT32 = (
    *TABLE["float32"],
    *(
        tile(m, n, k, w, 3, loads="pointer")
        for m, n, k, w in ((128, 128, 16, 8), (64, 64, 32, 4), (128, 64, 32, 8), (16, 64, 32, 4), (64, 128, 16, 4))
    ),
)
ROW_LAUNCHES = tuple(
    rmsnorm.Launch(rows=rows, warps=warps) for rows, warps in ((1, 1), (1, 4), (2, 2), (4, 4), (8, 4), (8, 8), (16, 8))
)
WEIGHT_LAUNCHES = tuple(
    rmsnorm.Launch(rows=rows, columns=columns, warps=warps, stages=stages)
    for rows, columns, warps, stages in (
        (32, 32, 4, 3),
        (64, 32, 4, 3),
        (64, 32, 8, 3),
        (128, 32, 4, 3),
        (128, 32, 8, 3),
        (128, 32, 8, 4),
        (128, 16, 4, 4),
        (256, 16, 8, 3),
    )
)
SHARED_LIMIT = 227 * 1024
# Operand layouts by use: forward multiplies by weight.T, dX by weight, dW takes dy.T.
LAYOUTS = {"forward": ("n", "t"), "dX": ("n", "n"), "dW": ("t", "n"), "both": ("t", "t")}


def candidates(m: int) -> tuple[Launch, ...]:
    few = m <= 32
    chosen = (FEW if few else ()) + (SMALL if 32 <= m <= 256 else ()) + (MIDDLE if 128 <= m <= 2048 else ())
    return chosen + (LARGE if m >= 512 else ())


def unique(launches: Any) -> list[Launch]:
    return list(dict.fromkeys(launches))


# ---- operands


def operand(rows: int, columns: int, layout: str, dtype: torch.dtype, recipe: str, seed: int) -> torch.Tensor:
    """Random data on the GPU; layout n is row-major, t column-major, p row-major with a padded (aligned) row stride."""
    shape = {"n": (rows, columns), "t": (columns, rows), "p": (rows, -(-columns // 8) * 8)}[layout]
    random = torch.Generator("cuda").manual_seed(seed)
    x = torch.randn(shape, device="cuda", generator=random)
    if recipe in ("wide", "tiny"):
        spread = 4 if dtype == torch.float16 else 12
        exponent = torch.randint(-spread, spread + 1, shape, device="cuda", generator=random).float()
        x = torch.copysign(torch.exp2(exponent) * (1 + x.abs() % 1), x)
    if recipe == "tiny":
        x = x * (2.0**-64 if dtype != torch.float16 else 2.0**-12) * (2.0**-8 if dtype == torch.bfloat16 else 1)
    if recipe == "negative":
        x = x.abs() * (-(2.0**-80) if seed % 2 else 2.0**-80)
    if recipe == "cancelling":
        half = x.shape[-1] // 2
        x[..., half : 2 * half] = -x[..., :half]
    x = x.to(dtype)
    return x.T if layout == "t" else x[:, :columns]


def patterns(x: torch.Tensor) -> torch.Tensor:
    """Bits as integers, every NaN alike."""
    alike = torch.where(x.isnan(), torch.full_like(x, math.nan), x)
    return alike.view(torch.int16 if x.element_size() == 2 else torch.int32)


def differing(x: torch.Tensor, y: torch.Tensor) -> int:
    return int((patterns(x) != patterns(y)).sum())


# ---- compile in parallel, so that the parent finds every kernel in the cache on disk


def compile_one(job: tuple[Launch, str, torch.dtype, str]) -> str | None:
    """None, or why this launch cannot run."""
    launch, use, dtype, mode = job
    left, right = LAYOUTS[use]
    a, b = operand(256, 512, left, dtype, "normal", 1), operand(512, 256, right, dtype, "normal", 2)
    accumulator = torch.zeros(256, 256, device="cuda") if mode == "resumed" else None
    try:
        gemm(a, b, accumulator_MN=accumulator, launch=launch, out_dtype=torch.float32 if mode == "wide" else None)
        torch.cuda.synchronize()
    except (RuntimeError, ValueError, AssertionError, TritonError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return None


def compile_all(jobs: list[tuple[Launch, str, torch.dtype, str]], workers: int) -> dict[tuple[Launch, str], str]:
    """Why some launches cannot run, by launch and mode."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        answers = list(pool.map(compile_one, jobs, chunksize=4))
    return {
        (job[0], job[3]): f"{job[1]} {str(job[2])[6:]}: {why}" for job, why in zip(jobs, answers, strict=True) if why
    }


# ---- bits


def check_bits(launches: list[Launch], dtype: torch.dtype, failures: list[str]) -> int:
    """Every launch against the first, on tails, layouts and nasty data, each output poisoned before it is written."""
    compared = 0
    sizes = ((1, 136, 1000), (17, 264, 4096), (300, 520, 1000), (130, 72, 40), (257, 264, 16))
    recipes = ("normal", "wide", "tiny", "negative", "cancelling")
    for (m, n, k), recipe, (use, (left, right)) in product(sizes, recipes, LAYOUTS.items()):
        if recipe != "normal" and use in ("dX", "both"):
            continue
        # A column-major operand with an odd number of rows cannot be described: let its size be aligned.
        rows = -(-m // 8) * 8 if left == "t" else m
        a, b = operand(rows, k, left, dtype, recipe, 3), operand(k, n, right, dtype, recipe, 4)
        expected = gemm(a, b, launch=launches[0])
        truth = a.double() @ b.double()
        error = float((expected.double() - truth).norm() / truth.norm().clamp_min(1e-300))
        if recipe in ("normal", "wide") and not error < 1e-2:
            failures.append(f"{dtype} {use} {recipe} {(rows, n, k)}: relative error {error:.2e} of {launches[0]}")
        for launch in launches[1:]:
            if use == "both" and launch not in TABLE[str(dtype)[6:]]:
                continue
            compared += 1
            if count := differing(gemm(a, b, launch=launch), expected):
                failures.append(f"{dtype} {use} {recipe} {(rows, n, k)}: {launch} differs in {count}")
    return compared


def check_unaligned(dtype: torch.dtype, launches: list[Launch], failures: list[str]) -> int:
    """K odd, in rows of an aligned stride (described) and of an odd one (pointers): the same bits."""
    compared = 0
    for m, n, k in ((33, 40, 1001), (5, 136, 77), (200, 264, 1023)):
        a, b = operand(m, k, "p", dtype, "normal", 5), operand(n, k, "p", dtype, "normal", 6).T
        expected = gemm(a.contiguous(), b.T.contiguous().T, launch=None)
        strided = torch.empty(m, 2 * k, device="cuda", dtype=dtype)[:, ::2].copy_(a)
        for launch in launches:
            compared += 1
            if count := differing(gemm(a, b, launch=launch), expected):
                failures.append(f"{dtype} unaligned {(m, n, k)}: {launch} differs in {count}")
        compared += 1
        if count := differing(gemm(strided, b), expected):
            failures.append(f"{dtype} strided {(m, n, k)}: differs in {count}")
    return compared


def check_resumed(dtype: torch.dtype, launches: list[Launch], failures: list[str]) -> int:
    """A chain cut at multiples of 16, each piece by another launch, against one pass."""
    compared, (m, n, k) = 0, (264, 520, 4096)
    a, b = operand(m, k, "t", dtype, "normal", 7), operand(k, n, "n", dtype, "normal", 8)
    expected = gemm(a, b, out_dtype=torch.float32)
    for first, second in zip(launches, launches[1:] + launches[:1], strict=True):
        accumulator = torch.zeros(m, n, device="cuda")
        for low, high, launch in ((0, 16, first), (16, 1008, second), (1008, k, first)):
            gemm(a[:, low:high], b[low:high], accumulator_MN=accumulator, launch=launch)
        compared += 1
        if count := differing(accumulator, expected):
            failures.append(f"{dtype} resumed: {first} then {second} differ in {count}")
    return compared


def check_float32_against_host(failures: list[str]) -> int:
    """float32 on the GPU against the reference on the host, signed zeros and the K tail included."""
    compared = 0
    for recipe, (m, n, k) in product(("normal", "wide", "tiny", "negative"), ((3, 5, 100), (20, 70, 37))):
        a, b = operand(m, k, "n", torch.float32, recipe, 9), operand(k, n, "n", torch.float32, recipe, 10)
        expected = matmul_reference.gemm(a, b)
        for launch in FLOAT32:
            compared += 1
            if count := differing(gemm(a, b, launch=launch), expected):
                failures.append(f"float32 host {recipe} {(m, n, k)}: {launch} differs in {count}")
    return compared


def check_rmsnorm(failures: list[str]) -> int:
    """Every launch against the reference on the host, forward and backward, rows and width with tails."""
    compared = 0
    dtypes, sizes = (torch.float32, torch.bfloat16, torch.float16), ((5, 4096), (67, 1000), (3, 77), (130, 8))
    for dtype, (m, width) in product(dtypes, sizes):
        x, dy, residual, extra = (operand(m, width, "n", dtype, "normal", 20 + i) for i in range(4))
        weight = operand(1, width, "n", dtype, "normal", 24)[0]
        for added in (None, residual):
            y, rstd, hidden = rmsnorm_reference.forward(x, weight, 1e-5, added)
            dhidden = None if added is None else extra
            dx = rmsnorm_reference.backward_input(dy, hidden, weight, rstd, dhidden)
            for launch in ROW_LAUNCHES:
                ours = rmsnorm.forward(x, weight, 1e-5, added, launch=launch)
                ours_dx = rmsnorm.backward_input(dy, hidden, weight, rstd, dhidden, launch=launch)
                for name, got, expected in zip(
                    ("y", "rstd", "hidden", "dx"), (*ours, ours_dx), (y, rstd, hidden, dx), strict=True
                ):
                    compared += 1
                    if count := differing(got, expected):
                        failures.append(f"rmsnorm {name} {dtype} {(m, width)} {launch}: {count} differ")
        sums = torch.randn(width, device="cuda")
        expected = sums.clone()
        rmsnorm_reference.backward_weight(dy, x, rstd, expected)
        for launch in WEIGHT_LAUNCHES:
            got, cut = sums.clone(), m // 3
            rmsnorm.backward_weight(dy[:cut], x[:cut], rstd[:cut], got, launch=launch)
            rmsnorm.backward_weight(dy[cut:], x[cut:], rstd[cut:], got, launch=launch)
            compared += 1
            if count := differing(got, expected):
                failures.append(f"rmsnorm dweight {dtype} {(m, width)} {launch}: {count} of {width} differ")
    return compared


# ---- time


def race(name: str, library: Calls, ours: dict[Any, Calls], work: float, budget: float) -> dict[str, Any]:
    """All launches once, then the best four and the library in turns. `work`: operations, or bytes."""
    first = {launch: medians(kernel_times([calls], budget / 2, 3))[0] for launch, calls in ours.items()}
    best = sorted(first, key=first.__getitem__)[:4]
    base, *others = medians(kernel_times([library, *(ours[launch] for launch in best)], budget, 9))
    finals = dict(zip(best, others, strict=True))
    order = sorted(finals, key=finals.__getitem__)
    print(f"{name:28s} library {base * 1e3:8.1f} us {work / base / 1e9:6.1f} T/s", flush=True)
    for launch in order[:3]:
        print(f"    {base / finals[launch]:.3f}  {finals[launch] * 1e3:8.1f} us  {launch}", flush=True)
    return {
        "name": name,
        "library_ms": base,
        "best": str(order[0]),
        "ratio": base / finals[order[0]],
        "finals_ms": {str(each): finals[each] for each in order},
        "all_ms": {str(each): first[each] for each in first},
    }


def race_forward(shape: tuple[int, int, int], launches: list[Launch], budget: float) -> dict[str, Any]:
    m, k, n = shape
    sets = [
        (operand(m, k, "n", torch.bfloat16, "normal", 11 + i), operand(n, k, "n", torch.bfloat16, "normal", 12 + i))
        for i in range(copies(2 * n * k))
    ]
    ours = {launch: [partial(gemm, x, weight.T, launch=launch) for x, weight in sets] for launch in launches}
    library = [partial(functional.linear, x, weight) for x, weight in sets]
    return race(f"forward {shape}", library, ours, 2.0 * m * n * k, budget)


def race_backward(launches: list[Launch], rep: float) -> list[dict[str, Any]]:
    m, k, n = 8192, 4096, 4096
    x, weight = operand(m, k, "n", torch.bfloat16, "normal", 13), operand(n, k, "n", torch.bfloat16, "normal", 14)
    dy = operand(m, n, "n", torch.bfloat16, "normal", 15)
    total = torch.zeros(n, k, device="cuda")
    flops = 2.0 * m * n * k
    dx = {launch: [partial(gemm, dy, weight, launch=launch)] for launch in launches}
    dw = {launch: [partial(gemm, dy.T, x, launch=launch)] for launch in launches}
    wide = [launch for launch in launches if shared_bytes(launch) < SHARED_LIMIT]
    resumed = {launch: [partial(gemm, dy.T, x, accumulator_MN=total, launch=launch)] for launch in wide}
    return [
        race("dX (8192,4096,4096)", [lambda: dy @ weight], dx, flops, rep),
        race("dW (8192,4096,4096)", [lambda: dy.T @ x], dw, flops, rep),
        race("dW onto float32", [lambda: dy.T @ x], resumed, flops, rep),
    ]


def shared_bytes(launch: Launch) -> int:
    """Shared memory with a float32 output: stages of both operands and one part of the tile."""
    operands = (launch.tile_m + launch.tile_n) * launch.tile_k * 2 * launch.stages
    return operands + launch.tile_m * launch.tile_n * 4 // launch.parts + 1024


def race_float32(rep: float) -> dict[str, Any]:
    torch.backends.cuda.matmul.allow_tf32 = False
    m, k, n = 2048, 4096, 4096
    x, weight = operand(m, k, "n", torch.float32, "normal", 16), operand(n, k, "n", torch.float32, "normal", 17)
    ours = {launch: [partial(gemm, x, weight.T, launch=launch)] for launch in FLOAT32 if launch.tile_m > 16}
    return race("float32 (2048,4096,4096)", [lambda: functional.linear(x, weight)], ours, 2.0 * m * n * k, rep)


def race_rmsnorm(rep: float) -> list[dict[str, Any]]:
    """Against torch's fused kernels; work is counted in bytes."""
    m, width = 8192, 4096
    x, dy = operand(m, width, "n", torch.bfloat16, "normal", 30), operand(m, width, "n", torch.bfloat16, "normal", 31)
    weight = operand(1, width, "n", torch.bfloat16, "normal", 32)[0]
    _, rstd, _ = rmsnorm.forward(x, weight, 1e-5)
    sums = torch.zeros(width, device="cuda")
    _, torch_rstd = torch.ops.aten._fused_rms_norm(x, [width], weight, 1e-5)
    torch_backward = partial(torch.ops.aten._fused_rms_norm_backward, dy, x, [width], torch_rstd, weight, [True, True])
    size = 2.0 * m * width
    forward = {each: [partial(rmsnorm.forward, x, weight, 1e-5, launch=each)] for each in ROW_LAUNCHES}
    dx = {each: [partial(rmsnorm.backward_input, dy, x, weight, rstd, launch=each)] for each in ROW_LAUNCHES}
    dweight = {each: [partial(rmsnorm.backward_weight, dy, x, rstd, sums, launch=each)] for each in WEIGHT_LAUNCHES}
    return [
        race("rmsnorm forward", [lambda: functional.rms_norm(x, (width,), weight, 1e-5)], forward, 2 * size, rep),
        race("rmsnorm dx (torch: dx, dw)", [torch_backward], dx, 3 * size, rep),
        race("rmsnorm dw (torch: dx, dw)", [torch_backward], dweight, 2 * size, rep),
    ]


def jobs_of(launches: list[Launch], resumable: list[Launch]) -> list[tuple[Launch, str, torch.dtype, str]]:
    """Every kernel that the checks and races below will ask for."""
    bf16, fp16, fp32 = torch.bfloat16, torch.float16, torch.float32
    return [
        *((launch, use, bf16, "plain") for launch in launches for use in ("forward", "dX", "dW")),
        *((launch, use, fp16, "plain") for launch in SIXTEEN_BIT for use in LAYOUTS),
        *((launch, "both", bf16, "plain") for launch in SIXTEEN_BIT),
        *((launch, "dW", bf16, "resumed") for launch in resumable),
        *((launch, use, fp32, "plain") for launch in FLOAT32 for use in LAYOUTS),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder for explore.json")
    parser.add_argument("--rep", type=float, default=20, help="milliseconds per measurement")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile")
    options = parser.parse_args()
    began = time.time()
    launches = unique((*SIXTEEN_BIT, *LARGE, *MIDDLE, *SMALL, *FEW))
    fitting = [each for each in launches if each.loads == "pointer" or shared_bytes(each) < SHARED_LIMIT]
    resumable = [launch for launch in fitting if launch in SIXTEEN_BIT or launch in LARGE]
    jobs = jobs_of(launches, resumable)
    broken = compile_all(jobs, options.workers)
    cannot = [f"{launch} {mode}: {why}" for (launch, mode), why in broken.items()]
    print(f"{len(jobs)} kernels compiled, {time.time() - began:.0f} s; cannot run:", *cannot or ["none"], sep="\n  ")

    def runnable(some: Any, mode: str = "plain") -> list[Launch]:
        return [launch for launch in unique(some) if (launch, mode) not in broken]

    failures: list[str] = []
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills fresh memory with NaN, so that a hole shows
    counts = {
        "bfloat16": check_bits(runnable(launches), torch.bfloat16, failures),
        "float16": check_bits(runnable(SIXTEEN_BIT), torch.float16, failures),
        "float32": check_bits(runnable(FLOAT32), torch.float32, failures),
        "unaligned": check_unaligned(torch.bfloat16, runnable(launches)[::3], failures),
        "resumed": check_resumed(torch.bfloat16, runnable(resumable, "resumed"), failures),
        "float32 host": check_float32_against_host(failures),
        "rmsnorm": check_rmsnorm(failures),
    }
    torch.use_deterministic_algorithms(False)
    print(f"compared {counts}: {len(failures)} differ, {time.time() - began:.0f} s", *failures[:25], sep="\n  ")
    spilled = sum(1 for compiled in compiled_kernels("matmul_described") if getattr(compiled, "n_spills", 0))
    print(f"described kernels that spill registers: {spilled}", flush=True)

    results = []
    for shape in (*SHAPES_MKN, *BETWEEN_MKN):
        rep = options.rep * (0.5 if shape in BETWEEN_MKN else 3 if shape[2] > 100000 else 1)
        results.append(race_forward(shape, runnable(candidates(shape[0])), rep))
    results += race_backward(runnable(LARGE), options.rep)
    results += [race_float32(options.rep), *race_rmsnorm(options.rep)]
    ratios = [each["ratio"] for each in results[: len(SHAPES_MKN)]]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"ten shapes: geometric mean {mean:.3f}, lowest {min(ratios):.3f}; {time.time() - began:.0f} s", flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    report = {"bits": counts, "failures": failures, "cannot_run": cannot, "races": results}
    (options.output / "explore.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
