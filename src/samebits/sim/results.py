"""Digests of what a program computed: of tensors' bits, whatever their layout, and of everything a rank returned.

Two schedules are told apart by them, so nothing that a rank returned is left out, and nothing that differs from run to
run by itself (an object's address, the order of a set, the padding of a layout) comes in."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))
# What a class without a text of its own is shown as: its name and an address.
_NAMELESS: Final[Any] = object.__repr__
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


def digest_of(values: Iterable[Tensor]) -> str:
    """Of tensors' bits, dtypes and shapes."""
    state = hashlib.blake2b(digest_size=8)
    for value in values:
        for part in _of_tensor(value):
            state.update(part)
    return state.hexdigest()


def digest_of_result(value: Any) -> str:
    """Of what a rank returned: a number or a text as it is, of all else a digest and how many tensors are in it."""
    if isinstance(value, _PLAIN):
        return repr(value)
    state, tensors = hashlib.blake2b(digest_size=8), 0
    for part in _parts(value, ()):
        if isinstance(part, Tensor):
            tensors += 1
            state.update(digest_of([part]).encode())
        else:
            state.update(part)
    return f"{state.hexdigest()}/{tensors}"


def _of_tensor(tensor: Tensor) -> Iterator[bytes]:
    plain = tensor.detach()
    if hasattr(plain, "to_local"):
        # Of a DTensor the part that this rank holds.
        plain = plain.to_local()
    if plain.is_nested:
        for each in plain.unbind():
            yield from _of_tensor(each)
        return
    if plain.is_quantized:
        plain = plain.dequantize()
    elif plain.layout is not torch.strided:
        plain = plain.to_dense()
    yield f"{plain.dtype}{tuple(plain.shape)}".encode()
    if not plain.is_meta:
        # A tensor of one element counts as contiguous whatever its stride; a new one has the usual.
        dense = plain.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        yield dense.reshape(-1).view(torch.uint8).numpy().tobytes()


def _parts(value: Any, around: tuple[int, ...]) -> Iterator[bytes | Tensor]:
    """Everything in a value, each piece behind its kind and length; `around` are the objects that it lies in."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    elif isinstance(value, _PLAIN):
        yield _framed(repr(value))
    elif id(value) in around:
        yield _framed("a cycle")
    elif (held := _held(value)) is None:
        yield _framed(_ADDRESS.sub("", repr(value)))
    else:
        yield _framed(f"{type(value).__qualname__} of {len(held)}")
        if isinstance(value, Set):
            yield from sorted(digest_of_result(each).encode() for each in held)
            return
        for each in held:
            yield from _parts(each, (*around, id(value)))


def _held(value: Any) -> list[Any] | None:
    """What a container, a module, an optimizer or a plain object holds; None of anything else."""
    if isinstance(value, type):
        return None
    if hasattr(value, "state_dict"):
        value = value.state_dict()
    elif dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif type(value).__repr__ is _NAMELESS:
        value = dict(getattr(value, "__dict__", {}))
    elif isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return [each for pair in value.items() for each in pair]
    return list(value) if isinstance(value, Sequence | Set) else None


def _framed(text: str) -> bytes:
    """A text behind its length, so that two neighbours cannot be taken for other two."""
    encoded = text.encode(errors="backslashreplace")
    return f"{len(encoded)}:".encode() + encoded
