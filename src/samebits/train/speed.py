"""How fast a run is: tokens a second, and the share of the device's peak that its arithmetic comes to.

Knows no screen. Decides no bit."""

from __future__ import annotations

import time
from typing import Final

import torch

from samebits.ops.matmul import matmul
from samebits.train.configuration import TrainConfig

# Two operations a weight and token forward, four backward.
OPERATIONS: Final = 6
# Large enough to fill a device, small enough to cost a run nothing.
PROBE: Final = {"cpu": 512, "cuda": 4096}
REPEATS: Final = 3


def peak_flops(config: TrainConfig) -> float:
    """The most operations a second: what the configuration says, or what our own product reaches."""
    if config.monitoring.peak_flops is not None:
        return config.monitoring.peak_flops
    device = torch.device(config.training.device)
    size = PROBE[device.type]
    a = torch.ones(size, size, dtype=getattr(torch, config.training.dtype), device=device)
    seconds = [_timed(a) for _ in range(REPEATS + 1)]
    # The first one also loads the kernel.
    return 2 * size**3 / min(seconds[1:])


def _timed(a_NN: torch.Tensor) -> float:
    began = time.perf_counter()
    # Reading one element waits for the device.
    matmul(a_NN, a_NN)[0, 0].item()
    return time.perf_counter() - began


def utilisation(parameters: int, tokens: int, seconds: float, peak: float) -> float:
    """The share of the peak: 0 to 1."""
    return OPERATIONS * parameters * tokens / seconds / peak
