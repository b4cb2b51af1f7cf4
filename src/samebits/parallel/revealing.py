"""Collectives as something whose order of addition can be asked: one value a rank in, one number out.

Knows no order but the two that are declared for collectives. Every rank of the group must ask, and ask the same: the
answer is that of the first rank, told to all, so that ranks which run one and the same program stay together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from samebits.numerics.order import Leaf, Nearest, Node, Order, chain
from samebits.numerics.probes import Run
from samebits.numerics.recipes import make
from samebits.numerics.reveal import Revelation, reveal
from samebits.parallel import collectives
from samebits.parallel.schedules import tree_of
from samebits.parallel.world import Group

Collective = Callable[[Group, Tensor], Tensor]
"""A message (1-D, float32), of which every rank brings its own, to the sum over ranks, on every rank."""

# Fills the rest of a message: an order must not depend on what stands beside an element.
_FILLING_SEED: Final = 17


def tree_order(parts: int) -> Order:
    """The declared order of `all_reduce` and `reduce_scatter`: the balanced tree over ranks."""
    orders: list[Order] = [Leaf(part) for part in range(parts)]
    for level in tree_of(parts):
        for stays, added in level:
            orders[stays] = Node(Nearest(), (orders[stays], orders[added]))
    return orders[0]


def chain_order(parts: int) -> Order:
    """The declared order of `chain`: the ranks' parts one after the other."""
    return chain(parts)


def as_callable(group: Group, collective: Collective, length: int, position: int) -> Callable[[Tensor], Tensor]:
    """What `samebits.reveal(..., n=group.size)` may be given, on every rank at once: the sum that the collective makes
    of one value a rank, put at `position` of a message of `length` elements."""
    return Asked(group, collective, length, [position]).at(position)


def reveal_at(
    group: Group, collective: Collective, length: int, positions: Sequence[int], replays: int = 100
) -> dict[int, Revelation]:
    """The order at each of these positions of a message; called on every rank.

    Positions that answered every question alike, bit for bit, have one order: it is worked out once."""
    asked, found = Asked(group, collective, length, positions), dict[int, Revelation]()
    for position in positions:
        alike = next((known for known in found if asked.agree(known, position)), None)
        if alike is None:
            found[position] = reveal(_run(asked.at(position)), group.size, replays=replays)
        else:
            found[position] = found[alike]
    return found


def _run(ask: Callable[[Tensor], Tensor]) -> Run:
    return lambda values: float(ask(torch.from_numpy(values)))


class Asked:
    """One collective, asked at several positions of its message at once.

    A question puts the same values at all positions and its answers are kept, each to be given out once: a program that
    asks position after position, and finds one order everywhere, needs no more messages than for one position."""

    def __init__(self, group: Group, collective: Collective, length: int, positions: Sequence[int]) -> None:
        outside = [position for position in positions if not 0 <= position < length]
        if outside or not positions:
            raise ValueError(f"asked: positions are {list(positions)}; allowed: at least one, from 0 to {length - 1}")
        self.group, self.collective, self.positions = group, collective, list(positions)
        self.filling = torch.from_numpy(make("normal", (length,), _FILLING_SEED + group.place))
        self._answers: dict[bytes, list[Tensor]] = {}

    def at(self, position: int) -> Callable[[Tensor], Tensor]:
        """The sum at one of the positions, as a function of one value a rank."""
        place, asked = self.positions.index(position), dict[bytes, int]()

        def ask(values: Tensor) -> Tensor:
            key = values.numpy().tobytes()
            times = asked[key] = asked.get(key, 0) + 1
            answers = self._answers.setdefault(key, [])
            # A question asked again here is asked again of the collective: it may answer otherwise, which must be seen.
            if len(answers) < times:
                answers.append(self._answer(values))
            return answers[times - 1][place]

        return ask

    def agree(self, one: int, other: int) -> bool:
        """Whether two positions gave the same bits in every answer so far."""
        rows = torch.stack([answer for answers in self._answers.values() for answer in answers]).view(torch.int32)
        first, second = rows[:, self.positions.index(one)], rows[:, self.positions.index(other)]
        return torch.equal(first, second)

    def _answer(self, values: Tensor) -> Tensor:
        if values.shape != (self.group.size,):
            raise ValueError(
                f"asked: values have shape {tuple(values.shape)}; allowed: one a rank, ({self.group.size},)"
            )
        message = self.filling.clone()
        message[self.positions] = values[self.group.place]
        found = self.collective(self.group, message)[self.positions].clone()
        return collectives.broadcast(self.group, found, 0, "asked")
