"""The kernels of decode_step on a GPU: their bits, then each idea's share of a layer's and a step's time.

    PYTHONPATH=src python benchmarks/gpu_decode_step.py --output benchmarks/results/h200_decode_step.json

Bits first, of products and of whole passes of a few layers, replayed again and again: nothing is timed where one
differs from what the engine launches. Then, in turns and as CUDA graphs: forms of the product beside launches of the
one in use; a layer; a pass of a Llama of 8 billion weights. Without a GPU nothing is judged, exit 3."""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib import import_module
from pathlib import Path

import torch
from provenance import provenance

COULD_NOT_BE_JUDGED = 3
BATCHES = (1, 2, 16, 64, 256)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--batch", type=int, action="append", help=f"instead of {BATCHES}")
    parser.add_argument("--only", choices=("bits", "products", "passes"), help="of the three parts")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_decode_step: there is no GPU; could not be judged", file=sys.stderr)
        return COULD_NOT_BE_JUDGED
    # Triton is not there on every machine without a GPU.
    bits, racing, passes = (import_module(f"decode_step.{name}") for name in ("comparing", "racing", "passes"))
    record = provenance(__file__, torch.cuda.get_device_name()) | {
        "torch": torch.__version__,
        "triton": import_module("triton").__version__,
    }
    begun = time.monotonic()
    if options.only in (None, "bits"):
        found = bits.all_parts()
        print("\n".join(found) or f"every bit is the engine's, after {time.monotonic() - begun:.0f} s", flush=True)
        if found:
            return 1
    if options.only in (None, "products"):
        record["products"] = racing.raced()
        print(f"after {time.monotonic() - begun:.0f} s", flush=True)
    if options.only in (None, "passes"):
        record["passes"] = passes.timed(options.batch or BATCHES)
    record["seconds"] = round(time.monotonic() - begun)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
