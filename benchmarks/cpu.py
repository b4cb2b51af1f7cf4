"""Speed on the CPU as ratios to torch, in one interleaved run through the public functions: `benchmarks/cpu.py
[--record]`.

Bits come first: a case whose result depends on threads or instruction set is refused, not timed.
A ratio is torch's median time over ours within a turn, and then the median over turns; above 1.0 ours is faster.
Beside it stands the ratio of the fastest repetitions, which a busy machine disturbs less. Knows no kernel."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from provenance import cpu_results, on_arm, processor, provenance
from torch import Tensor

from samebits import native
from samebits.native.launch_numbers import launching
from samebits.native.sources import source_digest
from samebits.numerics.bits import compare
from samebits.ops.matmul import linear, matmul
from samebits.ops.rmsnorm import rmsnorm

RESULTS = cpu_results("cpu.json")
THREADS = (1, 2)
# Inputs are drawn anew this often, and then both sides take turns; which side begins alternates.
ROUNDS, TURNS = 4, 5
# In its turn a side is repeated for about this long, after a pause in which the other's spinning workers fall asleep.
# Short, because the clock of a shared machine may change from one tenth of a second to the next.
BURST_SECONDS = 0.05
PAUSE_SECONDS = 0.03
# The baseline has no vector instructions, so it computes these rows only; a row's bits do not depend on the others.
BASELINE_ROWS = 2
EPS = 1e-6
HEADER = "case                  shape             dtype     thr    torch ms samebits ms   ratio  fastest  target"

Result = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sides:
    """Both sides of a case on the same inputs, and ours on the first rows alone."""

    theirs: Callable[[], Any]
    ours: Callable[[], Result]
    first_rows: Callable[[], Result]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    name: str
    shape: tuple[int, ...]
    target: float | None
    make: Callable[..., Sides]
    dtype: torch.dtype = torch.float32
    threads: tuple[int, ...] = THREADS
    on_arm: bool = True
    """False where torch takes a minute a call there."""

    def sides(self) -> Sides:
        return self.make(*self.shape, dtype=self.dtype)


def _random(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape).to(dtype)


# M rows, K the axis summed over, N columns
def linear_case(M: int, K: int, N: int, *, dtype: torch.dtype) -> Sides:
    x_MK, weight_NK = _random(M, K, dtype=dtype), _random(N, K, dtype=dtype)
    return Sides(
        theirs=lambda: torch.nn.functional.linear(x_MK, weight_NK),
        ours=lambda: (linear(x_MK, weight_NK),),
        first_rows=lambda: (linear(x_MK[:BASELINE_ROWS], weight_NK),),
    )


def product_case(a_MK: Tensor, b_KN: Tensor) -> Sides:
    return Sides(
        theirs=lambda: torch.matmul(a_MK, b_KN),
        ours=lambda: (matmul(a_MK, b_KN),),
        first_rows=lambda: (matmul(a_MK[:BASELINE_ROWS], b_KN),),
    )


def matmul_case(M: int, K: int, N: int, *, dtype: torch.dtype) -> Sides:
    return product_case(_random(M, K, dtype=dtype), _random(K, N, dtype=dtype))


def weight_gradient_case(M: int, K: int, N: int, *, dtype: torch.dtype) -> Sides:
    """dW = dy^T x: the first operand lies with its columns contiguous."""
    return product_case(_random(K, M, dtype=dtype).T, _random(K, N, dtype=dtype))


def rmsnorm_case(M: int, H: int, *, dtype: torch.dtype) -> Sides:
    x_MH, weight_H = _random(M, H, dtype=dtype), _random(H, dtype=dtype)
    return Sides(
        theirs=lambda: torch.nn.functional.rms_norm(x_MH, (H,), weight_H, EPS),
        ours=lambda: (_tensor(rmsnorm(x_MH, weight_H, EPS)),),
        first_rows=lambda: (_tensor(rmsnorm(x_MH[:BASELINE_ROWS], weight_H, EPS)),),
    )


def rmsnorm_gradient_case(M: int, H: int, *, dtype: torch.dtype) -> Sides:
    """dx and dweight. The first rows give no dweight, whose chain runs over all of them."""
    x_MH, weight_H = _random(M, H, dtype=dtype).requires_grad_(), _random(H, dtype=dtype).requires_grad_()
    dy_MH, first = _random(M, H, dtype=dtype), x_MH[:BASELINE_ROWS].detach().requires_grad_()
    y_theirs = torch.nn.functional.rms_norm(x_MH, (H,), weight_H, EPS)
    y_ours, y_first = _tensor(rmsnorm(x_MH, weight_H, EPS)), _tensor(rmsnorm(first, weight_H, EPS))
    wanted = (x_MH, weight_H)
    return Sides(
        theirs=lambda: torch.autograd.grad(y_theirs, wanted, dy_MH, retain_graph=True),
        ours=lambda: torch.autograd.grad(y_ours, wanted, dy_MH, retain_graph=True),
        first_rows=lambda: torch.autograd.grad(y_first, (first,), dy_MH[:BASELINE_ROWS], retain_graph=True),
    )


def _tensor(value: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    assert isinstance(value, Tensor)
    return value


CASES = (
    Case(name="linear", shape=(512, 4096, 4096), target=0.9, make=linear_case),
    Case(name="matmul", shape=(512, 4096, 4096), target=0.9, make=matmul_case),
    Case(name="linear", shape=(33, 576, 1536), target=0.8, make=linear_case),
    Case(name="matmul", shape=(33, 576, 1536), target=0.8, make=matmul_case),
    Case(name="linear", shape=(1, 4096, 4096), target=0.9, make=linear_case),
    Case(name="matmul", shape=(1, 4096, 4096), target=0.9, make=matmul_case),
    # dX = dy weight is the layout of matmul; 14336 -> 4096 is a down projection.
    Case(name="dX", shape=(512, 4096, 14336), target=0.85, make=matmul_case),
    Case(name="dW", shape=(4096, 512, 4096), target=0.85, make=weight_gradient_case),
    Case(name="rmsnorm", shape=(4096, 4096), target=1.0, make=rmsnorm_case),
    Case(name="rmsnorm gradient", shape=(4096, 4096), target=None, make=rmsnorm_gradient_case),
    Case(name="linear", shape=(8, 4096, 4096), target=None, make=linear_case),
    Case(name="linear", shape=(512, 4096, 4096), target=None, make=linear_case, dtype=torch.bfloat16, on_arm=False),
    Case(name="linear", shape=(512, 4096, 4096), target=None, make=linear_case, dtype=torch.float16, on_arm=False),
    Case(name="linear", shape=(1, 4096, 4096), target=None, make=linear_case, dtype=torch.bfloat16),
    Case(name="rmsnorm", shape=(4096, 4096), target=None, make=rmsnorm_case, dtype=torch.bfloat16),
)


def refuse_unequal_bits(case: Case) -> int:
    """The number of launches whose bits were compared. Exits where two of them differ."""
    sides = case.sides()
    with launching(threads=1):
        expected = sides.ours()
    launches = [(name, threads) for name in native.instruction_sets() for threads in (1, 2, 3)]
    for instruction_set, threads in launches:
        slow = instruction_set == "baseline"
        with launching(threads=threads, instruction_set=instruction_set):
            got = sides.first_rows() if slow else sides.ours()
        for left, right in zip(got, expected, strict=False):
            difference = compare(left, right[: left.shape[0]])
            if difference is not None:
                sys.exit(f"{case.name} {case.shape} is not timed: {instruction_set}, {threads} threads: {difference}")
    return len(launches)


def _burst(side: Callable[[], Any], repeats: int) -> list[float]:
    time.sleep(PAUSE_SECONDS)
    side()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        side()
        times.append(time.perf_counter() - start)
    return times


def measure(case: Case, threads: int) -> dict[str, Any]:
    """One row of the table: both sides in turns."""
    torch.set_num_threads(threads)
    theirs: list[list[float]] = []
    ours: list[list[float]] = []
    for _ in range(ROUNDS):
        sides = case.sides()
        repeats = max(1, min(200, int(BURST_SECONDS / min(_burst(sides.ours, 2)))))
        for turn in range(TURNS):
            for side, times in ((sides.theirs, theirs), (sides.ours, ours))[:: 1 if turn % 2 == 0 else -1]:
                times.append(_burst(side, repeats))
    ratio = statistics.median(statistics.median(a) / statistics.median(b) for a, b in zip(theirs, ours, strict=True))
    all_theirs, all_ours = list(chain(*theirs)), list(chain(*ours))
    return {
        "case": case.name,
        "shape": list(case.shape),
        "dtype": str(case.dtype).removeprefix("torch."),
        "threads": threads,
        "torch_ms": round(statistics.median(all_theirs) * 1e3, 4),
        "samebits_ms": round(statistics.median(all_ours) * 1e3, 4),
        "ratio": round(ratio, 3),
        "ratio_of_fastest": round(min(all_theirs) / min(all_ours), 3),
        "repeats": len(all_ours),
        "target": case.target,
        "met": None if case.target is None else ratio >= case.target,
    }


def _line(row: dict[str, Any]) -> str:
    verdict = {None: "", True: "met", False: "not met"}[row["met"]]
    target = "" if row["target"] is None else f"{row['target']:.2f}"
    shape = "x".join(str(size) for size in row["shape"])
    return (
        f"{row['case']:22}{shape:18}{row['dtype']:10}{row['threads']:>3}{row['torch_ms']:>12.3f}{row['samebits_ms']:>12.3f}"
        f"{row['ratio']:>8.2f}{row['ratio_of_fastest']:>9.2f}{target:>8} {verdict}"
    )


def main(
    all_cases: tuple[Case, ...] = CASES,
    results: Path = RESULTS,
    words: str | None = __doc__,
    more: Callable[[], dict[str, Any]] = dict,
) -> None:
    """Times the cases and, asked to, records them with what `more` measures besides."""
    parser = argparse.ArgumentParser(description=words)
    parser.add_argument("--record", action="store_true", help=f"write {results.name} beside the other results")
    parser.add_argument("--only", default="", help="run the cases whose name and shape, as printed, contain this")
    arguments = parser.parse_args()
    all_cases = tuple(case for case in all_cases if case.on_arm or not on_arm())
    cases = [case for case in all_cases if arguments.only in f"{case.name} {'x'.join(map(str, case.shape))}"]
    if not cases or (arguments.record and len(cases) < len(all_cases)):
        parser.error(f"--only={arguments.only!r} chooses {len(cases)} of {len(all_cases)} cases; --record needs all")
    load_before = os.getloadavg()[0]
    besides = more() if arguments.record else {}
    launches = sum(refuse_unequal_bits(case) for case in cases)
    print(f"bits equal: {launches} launches (instruction sets {', '.join(native.instruction_sets())}; threads 1, 2, 3)")
    print(HEADER)
    rows = []
    for case in cases:
        for threads in case.threads:
            rows.append(measure(case, threads))
            print(_line(rows[-1]), flush=True)
    if arguments.record:
        record = {
            **provenance(sys.argv[0], processor()),
            "cores": len(os.sched_getaffinity(0)),
            "load_average": [round(load_before, 2), round(os.getloadavg()[0], 2)],
            "torch": torch.__version__,
            "compiler": native.compiler(),
            "source_digest": source_digest(),
            "equal_launches": launches,
            "rows": rows,
            **besides,
        }
        results.parent.mkdir(exist_ok=True)
        results.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
