"""Fifty updates of the 350M on one GPU: whether all contracts of a run hold, and how many tokens a second it takes.

    PYTHONPATH=src python -m samebits.native.build
    PYTHONPATH=src python benchmarks/gpu_training.py --output benchmarks/results/h200_350m.json

The run is that of `samebits train recipes/350m_short.yaml`; every figure is read from its log, `events.jsonl`. Without
a GPU nothing is judged, exit 3; `--recipe recipes/tiny.yaml` runs anywhere, to see what the script does."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from provenance import ROOT, processor, provenance

from samebits.train.configuration import TrainConfig
from samebits.train.configuration_file import read
from samebits.train.running import run

RECIPE = ROOT / "recipes" / "350m_short.yaml"
COULD_NOT_BE_JUDGED = 3


def summed_up(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a finished run from its log."""
    of_kind = {kind: [each for each in events if each["event"] == kind] for kind in ("start", "step", "end")}
    (start,), steps, (end,) = of_kind["start"], of_kind["step"], of_kind["end"]
    losses = [each["loss"] for each in steps]
    return {
        "parameters": start["parameters"],
        "steps": len(steps),
        "tokens_per_step": start["tokens_per_step"],
        "median_tokens_per_second": round(statistics.median(each["tokens_per_second"] for each in steps)),
        "median_mfu": round(statistics.median(each["mfu"] for each in steps), 3),
        "peak_flops_measured": start["peak_flops"],
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "largest_norm": max(each["norm"] for each in steps),
        "largest_norm_after_clipping": max(each["norm_after"] for each in steps),
        "most_weights_without_gradient": max(each["without_gradient"] for each in steps),
        "digest": end["digest"],
        "losses": losses,
    }


def measured(config: TrainConfig, recipe: str) -> dict[str, Any]:
    """Trains into a folder that is thrown away, and returns the record."""
    on_gpu = config.training.device == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        run(config, Path(folder) / "run")
        lines = (Path(folder) / "run" / "events.jsonl").read_text().splitlines()
    machine = torch.cuda.get_device_name() if on_gpu else processor()
    found = {**provenance(__file__, machine), "recipe": recipe, "torch": torch.__version__}
    if on_gpu:
        import triton

        found |= {"triton": triton.__version__, "cuda": torch.version.cuda}
    return found | summed_up([json.loads(line) for line in lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--recipe", default=str(RECIPE), help="another recipe")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting on top of it")
    options = parser.parse_args()
    config = read(Path(options.recipe), options.set)
    if config.training.device == "cuda" and not torch.cuda.is_available():
        print("gpu_training: there is no GPU; could not be judged", file=sys.stderr)
        return COULD_NOT_BE_JUDGED
    record = measured(config, Path(options.recipe).name)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({name: each for name, each in record.items() if name != "losses"}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
