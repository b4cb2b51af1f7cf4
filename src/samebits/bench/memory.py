"""Whether a whole model fits the memory of a device, told in bytes before it is made, and what a side took of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from samebits.bench.cases import Side
from samebits.model.config import ModelConfig
from samebits.records.report import UnjudgedError

MEMINFO: Final = Path("/proc/meminfo")


def require(config: ModelConfig, tokens: int, needed: int, device: torch.device) -> None:
    """Raises an UnjudgedError where sequences are longer than the model's positions, or the bytes are not there."""
    if tokens > config.max_position_embeddings:
        raise UnjudgedError(f"sequences have {tokens} tokens; allowed: {config.max_position_embeddings}, its positions")
    there = bytes_there(device)
    if needed > there:
        raise UnjudgedError(f"about {needed:,} bytes are needed on {device}; there are {there:,}")


def bytes_there(device: torch.device) -> int:
    """What this process can still take; of a CPU without swap."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    if MEMINFO.is_file():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def peak_of(make: Callable[[], Side], device: torch.device) -> tuple[Side, int | None]:
    """A side that has made two steps, and on a GPU the most bytes that it and its second step took.

    The first step makes what lasts (moments, graphs), and a compiler's own tensors are gone after it."""
    if device.type != "cuda":
        side = make()
        side()
        return side, None
    before = torch.cuda.memory_allocated(device)
    side = make()
    side()
    torch.cuda.reset_peak_memory_stats(device)
    side()
    return side, torch.cuda.max_memory_allocated(device) - before
