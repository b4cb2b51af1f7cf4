"""Decoding a Llama of 8 billion weights on one GPU, beside transformers with a static cache, compiled with CUDA graphs.

    PYTHONPATH=src python -m samebits.native.build
    PYTHONPATH=src python benchmarks/gpu_decode.py --output benchmarks/results/h200_decode.json

The cases of `samebits bench decode`, written down as benchmarks/report.py reads them. First the bits: an answer of
a batch is that of its request alone. Then, by batch, the median time of a step that decodes one token of every request,
as a caller sees it; and the least time in which the weights can be read at the speed of a copy. Without a GPU nothing
is judged, exit 3; `--model tiny --device cpu` runs anywhere, to see what the script does."""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from provenance import processor, provenance

from samebits.bench.cases import Setting
from samebits.bench.cuda_timing import copy_bandwidth
from samebits.bench.decoding import bytes_read, planned
from samebits.bench.measuring import DIFFERS, HOLDS, Line, measured
from samebits.bench.shapes import read_model

PROMPT = 128
BATCHES = (1, 2, 16, 64, 128, 256)
ROUNDS = 5
COULD_NOT_BE_JUDGED = 3


def row(line: Line) -> dict[str, Any]:
    """A batch as `report.py` reads it."""
    ours, theirs = line.seconds["samebits"], line.seconds[line.best or ""]
    return {
        "batch": line.size,
        "ours_tokens_per_second": round(line.size / ours, 1),
        "transformers_tokens_per_second": round(line.size / theirs, 1),
        "ratio": round(theirs / ours, 3),
        "of_the_bandwidth_limit": None if line.of_bandwidth is None else round(line.of_bandwidth, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--batch", type=int, action="append", help=f"instead of {BATCHES}")
    parser.add_argument("--model", default="llama-3-8b", help="as of samebits bench")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        print("gpu_decode: there is no GPU; could not be judged", file=sys.stderr)
        return COULD_NOT_BE_JUDGED
    setting = Setting(torch.device(options.device), torch.bfloat16)
    name, config = read_model(options.model)
    record = provenance(__file__, torch.cuda.get_device_name() if on_gpu else processor())
    record |= {"torch": torch.__version__, "transformers": transformers.__version__}
    if on_gpu:
        record |= {"triton": import_module("triton").__version__, "copy_bandwidth": copy_bandwidth()}
    record |= {"bytes_read": bytes_read(config, setting.dtype), "bits": {}, "lines": []}
    cases, found = [planned(name, config, batch, PROMPT) for batch in options.batch or BATCHES], []
    for line in measured(cases, setting, 0, ROUNDS):
        found.append(line)
        print(line.sizes, line.bits, line.detail, flush=True)
        record["bits"][str(line.size)] = line.bits == HOLDS
        if line.bits == HOLDS:
            record["lines"].append(row(line))
            print(json.dumps(record["lines"][-1]), flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    if any(line.bits == DIFFERS for line in found):
        return 1
    return 0 if all(line.bits == HOLDS for line in found) else COULD_NOT_BE_JUDGED


if __name__ == "__main__":
    sys.exit(main())
