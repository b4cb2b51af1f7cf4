"""Merging two models of 135 million weights, by samebits and by mergekit in turns: `post_merge.py MERGEKIT`.

MERGEKIT is the program `mergekit-yaml` of an environment of its own, no dependency of this project. Each turn is a
whole command on a fresh folder, bfloat16 in and out; wall time, processor time of all threads, and the largest memory.
The ratio is mergekit's median over ours: above 1, ours is faster. `--record` writes it down."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from provenance import processor, provenance

RESULTS = Path(__file__).parent / "results" / "post_merge.json"
TURNS = 3


def recipes(first: str, second: str) -> dict[str, dict[str, Any]]:
    other = {"density": 0.5, "weight": 0.5}
    return {
        "linear": {
            "models": [{"model": model, "parameters": {"weight": 0.5}} for model in (first, second)],
            "merge_method": "linear",
            "dtype": "bfloat16",
        },
        "slerp": {
            "models": [{"model": first}, {"model": second}],
            "merge_method": "slerp",
            "base_model": first,
            "parameters": {"t": 0.4},
            "dtype": "bfloat16",
        },
        "ties": {
            "models": [{"model": first}, {"model": second, "parameters": other}],
            "merge_method": "ties",
            "base_model": first,
            "dtype": "bfloat16",
        },
    }


def make(folder: Path) -> None:
    """SmolLM2 and a neighbour of it. In a process of its own: memory that was used before a command counts as its."""
    import torch

    from samebits.model.huggingface import save_folder
    from samebits.model.loading import load

    loaded = load("smollm2", "bfloat16")
    save_folder(loaded.model, folder / "first", loaded.tokenizer)
    draw = torch.Generator().manual_seed(1)
    weights = {
        name: (each.float() * (1 + 0.02 * torch.randn(each.shape, generator=draw))).bfloat16()
        for name, each in loaded.model.weights.items()
    }
    save_folder(replace(loaded.model, weights=weights), folder / "second", loaded.tokenizer)


def measured(words: Sequence[str]) -> dict[str, float]:
    """Seconds, processor seconds and megabytes of one command."""
    began = time.perf_counter()
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.execv(words[0], list(words))
    _, status, used = os.wait4(child, 0)
    if status:
        raise RuntimeError(f"{' '.join(words)} ended with {status}")
    return {
        "seconds": time.perf_counter() - began,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "megabytes": used.ru_maxrss / 1024,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("mergekit", nargs="?", help="the program mergekit-yaml")
    options.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--record", action="store_true")
    options.add_argument("--turns", type=int, default=TURNS)
    chosen = options.parse_args()
    if chosen.make is not None:
        make(chosen.make)
        return
    if chosen.mergekit is None:
        options.error("the program mergekit-yaml is needed")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        subprocess.run([sys.executable, __file__, "--make", made], check=True)
        for name, recipe in recipes(str(folder / "first"), str(folder / "second")).items():
            file, out = folder / f"{name}.yaml", folder / "out"
            file.write_text(json.dumps(recipe))
            sides = {
                "samebits": [sys.executable, "-m", "samebits.cli", "merge", str(file), "--out", str(out)],
                "mergekit": [chosen.mergekit, str(file), str(out)],
            }
            turns: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
            for turn in range(chosen.turns):
                for side in sorted(sides, reverse=bool(turn % 2)):
                    shutil.rmtree(out, ignore_errors=True)
                    turns[side].append(measured(sides[side]))
            medians = {
                side: {key: statistics.median(each[key] for each in measurements) for key in measurements[0]}
                for side, measurements in turns.items()
            }
            ratios = {
                f"{key}_ratio": medians["mergekit"][key] / medians["samebits"][key] for key in medians["samebits"]
            }
            found[name] = {**medians, **ratios}
            print(name, json.dumps(found[name]), flush=True)
    if chosen.record:
        RESULTS.write_text(json.dumps({**provenance(__file__, processor()), "merges": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
