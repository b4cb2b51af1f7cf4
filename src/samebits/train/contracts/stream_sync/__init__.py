"""A run of the trainer whose stream is late at every number that the host reads: the log must not know.

Before each read a kernel that only takes time is given to the stream. Knows no other kernel."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from samebits.train.contracts.small_run import config_of, trainer_of
from samebits.train.trainer import OURS, Parts, Trainer

LOGGED: Final = ("loss", "norm before clipping", "norm after clipping")
_aten = torch.ops.aten
_READS: Final = (_aten._local_scalar_dense.default, _aten.is_nonzero.default)


class Late(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within the block the current stream is held up for so many cycles before each read of the host."""

    def __init__(self, cycles: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cycles, self.reads = cycles, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.cycles and _is_read(function, args, kwargs or {}):
            torch.cuda._sleep(self.cycles)  # type: ignore[no-untyped-call]
            self.reads += 1
        return function(*args, **(kwargs or {}))


def _is_read(function: Any, args: Any, kwargs: Any) -> bool:
    """Whether numbers of the device come to the host."""
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    if function in _READS:
        return given[0].is_cuda
    if function is _aten.copy_.default:
        return given[1].is_cuda and not given[0].is_cuda
    if function is _aten._to_copy.default:
        return given[0].is_cuda and torch.device(kwargs.get("device") or "cuda").type == "cpu"
    return False


def logged(trainer: Trainer, steps: int, cycles: int) -> Tensor:
    """(steps, 3) float64, and nothing waited for but what the trainer waits for."""
    with Late(cycles) as late:
        done = [trainer.step() for _ in range(steps)]
    if cycles and not late.reads:
        raise ValueError("no number was read from the device: nothing was tried")
    return torch.tensor([[each.loss, each.norm, each.norm_after] for each in done], dtype=torch.float64)


def late_log(
    text: Tensor, weights: Tensor, rate: Tensor, steps: Tensor, cycles: Tensor, *, parts: Parts = OURS
) -> Tensor:
    """Loss, norm before and after clipping of each step, the stream held up for so many cycles at each read."""
    targets = len(text) - 1
    config = config_of(1, 1, float(rate), int(steps), width=targets, device=str(weights.device))
    trainer = trainer_of(config, text[None].cpu(), torch.tensor([targets]), weights, parts)
    return logged(trainer, int(steps), int(cycles))
