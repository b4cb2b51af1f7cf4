"""Runs of the trainer in which every kernel is stopped on its way in, to read what could fix the order of a sum.

Threads are not among it: torch computes its few small operations on one while our kernels run, and how many compute
decides no bit. Knows no kernel's inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from samebits.ops.registering import Flops, observe
from samebits.train.contracts.small_run import config_of, trainer_of
from samebits.train.trainer import Trainer

BATCH: Final = 2
RATE: Final = 2.0**-7
Setting = Callable[[Trainer | None], object]

SETTINGS: Final[dict[str, Setting]] = {
    # Of the run: the chains of a gradient's sum, the order of the weights in a norm, all that decides bits by name.
    "lanes": lambda trainer: trainer and trainer.cut.lanes,
    "order of the weights": lambda trainer: trainer and tuple(trainer.weights),
    "facts": lambda trainer: trainer and {name: v for name, v in trainer.facts().items() if "position." not in name},
    # Of torch, which adds up what is small.
    "deterministic algorithms": lambda _: torch.are_deterministic_algorithms_enabled(),
    "precision of products": lambda _: torch.get_float32_matmul_precision(),
    "default format": lambda _: torch.get_default_dtype(),
    "oneDNN": lambda _: torch.backends.mkldnn.enabled,
    # Half of the least normal number: 0 where subnormal numbers are flushed.
    "subnormal numbers": lambda _: float(torch.tensor([2.0**-126]) / 2) != 0.0,
}
"""What is read before every kernel, from the trainer once there is one."""


class Watch:
    """What each setting was before the first kernel, and at how many kernels it was something else."""

    def __init__(self) -> None:
        self.trainer: Trainer | None = None
        self.first: dict[str, object] = {}
        self.moved = dict.fromkeys(SETTINGS, 0)
        self.kernels = 0

    def around(self, name: str, run: Callable[..., Any], arguments: tuple[Any, ...], flops: Flops | None) -> Any:
        now = {each: read(self.trainer) for each, read in SETTINGS.items()}
        self.first = self.first or now
        for each, value in now.items():
            self.moved[each] += value != self.first[each]
        self.kernels += 1
        return run(*arguments)

    @contextmanager
    def watching(self) -> Iterator[None]:
        observe(self.around)
        try:
            yield
        finally:
            observe(None)


def moved(
    text: Tensor, counts: Tensor, weights: Tensor, steps: Tensor, *, late: Callable[[Trainer], None] | None = None
) -> Tensor:
    """(settings + 1): at how many kernels of a run each setting was not what the first kernel found; and the steps
    during which a kernel ran. The run is watched from before its trainer is made.

    `late` is handed the trainer after its first step."""
    watch, at_work = Watch(), 0
    config = config_of(BATCH, BATCH, RATE, int(steps), width=text.shape[1] - 1)
    with watch.watching():
        trainer = watch.trainer = trainer_of(config, text, counts, weights)
        for step in range(int(steps)):
            if late is not None and step == 1:
                late(trainer)
            before = watch.kernels
            trainer.step()
            at_work += watch.kernels > before
    return torch.tensor([*watch.moved.values(), at_work])
