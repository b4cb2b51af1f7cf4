"""Real `samebits train` processes, killed without warning at random steps and resumed until they end by themselves."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

from tests.train.small_run import TEXT

from samebits.train import checkpoint
from samebits.train.events import NAME

STEPS = 30
SETTINGS = (
    "--set",
    f"training.max_steps={STEPS}",
    "--set",
    "training.save_steps=3",
    "--set",
    "training.save_total_limit=3",
)


def command(folder: Path, out: Path) -> list[str]:
    config = folder / "run.yaml"
    config.write_text(TEXT)
    words = ["train", str(config), "--out", str(out), "--resume", "--json", *SETTINGS]
    return [sys.executable, "-m", "samebits.cli", *words]


def whole(folder: Path) -> str:
    """The digest of the run that nobody disturbs."""
    ended = subprocess.run(command(folder, folder / "whole"), capture_output=True, text=True, check=True)
    found: str = json.loads(ended.stdout)["digest"]
    return found


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_after(words: list[str], log: Path, more: int) -> bool:
    """Starts a run and kills it once its log has grown by so many lines; whether it was alive until then."""
    wanted = lines(log) + more
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while lines(log) < wanted and process.poll() is None:
            time.sleep(0.001)
        alive = process.poll() is None
        process.kill()
    return alive


def killed_and_resumed(folder: Path, kills: int, seed: int) -> set[str]:
    """The last digests of runs that were killed so often in all, each resumed until it ended by itself.

    A process that ends before its kill, on a busy machine, is one more run whose digest counts."""
    draw, landed, runs, digests = random.Random(seed), 0, 0, set[str]()
    while landed < kills:
        out = folder / f"killed-{runs}"
        # A start, some steps, a checkpoint every three of them: rarely more than a third of the run.
        landed += kill_after(command(folder, out), out / NAME, draw.randint(1, STEPS // 3))
        if out.is_dir() and STEPS in checkpoint.committed(out):
            digests.add(checkpoint.read(out).digest)
            runs += 1
        assert runs <= kills
    ended = subprocess.run(command(folder, folder / f"killed-{runs}"), capture_output=True, text=True, check=True)
    return digests | {json.loads(ended.stdout)["digest"]}
