"""Every module's forward pass as a span of the granularity "block", with a sample of what it gives.

Works on any `torch.nn.Module`: hooks of torch, for as long as the block lasts. Knows no model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from samebits.trace.building import recorder
from samebits.trace.drift import Sampled

# Elements of a tensor that a sample looks at.
SAMPLE: Final = 1024


def sampled(tensor: Tensor, count: int = SAMPLE) -> Sampled:
    """Of up to `count` elements at equal distances; of all where those are zeros: they may be one column of many."""
    flat = tensor.detach().reshape(-1)
    taken = flat[:: max(1, -(-flat.numel() // count))].float() if flat.numel() else flat.float()
    if len(taken) < flat.numel() and not taken.any():
        taken = flat.float()
    finite = taken.isfinite()
    bad, zeros = (int(each) for each in torch.stack(((~finite).sum(), (taken == 0).sum())).tolist())
    largest = float(taken[finite].abs().max()) if bad < len(taken) else 0.0
    return Sampled(not_finite=bad, zeros=zeros, elements=len(taken), largest=largest)


@contextmanager
def modules_as_spans(*, samples: bool = False) -> Iterator[None]:
    """Within the block every call of a module is a span, named by its place in the outermost module that was called.

    `samples`: whether a sample of each output is told; a GPU is waited for then."""
    calls = recorder().Modules(_named, _kind, _ended, samples)
    handles = [
        register_module_forward_pre_hook(calls.before),
        register_module_forward_hook(calls.after, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _named(outermost: nn.Module) -> dict[int, Any]:
    """What a call of each module in this one is, by `id`."""
    return {id(each): _block(name, type(each).__name__) for name, each in outermost.named_modules()}


def _kind(module: nn.Module) -> Any:
    """What a call of a module is that lies in none."""
    return _block("", type(module).__name__)


@lru_cache(maxsize=4096)
def _block(name: str, of_type: str) -> Any:
    return recorder().Kind(name or of_type, "block", MappingProxyType({"kind": of_type}))


def _ended(kind: Any, output: Any, error: type[BaseException] | None) -> Any:
    """What this call is, with a sample of what it gave, or with its error."""
    facts = dict(kind.facts)
    if isinstance(output, Tensor):
        sample = sampled(output)
        facts.update(not_finite=sample.not_finite, largest=sample.largest)
    if error is not None:
        facts["error"] = error.__name__
    return recorder().Kind(kind.name, kind.granularity, facts)
