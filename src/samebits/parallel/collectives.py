"""Sums over ranks, each in an order of its own choice: a balanced tree, a chain that travels from rank to rank.

Messages are float32 and move; every addition is made here. Sizes of messages, tiles and the number of ranks that hold a
tensor's pieces decide who adds, never in which order. What the backend's own all-reduce adds is nobody's promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from samebits.parallel.schedules import chunk_start, tree_of
from samebits.parallel.world import Group

# Speed only: rows of a tile that travels while the next one is computed.
TILE_ROWS: Final = 128


def even_cuts(length: int, parts: int) -> list[int]:
    """Where `parts` pieces of a length begin, and the end of the last."""
    return [chunk_start(part, length, parts) for part in range(parts + 1)]


def stepped_cuts(length: int, parts: int, step: int) -> list[int]:
    """The same between whole steps, of which the last may be short: pieces are even in steps."""
    return [min(step * cut, length) for cut in even_cuts(-(-length // step), parts)]


def widths_of(cuts: Sequence[int]) -> list[int]:
    """The lengths of the pieces between cuts."""
    return [stop - start for start, stop in pairwise(cuts)]


def tree_sum(parts: Sequence[Tensor]) -> Tensor:
    """The balanced tree over parts, neighbours first, into the first of them."""
    for level in tree_of(len(parts)):
        for stays, added in level:
            parts[stays].add_(parts[added])
    return parts[0]


def reduce_scatter(group: Group, flat: Tensor, cuts: Sequence[int], what: str = "reduce-scatter") -> Tensor:
    """The tree over all ranks' `flat` (float32, 1-D), of which this rank holds the piece between its two cuts.

    Every rank sends each piece to the rank that holds it, once; that rank adds. A view of `flat` is returned."""
    _check(flat, cuts, group)
    own = flat[cuts[group.place] : cuts[group.place + 1]]
    parts = [own if place == group.place else torch.empty_like(own) for place in range(group.size)]
    others = [place for place in range(group.size) if place != group.place]
    group.exchange(
        what,
        sends=[(flat[cuts[place] : cuts[place + 1]], place) for place in others],
        receives=[(parts[place], place) for place in others],
    )
    # The tree adds into its leftmost leaf, which is another rank's part unless this rank is the first.
    total = tree_sum(parts)
    return own if total is own else own.copy_(total)


def gather(group: Group, flat: Tensor, cuts: Sequence[int], what: str = "gather") -> Tensor:
    """`flat` (1-D) with every rank's piece in its place; of it this rank brings the piece between its two cuts."""
    _check(flat, cuts, group)
    own = flat[cuts[group.place] : cuts[group.place + 1]]
    others = [place for place in range(group.size) if place != group.place]
    group.exchange(
        what,
        sends=[(own, place) for place in others],
        receives=[(flat[cuts[place] : cuts[place + 1]], place) for place in others],
    )
    return flat


def all_reduce(group: Group, flat: Tensor, what: str = "all-reduce") -> Tensor:
    """The tree over all ranks' `flat` (float32, 1-D), in place, on every rank."""
    cuts = even_cuts(flat.numel(), group.size)
    reduce_scatter(group, flat, cuts, what)
    return gather(group, flat, cuts, what)


def gathered_integers(group: Group, own: Sequence[int], what: str = "counts") -> list[list[int]]:
    """Every rank's whole numbers, equally many each, in the order of places."""
    flat = torch.zeros(group.size * len(own), dtype=torch.int64, device=group.world.device)
    flat[group.place * len(own) : (group.place + 1) * len(own)] = torch.tensor(own, dtype=torch.int64)
    found: list[list[int]] = gather(group, flat, even_cuts(len(flat), group.size), what).view(group.size, -1).tolist()
    return found


def broadcast(group: Group, tensor: Tensor, source: int, what: str = "broadcast") -> Tensor:
    """The tensor of the rank at place `source`, on every rank, in place."""
    others = [place for place in range(group.size) if place != source]
    if group.place == source:
        group.exchange(what, sends=[(tensor, place) for place in others])
    else:
        group.exchange(what, receives=[(tensor, source)])
    return tensor


def gather_columns(group: Group, own_MN: Tensor, widths: Sequence[int], what: str = "gather columns") -> Tensor:
    """(M, sum of widths): every rank's columns side by side, in the order of places."""
    parts = [
        own_MN.contiguous() if place == group.place else own_MN.new_empty(own_MN.shape[0], width)
        for place, width in enumerate(widths)
    ]
    others = [place for place in range(group.size) if place != group.place]
    group.exchange(
        what,
        sends=[(parts[group.place], place) for place in others],
        receives=[(parts[place], place) for place in others],
    )
    return torch.cat(parts, dim=1)


def chain(
    group: Group,
    shape: tuple[int, int],
    add: Callable[[slice, Tensor], None],
    finish: Callable[[Tensor], Tensor],
    like: Tensor,
    what: str = "chain",
    *,
    columns: int | None = None,
) -> Tensor:
    """One chain an element over all ranks' parts, in the order of places, finished once, on every rank.

    `add(rows, sum)` resumes the chain of some rows in `sum` (float32, from +0 on the first rank); `finish` rounds that
    of the last rank into the dtype of `like`, and leaves `columns` of it where told, else as many as there are. Tiles
    of rows follow each other: a rank computes while others do."""
    rows, width = shape
    last, place = group.size - 1, group.place
    tiles = [slice(start, min(start + TILE_ROWS, rows)) for start in range(0, rows, TILE_ROWS)]
    out_MN = like.new_empty(rows, width if columns is None else columns)
    sums = [torch.zeros(tile.stop - tile.start, width, dtype=torch.float32, device=like.device) for tile in tiles]
    if place > 0:
        coming = [group.post(what, receives=[(sum_TN, place - 1)]) for sum_TN in sums]
    leaving = []
    for number, (tile, sum_TN) in enumerate(zip(tiles, sums, strict=True)):
        if place > 0:
            coming[number].wait()
        add(tile, sum_TN)
        if place < last:
            leaving.append(group.post(what, sends=[(sum_TN, place + 1)]))
        else:
            out_MN[tile] = finish(sum_TN)
            if place > 0:
                leaving.append(group.post(what, sends=[(out_MN[tile], place - 1)]))
    if place < last:
        returning = [group.post(what, receives=[(out_MN[tile], place + 1)]) for tile in tiles]
        for tile, pending in zip(tiles, returning, strict=True):
            pending.wait()
            if place > 0:
                leaving.append(group.post(what, sends=[(out_MN[tile], place - 1)]))
    for pending in leaving:
        pending.wait()
    return out_MN


def native_all_reduce(group: Group, flat: Tensor) -> Tensor:
    """The backend's own sum over all ranks of the world, in place. Promises nothing: its order follows the message."""
    if group.size != group.world.size:
        raise ValueError(f"native_all_reduce: {group.size} of {group.world.size} ranks; allowed: all of them")
    if group.size > 1:
        dist.all_reduce(flat)
    return flat


def _check(flat: Tensor, cuts: Sequence[int], group: Group) -> None:
    if flat.dim() != 1 or not flat.is_contiguous():
        raise ValueError(f"ranks: the tensor has shape {tuple(flat.shape)}; allowed: 1 dimension, dense")
    if len(cuts) != group.size + 1 or list(cuts) != sorted(cuts) or cuts[0] != 0 or cuts[-1] != flat.numel():
        raise ValueError(
            f"ranks: cuts are {list(cuts)}; allowed: {group.size + 1} ascending places from 0 to {flat.numel()}"
        )
