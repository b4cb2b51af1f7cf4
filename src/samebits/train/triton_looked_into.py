"""Whether somebody wants to see single operators, or steps of the optimizer: nothing may stand in for them then.

Knows no pass and no update."""

from __future__ import annotations

from typing import Final

import torch
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optimizers

from samebits.native.launch_numbers import forced
from samebits.ops import registering
from samebits.ops._triton.launch import observed
from samebits.ops.adamw import AdamW

LEFT_BEHIND: Final = "samebits.invariant.escapes"


def looked_into() -> bool:
    """By a recording, by modes, hooks and profilers of torch; or with forced launches."""
    return bool(
        registering._around is not None
        or forced("launch") is not None
        or observed()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._is_torch_function_mode_enabled()
        or torch._C._autograd._profiler_enabled()
        or torch.is_anomaly_enabled()
        or _hooked()
    )


def _hooked() -> bool:
    """Whether somebody's function is called at every module. Those that a block in invariant mode leaves behind do
    nothing outside of such blocks."""
    kinds = (
        hooks._global_forward_pre_hooks,
        hooks._global_forward_hooks,
        hooks._global_backward_pre_hooks,
        hooks._global_backward_hooks,
    )
    return any(each.__module__ != LEFT_BEHIND for kind in kinds for each in kind.values())


def stepped_around(optimizer: AdamW) -> bool:
    """Whether somebody's function is called at its steps, or in their place."""
    kinds = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        optimizers._global_optimizer_pre_hooks,
        optimizers._global_optimizer_post_hooks,
    )
    return type(optimizer) is not AdamW or "step" in vars(optimizer) or any(kinds)
