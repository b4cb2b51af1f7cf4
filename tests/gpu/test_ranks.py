"""Ranks that share one GPU, their messages by way of the host: one checkpoint and one text for every grid."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "tiny.yaml"
SETTINGS = (
    "training.max_steps=10",
    "optimizer.warmup_steps=1",
    "training.lanes=4",
    "training.device=cuda",
    "training.micro_batch_size=4",
    "training.gradient_accumulation_steps=4",
    "training.save_steps=10",
    "monitoring.compare_steps=1",
    "model.overrides.vocab_size=700",
    "model.overrides.use_qk_norm=true",
)


def launched(ranks: int, *command: str) -> str:
    """What rank 0 printed."""
    whole = [sys.executable, "-m", "samebits.cli", "launch", "--nproc", str(ranks), "--", *command]
    done = subprocess.run(whole, capture_output=True, text=True, env=os.environ | {"SAMEBITS_TRANSPORT": "gloo"})
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_grid_gives_one_checkpoint(dtype: str, tmp_path: Path) -> None:
    settings = [word for each in (*SETTINGS, f"training.dtype={dtype}") for word in ("--set", each)]
    digests = set()
    for ranks, tensor in ((1, 1), (2, 1), (2, 2), (4, 2), (3, 3)):
        folder = tmp_path / f"{ranks}x{tensor}"
        said = launched(ranks, "train", str(RECIPE), "--out", str(folder), "--tensor", str(tensor), *settings)
        digests.add(said.split()[-1])
    assert len(digests) == 1


def test_ranks_say_what_one_rank_says() -> None:
    asked = (
        "generate",
        "--model",
        "tiny@0",
        "--prompt",
        "def f(x):",
        "--max-tokens",
        "12",
        "--dtype",
        "bfloat16",
        "--device",
        "cuda",
        "--logprobs",
    )
    assert len({launched(ranks, *asked) for ranks in (1, 2, 3)}) == 1
