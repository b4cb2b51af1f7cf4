"""Every module's forward pass as a span of the granularity "block", with a sample of what it gives.

Works on any `torch.nn.Module`: hooks of torch, for as long as the block lasts. Knows no model."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from samebits.trace.drift import Sampled
from samebits.trace.spans import span

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


class _Thread(threading.local):
    """The calls of modules that are under way in one thread, and the names of what the outermost holds."""

    def __init__(self) -> None:
        self.opened: list[tuple[nn.Module, Any, BaseException | None]] = []
        self.names: dict[int, str] = {}


@contextmanager
def modules_as_spans(*, samples: bool = False) -> Iterator[None]:
    """Within the block every call of a module is a span, named by its place in the outermost module that was called.

    `samples`: whether a sample of each output is told; a GPU is waited for then."""
    threads = _Thread()

    def before(module: nn.Module, _: Any) -> None:
        opened, names = threads.opened, threads.names
        if not opened:
            names.clear()
            names.update({id(each): name for name, each in module.named_modules()})
        found = span(names.get(id(module)) or type(module).__name__, "block", kind=type(module).__name__)
        opened.append((module, found, sys.exc_info()[1]))
        found.__enter__()

    def after(module: nn.Module, _: Any, output: Any) -> None:
        opened = threads.opened
        # A call that began before this block has none; one that an interrupt cut off ends with the call around it.
        while any(each is module for each, _, _ in opened):
            ended, found, error_before = opened.pop()
            if samples and ended is module and isinstance(output, Tensor) and hasattr(found, "add"):
                sample = sampled(output)
                found.add(not_finite=sample.not_finite, largest=sample.largest)
            error = sys.exc_info()[1] if output is None else None
            failed = error is not None and error is not error_before
            found.__exit__(type(error) if failed else None, None, None)
            if ended is module:
                return

    handles = [register_module_forward_pre_hook(before), register_module_forward_hook(after, always_call=True)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
