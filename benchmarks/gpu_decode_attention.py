"""Attention of one query a sequence on a GPU: its bits, then its speed beside kernels not in use, cuDNN's and flash's.

    PYTHONPATH=src python benchmarks/gpu_decode_attention.py --output benchmarks/results/h200_decode_attention.json

One query of 32 heads over the keys of 8, heads of 128, bfloat16: what `attention` chooses, over keys side by side and
in pages of 16, beside the kernel by Triton and those of decode_attention. Nothing is timed where a bit differs from the
kernel by Triton. All that a call launches, as CUDA graphs, in turns, over sets of inputs that outgrow the cache. Keys
and values count once; a copy's speed counts bytes read and written. `--only` takes some cases, `--paged` those of up to
so many sequences in pages too."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
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
from samebits.ops._triton.sizes import cdiv
from samebits.ops.attention import triton_kernel
from samebits.ops.attention.forms import SPLIT_KEYS, Rule, Sequences

HEADS, KEY_HEADS, HEAD = 32, 8, 128
# Sequences and keys of each.
SPEEDS = (
    *((1, keys) for keys in (128, 1024, 2048, 4096, 8192, 32768, 131072)),
    *((4, 1024), (8, 4096), (8, 16384), (16, 1024), (64, 1024), (64, 4096)),
)
PAGE = 16
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
    """Every comparison with the kernel by Triton that does not hold."""
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
        expected = by_triton(q, k, v, sequences, rule)
        assert launches.takes(q, k, v, sequences, rule)
        given = (*triton_kernel.forward(q, k, v, sequences, rule), *launches.forward(q, k, v, sequences, rule))
        names = ("out", "lse", "out of three launches", "lse of three launches")
        for name, left, right in zip(names, given, (*expected, *expected), strict=True):
            parting = compare(left.cpu(), right.cpu())
            if parting is not None:
                words = f"causal {causal} window {window} cap {softcap} head {head} {query_heads}/{key_heads} {dtype}"
                found.append(f"{name}: {queries} {keys} {words} page {page_size} finite {finite}: {parting}")
    return found


def by_triton(q: Tensor, k: Tensor, v: Tensor, sequences: Sequences, rule: Rule) -> tuple[Tensor, Tensor]:
    """What would be chosen without the kernel by Gluon."""
    splits = cdiv(sequences.longest_key, SPLIT_KEYS)
    chosen = triton_kernel.choose(q, q.shape[1] // k.shape[1], sequences, splits)
    return triton_kernel.forward(q, k, v, sequences, rule, launch=replace(chosen, decoded=False, specialised=False))


def by_torch(kind: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(kind):
        return functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def measured(count: int, keys: int, copied: float, rounds: int, paged: bool) -> dict[str, Any]:
    size = 2 * count * keys * KEY_HEADS * HEAD * 2
    sequences = sequences_of([1] * count, [keys] * count)
    rule = Rule(causal=True, window=0, scale=HEAD**-0.5, softcap=0.0)
    shapes = ((count, HEADS, HEAD), *[(count * keys, KEY_HEADS, HEAD)] * 2)
    sets = [[torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes] for _ in range(copies(size))]
    turned = [[each.unflatten(0, (count, -1)).transpose(1, 2).contiguous() for each in inputs] for inputs in sets]
    sides: dict[str, list[Callable[[], Any]]] = {
        "ours": [partial(triton_kernel.forward, *inputs, sequences, rule) for inputs in sets],
        "by_triton": [partial(by_triton, *inputs, sequences, rule) for inputs in sets],
        "three_launches": [partial(launches.forward, *inputs, sequences, rule) for inputs in sets],
        **{name: [partial(by_torch, kind, *inputs) for inputs in turned] for name, kind in BACKENDS.items()},
    }
    if paged:
        in_pages = sequences_of([1] * count, [keys] * count, PAGE)
        sides["paged"] = [partial(triton_kernel.forward, *inputs, in_pages, rule) for inputs in sets]
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
    shown = ", ".join(f"{name} {1e3 * each:.1f}" for name, each in times.items())
    print(f"{count:3d} x {keys:6d} {shown}: {row['ratio']:.2f}, of a copy {row['of_copy']:.2f}", flush=True)
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
    parser.add_argument("--only", nargs="*", default=[], help="cases, as 1x1024")
    parser.add_argument("--paged", type=int, default=8, help="most sequences of a case that is measured in pages too")
    options = parser.parse_args()
    speeds = [tuple(map(int, each.split("x"))) for each in options.only] or SPEEDS
    found = all_differing(differing, list(itertools.product(MASKS, FORMS, PAGE_SIZES)))
    if found:
        print("\n".join(found))
        print(f"{len(found)} comparisons differ; nothing is timed")
        return 1
    copied = copy_speed()
    print(f"every bit is that of the kernel by Triton; a copy moves {copied:.0f} GB/s")
    print("us; then the time of the faster of cuDNN and flash over ours", flush=True)
    rows = [measured(*case, copied, options.rounds, case[0] <= options.paged) for case in speeds]
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
