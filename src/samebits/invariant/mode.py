"""Invariant mode: sees every operation below autograd, forward and backward; routes, lets pass, or refuses it.

Knows the three tables and no operation by name. Torch keeps modes per thread, so other threads are left alone."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

from samebits.invariant.complex_numbers import PART_BY_PART, REASON, ROUTED_OF_COMPLEX, any_complex
from samebits.invariant.compound import CATCHING, REWRITTEN, WHOLE, innermost_mode, unseen
from samebits.invariant.escapes import install
from samebits.invariant.foreach import PREFIX, one_by_one, single
from samebits.invariant.harmless import (
    HARMLESS_IF,
    HARMLESS_LIBRARIES,
    HARMLESS_LISTS_OFF_CPU,
    HARMLESS_OF_OTHERS,
    HARMLESS_OFF_CPU,
)
from samebits.invariant.module_path import place, shapes
from samebits.invariant.operations import (
    NOTHING,
    Operation,
    base_of,
    is_compound,
    of_integers,
    on_cpu,
    operation_of,
    route_of,
    text_of,
)
from samebits.invariant.refused import (
    REASONS,
    REASONS_OF_LIBRARIES,
    UNKNOWN,
    InvariantError,
    InvariantWarning,
    RefusedError,
)
from samebits.invariant.routed import ROUTED, ROUTED_OF_OTHERS, ROUTED_ON_CPU
from samebits.invariant.weight_gradients import WeightGradients

COMPILED = (
    "invariant_mode: a function of torch.compile would run past invariant_mode; call the function that was compiled "
    "(model._orig_mod), or enter the mode outside of it"
)
OUTSIDE = "backward of a forward under invariant_mode was called outside of it; call backward inside the block"


def invariant_mode(*, strict: bool = True) -> InvariantMode:
    """`with invariant_mode() as mode:` an unmodified model keeps its bits, forward and backward.

    An operation that samebits cannot guarantee raises InvariantError; with strict=False it runs as it is and is listed
    in `mode.unverified`. `mode.routed` counts what samebits computed. Each call gives a new mode; modes nest."""
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
        self.unverified: Counter[str] = Counter()
        """Operations that ran as they are without a guarantee; empty while strict."""
        self._hooks: list[saved_tensors_hooks] = []
        self._gradients = WeightGradients(self._tell)
        self._whole: Any = None
        self._told: set[str] = set()

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
        install()
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
        operation, kwargs = operation_of(func), kwargs or {}
        node = torch._C._current_autograd_node()
        if node is not None:
            name = type(node).__name__  # that of the node itself, and quicker to ask for
            if name.startswith("CompiledFunction"):
                raise InvariantError(COMPILED)
            gradient = self._gradients.gone_on(name, operation, args, kwargs)
            if gradient is not None:
                return gradient
        if operation.moves or (operation.harmless and not any_complex(args)):
            return func(*args, **kwargs)  # most calls
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if operation.harmless_off_cpu and first is not None and first.is_cuda and not any_complex(args):
            return func(*args, **kwargs)
        if operation.routed and first is not None and first.is_floating_point():
            return self._run(ROUTED[operation.routed], operation, args, kwargs)
        return self._decide(func, args, kwargs)

    def _decide(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What is not harmless at a glance."""
        operation = operation_of(func)
        name, in_place = operation.name, operation.in_place
        if func.namespace != "aten":
            return self._of_another_library(func, args, kwargs)
        if name in REWRITTEN and "out" in kwargs:
            return self._refuse(func, args, kwargs, "its form with out= is not offered; use what it returns")
        if name in REWRITTEN:
            with _Reentered(self):
                return REWRITTEN[name](*args, **kwargs)
        if name in WHOLE:
            return self.run_whole(func, WHOLE[name], args, kwargs, self._taken_apart)
        if not operation.moves and any_complex(args):
            return self._of_complex_numbers(func, args, kwargs)
        if name in HARMLESS_IF and HARMLESS_IF[name](args, kwargs):
            return func(*args, **kwargs)
        exact = of_integers(func, args, kwargs)
        if exact is not NOTHING:
            return exact
        if name.startswith(PREFIX) and not (name in HARMLESS_LISTS_OFF_CPU and not on_cpu(args, kwargs)):
            return self._one_by_one(func, name, in_place, args, kwargs)
        if name not in REASONS and is_compound(func) and func is not self._whole:
            return self._taken_apart(func, args, kwargs)
        route = route_of(name, in_place, args, kwargs)
        if route is not None:
            return self._run(route, operation, args, kwargs)
        if (
            name in HARMLESS_OFF_CPU or name in HARMLESS_LISTS_OFF_CPU or base_of(name, in_place) in ROUTED_ON_CPU
        ) and not on_cpu(args, kwargs):
            return func(*args, **kwargs)
        return self._refuse(func, args, kwargs, REASONS.get(name, UNKNOWN))

    def _of_complex_numbers(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operation = operation_of(func)
        name, in_place = operation.name, operation.in_place
        route = ROUTED_OF_COMPLEX.get(base_of(name, in_place))
        by_part = name in PART_BY_PART and (name not in HARMLESS_IF or HARMLESS_IF[name](args, kwargs))
        if by_part or (route is not None and not on_cpu(args, kwargs)):
            return func(*args, **kwargs)
        if route is not None:
            return self._run(route, operation, args, kwargs)
        if name not in REASONS and is_compound(func):
            return self._taken_apart(func, args, kwargs)
        return self._refuse(func, args, kwargs, REASON)

    def _of_another_library(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.namespace in HARMLESS_LIBRARIES or func._schema.name in HARMLESS_OF_OTHERS:
            return func(*args, **kwargs)
        route = ROUTED_OF_OTHERS.get(func._schema.name)
        if route is not None:
            return self._run(route, operation_of(func), args, kwargs)
        return self._refuse(func, args, kwargs, REASONS_OF_LIBRARIES.get(func.namespace, UNKNOWN))

    def _one_by_one(self, func: Any, name: str, in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if single(name) is None:
            return self._refuse(func, args, kwargs, UNKNOWN)
        with _Reentered(self):
            results = one_by_one(func, name, args, kwargs)
        return None if in_place else results

    def _run(
        self, route: Callable[..., Any], operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The route's result, written where an in-place or `out` form wants it."""
        func, out = operation.func, kwargs.get("out")
        given = kwargs if out is None else {name: value for name, value in kwargs.items() if name != "out"}
        try:
            result = route(*args, **given)
        except RefusedError as refused:
            return self._refuse(func, args, kwargs, str(refused))
        except TypeError as unknown:  # an overload with arguments that the route does not have
            return self._refuse(func, args, kwargs, f"this form of it is not offered: {unknown}")
        self.routed[operation.text] += 1
        if operation.in_place:
            return args[0].copy_(result)
        if out is not None:
            return out.resize_(result.shape).copy_(result)
        if torch._C._current_autograd_node() is not None:
            self._gradients.remember(operation.name, result, args)
        return result

    def run_whole(
        self,
        func: Any,
        route: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        otherwise: Callable[..., Any],
    ) -> Any:
        """A compound operation that was caught before torch took it apart, which is what `otherwise` does."""
        try:
            result = route(*args, **kwargs)
        except RefusedError as refused:
            self._record(func, args, kwargs, str(refused))
            return otherwise(func, args, kwargs)
        self.routed[text_of(func)] += 1
        return result

    @contextmanager
    def whole(self, func: Any) -> Iterator[None]:
        """Within the block an operation that torch could take apart is routed as it is."""
        before, self._whole = self._whole, func
        try:
            yield
        finally:
            self._whole = before

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
        self.unverified[text_of(func)] += 1

    def _tell(self, text: str) -> None:
        """Once a block."""
        if text.split(" (")[0] not in self._told:
            self._told.add(text.split(" (")[0])
            warnings.warn(text, InvariantWarning, stacklevel=2)

    def _pack(self, tensor: Tensor) -> tuple[Tensor, int]:
        """Without its place in the graph, which torch puts back: an operation that saves its own result would else
        keep itself alive where backward is never called, and no garbage collector could tell."""
        if not tensor.is_leaf:
            with unseen(tensor):
                tensor = tensor.detach()
        return tensor, tensor._version

    def _unpack(self, packed: tuple[Tensor, int]) -> Tensor:
        """Called by backward, which must find a mode where it runs."""
        tensor, version = packed
        if tensor._version != version:
            raise RuntimeError(
                f"a tensor of shape {list(tensor.shape)} that backward needs was modified in place: it is at version"
                f" {tensor._version}, {version} was saved"
            )
        self.check_backward()
        return tensor

    def check_backward(self) -> None:
        """Refuses, or lists, a backward that runs without a mode over a forward that ran in this one."""
        if innermost_mode() is None:
            self.escape("backward outside the block", OUTSIDE)

    def escape(self, what: str, why: str) -> None:
        """Something would run past the mode: raises, or lists it."""
        if self.strict:
            raise InvariantError(f"invariant_mode: {why}")
        self.unverified[what] += 1

    def another(self) -> InvariantMode:
        """A mode like this one for another thread, with the same counts."""
        mode = InvariantMode(strict=self.strict)
        mode.routed, mode.unverified = self.routed, self.unverified
        return mode


class _Reentered:
    """A mode switched on again inside itself, for what a compound operation is made of."""

    def __init__(self, mode: InvariantMode) -> None:
        self._mode = mode

    def __enter__(self) -> None:
        TorchDispatchMode.__enter__(self._mode)  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        TorchDispatchMode.__exit__(self._mode, *error)  # type: ignore[no-untyped-call]


# While a compiled function runs, torch asks its compiler about every Python frame, and what the frame sees is what the
# compiler pretends. These two must see the truth: that there is a compiler at work.
for _function in (InvariantMode.__enter__, InvariantMode.__torch_dispatch__):
    set_code_exec_strategy(_function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT))
