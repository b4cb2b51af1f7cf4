"""Ways around the mode that torch gives it no sight of, each guarded at its entrance: kept, refused, or said aloud.

A thread or a pool's task that a block starts runs in the mode. Compiled packages, TorchScript and replayed graphs are
refused in a block. Hooks on saved tensors that are pushed in a block are wrapped, so that a backward outside of it is
refused with them too. Installed once, by the first block; outside of blocks the guards do nothing."""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread
import sys
import threading
import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Final

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from samebits.invariant import recognised
from samebits.invariant.compound import CATCHING, innermost_mode
from samebits.invariant.longest_sequence import reason_of_rotation
from samebits.invariant.refused import InvariantWarning, reason_of_model

PACKAGE = "an AOTInductor package runs past invariant_mode; call the model that was compiled"
SCRIPT = "TorchScript fuses operations past invariant_mode; call the function or module that was scripted"
REPLAY = "a CUDA graph replays what it recorded; record it in the block, and replay it after the block"
FOREIGN = (
    "invariant_mode: {module} is called in thread {thread!r} while a block is open in another thread, and torch's modes"
    " are a thread's own: it runs without the mode; write `with invariant_mode():` in that thread too"
)


def _entrances() -> list[tuple[Any, str, str]]:
    """(class, method, why it is refused); what this build of torch does not have is left out."""
    aoti = getattr(torch._C, "_aoti", None)
    runners = [getattr(aoti, name) for name in dir(aoti) if name.startswith("AOTIModel")] if aoti is not None else []
    wanted = [(runner, method, PACKAGE) for runner in runners for method in ("run", "boxed_run")]
    wanted += [(getattr(torch._C, name, None), "__call__", SCRIPT) for name in ("ScriptFunction", "ScriptMethod")]
    wanted += [(torch.cuda.CUDAGraph, "replay", REPLAY)]
    return [(owner, method, why) for owner, method, why in wanted if owner is not None and hasattr(owner, method)]


def _refuse_in_blocks(owner: Any, method: str, why: str) -> None:
    original = getattr(owner, method)

    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        mode = innermost_mode()
        if mode is not None:
            mode.escape(f"{owner.__name__}.{method}", why)
        return original(self, *args, **kwargs)

    guarded.__name__ = method
    setattr(owner, method, guarded)


def _in_the_mode_of(mode: Any, work: Callable[..., Any]) -> Callable[..., Any]:
    """The work in a mode like that one, whose counts it shares."""

    @wraps(work)
    def run(*args: Any, **kwargs: Any) -> Any:
        with mode.another():
            return work(*args, **kwargs)

    return run


def _hand_on_to_threads() -> None:
    start, submit = threading.Thread.start, concurrent.futures.ThreadPoolExecutor.submit
    pool_worker = getattr(concurrent.futures.thread, "_worker", None)

    def start_in_mode(self: threading.Thread) -> None:
        mode = innermost_mode()
        # A pool's threads outlive the block; its tasks are handed on one by one.
        if mode is not None and getattr(self, "_target", None) is not pool_worker:
            self.run = _in_the_mode_of(mode, self.run)  # type: ignore[method-assign]
        start(self)

    def submit_in_mode(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        mode = innermost_mode()
        return submit(self, fn if mode is None else _in_the_mode_of(mode, fn), *args, **kwargs)

    threading.Thread.start = start_in_mode  # type: ignore[method-assign]
    concurrent.futures.ThreadPoolExecutor.submit = submit_in_mode  # type: ignore[method-assign]


def _guard_hooks_on_saved_tensors() -> None:
    enter = saved_tensors_hooks.__enter__

    def enter_guarded(self: saved_tensors_hooks) -> None:
        mode = innermost_mode()
        if mode is None or getattr(self.unpack_hook, "is_guarded", False):
            enter(self)
            return
        unpack = self.unpack_hook

        def guarded(packed: Any) -> Any:
            mode.check_backward()
            return unpack(packed)

        guarded.is_guarded = True  # type: ignore[attr-defined]
        self.unpack_hook = guarded
        enter(self)

    saved_tensors_hooks.__enter__ = enter_guarded  # type: ignore[method-assign]


_TOLD: Final[set[int]] = set()


def _meet_module(module: nn.Module, _: Any) -> None:
    """Called before every module: refuses one whose own numbers change, and names one that runs past the mode."""
    # A compiler traces this hook too, and cannot follow it into threads.
    if torch.compiler.is_compiling() or not CATCHING.any_open():
        return
    mode, name = innermost_mode(), type(module).__name__
    if mode is not None and "transformers" in sys.modules:
        # It may have been loaded after the block began.
        from samebits.invariant.transformers import register

        register()
    if mode is None:
        _tell_foreign_thread(name)
    elif why := reason_of_model(name):
        mode.escape(name, why)


def _leave_module(module: nn.Module, _: Any, __: Any) -> None:
    """Called after every module, for a rotation chooses its frequencies while it runs."""
    if torch.compiler.is_compiling() or not CATCHING.any_open():
        return
    mode = innermost_mode()
    if mode is not None and (why := reason_of_rotation(module)):
        mode.escape(type(module).__name__, why)


def _tell_foreign_thread(module: str) -> None:
    """Torch has no hook for a thread that was there before the block: a module that is called there is named, once."""
    thread = threading.current_thread()
    if thread.ident not in _TOLD:
        _TOLD.add(thread.ident or 0)
        warnings.warn(FOREIGN.format(module=module, thread=thread.name), InvariantWarning, stacklevel=3)


@cache
def install() -> None:
    """Idempotent; a thread-safe call of the first block."""
    for owner, method, why in _entrances():
        _refuse_in_blocks(owner, method, why)
    _hand_on_to_threads()
    _guard_hooks_on_saved_tensors()
    nn.modules.module.register_module_forward_pre_hook(_meet_module)
    nn.modules.module.register_module_forward_hook(_leave_module)
    recognised.install()
