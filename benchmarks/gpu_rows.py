"""The row-wise and elementwise kernels on a GPU: bits, then bytes over time beside a copy's.

    PYTHONPATH=src python benchmarks/gpu_rows.py --output benchmarks/results/h200_rows.json

Every 16-bit number first, in the functions that serve those alone and in the kernels of SwiGLU and GELU, and then
each operator beside the CPU. Nothing is timed where a bit differs, exit 1. A kernel's share is the bytes that it must
read and write over its time, over the bandwidth of a large copy in the same run; 0.9 is wanted. Graphs are replayed
and inputs rotate, so neither the host nor the cache has a part in it. SwiGLU, GELU and the embedding are timed by
other launches too: the quickest of a case says which one is to be chosen. Without a GPU nothing is judged, exit 3."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from gpu_rows_bits import all_differing
from provenance import provenance
from torch import Tensor

from samebits.bench.cuda_timing import copies, copy_bandwidth, kernel_times, medians
from samebits.native.launch_numbers import launching
from samebits.ops._triton.elements import ElementLaunch
from samebits.ops._triton.rows import RowLaunch
from samebits.ops.embedding import triton_kernel as embedding
from samebits.ops.gelu import triton_kernel as gelu
from samebits.ops.layernorm import triton_kernel as layernorm
from samebits.ops.rmsnorm import triton_kernel as rmsnorm
from samebits.ops.rope import triton_kernel as rope
from samebits.ops.softmax import triton_kernel as softmax
from samebits.ops.swiglu import triton_kernel as swiglu

DEVICE = "cuda"
TARGET = 0.9
SIZES = ((8192, 4096, 14336), (16384, 1024, 2816))
"""Rows, and what a model has of them: the hidden size, and the inner size of its feed-forward layers."""
HEAD, VOCABULARY, EPS, THETA = 128, 32000, 1e-5, 10000.0
ELEMENT_LAUNCHES = tuple(
    ElementLaunch(block=block, warps=warps)
    for block, warps in ((1024, 4), (1024, 2), (2048, 4), (2048, 8), (4096, 4), (4096, 8))
)
COPY_LAUNCHES = tuple(
    RowLaunch(rows=rows, columns=columns, warps=4) for rows, columns in ((4, 512), (2, 1024), (1, 1024), (4, 1024))
)
Calls = list[Callable[[], Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One kernel at one size: what a call is given, and the tensors of that size which it must read or write."""

    name: str
    make: Callable[[], Callable[[], Any]]
    rows: int
    width: int
    tensors: float
    launches: Sequence[Any] = ()

    @property
    def bytes(self) -> float:
        return 2.0 * self.rows * self.width * self.tensors


def random(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)


def norms(m: int, width: int) -> list[Case]:
    def given(count: int) -> list[Tensor]:
        return [random(m, width) for _ in range(count)]

    weight, bias = random(width), random(width)
    mean, rstd = torch.randn(m, device=DEVICE), torch.rand(m, device=DEVICE) + 0.5
    case = partial(Case, rows=m, width=width)

    def rms_forward() -> Any:
        return partial(rmsnorm.forward, *given(1), weight, EPS)

    def add_forward() -> Any:
        x, residual = given(2)
        return partial(rmsnorm.forward, x, weight, EPS, residual)

    def rms_backward() -> Any:
        return partial(rmsnorm.backward_input, *given(2), weight, rstd)

    def add_backward() -> Any:
        dy, hidden, dhidden = given(3)
        return partial(rmsnorm.backward_input, dy, hidden, weight, rstd, dhidden)

    return [
        case(name="rmsnorm", make=rms_forward, tensors=2),
        case(name="rmsnorm backward", make=rms_backward, tensors=3),
        case(name="add_rmsnorm", make=add_forward, tensors=4),
        case(name="add_rmsnorm backward", make=add_backward, tensors=4),
        case(name="layernorm", make=lambda: partial(layernorm.forward, *given(1), weight, bias, EPS), tensors=2),
        case(
            name="layernorm backward",
            make=lambda: partial(layernorm.backward_input, *given(2), weight, mean, rstd),
            tensors=3,
        ),
    ]


def elements(m: int, width: int) -> list[Case]:
    def given(count: int) -> list[Tensor]:
        return [random(m, width) for _ in range(count)]

    case = partial(Case, rows=m, width=width, launches=ELEMENT_LAUNCHES if m * width > 2**26 else ())
    found = [
        case(name="swiglu", make=lambda: partial(swiglu.forward, *given(2)), tensors=3),
        case(name="swiglu backward", make=lambda: partial(swiglu.backward, *given(3)), tensors=5),
    ]
    for words, by_tanh in (("", False), (" by tanh", True)):
        found += [
            case(name=f"gelu{words}", make=lambda b=by_tanh: partial(gelu.forward, *given(1), b), tensors=2),
            case(name=f"gelu{words} backward", make=lambda b=by_tanh: partial(gelu.backward, *given(2), b), tensors=3),
        ]
    return found


def others(m: int, width: int) -> list[Case]:
    positions = torch.arange(m, device=DEVICE)
    exponents = torch.arange(0, HEAD, 2, device=DEVICE, dtype=torch.float32) / HEAD
    frequencies = THETA**-exponents
    weight = random(VOCABULARY, width)
    case = partial(Case, rows=m, width=width)

    def ids() -> Tensor:
        return torch.randint(VOCABULARY, (m,), device=DEVICE)

    def turned(opposite: bool) -> Any:
        return partial(rope.rotate, random(m, width // HEAD, HEAD), positions, frequencies, 1.0, False, opposite)

    def soft() -> Tensor:
        return softmax.forward(random(m, width), torch.bfloat16, False)

    return [
        case(name="rope", make=partial(turned, False), tensors=2),
        case(name="rope backward", make=partial(turned, True), tensors=2),
        case(
            name="embedding", make=lambda: partial(embedding.forward, ids(), weight), tensors=2, launches=COPY_LAUNCHES
        ),
        case(
            # The table of gradients is filled with zeros, and rows of it are written once more.
            name="embedding backward, with its sort",
            make=lambda: partial(embedding.backward, random(m, width), ids(), VOCABULARY, -1),
            tensors=2 + VOCABULARY / m,
        ),
        case(name="softmax", make=lambda: partial(softmax.forward, random(m, width), torch.bfloat16, False), tensors=2),
        case(
            name="softmax backward",
            make=lambda: partial(softmax.backward, random(m, width), soft(), torch.bfloat16, False),
            tensors=3,
        ),
    ]


def forced(call: Callable[[], Any], launch: Any) -> Callable[[], Any]:
    def made() -> Any:
        with launching(launch=launch):
            return call()

    return made


def all_cases() -> Iterator[Case]:
    for m, hidden, inner in SIZES:
        yield from (*norms(m, hidden), *elements(m, inner), *others(m, hidden))


def measured(case: Case, rounds: int) -> dict[str, Any]:
    calls = [case.make() for _ in range(copies(int(case.bytes)))]
    sides: dict[str, Calls] = {"in use": calls}
    sides |= {str(launch): [forced(call, launch) for call in calls] for launch in case.launches}
    times = dict(zip(sides, medians(kernel_times(list(sides.values()), 8.0, rounds)), strict=True))
    quickest = min(times, key=lambda name: times[name])
    limit = 1e3 * case.bytes / copy_bandwidth()
    row = {
        "case": f"{case.name} {case.rows}x{case.width}",
        "bytes": case.bytes,
        "us": 1e3 * times["in use"],
        "ratio": limit / times["in use"],
        "quickest": quickest,
        "quickest_ratio": limit / times[quickest],
        "all_us": {name: 1e3 * each for name, each in times.items()},
        "target": TARGET,
    }
    said = "holds" if row["ratio"] >= TARGET else "does not hold"
    print(f"{row['case']:46s} {row['us']:8.1f} us {row['ratio']:.2f} ({row['quickest_ratio']:.2f}) {said}", flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=3, help="alternations of the launches of a case")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_rows: there is no GPU; could not be judged")
        return 3
    torch.manual_seed(0)
    found = all_differing()
    if found:
        print("\n".join(found))
        print(f"{len(found)} comparisons do not hold; nothing is timed")
        return 1
    print(f"every bit is that of the definition; a copy has {copy_bandwidth() / 1e12:.2f} TB/s")
    print("us, share of a copy's bandwidth (by the quickest launch)", flush=True)
    rows = [measured(case, options.rounds) for case in all_cases()]
    holds = all(row["ratio"] >= TARGET for row in rows)
    record = {
        **provenance(__file__, torch.cuda.get_device_name()),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy_bandwidth": copy_bandwidth(),
        "verdict": "holds" if holds else "does not hold",
        "rows": rows,
    }
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
