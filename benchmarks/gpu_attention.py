"""Attention as calls get it on a Hopper GPU: its bits, then its speed beside the kernels by Triton and cuDNN's.

    PYTHONPATH=src python benchmarks/gpu_attention.py --output benchmarks/results/h200_attention.json

Nothing is timed where a bit of the kernels for Hopper differs from those by Triton. Whole passes with all that they
launch, as CUDA graphs, in turns; cuDNN's backward pass as calls between events. Grouped heads: cuDNN's keys and values
are repeated before, and its sum over a group is left out. TFLOP/s count two products forward and five backward, of
pairs a mask leaves."""

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
from provenance import provenance
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from samebits.bench.cuda_timing import call_times, kernel_times, medians
from samebits.numerics.bits import compare
from samebits.ops.attention import triton_backward, triton_kernel
from samebits.ops.attention.forms import Rule
from samebits.ops.attention.triton_backward import BackwardLaunch
from samebits.ops.attention.triton_kernel import Launch

# Queries and keys of each sequence, and rows behind the last that belong to none.
PACKS = (
    ((128,), (128,), 0),
    ((64, 1, 200, 129), (64, 7, 200, 500), 3),
    ((130, 0, 77), (2100, 5, 77), 0),
    ((5000,), (5000,), 1),
    ((1000,), (4500,), 0),
    ((200, 64), (100, 0), 70),
)
MASKS = ((True, 0), (False, 0), (True, 100), (False, 70))
PARTS = ("forward", "backward")
FORMS = ((128, torch.bfloat16), (64, torch.float16))
GROUPS = (2, 1)
# Head, query heads, key heads, sequences, tokens, causal.
SPEEDS = (
    (128, 32, 32, 4, 4096, True),
    (128, 32, 32, 4, 4096, False),
    (128, 32, 32, 1, 16384, True),
    (128, 32, 32, 8, 2048, True),
    (128, 32, 32, 16, 1024, True),
    (128, 32, 32, 32, 512, True),
    (128, 32, 32, 64, 256, True),
    (128, 32, 8, 4, 4096, True),
    (128, 32, 8, 16, 1024, True),
    (128, 28, 4, 4, 4096, True),
    (128, 32, 8, 1, 1024, True),
    (64, 32, 32, 4, 4096, True),
    (64, 16, 16, 16, 1024, True),
    (64, 16, 16, 64, 256, True),
)
TARGETS = {"forward": 0.95, "backward": 0.9}
PLAIN = Launch(specialised=False)
PLAIN_BACKWARD = BackwardLaunch(specialised=False)


def differing(part: str, mask: tuple[bool, int], form: tuple[int, torch.dtype], group: int) -> list[str]:
    """Every comparison of one pass with the kernels by Triton that does not hold."""
    found = []
    (causal, window), (head, dtype) = mask, form
    for (queries, keys, behind), finite in itertools.product(PACKS, (True, False)):
        torch.manual_seed(sum(queries) + head)
        shapes = ((sum(queries) + behind, 4), *[(sum(keys) + behind, 4 // group)] * 2, (sum(queries) + behind, 4))
        q, k, v, do = (torch.randn(*shape, head, device="cuda").to(dtype) for shape in shapes)
        if not finite:
            v[keys[0] - 1, 0], do[queries[0] // 2, 0, 3], k[0, 0, 5] = float("nan"), float("inf"), float("-inf")
        sequences = sequences_of(queries, keys)
        rule = Rule(causal=causal, window=window, scale=head**-0.5, softcap=0.0)
        theirs = triton_kernel.forward(q, k, v, sequences, rule, launch=PLAIN)
        if part == "forward":
            names, expected = ("out", "lse"), theirs
            given = triton_kernel.forward(q, k, v, sequences, rule, launch=Launch())
        else:
            names, gradient = ("dq", "dk", "dv"), (do, q, k, v, *theirs, sequences, rule)
            expected = triton_backward.backward(*gradient, dq_launch=PLAIN_BACKWARD)
            given = triton_backward.backward(*gradient, dq_launch=BackwardLaunch())
        for name, left, right in zip(names, given, expected, strict=True):
            parting = compare(left.cpu(), right.cpu())
            if parting is not None:
                case = f"{queries} {keys} causal {causal} window {window} head {head} group {group} finite {finite}"
                found.append(f"{name}: {case}: {parting}")
    return found


def theirs_of(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, sequences: int, causal: bool
) -> tuple[Callable[[], Any], ...]:
    """cuDNN's forward pass and backward pass on the same numbers."""
    repeated = [each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (q, k, v, do)]
    turned = [each.unflatten(0, (sequences, -1)).transpose(1, 2).contiguous() for each in repeated]
    inputs = [each.requires_grad_() for each in turned[:3]]

    def forward() -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return functional.scaled_dot_product_attention(*inputs, is_causal=causal)

    kept = forward()
    return torch.no_grad()(forward), partial(torch.autograd.grad, kept, inputs, turned[3], retain_graph=True)


def measured(case: tuple[int, int, int, int, int, bool], rounds: int) -> list[dict[str, Any]]:
    head, heads, key_heads, count, tokens, causal = case
    shapes = ((heads,), (key_heads,), (key_heads,), (heads,))
    q, k, v, do = (torch.randn(count * tokens, *n, head, device="cuda", dtype=torch.bfloat16) for n in shapes)
    sequences = sequences_of([tokens] * count, [tokens] * count)
    rule = Rule(causal=causal, window=0, scale=head**-0.5, softcap=0.0)
    out, lse = triton_kernel.forward(q, k, v, sequences, rule, launch=PLAIN)
    usual = (triton_backward.choose(q, each) for each in (triton_backward.DQ_LAUNCH, triton_backward.DK_DV_LAUNCH))
    dq_launch, dk_dv_launch = (replace(each, specialised=False) for each in usual)
    gradient = (do, q, k, v, out, lse, sequences, rule)
    their_forward, their_backward = theirs_of(q, k, v, do, count, causal)
    pairs = count * heads * tokens * ((tokens + 1) / 2 if causal else tokens)
    sides = {
        "forward": (
            4.0 * head * pairs,
            [
                partial(triton_kernel.forward, q, k, v, sequences, rule),
                partial(triton_kernel.forward, q, k, v, sequences, rule, launch=PLAIN),
                their_forward,
            ],
        ),
        "backward": (
            10.0 * head * pairs,
            [
                partial(triton_backward.backward, *gradient),
                partial(triton_backward.backward, *gradient, dq_launch=dq_launch, dk_dv_launch=dk_dv_launch),
                their_backward,
            ],
        ),
    }
    rows = []
    for name, (work, calls) in sides.items():
        captured = calls if name == "forward" else calls[:-1]
        times = medians(kernel_times([[each] for each in captured], 40.0, rounds))
        if name == "backward":
            times += medians(call_times([[calls[-1]]], 40.0, rounds))
        row = {
            "pass": name,
            **dict(zip(("head", "heads", "key_heads", "sequences", "tokens", "causal"), case, strict=True)),
            **dict(zip(("in_use_ms", "triton_ms", "cudnn_ms"), times, strict=True)),
            "ratio": times[-1] / times[0],
            "target": TARGETS[name],
        }
        rows.append(row)
        speeds = " ".join(f"{work / each / 1e9:7.0f}" for each in times)
        words = f"{head} {heads}/{key_heads} {count}x{tokens} {'causal' if causal else 'full'}"
        print(
            f"{name:9s} {words:30s} {speeds}   of cuDNN {row['ratio']:.2f}, by Triton {times[-1] / times[1]:.2f}",
            flush=True,
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=5, help="alternations of the sides")
    options = parser.parse_args()
    found = all_differing(differing, list(itertools.product(PARTS, MASKS, FORMS, GROUPS)))
    if found:
        print("\n".join(found))
        print(f"{len(found)} comparisons differ; nothing is timed")
        return 1
    print("every bit is that of the kernels by Triton")
    print("TFLOP/s: in use, by Triton, cuDNN", flush=True)
    rows = [row for case in SPEEDS for row in measured(case, options.rounds)]
    record = {
        **provenance(__file__, torch.cuda.get_device_name()),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "rows": rows,
    }
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(row["ratio"] >= row["target"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
