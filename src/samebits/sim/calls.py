"""A collective as one rank calls it, and what it does to the tensors of all ranks, with gloo's arithmetic.

Ranks come in rank order here: nothing is known of time or of who came first. Calls that do not reduce only move bytes;
those that do run a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from samebits.sim.numerics import Algorithm, reduced
from samebits.sim.ring import gloo_ring, gloo_rooted_ring
from samebits.sim.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Call:
    """One rank's part: what it brings and where it wants what it gets."""

    operation: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    op: str = ""
    root: int = -1
    splits: tuple[tuple[int, ...], tuple[int, ...]] = field(default=((), ()))
    """Rows sent to and taken from each rank, where they differ."""

    def brought(self, place: int) -> tuple[Tensor, ...]:
        """What the member at this place gives; in a broadcast only the root's tensor holds anything yet."""
        return () if self.operation == "broadcast" and place != self.root else self.inputs

    def facts(self) -> tuple[object, ...]:
        """What must be the same on every member."""
        if self.operation in ("all-to-all", "scatter", "gather", "barrier"):
            return self.operation, self.op, self.root
        shapes = tuple((str(each.dtype).removeprefix("torch."), tuple(each.shape)) for each in self.inputs)
        return self.operation, self.op, self.root, shapes

    def __str__(self) -> str:
        shown = ", ".join(f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}" for each in self.inputs)
        root = f", root {self.root}" if self.root >= 0 else ""
        return f"{self.operation}({shown}{', ' + self.op if self.op else ''}{root})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithms:
    """Which schedule each reduction runs. A faulty one can stand in, to see that it is noticed."""

    all_reduce: Algorithm = gloo_ring
    reduce: Algorithm = gloo_rooted_ring


def flat(tensor: Tensor) -> Tensor:
    """Its elements as they lie in memory; ValueError for a tensor with holes or overlaps.

    gloo refuses sparse ones, and of one with holes it takes the holes for elements: nobody can want that."""
    plain = tensor.data
    if plain.is_sparse or plain.layout is not torch.strided:
        raise ValueError(f"sim: a tensor's layout is {plain.layout}; allowed: dense")
    if plain.is_contiguous():
        return plain.view(-1)
    if not _dense(plain):
        raise ValueError(f"sim: a tensor has shape {tuple(plain.shape)} and strides {plain.stride()}; allowed: dense")
    return torch.as_strided(plain, (plain.numel(),), (1,))


def _dense(tensor: Tensor) -> bool:
    """Whether its elements fill a stretch of memory, each place once, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _all_reduce(calls: Sequence[Call], how: Algorithms) -> None:
    """Several tensors of one call are one buffer."""
    buffers = [
        torch.cat([flat(each) for each in call.inputs]) if len(call.inputs) > 1 else flat(call.inputs[0])
        for call in calls
    ]
    total = reduced(buffers, calls[0].op, how.all_reduce)
    for call in calls:
        pieces = torch.split_with_sizes(total, [each.numel() for each in call.outputs])
        for each, piece in zip(call.outputs, pieces, strict=True):
            flat(each).copy_(piece)


def _reduce(calls: Sequence[Call], how: Algorithms) -> None:
    """Only the root's buffer is defined afterwards; the others are left as they were."""
    root = calls[0].root

    def rooted(ranks: int, elements: int, itemsize: int) -> Schedule:
        return gloo_rooted_ring(ranks, elements, itemsize, root=root)

    algorithm = rooted if how.reduce is gloo_rooted_ring else how.reduce
    total = reduced([flat(call.inputs[0]) for call in calls], calls[0].op, algorithm, root)
    flat(calls[root].outputs[0]).copy_(total)


def _reduce_scatter(calls: Sequence[Call], how: Algorithms) -> None:
    """A list of pieces is one all-reduce a piece; one tensor is one all-reduce of a copy of it, then cut.

    The sum runs over memory, and pieces of a list go into memory; the copy is cut along its first dimension."""
    size = len(calls)
    if len(calls[0].inputs) == size and size > 1:
        for rank, call in enumerate(calls):
            out = call.outputs[0].data
            out.copy_(call.inputs[rank].data)
            pieces = [out if each is call else each.inputs[rank].data.clone() for each in calls]
            flat(out).copy_(reduced([flat(each) for each in pieces], call.op, how.all_reduce))
        return
    copies = [call.inputs[0].data.clone() for call in calls]
    total = reduced([flat(each) for each in copies], calls[0].op, how.all_reduce)
    for place, (call, copy) in enumerate(zip(calls, copies, strict=True)):
        flat(copy).copy_(total)
        call.outputs[0].data.copy_(copy.reshape(-1).chunk(size)[place].view_as(call.outputs[0]))


def _broadcast(calls: Sequence[Call], how: Algorithms) -> None:
    """Memory to memory: where ranks lay a tensor out in two ways, its elements change places, as with gloo."""
    root = calls[0].root
    for place, call in enumerate(calls):
        if place != root:
            for out, given in zip(call.outputs, calls[root].inputs, strict=True):
                flat(out).copy_(flat(given))


def _all_gather(calls: Sequence[Call], how: Algorithms) -> None:
    """Every rank's tensor, in rank order; into one tensor, or into a list of them."""
    for call in calls:
        if len(call.outputs) == len(calls):
            for out, other in zip(call.outputs, calls, strict=True):
                out.data.copy_(other.inputs[0].data.view_as(out))
        else:
            everything = torch.cat([other.inputs[0].data.reshape(-1) for other in calls])
            call.outputs[0].data.copy_(everything.view_as(call.outputs[0]))


def _gather(calls: Sequence[Call], how: Algorithms) -> None:
    for out, call in zip(calls[calls[0].root].outputs, calls, strict=True):
        out.data.copy_(call.inputs[0].data)


def _scatter(calls: Sequence[Call], how: Algorithms) -> None:
    """Memory to memory, as a broadcast."""
    for given, call in zip(calls[calls[0].root].inputs, calls, strict=True):
        flat(call.outputs[0]).copy_(flat(given))


def _all_to_all(calls: Sequence[Call], how: Algorithms) -> None:
    size = len(calls)
    sent = [_rows(call.inputs, call.splits[0], size) for call in calls]
    for place, call in enumerate(calls):
        for out, source in zip(_rows(call.outputs, call.splits[1], size), sent, strict=True):
            out.copy_(source[place])


def _rows(tensors: tuple[Tensor, ...], splits: tuple[int, ...], size: int) -> list[Tensor]:
    if len(tensors) == size and not splits and size > 1:
        return [each.data for each in tensors]
    whole = tensors[0].data
    return list(torch.split_with_sizes(whole, list(splits) or [whole.shape[0] // size] * size))


def _barrier(calls: Sequence[Call], how: Algorithms) -> None:
    """Nothing moves."""


OPERATIONS: Final[dict[str, Callable[[Sequence[Call], Algorithms], None]]] = {
    "all-reduce": _all_reduce,
    "reduce": _reduce,
    "reduce-scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all-gather": _all_gather,
    "gather": _gather,
    "scatter": _scatter,
    "all-to-all": _all_to_all,
    "barrier": _barrier,
}


def execute(calls: Sequence[Call], how: Algorithms) -> None:
    """Does to all ranks' tensors what the collective does. `calls` are in rank order."""
    # Elsewhere tensors that a program made in inference mode cannot be written to.
    with torch.inference_mode():
        OPERATIONS[calls[0].operation](calls, how)
