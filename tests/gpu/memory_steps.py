"""What `test_memory_checker` runs under a memory checker: steps of the 50 million weights, or a planted fault.

python memory_steps.py steps 10
python memory_steps.py past_the_end
python memory_steps.py not_written"""

from __future__ import annotations

import sys

import numpy as np
import torch
import triton
import triton.language as tl

from samebits.model import PRESETS, Model
from samebits.model.weights import shapes
from samebits.train.contracts.small_run import config_of
from samebits.train.data import Data
from samebits.train.trainer import Trainer

TOKENS = 40


def steps(count: int) -> None:
    config, drawn = PRESETS["50m"], np.random.default_rng(1)
    weights = {
        name: torch.ones(size) if len(size) == 1 else torch.from_numpy(drawn.normal(0, size[-1] ** -0.5, size)).float()
        for name, size in shapes(config).items()
    }
    data = Data(
        tokens=drawn.integers(0, config.vocab_size, TOKENS + 1).astype(np.uint32),
        starts=np.zeros(1, dtype=np.int64),
        targets=np.array([TOKENS]),
        vocabulary=config.vocab_size,
        end=0,
    )
    run = config_of(1, 1, 1e-3, count, width=TOKENS, device="cuda")
    trainer = Trainer(run, Model(config=config, weights=weights), data)
    # Every buffer is an allocation of its own here, and a pass that allocates cannot be captured.
    trainer.captured = None
    losses = [trainer.step().loss for _ in range(count)]
    print(f"{count} steps, loss {losses[0]:.4f} to {losses[-1]:.4f}")


@triton.jit
def _read(x_ptr, y_ptr, first):  # type: ignore[no-untyped-def]
    places = tl.arange(0, 128)
    tl.store(y_ptr + places, tl.load(x_ptr + first + places))


def past_the_end() -> None:
    """Planted: reads four kilobytes behind a buffer."""
    x, y = torch.ones(128, device="cuda"), torch.empty(128, device="cuda")
    _read[(1,)](x, y, 1024)
    torch.cuda.synchronize()


def not_written() -> None:
    """Planted: reads memory that nobody wrote."""
    x, y = torch.empty(128, device="cuda"), torch.empty(128, device="cuda")
    _read[(1,)](x, y, 0)
    torch.cuda.synchronize()


if __name__ == "__main__":
    if sys.argv[1] == "steps":
        steps(int(sys.argv[2]))
    else:
        {"past_the_end": past_the_end, "not_written": not_written}[sys.argv[1]]()
