"""What a call of an operator's Python function does on the device, seen while it is made: new memory and launches.

Nothing is assumed of the function. Operations of torch's are seen by a mode, launches by Python's own profiling hook,
and both in this thread alone. A call that does anything else, that reads a number or writes to memory of its own,
cannot be made again from what was seen, and Python makes it for good. Knows no operator."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.jit import JITFunction

from samebits.ops import registering
from samebits.ops._triton import launch as launching
from samebits.ops._triton.repeated import Bound, Repeated
from samebits.ops.contracts.host_launch.parameters import Asked, Numbers, UnrepeatableError, in_numbers

ALIGNMENT: Final = 16
"""As in arguments.hpp: launches may rest on new memory being aligned so."""
_EMPTY: Final = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    }
)
_RUN: Final = launching.run.__code__
_BY_TRITON: Final = JITFunction.run.__code__
_recording: Final = threading.Lock()
"""One thread at a time: the listener to launches is every thread's, and goes when a recording ends."""
_OTHERWISE: Final = frozenset(each.__code__ for each in (launching.run_again, Repeated.__call__, Bound.__call__))

Memory = tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]
"""Dtype, sizes, strides: as reading.hpp reads it."""
Facts = tuple[tuple[Memory, ...], tuple[Numbers, ...], int | tuple[int, ...]]
"""Memories, launches, and which memories the result is."""


@dataclass(slots=True)
class Seen:
    """Of one call."""

    new: list[Tensor] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    by_triton: int = 0
    otherwise: list[str] = field(default_factory=list)
    """What else it did."""


def record(
    function: Callable[..., Any], names: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Any, Facts | str | None]:
    """The function's result, with what C++ needs to make such a call, or why it cannot; None: not seen this time.

    Tensors go over as others with the same memory: two that share it are told apart by their storage."""
    # A check of values is left out while a graph is captured, and must not be left out for good.
    if sys.getprofile() is not None or torch.cuda.is_current_stream_capturing():
        return function(*given, **named), None
    if not _recording.acquire(blocking=False):
        return function(*given, **named), None
    try:
        return _recorded(function, names, given, named)
    finally:
        _recording.release()


def _recorded(
    function: Callable[..., Any], names: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Any, Facts | str]:
    places = [*range(len(given)), *(names.index(each) for each in named)]
    alone = [_alone(each) if isinstance(each, Tensor) else each for each in (*given, *named.values())]
    operands = {place: each for place, each in zip(places, alone, strict=True) if isinstance(each, Tensor)}
    seen = Seen()
    with _launches_seen(seen), Operations(seen):
        result = function(*alone[: len(given)], **dict(zip(named, alone[len(given) :], strict=True)))
    try:
        return result, facts_of(seen, operands, len(names), result)
    except UnrepeatableError as why:
        borrowed = {_storage(each) for each in operands.values()}
        if any(isinstance(each, Tensor) and _storage(each) in borrowed for each in tree_leaves(result)):
            # Such a storage keeps nothing alive: a result in it would outlive its numbers.
            result = function(*given, **named)
        return result, str(why)


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of torch's. Those of this library are entered, for what they do is to be seen as well."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "samebits":
            with self:
                return registering._runs[func._schema.name.partition("::")[2]](*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if func in _EMPTY:
            self.seen.new.append(result)
        elif func._schema.is_mutable or not _is_view((args, kwargs), result):
            self.seen.otherwise.append(str(func))
        return result


def _is_view(given: Any, result: Any) -> bool:
    """Whether an operation made nothing but views: some that may do so copy where they must."""
    known = {_storage(each) for each in tree_leaves(given) if isinstance(each, Tensor)}
    made = tree_leaves(result)
    return bool(made) and all(isinstance(each, Tensor) and _storage(each) in known for each in made)


def _ignored(_: Any) -> None:
    """A listener to launches, for whom those that are remembered elsewhere are made by `run` again."""


@contextmanager
def _launches_seen(seen: Seen) -> Iterator[None]:
    def called(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        if frame.f_code is _RUN:
            seen.asked.append(Asked(**frame.f_locals))
        elif frame.f_code is _BY_TRITON:
            seen.by_triton += 1
        elif frame.f_code in _OTHERWISE:
            seen.otherwise.append(f"a launch by {frame.f_code.co_qualname}")

    hooks = triton.knobs.runtime.launch_enter_hook
    hooks.add(_ignored)
    sys.setprofile(called)
    try:
        yield
    finally:
        sys.setprofile(None)
        hooks.remove(_ignored)


def _bytes(tensor: Tensor) -> int:
    """From its first number to its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size() if tensor.numel() else 0


def _alone(tensor: Tensor) -> Tensor:
    """The same numbers at the same address, in a storage of its own."""
    storage = torch._C._construct_storage_from_data_pointer(tensor.data_ptr(), tensor.device, _bytes(tensor))
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storage, 0, tensor.shape, tensor.stride())


def _storage(tensor: Tensor) -> int:
    """Names a tensor's memory."""
    return int(tensor.untyped_storage()._cdata)


def facts_of(seen: Seen, operands: Mapping[int, Tensor], arguments: int, result: Any) -> Facts:
    """What was seen, for reading.hpp."""
    if seen.otherwise:
        raise UnrepeatableError(f"Python's function does more than launch: {', '.join(sorted(set(seen.otherwise)))}")
    if len(seen.asked) != seen.by_triton or not seen.asked:
        raise UnrepeatableError(f"{seen.by_triton} launches by Triton, {len(seen.asked)} of them seen")
    sources = {_storage(each): (place, each) for place, each in operands.items()}
    sources |= {_storage(each): (arguments + place, each) for place, each in enumerate(seen.new)}

    def place(tensor: Tensor) -> tuple[int, int]:
        if _storage(tensor) not in sources:
            raise UnrepeatableError("a launch speaks of memory that is neither an argument's nor new")
        source, whole = sources[_storage(tensor)]
        return source, tensor.data_ptr() - whole.data_ptr()

    results = [result] if isinstance(result, Tensor) else list(result) if type(result) is tuple else []
    memories = [(each.dtype, tuple(each.shape), each.stride()) for each in seen.new]
    kept = []
    for each in results:
        source, offset = place(each) if isinstance(each, Tensor) else (0, 1)
        number = source - arguments
        if number < 0 or offset or number in kept or _bytes(each) != _bytes(seen.new[number]):
            raise UnrepeatableError("a result is not all of some new memory")
        memories[number] = (each.dtype, tuple(each.shape), each.stride())
        kept.append(number)
    if not kept:
        raise UnrepeatableError(f"the result is a {type(result).__name__}; known: a tensor, a tuple of tensors")
    if any(each.data_ptr() % ALIGNMENT or not math.prod(each.shape) for each in seen.new):
        raise UnrepeatableError("new memory is empty or not aligned")
    numbers = tuple(in_numbers(each, place) for each in seen.asked)
    return tuple(memories), numbers, kept[0] if isinstance(result, Tensor) else tuple(kept)
