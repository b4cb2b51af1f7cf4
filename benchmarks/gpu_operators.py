"""Speed of attention, selected logprobs and the row-wise operators on a Hopper GPU beside torch, in one run.

    PYTHONPATH=src python benchmarks/gpu_operators.py --output benchmarks/results/h200_operators.json

Through the functions that users call, after the bits were looked at. Rounds of ours and theirs alternate; a figure is
the median over rounds. A call's time includes the host's share, which the large shapes here hide."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from provenance import provenance
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from samebits import ops
from samebits.bench.cuda_timing import call_times, medians
from samebits.numerics.bits import compare as bits_differ

BATCH, HEADS, TOKENS, HEAD = 4, 32, 4096, 128
ROWS, VOCABULARY = 4096, 151936
TARGETS = {
    "attention forward / flash": 1.2,
    "attention backward / flash": 1.0,
    "logprob forward": 1.0,
    "logprob forward and backward": 1.0,
}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def ratio(name: str, ours: Callable[[], Any], theirs: Callable[[], Any], work: float, rounds: int) -> dict[str, Any]:
    """`work`: operations, or bytes moved at least."""
    ours_ms, theirs_ms = medians(call_times(([ours], [theirs]), 60.0, rounds))
    found, target = theirs_ms / ours_ms, TARGETS.get(name)
    aim = "" if target is None else f"  wanted {target}: {'holds' if found >= target else 'does not hold'}"
    speeds = f"{work / ours_ms / 1e9:8.2f} {work / theirs_ms / 1e9:8.2f}"
    print(f"{name:36s} {ours_ms:9.3f} {theirs_ms:9.3f} {speeds} {found:7.3f}{aim}", flush=True)
    return {"name": name, "ours_ms": ours_ms, "torch_ms": theirs_ms, "ratio": found, "target": target, "work": work}


def attention(rounds: int) -> list[dict[str, Any]]:
    q, k, v, do = (random(BATCH, TOKENS, HEADS, HEAD).requires_grad_() for _ in range(4))
    theirs_in = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v)]
    upstream = do.detach().transpose(1, 2).contiguous()
    out = ops.attention(q, k, v)
    alone = ops.attention(*(x[1:2, :1000].detach() for x in (q, k, v)))
    difference = bits_differ(out[1:2, :1000].detach().cpu(), alone.cpu())
    if difference is not None:
        raise SystemExit(f"attention: the first 1000 tokens alone: {difference}; nothing is timed")
    work, found = 2.0 * BATCH * HEADS * TOKENS**2 * HEAD, []
    for name, kind in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        with sdpa_kernel(kind):
            stock = functional.scaled_dot_product_attention(*theirs_in, is_causal=True)

            def forward() -> Any:
                return functional.scaled_dot_product_attention(*theirs_in, is_causal=True)

            def backward(stock: torch.Tensor = stock) -> Any:
                return torch.autograd.grad(stock, theirs_in, upstream, retain_graph=True)

            found.append(ratio(f"attention forward / {name}", lambda: ops.attention(q, k, v), forward, work, rounds))
            found.append(
                ratio(
                    f"attention backward / {name}",
                    lambda: torch.autograd.grad(out, (q, k, v), do, retain_graph=True),
                    backward,
                    2.5 * work,
                    rounds,
                )
            )
    return found


def logprob(width: int, rounds: int) -> list[dict[str, Any]]:
    hidden, weight = random(ROWS, width).requires_grad_(), (random(VOCABULARY, width) * 0.05).requires_grad_()
    ids, upstream = torch.randint(VOCABULARY, (ROWS,), device="cuda"), torch.randn(ROWS, device="cuda")

    def ours() -> torch.Tensor:
        return ops.selected_logprob(hidden, weight, ids)

    def theirs() -> torch.Tensor:
        return functional.linear(hidden, weight).float().log_softmax(-1).gather(1, ids[:, None])[:, 0]

    with torch.no_grad():
        difference = bits_differ(ours()[:7].cpu(), ops.selected_logprob(hidden[:7], weight, ids[:7]).cpu())
        if difference is not None:
            raise SystemExit(f"logprob: seven rows alone: {difference}; nothing is timed")
        work = 2.0 * ROWS * VOCABULARY * width
        found = [{**ratio("logprob forward", ours, theirs, work, rounds), "width": width}]

    def both(function: Callable[[], torch.Tensor]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(function(), (hidden, weight), upstream)

    found.append({**ratio("logprob forward and backward", both(ours), both(theirs), 3 * work, rounds), "width": width})
    for name, function in (("ours", ours), ("torch", theirs)):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        both(function)()
        torch.cuda.synchronize()
        found[-1][f"{name}_peak_bytes"] = torch.cuda.max_memory_allocated() - before
    ours_peak, theirs_peak = found[-1]["ours_peak_bytes"], found[-1]["torch_peak_bytes"]
    print(f"  memory beyond the inputs: {ours_peak / 2**30:.2f} GiB, torch {theirs_peak / 2**30:.2f} GiB", flush=True)
    return found


def row_wise(rounds: int) -> list[dict[str, Any]]:
    x, up, weight = random(8192, 14336), random(8192, 14336), random(32000, 4096)
    scores, ids = random(4096, 32000), torch.randint(32000, (8192,), device="cuda")
    heads, positions = random(8192, 32, 128), torch.arange(8192, device="cuda")
    angles = positions[:, None].float() * (10000.0 ** (-torch.arange(0, 128, 2, device="cuda") / 128))
    cos, sin = (torch.cat([f(angles)] * 2, -1).bfloat16()[:, None] for f in (torch.cos, torch.sin))

    def turned() -> torch.Tensor:
        first, second = heads.chunk(2, -1)
        return heads * cos + torch.cat([-second, first], -1) * sin

    large, wide = 2.0 * x.numel(), 2.0 * scores.numel()
    return [
        ratio("swiglu", lambda: ops.swiglu(x, up), lambda: functional.silu(x) * up, 3 * large, rounds),
        ratio("gelu", lambda: ops.gelu(x), lambda: functional.gelu(x), 2 * large, rounds),
        ratio("softmax", lambda: ops.softmax(scores), lambda: scores.softmax(-1), 2 * wide, rounds),
        ratio(
            "embedding",
            lambda: ops.embedding(ids, weight),
            lambda: functional.embedding(ids, weight),
            4.0 * 8192 * 4096,
            rounds,
        ),
        ratio("rope", lambda: ops.rope(heads, positions), turned, 4.0 * heads.numel(), rounds),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=7, help="alternations of ours and theirs")
    options = parser.parse_args()
    torch.manual_seed(0)
    print(
        f"{'bfloat16':36s} {'ours ms':>9s} {'torch ms':>9s} {'ours':>8s} {'torch':>8s} {'ratio':>7s}  (TFLOP/s, TB/s)"
    )
    found = attention(options.rounds)
    for width in (2048, 4096):
        found += logprob(width, options.rounds)
    with torch.no_grad():
        found += row_wise(options.rounds)
    holds = all(each["target"] is None or each["ratio"] >= each["target"] for each in found)
    report = {
        **provenance(__file__, torch.cuda.get_device_name()),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "shapes": {"attention": [BATCH, HEADS, TOKENS, HEAD], "logprob": [ROWS, VOCABULARY]},
        "verdict": "holds" if holds else "does not hold",
        "operators": found,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
