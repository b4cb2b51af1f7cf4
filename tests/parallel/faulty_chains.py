"""Planted: sums over ranks' parts that are not the chain, in the place of `collectives.chain`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from samebits.parallel import collectives
from samebits.parallel.world import Group

Chain = Callable[..., Tensor]


def native_chain(
    group: Group,
    shape: tuple[int, int],
    add: Callable[[slice, Tensor], None],
    finish: Callable[[Tensor], Tensor],
    like: Tensor,
    what: str,
    columns: int | None = None,
) -> Tensor:
    """Every rank's own product, summed by the backend."""
    sum_MN = torch.zeros(shape)
    add(slice(0, shape[0]), sum_MN)
    collectives.native_all_reduce(group, sum_MN)
    return finish(sum_MN)


def last_first(
    group: Group,
    shape: tuple[int, int],
    add: Callable[[slice, Tensor], None],
    finish: Callable[[Tensor], Tensor],
    like: Tensor,
    what: str,
    columns: int | None = None,
) -> Tensor:
    """The chain in the order in which ranks happened to arrive, here the last first."""
    turned = Group(world=group.world, members=group.members[::-1])
    return collectives.chain(turned, shape, add, finish, like, what, columns=columns)


def finished_everywhere(
    group: Group,
    shape: tuple[int, int],
    add: Callable[[slice, Tensor], None],
    finish: Callable[[Tensor], Tensor],
    like: Tensor,
    what: str,
    columns: int | None = None,
) -> Tensor:
    """Every rank finishes its sum before it travels on, which rounds it, and adds the bias again."""

    def add_and_finish(tile: slice, sum_TN: Tensor) -> None:
        add(tile, sum_TN)
        if group.place < group.size - 1:
            # Where several sums become one at the end, each is only rounded.
            sum_TN.copy_(sum_TN.to(like.dtype) if columns is not None else finish(sum_TN))

    return collectives.chain(group, shape, add_and_finish, finish, like, what, columns=columns)
