"""Products by CUDA C++ with tiles of any height and width: their bits, then their speed beside the kernels in use and
torch's.

    PYTHONPATH=src python benchmarks/gpu_cuda_products.py --output benchmarks/results/h200_cuda_products.json

Bits are compared with the kernel in use for every size and tile, in bfloat16 and for some in float16 and on numbers
that are not finite; where one differs nothing is said of time. Times are those of kernels, as CUDA graphs, inputs
rotating. Needs nvcc. Without a GPU nothing is judged, exit 3."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from cuda_products.launching import Products, compile_all
from cuda_products.tiles import Tile, chosen
from provenance import provenance
from torch import Tensor

from samebits.bench.cuda_timing import copies, kernel_times, medians
from samebits.bench.shapes import MODELS, weights
from samebits.ops import matmul

NAMES = ("qwen3-1.7b", "llama-3-8b", "qwen3-8b", "smollm2-135m")
ROWS = (16, 32, 64, 100, 128, 200, 256, 333, 512, 700, 1000, 1536, 2048, 4096, 5000)
FORMS = ("forward", "dX")
TRIED = 4
"""Tiles of a size: those that the model takes for the quickest."""
MOST = 3e12
"""Multiplications and additions: more are left out, since they take longer than they tell."""
COULD_NOT_BE_JUDGED = 3


@dataclass(frozen=True, slots=True)
class Size:
    m: int
    n: int
    k: int
    form: str

    @property
    def by_columns(self) -> bool:
        """Whether the right operand's columns are side by side: a weight is stored for the forward pass."""
        return self.form == "dX"

    def operands(self, dtype: torch.dtype, sets: int) -> list[tuple[Tensor, Tensor]]:
        made = []
        for _ in range(sets):
            a = torch.randn(self.m, self.k, device="cuda", dtype=dtype)
            b = torch.randn((self.k, self.n) if self.by_columns else (self.n, self.k), device="cuda", dtype=dtype)
            made.append((a, b if self.by_columns else b.T))
        return made

    def tiles(self) -> list[Tile]:
        return chosen(self.m, self.n, self.k, by_columns=self.by_columns, count=TRIED)


def sizes() -> list[Size]:
    shapes = dict.fromkeys((each.n, each.k) for name in NAMES for each in weights(MODELS[name]))
    every = [
        Size(m, *((n, k) if form == "forward" else (k, n)), form)
        for m, (n, k), form in itertools.product(ROWS, shapes, FORMS)
    ]
    return [each for each in every if each.m * each.n * each.k < MOST / 2]


def difference(products: Products, tile: Tile, a: Tensor, b: Tensor, expected: Tensor) -> str | None:
    """What differs from the kernel in use. The result's memory holds NaN before."""
    out = torch.full_like(expected, float("nan"))
    products.launch(tile, a, b, out)()
    wrong = (out.view(torch.int16) != expected.view(torch.int16)) & ~(out.isnan() & expected.isnan())
    return f"{int(wrong.sum())} of {wrong.numel()} outputs of {tile}" if bool(wrong.any()) else None


def measured(products: Products, size: Size, budget: float) -> dict[str, Any] | str:
    operands = size.operands(torch.bfloat16, min(5, copies(size.n * size.k * 2)))
    expected = matmul(*operands[0])
    for tile in size.tiles():
        found = difference(products, tile, *operands[0], expected)
        if found:
            return f"{size}: {found}"
    sides: dict[str, list[Callable[[], Any]]] = {
        "torch": [partial(torch.matmul, *each) for each in operands],
        "in use": [partial(matmul, *each) for each in operands],
        **{
            str(tile): [products.launch(tile, *each, torch.empty_like(expected)) for each in operands]
            for tile in size.tiles()
        },
    }
    times = dict(zip(sides, medians(kernel_times(list(sides.values()), budget, 3)), strict=True))
    first, *_ = (str(tile) for tile in size.tiles())
    quickest = min((str(tile) for tile in size.tiles()), key=times.__getitem__)
    return {
        "rows": size.m,
        "case": f"{size.form} {size.m}x{size.k}x{size.n}",
        "form": size.form,
        "torch_us": 1e3 * times["torch"],
        "in_use": times["torch"] / times["in use"],
        "chosen": times["torch"] / times[first],
        "quickest": times["torch"] / times[quickest],
        "tile": quickest,
    }


def other_bits(products: Products) -> list[str]:
    """Float16, numbers that are not finite, and sizes that are no multiples of a tile's."""
    found = []
    for form, dtype in itertools.product(FORMS, (torch.bfloat16, torch.float16)):
        for m, n, k in ((5, 520, 200), (333, 1000, 1032), (1, 64, 8)):
            size = Size(m, n, k, form)
            ((a, b),) = size.operands(dtype, 1)
            a[m // 2, 3], b[k // 2, n // 2], b[0, 1] = float("nan"), float("inf"), float("-inf")
            expected = matmul(a, b)
            found += [each for tile in size.tiles() if (each := difference(products, tile, a, b, expected))]
    return found


def mean(ratios: Iterable[float]) -> float:
    values = list(ratios)
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--milliseconds", type=float, default=2.0, help="of one measurement")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_cuda_products: there is no GPU; could not be judged")
        return COULD_NOT_BE_JUDGED
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        products = Products(Path(folder))
        compile_all(dict.fromkeys(tile for size in sizes() for tile in size.tiles()), "bfloat16", Path(folder))
        wrong, rows = other_bits(products), []
        for size in sizes():
            found = measured(products, size, options.milliseconds)
            if isinstance(found, str):
                wrong.append(found)
            else:
                rows.append(found)
    if wrong:
        print("\n".join(wrong))
        print(f"{len(wrong)} comparisons do not hold; no time is recorded")
        return 1
    print(
        "every bit is that of the kernel in use; ratios to torch: in use, chosen by the model, quickest of those tried"
    )
    by_rows: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_rows[row["form"], row["rows"]].append(row)
    for (form, m), some in sorted(by_rows.items()):
        ratios = " ".join(f"{mean(row[name] for row in some):.3f}" for name in ("in_use", "chosen", "quickest"))
        print(f"{form:8s} {m:5d} rows: {ratios}")
    record = {
        **provenance(__file__, torch.cuda.get_device_name()),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "seconds": round(time.monotonic() - began),
        "rows": rows,
    }
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
