"""AdamW: `adamw_`, one step of one tensor in place, and `AdamW`, the optimizer made of it.

Every element is computed alone, by one written-down sequence of float32 operations: threads, tiles and how parameters
are grouped decide no bit. A gradient beyond 1.8e19 makes its second moment infinite and freezes the weight: clip."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from samebits.ops.adamw.arguments import check_memory, check_numbers, check_step, check_update
from samebits.ops.adamw.optimizer import AdamW
from samebits.ops.adamw.reference import Numbers
from samebits.ops.argument_types import checked
from samebits.ops.arguments import choose_backend
from samebits.ops.backends import kernel_module
from samebits.ops.registering import register

__all__ = ["AdamW", "adamw_"]


@checked
def adamw_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    master: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Step number `step` (from 1) of decoupled Adam, in place; returns param.

    The moments are float32, the gradient has the parameter's dtype or float32. With `master` (float32) that is the
    weight which is updated, and param becomes its rounding."""
    backend = choose_backend("adamw_", param, backend)
    check_step(step)
    check_numbers("adamw_", lr, beta1, beta2, eps, weight_decay)
    states = {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq} | ({} if master is None else {"master": master})
    check_update("adamw_", backend, param, grad, states)
    if not torch.compiler.is_compiling():
        check_memory({"param": param, "grad": grad, **states})
    torch.ops.samebits.adamw_(
        [param.detach()],
        [grad.detach()],
        [exp_avg],
        [exp_avg_sq],
        [] if master is None else [master],
        step,
        float(lr),
        float(beta1),
        float(beta2),
        float(eps),
        float(weight_decay),
        backend,
    )
    return param


_kernel = partial(kernel_module, __name__, "adamw_")


def _update(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    masters: Sequence[Tensor],
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    backend: str,
) -> None:
    kept = [index for index, param in enumerate(params) if param.numel()]
    if not kept:
        return
    written = [[each[index] for index in kept] for each in (params, exp_avgs, exp_avg_sqs, masters) if each]
    # Memory that does not lie in one piece is updated in a copy that does.
    whole = [[tensor.contiguous() for tensor in tensors] for tensors in written]
    numbers = Numbers.of(step, lr, beta1, beta2, eps, weight_decay)
    _kernel(backend, params[0].device).update(
        whole[0],
        [grads[index].contiguous() for index in kept],
        whole[1],
        whole[2],
        whole[3] if masters else [],
        numbers,
    )
    for tensor, value in zip(chain.from_iterable(written), chain.from_iterable(whole), strict=True):
        if value is not tensor:
            tensor.copy_(value)
    torch.autograd.graph.increment_version(chain.from_iterable(written))


def _update_fake(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    masters: Sequence[Tensor],
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    backend: str,
) -> None:
    return None


register(
    "adamw_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, Tensor(d!)[] masters,"
    " int step, float lr, float beta1, float beta2, float eps, float weight_decay, str backend) -> ()",
    run=_update,
    fake=_update_fake,
)
