"""Merging two models of 135 million weights, by samebits and by mergekit in turns: `post_merge.py MERGEKIT`.

MERGEKIT is the program `mergekit-yaml` of an environment of its own, no dependency of this project. Each turn is a
whole command on a fresh folder, bfloat16 in and out; wall time, processor time of all threads, and the largest memory,
ours also above that of the same command with --dry-run, which reads no number. A ratio is mergekit's over ours, turn by
turn, of which the median counts: above 1, ours is faster. `--record` writes it down."""

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
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from provenance import processor, provenance

RESULTS = Path(__file__).parent / "results" / "post_merge.json"
TURNS = 3
TARGET = 1.0
MOST_MEGABYTES = 200.0
Turn = dict[str, dict[str, float]]


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


def one_turn(mergekit: str, recipe: Path, out: Path, backwards: bool) -> Turn:
    """Both programs one after the other, and ours once more without the merge."""
    ours = [sys.executable, "-m", "samebits.cli", "merge", str(recipe), "--out", str(out)]
    sides = {"samebits": ours, "mergekit": [mergekit, str(recipe), str(out)], "dry_run": [*ours, "--dry-run"]}
    found = {}
    for side in sorted(sides, reverse=backwards):
        shutil.rmtree(out, ignore_errors=True)
        found[side] = measured(sides[side])
    return found


def row(case: str, turns: Sequence[Turn]) -> dict[str, Any]:
    """What the turns of one method come to."""

    def median(of: Callable[[Turn], float]) -> float:
        return statistics.median(map(of, turns))

    ratio = median(lambda turn: turn["mergekit"]["seconds"] / turn["samebits"]["seconds"])
    return {
        "case": case,
        "ratio": ratio,
        "target": TARGET,
        "met": ratio >= TARGET,
        "processor_ratio": median(
            lambda turn: turn["mergekit"]["processor_seconds"] / turn["samebits"]["processor_seconds"]
        ),
        "megabytes_above_interpreter": median(
            lambda turn: turn["samebits"]["megabytes"] - turn["dry_run"]["megabytes"]
        ),
        "most_megabytes": MOST_MEGABYTES,
        "turns": list(turns),
    }


def versions(mergekit: str) -> dict[str, str]:
    """Of torch on both sides and of mergekit, as its own environment has them."""
    code = "from importlib.metadata import version; print(version('mergekit'), version('torch'))"
    asked = [str(Path(mergekit).with_name("python")), "-c", code]
    theirs = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    return {"torch": version("torch"), "mergekit": theirs[0], "mergekit_torch": theirs[1]}


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
    rows = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        subprocess.run([sys.executable, __file__, "--make", made], check=True)
        for name, recipe in recipes(str(folder / "first"), str(folder / "second")).items():
            file = folder / f"{name}.yaml"
            file.write_text(json.dumps(recipe))
            turns = [one_turn(chosen.mergekit, file, folder / "out", bool(turn % 2)) for turn in range(chosen.turns)]
            rows.append(row(name, turns))
            print(json.dumps(rows[-1]), flush=True)
    if chosen.record:
        origin = {**provenance(__file__, processor()), **versions(chosen.mergekit)}
        RESULTS.write_text(json.dumps({**origin, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
