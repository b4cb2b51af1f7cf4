"""An unmodified Qwen3 of 1.7 billion weights inside `invariant_mode()` and outside it, on one GPU.

    PYTHONPATH=src python benchmarks/gpu_invariant.py --output benchmarks/results/h200_invariant.json

The passes of `samebits bench invariant`, in one form more. Bits first: the logits of one sequence alone and in the
batch. Then milliseconds of a forward and a backward pass, all forms in turns, medians. "host_ms" says what the host
takes where nothing waits for the device, "profile" which kernels a pass in the mode spends its time in. Without a GPU
nothing is judged, exit 3; `--size tiny --device cpu` runs anywhere, to see what the script does."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from provenance import processor, provenance
from torch import Tensor

from samebits.bench.cases import Setting
from samebits.bench.invariance import pass_seconds, row_difference
from samebits.bench.shapes import read_model
from samebits.bench.stock_model import random_weights, transformers_model
from samebits.invariant import invariant_mode
from samebits.invariant.transformers import register

COULD_NOT_BE_JUDGED = 3
MODELS = {"1.7b": "qwen3-1.7b", "tiny": "tiny"}
# Name, attention that the model is made with, what is around the pass.
FORMS: dict[str, tuple[str, Callable[[], AbstractContextManager[Any]]]] = {
    "outside": ("sdpa", nullcontext),
    "inside": ("sdpa", invariant_mode),
    "inside, attn_implementation=samebits": ("samebits", invariant_mode),
}


def model_of(size: str, device: str) -> tuple[Any, int]:
    """With random weights, which time does not depend on, and its vocab_size."""
    _, config = read_model(MODELS[size])
    setting = Setting(torch.device(device), torch.bfloat16)
    model = transformers_model(config, random_weights(config, setting))
    model.config.use_cache = False
    return model, config.vocab_size


def measured(model: Any, ids: Tensor, repeats: int) -> list[dict[str, Any]]:
    """Every form: its bits, then all of them in turns."""
    found: dict[str, dict[str, Any]] = {}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in FORMS}
    for turn in range(1 + repeats):
        for name, (attention, around) in FORMS.items():
            model.set_attn_implementation(attention)
            with around():
                if not turn:
                    found[name] = {"form": name, "row_alone_has_its_bits": row_difference(model, ids) is None}
            pair = pass_seconds(model, ids, around)
            if turn:
                times[name].append(pair)
    stock = [statistics.median(column) for column in zip(*times["outside"], strict=True)]
    for name, pairs in times.items():
        medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
        found[name] |= {
            f"{part}_{what}": value
            for part, mine, theirs in zip(("forward", "backward"), medians, stock, strict=True)
            for what, value in (("ms", round(mine * 1e3, 2)), ("ratio", round(theirs / mine, 3)))
        }
    return list(found.values())


def host_ms(model: Any, ids: Tensor, form: str) -> tuple[float, float]:
    """(forward, backward) of the host alone: so short a text that the device is done before the next kernel comes."""
    attention, around = FORMS[form]
    model.set_attn_implementation(attention)
    short, times = ids[:1, :8], []
    for _ in range(5):
        times.append(pass_seconds(model, short, around))
    forward, backward = (statistics.median(column) for column in zip(*times, strict=True))
    return round(forward * 1e3, 2), round(backward * 1e3, 2)


def profile(model: Any, ids: Tensor, attention: str, most: int = 12) -> dict[str, Any]:
    """Milliseconds of a forward pass in the mode by kernel, and of the host, which waits for nothing."""
    model.set_attn_implementation(attention)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with invariant_mode() as mode, torch.no_grad(), torch.profiler.profile(activities=activities) as seen:
        started = time.perf_counter()
        model(input_ids=ids)
        host = time.perf_counter() - started
        torch.cuda.synchronize()
    kernels = sorted(seen.key_averages(), key=lambda each: -each.device_time_total)
    return {
        "host_ms": round(host * 1e3, 2),
        "device_ms": round(sum(each.device_time_total for each in kernels) / 1e3, 2),
        "kernels": {each.key[:60]: [each.count, round(each.device_time_total / 1e3, 2)] for each in kernels[:most]},
        "routed": dict(mode.routed.most_common(most)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--size", choices=MODELS, default="1.7b")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        print("gpu_invariant: there is no GPU; could not be judged", file=sys.stderr)
        return COULD_NOT_BE_JUDGED
    register()
    model, words = model_of(options.size, options.device)
    ids = torch.randint(words, (options.batch, options.tokens), device=options.device)
    record = provenance(__file__, torch.cuda.get_device_name() if on_gpu else processor())
    record |= {"torch": torch.__version__, "transformers": transformers.__version__}
    if on_gpu:
        record["triton"] = import_module("triton").__version__
    record |= {"size": options.size, "batch": options.batch, "tokens": options.tokens}
    record["rows"] = measured(model, ids, options.repeats)
    if on_gpu:
        record["host_ms"] = {form: host_ms(model, ids, form) for form in FORMS}
        record["profile"] = {each: profile(model, ids, each) for each in ("sdpa", "samebits")}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
