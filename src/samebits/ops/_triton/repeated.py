"""A compiled kernel that is launched again and again: what Triton's Python does for every launch is done once.

Triton hands a launch to a function in C. Before it, it makes every tensor descriptor anew; within it, it asks the
driver about every tensor. Here descriptors are kept by address and shape, and tensors go over as addresses.
Knows no operator."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getclosurevars
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final, Protocol

import triton
from torch import Tensor
from triton.backends.nvidia.driver import make_tensordesc_arg

KEPT: Final = 4096
"""Descriptors that are remembered for an argument of a kernel: an allocator hands out the same addresses again."""
_NUMBERS: Final = frozenset((int, float, bool, type(None)))


class Descriptor(Protocol):
    """A matrix as the tensor memory accelerator sees it: Triton's, Gluon's or our own description of it."""

    base: Any
    shape: list[int]
    strides: list[int]
    padding: str


class Repeated:
    """A compiled kernel and its constants, callable with what differs from launch to launch."""

    __slots__ = ("_compiled", "_constants", "_fixed", "_kept", "_launch", "_metadata")

    def __init__(self, compiled: Any, constants: tuple[Any, ...]) -> None:
        self._compiled, self._constants = compiled, constants
        self._launch: Callable[..., None] | None = None
        self._fixed: tuple[Any, ...] = ()
        self._metadata: list[Any] = []
        self._kept: list[dict[tuple[int, ...], list[Any]]] = []

    def __call__(self, programs: int, stream: int, arguments: tuple[Any, ...]) -> None:
        launch = self._launch or self._prepared()
        launch(programs, 1, 1, stream, *self._fixed, *self._flat(arguments), *self._constants)

    def bound(self, programs: int, arguments: tuple[Any, ...]) -> Bound:
        """This launch, to be made again with tensors of the same sizes and strides at other addresses."""
        launch = self._launch or self._prepared()
        flat, descriptors, places = self._flat(arguments), iter(self._metadata), []
        position = len(self._fixed)
        for each in arguments:
            if type(each) in _NUMBERS:
                position += 1
            elif isinstance(each, Tensor):
                places.append(Place(position))
                position += 1
            else:
                places.append(Place(position, each, next(descriptors)))
                position += 1 + len(each.shape) + len(each.strides)
        return Bound(launch, (programs, 1, 1), [*self._fixed, *flat, *self._constants], places)

    def _prepared(self) -> Callable[..., None]:
        """At the first launch and not before: a kernel may be compiled where there is no GPU to load it."""
        compiled, metadata, launcher = self._compiled, self._compiled.metadata, self._compiled.run
        if metadata.global_scratch_size or metadata.profile_scratch_size:
            raise RuntimeError(f"{compiled.name} needs scratch memory; allowed: kernels that use what they are given")
        self._metadata = list(getattr(metadata, "tensordesc_meta", None) or [])
        self._kept = [{} for _ in self._metadata]
        scratch, hooks = (None, None), (None, None, None)
        options = launcher.launch_cooperative_grid, launcher.launch_pdl
        self._fixed = (compiled.function, *options, *scratch, compiled.packed_metadata, *hooks)
        self._launch = c_function(launcher.launch)
        return self._launch

    def _flat(self, arguments: tuple[Any, ...]) -> list[Any]:
        """The arguments as the function in C takes them: a descriptor is followed by its sizes and strides."""
        flat: list[Any] = []
        descriptors = 0
        for each in arguments:
            if type(each) in _NUMBERS:
                flat.append(each)
            elif isinstance(each, Tensor):
                flat.append(each.data_ptr())
            else:
                place = (each.base.data_ptr(), *each.shape, *each.strides)
                found = self._kept[descriptors].get(place)
                if found is None:
                    found = make_tensordesc_arg(each, self._metadata[descriptors])
                    _keep(self._kept[descriptors], place, found)
                flat += found
                descriptors += 1
        return flat


class Place:
    """Where a tensor's address, or the descriptor made of it, stands among the arguments."""

    __slots__ = ("_described", "_kept", "_metadata", "position")

    def __init__(self, position: int, described: Descriptor | None = None, metadata: Any = None) -> None:
        self.position, self._described, self._metadata = position, described, metadata
        self._kept: dict[int, Any] = {}

    def value(self, address: int) -> Any:
        if self._described is None:
            return address
        found = self._kept.get(address)
        if found is None:
            moved = _Moved(address, self._described)
            found = make_tensordesc_arg(moved, self._metadata)[0]
            _keep(self._kept, address, found)
        return found


class Bound:
    """A launch of which only the tensors' addresses are open: they are given in the order of the arguments."""

    __slots__ = ("_grid", "_launch", "_places", "_values")

    def __init__(
        self, launch: Callable[..., None], grid: tuple[int, int, int], values: list[Any], places: list[Place]
    ) -> None:
        self._launch, self._grid, self._values, self._places = launch, grid, values, places

    def __call__(self, stream: int, *addresses: int) -> None:
        values = self._values.copy()  # threads may launch at the same time
        for place, address in zip(self._places, addresses, strict=True):
            values[place.position] = place.value(address)
        self._launch(*self._grid, stream, *values)


class _Moved:
    """A described matrix at another address."""

    def __init__(self, address: int, described: Descriptor) -> None:
        self._address = address
        self.base, self.shape, self.strides, self.padding = self, described.shape, described.strides, described.padding

    def data_ptr(self) -> int:
        return self._address


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    if len(kept) >= KEPT:
        kept.clear()
    kept[key] = value


def c_function(launch: Callable[..., None]) -> Callable[..., None]:
    """Triton's function in C, which it wraps in one of Python where a kernel has descriptors."""
    if isinstance(launch, FunctionType):
        launch = getclosurevars(launch).nonlocals.get("launcher", launch)
    if not isinstance(launch, BuiltinFunctionType):
        raise RuntimeError(f"Triton {triton.__version__} launches by {launch!r}; allowed: a function in C, as in 3.6")
    return launch
