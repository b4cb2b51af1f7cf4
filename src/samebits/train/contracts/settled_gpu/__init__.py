"""Runs of the trainer on the device of their weights, stopped before every operator, to read what could fix an order.

What is read on the host is read here too, and what torch's own kernels on a device depend on. Knows no kernel."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from samebits.ops.registering import Flops
from samebits.train.contracts import settled
from samebits.train.contracts.settled import BATCH, RATE
from samebits.train.contracts.small_run import config_of, trainer_of
from samebits.train.trainer import Trainer

SETTINGS: Final[dict[str, settled.Setting]] = {
    **settled.SETTINGS,
    "cuDNN's deterministic algorithms": lambda _: torch.backends.cudnn.deterministic,
    "cuDNN's choice by time": lambda _: torch.backends.cudnn.benchmark,
    "bfloat16 sums of cuBLAS": lambda _: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    "workspace of cuBLAS": lambda _: os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
}
"""What is read before every operator, from the trainer once there is one."""


class Watch(settled.Watch):
    """The same of these settings, at operators that are given a tensor of a device."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = dict.fromkeys(SETTINGS, 0)

    def around(self, name: str, run: Callable[..., Any], arguments: tuple[Any, ...], flops: Flops | None) -> Any:
        now = {each: read(self.trainer) for each, read in SETTINGS.items()}
        self.first = self.first or now
        for each, value in now.items():
            self.moved[each] += value != self.first[each]
        self.kernels += any(isinstance(each, Tensor) and each.is_cuda for each in _flat(arguments))
        return run(*arguments)


def _flat(arguments: tuple[Any, ...]) -> list[Any]:
    """Arguments, and what lists of tensors hold."""
    return [inner for each in arguments for inner in (each if isinstance(each, list | tuple) else [each])]


def moved_on_device(
    text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor, *, late: Callable[[Trainer], None] | None = None
) -> Tensor:
    """(settings + 1): at how many operators each setting was not what the first one found; and the steps during which
    one ran on a device. `late` is handed the trainer after its first step."""
    watch, at_work = Watch(), 0
    config = config_of(BATCH, BATCH, RATE, int(steps), width=text.shape[1] - 1, device=str(weights.device))
    with watch.watching():
        trainer = watch.trainer = trainer_of(config, text.cpu(), counts.cpu(), weights)
        for step in range(int(steps)):
            if late is not None and step == 1:
                late(trainer)
            before = watch.kernels
            trainer.step()
            at_work += watch.kernels > before
    return torch.tensor([*watch.moved.values(), at_work])
