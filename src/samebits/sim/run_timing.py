"""Time for collectives of ranks that really run: the schedule that makes a collective's bits also says what it costs.

Handed to a run as one of its parts (`Parts(timing=clocked(links))`): members' clocks go in, the clocks at which they
see the result come out. Values and time cannot disagree, since both come from one schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from torch import Tensor

from samebits.sim.calls import Call
from samebits.sim.network import Members, Timing
from samebits.sim.ring import gloo_ring, gloo_rooted_ring, ring_all_gather
from samebits.sim.schedule import LinkClass, LinkOf, Schedule, nodes_of, over
from samebits.sim.timing import costs_of, finish_times
from samebits.sim.topology import Link
from samebits.sim.trees import one_by_one, tree, tree_down

MESSAGES: Final = ("send", "receive")


def clocked(links: Mapping[LinkClass, Link], *, ranks_per_node: int | None = None) -> Timing:
    """Timing over links: between SIPs, and between nodes where ranks are in several."""
    if ranks_per_node is not None and ranks_per_node < 1:
        raise ValueError(f"timing: ranks_per_node is {ranks_per_node}; allowed: at least 1, or None for one node")
    needed = [LinkClass.SIP] if ranks_per_node is None else [LinkClass.SIP, LinkClass.NODE][ranks_per_node == 1 :]
    costs_of(np.array(needed), links)

    def timing(members: Members, calls: Sequence[Call], clocks: Sequence[float]) -> Sequence[float]:
        link = _between(members, ranks_per_node)
        if calls[0].operation in MESSAGES:
            return _message(calls, clocks, links, link)
        schedule = schedule_of(calls, len(members.ranks), link)
        found: list[float] = finish_times(schedule, links, np.array(clocks)).tolist()
        if calls[0].operation in ("broadcast", "scatter"):
            # A schedule lets a sender go on at once; here it goes on when the last has what was sent.
            found[calls[0].root] = max(found)
        return found

    return timing


def _between(members: Members, ranks_per_node: int | None) -> LinkOf:
    """Which link joins two places of a group: by the ranks that stand there, wherever they stand in the group."""
    if ranks_per_node is None:
        return over(LinkClass.SIP)
    ranks, link = np.array(members.ranks, dtype=np.int64), nodes_of(ranks_per_node)
    return lambda src, dst: link(ranks[src], ranks[dst])


def schedule_of(calls: Sequence[Call], ranks: int, link: LinkOf) -> Schedule:
    """The schedule of a collective: gloo's where it adds; a ring, a tree or one after another where bytes only move."""
    first = calls[0]
    if first.operation in ("all-reduce", "reduce-scatter", "reduce"):
        elements, itemsize = sum(each.numel() for each in first.inputs), first.inputs[0].element_size()
        if first.operation == "reduce":
            return gloo_rooted_ring(ranks, elements, itemsize, root=first.root, link=link)
        return gloo_ring(ranks, elements, itemsize, link=link)
    # Members may bring different amounts, or nothing: the largest decides.
    most = max(max(_bytes(call.inputs), _bytes(call.outputs)) for call in calls)
    if first.operation in ("all-gather", "gather", "all-to-all"):
        # Whoever gathers has all parts in the end; in an all-to-all, of which no rank need have any, most is a rank's.
        return ring_all_gather(ranks, most, 1, link=link)
    if first.operation == "broadcast":
        return tree_down(ranks, most, 1, root=first.root, link=link)
    if first.operation == "scatter":
        return one_by_one(ranks, most, 1, root=first.root, link=link)
    return tree(ranks, 1, 1, link=link)


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def _message(
    calls: Sequence[Call], clocks: Sequence[float], links: Mapping[LinkClass, Link], link: LinkOf
) -> list[float]:
    """A sender goes on once its bytes have left; the receiver when they are there."""
    (alpha,), (rate,) = costs_of(link(np.array([0]), np.array([1])), links)
    sent = next(call for call in calls if call.operation == "send").inputs[0]
    left = max(clocks) + sent.numel() * sent.element_size() / float(rate)
    return [left if call.operation == "send" else left + float(alpha) for call in calls]
