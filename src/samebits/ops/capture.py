"""The calls that a function made, as a list that can be made again: what a CUDA graph is, for the CPU.

`capture` runs a function once and keeps every kernel and every tensor operation that it called, with their arguments,
on memory that stays. `Capture.replay` calls them again: the same kernels in the same order on whatever the tensors that
the function read hold by then, so the same bits, without the Python around them. What differs from call to call must
therefore be in tensors that are written in place. Shapes, and numbers that the function read out of tensors on its way
(to check a range, say), stay those of the first run. Knows no model."""

from __future__ import annotations

import ctypes
import weakref
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from samebits import native
from samebits.ops._cpu import count, launch_numbers, overhearing

Returned = TypeVar("Returned")
_aten = torch.ops.aten
# What gives memory and no numbers; what makes a tensor of Python's numbers.
_EMPTY: Final = (_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default)
_FROM_NUMBERS: Final = (_aten.lift_fresh.default, _aten.detach_.default)
_CPU: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class Arena:
    """Memory for what kernels hand to each other; what nobody holds any more is given out again.

    Several captures may share one, if only one of them runs at a time."""

    def __init__(self) -> None:
        self._free: dict[int, list[Tensor]] = {}
        self._blocks: dict[int, Tensor] = {}
        self._holders: Counter[int] = Counter()

    @property
    def bytes(self) -> int:
        return sum(block.numel() for block in self._blocks.values())

    def owns(self, tensor: Tensor) -> bool:
        return _storage(tensor) in self._blocks

    def empty_like(self, made: Tensor) -> Tensor:
        """Memory for a tensor of that shape, dtype and strides."""
        size = max(64, 1 << (made.untyped_storage().nbytes() - 1).bit_length())
        waiting = self._free.setdefault(size, [])
        block = waiting.pop() if waiting else torch.empty(size, dtype=torch.uint8)
        self._blocks[_storage(block)] = block
        return self.hold(block.view(made.dtype).as_strided(made.shape, made.stride()))

    def hold(self, tensor: Tensor) -> Tensor:
        """The same tensor; its block is not given out again while somebody has it."""
        place = _storage(tensor)
        self._holders[place] += 1
        weakref.finalize(tensor, self._let_go, place).atexit = False
        return tensor

    def _let_go(self, place: int) -> None:
        self._holders[place] -= 1
        if not self._holders[place]:
            self._free[self._blocks[place].numel()].append(self._blocks[place])


@dataclass(frozen=True, slots=True)
class _Call:
    """One entry of the list."""

    function: Callable[..., Any] | None
    """None: a native kernel, which is looked up when it is known on which instruction set it runs."""
    arguments: tuple[Any, ...]
    kernel: tuple[str, str] = ("", "")
    """Its name and signature."""
    made: tuple[Tensor, ...] = ()
    """What is written by this call and read only by later ones: where none does, the call is left out."""

    def reads(self) -> Iterator[int]:
        """Addresses among the arguments, and numbers that happen to look like one."""
        for each in tree_leaves(self.arguments):
            if isinstance(each, Tensor):
                yield _storage(each)
            elif isinstance(each, ctypes.Array):
                yield from (number for number in each if isinstance(number, int))
            elif isinstance(each, int):
                yield each


class Capture(Generic[Returned]):
    """Calls on memory that stays, and what the function returned: the same tensors after every `replay`."""

    def __init__(self, calls: list[_Call], alive: list[Any], returned: Returned) -> None:
        self._calls, self._alive, self.returned = calls, alive, returned
        self._kernels = Counter(call.kernel[0] for call in calls if call.function is None)
        self._bound: dict[tuple[int, str | None], list[tuple[Callable[..., Any], tuple[Any, ...], str]]] = {}

    def replay(self) -> Returned:
        """What the function would return now, in the tensors that it returned the first time."""
        launch = launch_numbers()
        if launch not in self._bound:
            self._bound[launch] = [_bind(call, *launch) for call in self._calls]
        count(self._kernels, launch[1])
        with torch.no_grad():
            for function, arguments, kernel in self._bound[launch]:
                status = function(*arguments)
                if kernel and status:
                    native.check(kernel, status)
        return self.returned


def capture(function: Callable[[], Returned], arena: Arena | None = None) -> Capture[Returned]:
    """Run the function once, without gradients, and keep the calls that it made. What it returns is kept as well."""
    recording = _Recording(Arena() if arena is None else arena)
    with torch.no_grad(), overhearing(recording.kernel), recording:
        returned = function()
    return Capture(_needed(recording.calls, returned), recording.alive, returned)


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of torch while the function runs, and is told of every kernel."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in here; to say so at the first call, torch would import its compiler: seconds."""
        return False

    def __init__(self, arena: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[_Call] = []
        self.alive: list[Any] = []
        self._arena = arena
        # Memory that holds the same numbers in every run.
        self._constant: set[int] = set()

    def kernel(self, name: str, signature: str, arguments: tuple[Any, ...]) -> None:
        self.calls.append(_Call(None, arguments, kernel=(name, signature)))

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        written = _written(function, args, kwargs)
        self._check(function, given, written)
        self.alive.extend(each for each in given if not self._arena.owns(each))
        if function.namespace == "samebits":
            # Its own Python, in which kernels and memory are asked for, is listened to as well.
            with self:
                return function.redispatch(_CPU, *args, **kwargs)
        with self:
            parts = function.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        # Names of the same memory that do not keep it from being given out again.
        arguments = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        found = self._operation(function, given, *arguments)
        return found if not written else written[0] if len(written) == 1 else tuple(written)

    def _operation(self, function: Any, given: list[Tensor], args: Any, kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        made = tuple(each for each in tree_leaves(found) if isinstance(each, Tensor))
        if function in _EMPTY:
            return self._arena.empty_like(found)
        if function in _FROM_NUMBERS:
            self._constant.update(map(_storage, made))
        elif function._schema.is_mutable:
            self.calls.append(_Call(_again, (function, args, kwargs)) if kwargs else _Call(function, tuple(args)))
            return found
        elif not function.is_view and not given:
            template = tuple(each.clone() for each in made)
            self.calls.append(_Call(_put_back, (made, template), made=made))
        elif not function.is_view and made and all(_storage(each) in self._constant for each in given):
            self._constant.update(map(_storage, made))
        elif not function.is_view and made:
            self.calls.append(_Call(_make_again, (made, function, args, kwargs), made=made))
        return self._known(found, made)

    def _known(self, found: Any, made: tuple[Tensor, ...]) -> Any:
        """What an operation returned: alive as long as its calls, or a name more for memory of the arena."""
        for each in made:
            if self._arena.owns(each):
                self._arena.hold(each)
            else:
                self.alive.append(each)
        return found

    def _check(self, function: Any, given: list[Tensor], written: list[Tensor]) -> None:
        for each in given:
            if each.device.type != "cpu":
                raise ValueError(f"capture: {function} has a tensor on {each.device}; allowed: on the CPU")
        if function not in _FROM_NUMBERS and any(_storage(each) in self._constant for each in written):
            raise ValueError(f"capture: {function} writes into a constant; allowed: into memory of the pass")


def _written(function: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The arguments that an operation writes into."""
    named = [each for each in function._schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    places = {each.name: place for place, each in enumerate(function._schema.arguments)}
    return [args[places[each.name]] if places[each.name] < len(args) else kwargs[each.name] for each in named]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _again(function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    function(*args, **kwargs)


def _put_back(made: tuple[Tensor, ...], template: tuple[Tensor, ...]) -> None:
    """What was made from no tensor, before kernels wrote into it."""
    for old, new in zip(made, template, strict=True):
        old.copy_(new)


def _make_again(made: tuple[Tensor, ...], function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """The result of an operation, where it was made the first time."""
    _put_back(made, tuple(tree_leaves(function(*args, **kwargs))))


def _needed(calls: list[_Call], returned: Any) -> list[_Call]:
    """Without the operations whose results nobody reads: those of checks."""
    read = sorted(_storage(each) for each in tree_leaves(returned) if isinstance(each, Tensor))
    kept = []
    for call in reversed(calls):
        if call.made and not any(_is_read(each, read) for each in call.made):
            continue
        kept.append(call)
        for address in call.reads():
            insort(read, address)
    return kept[::-1]


def _is_read(made: Tensor, addresses: list[int]) -> bool:
    """Whether one of the sorted addresses is in the tensor's memory."""
    start = _storage(made)
    place = bisect_left(addresses, start)
    return place < len(addresses) and addresses[place] < start + max(1, made.untyped_storage().nbytes())


def _bind(call: _Call, threads: int, instruction_set: str | None) -> tuple[Callable[..., Any], tuple[Any, ...], str]:
    if call.function is not None:
        return call.function, call.arguments, ""
    name, signature = call.kernel
    return native.function(name, signature, instruction_set), (*call.arguments, threads), name
