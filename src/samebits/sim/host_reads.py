"""Host reads: the closed list of tensor methods that look at values, each of which waits for its tensor's last writer.

Only that writer, found by the tensor's memory (a view shares its base's): other work stays pending, and other ranks may
run meanwhile. Draining everything instead would end other groups' collectives early, and deadlock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from samebits.sim.engine import Handle
from samebits.sim.rank import current

# Methods and properties of torch.Tensor whose result, or effect outside of tensors, depends on values.
HOST_READS: Final = frozenset(
    {
        "numpy",
        "data",
        "__getitem__",
        "__repr__",
        "__str__",
        "__format__",
        "copy_",
        "item",
        "tolist",
        "__array__",
        "__bool__",
        "__int__",
        "__float__",
        "__complex__",
        "__index__",
        "__iter__",
        "__contains__",
        "__dlpack__",
        "cpu",
        "to",
        "type",
        "untyped_storage",
        "storage",
        "_typed_storage",
        "data_ptr",
        "__reduce_ex__",
        "__reduce__",
        "__deepcopy__",
        "__copy__",
        "__setstate__",
        "share_memory_",
        "__eq__",
        "__ne__",
        "__lt__",
        "__le__",
        "__gt__",
        "__ge__",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "equal",
        "not_equal",
        "less",
        "less_equal",
        "greater",
        "greater_equal",
        "isclose",
        "allclose",
        "is_nonzero",
        "nonzero",
        "argwhere",
        "unique",
        "unique_consecutive",
        "masked_select",
        "split_with_sizes",
        "__nonzero__",
        "__long__",
        "__reversed__",
        "const_data_ptr",
        "__cuda_array_interface__",
    }
)
# Of these only the first other argument is read: what a tensor held before it is written does not matter.
_READ_SECOND: Final = frozenset({"copy_"})


class Writers:
    """Which handle writes a stretch of memory last, while that is still under way."""

    def __init__(self) -> None:
        self.last: dict[int, Handle] = {}

    def note(self, tensors: Iterable[Tensor], handle: Handle) -> None:
        """`handle` will write these tensors."""
        for tensor in tensors:
            if tensor.numel():
                self.last[_memory(tensor)] = handle

    def written(self, tensors: Iterable[Tensor], handle: Handle) -> None:
        """`handle` is complete."""
        for tensor in tensors:
            if self.last.get(memory := _memory(tensor)) is handle:
                del self.last[memory]

    def of(self, tensor: Tensor) -> Handle | None:
        """Who still writes this tensor; None where everything that does is complete."""
        return self.last.get(_memory(tensor))


def _memory(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage().data_ptr()


def _name(function: Callable[..., Any]) -> str:
    """A method's name; that of its property where it is a getter."""
    name = getattr(function, "__name__", "")
    if name == "__get__":
        owner = getattr(function, "__self__", None)
        return str(getattr(owner, "__name__", ""))
    return str(name)


class HostReads(TorchFunctionMode):
    """While it is entered, every host read waits for the writer of the tensor it reads."""

    def __init__(self, writers: Writers, wait: Callable[[Handle], None]) -> None:
        super().__init__()
        self._writers, self._wait = writers, wait

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._writers.last:
            name = _name(function)
            if name in HOST_READS:
                self.before(name, args)
        return function(*args, **(kwargs or {}))

    def before(self, name: str, args: tuple[Any, ...]) -> None:
        """Waits for whoever still writes what this call reads."""
        read = args[1:2] if name in _READ_SECOND else args
        for each in read:
            if isinstance(each, Tensor) and (handle := self._writers.of(each)) is not None:
                self._wait(handle)


def wait_here(handle: Handle) -> None:
    """A rank's wait for a writer: its clock goes on when the writer is done."""
    rank = current()
    assert rank is not None
    rank.wait(handle)
    rank.clock = max(rank.clock, handle.finish)
