"""The kernels of decode_attention on a GPU: their bits, then their speed beside the one in use, cuDNN's and flash's.

    PYTHONPATH=src python benchmarks/gpu_decode_attention.py --output benchmarks/results/h200_decode_attention.json

One query of 32 heads over the keys of 8, heads of 128, bfloat16. Nothing is timed where a bit differs from the kernel
in use. All that a call launches, as CUDA graphs, in turns, over sets of inputs that outgrow the cache. Keys and values
count once; a copy's speed counts bytes read and written."""

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
from attention_cases import all_differing, sequences_of
from decode_attention import launches
from provenance import provenance
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from samebits.bench.cuda_timing import copies, kernel_times, medians
from samebits.numerics.bits import compare
from samebits.ops.attention import triton_kernel
from samebits.ops.attention.forms import Rule

HEADS, KEY_HEADS, HEAD = 32, 8, 128
SPEEDS = ((1, 128), (1, 1024), (1, 4096), (1, 32768), (1, 131072), (8, 4096), (8, 16384), (64, 4096))
# Queries and keys of each sequence.
PACKS = (((1,), (4096,)), ((1, 1, 1), (1, 2049, 6000)), ((1, 0, 2, 1), (500, 7, 4097, 0)), ((3, 4), (3, 2500)))
MASKS = ((True, 0, 0.0), (False, 0, 0.0), (True, 1000, 30.0))
# Head, query heads, key heads.
FORMS = ((128, 32, 8), (64, 9, 3), (128, 4, 4))
FORMATS = (torch.bfloat16, torch.float16)
PAGE_SIZES = (0, 16)
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
TARGET = 0.9


def differing(mask: tuple[bool, int, float], heads: tuple[int, int, int], page_size: int) -> list[str]:
    """Every comparison with the kernel in use that does not hold."""
    found = []
    (causal, window, softcap), (head, query_heads, key_heads) = mask, heads
    for (queries, keys), dtype, finite in itertools.product(PACKS, FORMATS, (True, False)):
        sequences = sequences_of(queries, keys, page_size)
        rows = sequences.pages.numel() * page_size if sequences.pages is not None else sum(keys) + 1
        torch.manual_seed(sum(keys) + head)
        shapes = ((sum(queries) + 2, query_heads), (rows, key_heads), (rows, key_heads))
        q, k, v = (torch.randn(*shape, head, device="cuda").to(dtype) for shape in shapes)
        if not finite:
            v[rows // 2, 0, 1], v[rows - 1], k[rows // 3, 0, 0] = float("nan"), float("inf"), float("-inf")
        rule = Rule(causal=causal, window=window, scale=head**-0.5, softcap=softcap)
        expected = triton_kernel.forward(q, k, v, sequences, rule)
        assert launches.takes(q, k, v, sequences, rule)
        given = launches.forward(q, k, v, sequences, rule)
        for name, left, right in zip(("out", "lse"), given, expected, strict=True):
            parting = compare(left.cpu(), right.cpu())
            if parting is not None:
                words = f"causal {causal} window {window} cap {softcap} head {head} {query_heads}/{key_heads} {dtype}"
                found.append(f"{name}: {queries} {keys} {words} page {page_size} finite {finite}: {parting}")
    return found


def by_torch(kind: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(kind):
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def measured(count: int, keys: int, copied: float, rounds: int) -> dict[str, Any]:
    size = 2 * count * keys * KEY_HEADS * HEAD * 2
    sequences = sequences_of([1] * count, [keys] * count)
    rule = Rule(causal=True, window=0, scale=HEAD**-0.5, softcap=0.0)
    shapes = ((count, HEADS, HEAD), *[(count * keys, KEY_HEADS, HEAD)] * 2)
    sets = [[torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes] for _ in range(copies(size))]
    turned = [[each.unflatten(0, (count, -1)).transpose(1, 2).contiguous() for each in inputs] for inputs in sets]
    sides: dict[str, list[Callable[[], Any]]] = {
        "ours": [partial(triton_kernel.forward, *inputs, sequences, rule) for inputs in sets],
        "three_launches": [partial(launches.forward, *inputs, sequences, rule) for inputs in sets],
        **{name: [partial(by_torch, kind, *inputs) for inputs in turned] for name, kind in BACKENDS.items()},
    }
    times = dict(zip(sides, medians(kernel_times(list(sides.values()), 20.0, rounds)), strict=True))
    best = min(times[name] for name in BACKENDS)
    row = {
        "case": f"{count} x {keys} keys",
        "sequences": count,
        "keys": keys,
        **{f"{name}_us": 1e3 * each for name, each in times.items()},
        "ratio": best / times["ours"],
        "three_launches_ratio": best / times["three_launches"],
        "of_copy": size / times["ours"] / 1e6 / copied,
        "target": TARGET,
    }
    shown = " ".join(f"{1e3 * each:8.1f}" for each in times.values())
    ratios = f"{row['ratio']:.2f} ({row['three_launches_ratio']:.2f}), of a copy {row['of_copy']:.2f}"
    print(f"{count:3d} x {keys:6d} {shown}   {ratios}", flush=True)
    return row


def copy_speed() -> float:
    """GB/s of a large copy, bytes read and written."""
    source = torch.empty(2**30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    (times,) = kernel_times([[lambda: target.copy_(source)]], 20.0, 3)
    return 2 * source.numel() / medians([times])[0] / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=5, help="alternations of the sides")
    options = parser.parse_args()
    found = all_differing(differing, list(itertools.product(MASKS, FORMS, PAGE_SIZES)))
    if found:
        print("\n".join(found))
        print(f"{len(found)} comparisons differ; nothing is timed")
        return 1
    copied = copy_speed()
    print(f"every bit is that of the kernel in use; a copy moves {copied:.0f} GB/s")
    print("us: in use, three launches, cuDNN, flash; of the faster of theirs: in use (three launches)", flush=True)
    rows = [measured(*case, copied, options.rounds) for case in SPEEDS]
    record = {
        **provenance(__file__, torch.cuda.get_device_name()),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy_gigabytes_per_second": copied,
        "rows": rows,
    }
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(row["ratio"] >= row["target"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
