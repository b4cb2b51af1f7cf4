"""AdamW as torch's optimizers are used: parameter groups, schedulers, state dicts. The bits are those of `adamw_`.

All tensors of one step number go to the kernel in one call, so that small ones cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import unwrap
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from samebits.ops.adamw.arguments import check_numbers, check_update
from samebits.ops.arguments import choose_backend

NAMES = ("params", "grads", "exp_avgs", "exp_avg_sqs", "masters")


class AdamW(torch.optim.Optimizer):
    """Adam with decoupled weight decay.

    Moments are float32 and start as zeros. With `master_weights` every 16-bit parameter has a float32 weight in the
    state; that one is updated, and the parameter is its rounding."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        master_weights: bool = False,
        backend: str | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "master_weights": master_weights,
            "backend": backend,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch does; hyperparameters are judged here, and at every step, since schedulers change them."""
        _numbers({**self.defaults, **param_group})
        # What torch wraps around it only keeps its compiler away, and imports that for it: seconds of every process.
        unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            numbers = _numbers(group)
            for (step, backend, *_), lists in self._calls(group).items():
                torch.ops.samebits.adamw_(*(lists[name] for name in NAMES), step, *numbers, backend)
        return loss

    def _calls(self, group: dict[str, Any]) -> dict[tuple[Any, ...], dict[str, list[Tensor]]]:
        """The tensors of a group, together where one call can take them; states are made at the first step."""
        calls: dict[tuple[Any, ...], dict[str, list[Tensor]]] = {}
        for param in group["params"]:
            if param.grad is None:
                continue
            backend = choose_backend("AdamW", param, group["backend"])
            state = self.state[param]
            if not state:
                state.update(_fresh(param, group["master_weights"]))
            tensors = {name: value for name, value in state.items() if name != "step"}
            check_update("AdamW", backend, param, param.grad, tensors)
            state["step"] += 1
            key = (state["step"], backend, param.device, "master" in state)
            lists = calls.setdefault(key, {name: [] for name in NAMES})
            lists["params"].append(param)
            lists["grads"].append(param.grad)
            lists["exp_avgs"].append(state["exp_avg"])
            lists["exp_avg_sqs"].append(state["exp_avg_sq"])
            if "master" in state:
                lists["masters"].append(state["master"])
        return calls

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch does, but states keep their float32: torch would round them to the parameter's dtype."""
        super().load_state_dict(state_dict)
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, param in zip(saved, params, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, Tensor):
                    self.state[param][name] = value.detach().to(param.device, copy=True)


def _numbers(group: dict[str, Any]) -> tuple[float, float, float, float, float]:
    """(lr, beta1, beta2, eps, weight_decay) of a group, each valid."""
    betas = group["betas"]
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise ValueError(f"AdamW: betas is {betas!r}; allowed: two numbers")
    numbers = (group["lr"], *betas, group["eps"], group["weight_decay"])
    check_numbers("AdamW", *numbers)
    lr, beta1, beta2, eps, weight_decay = map(float, numbers)
    return lr, beta1, beta2, eps, weight_decay


def _fresh(param: Tensor, master_weights: bool) -> dict[str, Any]:
    """The state before the first step: zeros, by construction and not by what the memory held."""
    wide = torch.float64 if param.dtype == torch.float64 else torch.float32
    zeros = {name: torch.zeros(param.shape, dtype=wide, device=param.device) for name in ("exp_avg", "exp_avg_sq")}
    master = {"master": param.detach().to(wide, copy=True)} if master_weights and param.dtype != wide else {}
    return {"step": 0, **zeros, **master}
