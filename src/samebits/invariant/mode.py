"""Invariant mode: sees every operation below autograd, forward and backward; routes, lets pass, or refuses it.

Knows the three tables and no operation by name. Torch keeps modes per thread, so other threads are left alone."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    get_eval_frame_callback,
    set_code_exec_strategy,
)
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from samebits.invariant.harmless import HARMLESS, HARMLESS_IF, HARMLESS_LIBRARIES, HARMLESS_OFF_CPU, tensors_in
from samebits.invariant.place import place, shapes
from samebits.invariant.refused import REASONS, UNKNOWN, InvariantError, RefusedError
from samebits.invariant.resuming import Chains
from samebits.invariant.routed import RESUMED, ROUTED, ROUTED_ON_CPU
from samebits.invariant.whole import CATCHING, WHOLE, innermost_mode

COMPILED = (
    "invariant_mode: a function of torch.compile would run past invariant_mode; call the function that was compiled "
    "(model._orig_mod), or enter the mode outside of it"
)
FROM_INTEGERS_TO_FLOATS = (ROUTED_ON_CPU.keys() | {"mean", "logsumexp"}) - {"add", "sub", "pow"}
OUTSIDE = "backward of a forward under invariant_mode was called outside of it; call backward inside the block"


def invariant_mode(*, strict: bool = True) -> InvariantMode:
    """`with invariant_mode() as mode:` an unmodified model keeps its bits, forward and backward.

    An operation that nobody can vouch for raises InvariantError; with strict=False it runs as it is and is listed in
    `mode.unvouched`. `mode.routed` counts what samebits computed. Each call gives a new mode; modes nest."""
    return InvariantMode(strict=strict)


class InvariantMode(TorchDispatchMode):
    """One block of invariant mode, and what it saw."""

    is_invariant_mode = True

    def __init__(self, *, strict: bool = True) -> None:
        if not isinstance(strict, bool):
            raise ValueError(f"invariant_mode: strict is {strict!r}; allowed: True, False")
        super().__init__()  # type: ignore[no-untyped-call]
        self.strict = strict
        self.routed: Counter[str] = Counter()
        """Operations that samebits computed, with their number."""
        self.unvouched: Counter[str] = Counter()
        """Operations that ran as they are though nobody vouches for them; empty while strict."""
        self._hooks: list[saved_tensors_hooks] = []
        self._chains = Chains()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would else hide that a compiled function is calling: see the end of this file."""
        return False

    def __enter__(self) -> InvariantMode:
        if get_eval_frame_callback() is not None:
            raise InvariantError(COMPILED)
        if "transformers" in sys.modules:
            from samebits.invariant.transformers import register

            register()
        hooks = saved_tensors_hooks(self._pack, self._unpack)
        hooks.__enter__()
        self._hooks.append(hooks)
        CATCHING.start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        CATCHING.stop()
        self._hooks.pop().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if get_eval_frame_callback() is not None:
            raise InvariantError(COMPILED)
        return self._decide(func, args, kwargs or {})

    def _decide(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        node = _gradient()
        if node.startswith("CompiledFunction"):
            raise InvariantError(COMPILED)
        name, in_place = _name(func)
        if in_place and node:
            if name == "add_" and node.endswith("AccumulateGrad") and self._chains.go_on(args[0], args[1]):
                return args[0]
            self._chains.forget(args[0])
        if func.namespace != "aten":
            known = func.namespace in HARMLESS_LIBRARIES
            return func(*args, **kwargs) if known else self._refuse(func, args, kwargs, UNKNOWN)
        if name in WHOLE:
            return self.run_whole(func, WHOLE[name], args, kwargs, self._taken_apart)
        if name in HARMLESS:
            return func(*args, **kwargs)
        if name in HARMLESS_IF and HARMLESS_IF[name](args, kwargs):
            return func(*args, **kwargs)
        if _is_exact(func, args, kwargs):
            return func(*args, **kwargs)
        if name not in REASONS and func._can_decompose():
            return self._taken_apart(func, args, kwargs)
        route = _route(name, in_place, args, kwargs)
        if route is not None:
            return self._run(route, func, in_place, args, kwargs)
        if (name in HARMLESS_OFF_CPU or _base(name, in_place) in ROUTED_ON_CPU) and not _on_cpu(args, kwargs):
            return func(*args, **kwargs)
        return self._refuse(func, args, kwargs, REASONS.get(name, UNKNOWN))

    def _run(self, route: Callable[..., Any], func: Any, in_place: bool, args: tuple[Any, ...],
             kwargs: dict[str, Any]) -> Any:  # fmt: skip
        """The route's result, written where an in-place or `out` form wants it."""
        out = kwargs.get("out")
        try:
            result = route(*args, **{name: value for name, value in kwargs.items() if name != "out"})
        except RefusedError as refused:
            return self._refuse(func, args, kwargs, str(refused))
        except TypeError as unknown:  # an overload with arguments that the route does not have
            return self._refuse(func, args, kwargs, f"this form of it is not offered: {unknown}")
        self.routed[str(func)] += 1
        if in_place:
            return args[0].copy_(result)
        if out is not None:
            return out.resize_(result.shape).copy_(result)
        name = _name(func)[0]
        if name in RESUMED and _gradient():
            self._chains.remember(result, lambda accumulator: RESUMED[name](accumulator, *args))
        return result

    def run_whole(self, func: Any, route: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
                  otherwise: Callable[..., Any]) -> Any:  # fmt: skip
        """A compound operation that was caught before torch took it apart, which is what `otherwise` does."""
        try:
            result = route(*args, **kwargs)
        except RefusedError as refused:
            self._record(func, args, kwargs, str(refused))
            return otherwise(func, args, kwargs)
        self.routed[str(func)] += 1
        return result

    def _taken_apart(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a compound operation is made of is decided on one by one."""
        with _Reentered(self):
            return func.decompose(*args, **kwargs)

    def _refuse(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> Any:
        self._record(func, args, kwargs, why)
        return func(*args, **kwargs)

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> None:
        """Raises, or lists what runs as it is."""
        if self.strict:
            where = place()
            raise InvariantError(
                f"invariant_mode: {func} of {shapes((args, kwargs))}{f' {where}' if where else ''} is refused: {why}"
            )
        self.unvouched[str(func)] += 1

    def _pack(self, tensor: Tensor) -> tuple[Tensor, int]:
        return tensor, tensor._version

    def _unpack(self, packed: tuple[Tensor, int]) -> Tensor:
        """Called by backward, which must find a mode where it runs."""
        tensor, version = packed
        if tensor._version != version:
            raise RuntimeError(
                f"a tensor of shape {list(tensor.shape)} that backward needs was modified in place: it is at version"
                f" {tensor._version}, {version} was saved"
            )
        if innermost_mode() is None:
            if self.strict:
                raise InvariantError(f"invariant_mode: {OUTSIDE}")
            self.unvouched["backward outside the block"] += 1
        return tensor


class _Reentered:
    """A mode switched on again inside itself, for what a compound operation is made of."""

    def __init__(self, mode: InvariantMode) -> None:
        self._mode = mode

    def __enter__(self) -> None:
        TorchDispatchMode.__enter__(self._mode)  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        TorchDispatchMode.__exit__(self._mode, *error)  # type: ignore[no-untyped-call]


@cache
def _name(func: Any) -> tuple[str, bool]:
    """(name without namespace, whether it is an in-place form)."""
    name = func._schema.name.split("::")[1]
    return name, name.endswith("_") and not name.endswith("__") and func._schema.is_mutable


def _route(name: str, in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    base = _base(name, in_place)
    route = ROUTED.get(base)
    if route is None and _on_cpu(args, kwargs):
        route = ROUTED_ON_CPU.get(base)
    return route


def _base(name: str, in_place: bool) -> str:
    """The operation that an in-place form is the form of."""
    return name[:-1] if in_place else name


def _on_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return all(tensor.device.type == "cpu" for tensor in tensors_in((args, kwargs)))


def _is_exact(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Integers in and integers out: every order gives the same. Random numbers are no sums of anything."""
    given, dtype = list(tensors_in((args, kwargs))), kwargs.get("dtype")
    if not given or any(each.is_floating_point() or each.is_complex() for each in given):
        return False
    if dtype is not None and (dtype.is_floating_point or dtype.is_complex):
        return False
    return torch.Tag.nondeterministic_seeded not in func.tags and _name(func)[0] not in FROM_INTEGERS_TO_FLOATS


def _gradient() -> str:
    """The name of the backward function that is running, or ""."""
    node = torch._C._current_autograd_node()
    return node.name() if node is not None else ""


# While a compiled function runs, torch asks its compiler about every Python frame, and what the frame sees is what the
# compiler pretends. These two must see the truth: that there is a compiler at work.
for _function in (InvariantMode.__enter__, InvariantMode.__torch_dispatch__):
    set_code_exec_strategy(_function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT))
