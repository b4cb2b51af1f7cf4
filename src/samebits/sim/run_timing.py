"""Time for collectives of ranks that really run: the schedule that makes a collective's bits also says what it costs.

Handed to a run as one of its parts (`Parts(timing=clocked(links))`): members' clocks go in, the clocks at which they
see the result come out. Values and time cannot disagree, since both come from one schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from samebits.sim.calls import Call
from samebits.sim.network import Members, Timing
from samebits.sim.ring import gloo_ring, gloo_rooted_ring, ring_all_gather
from samebits.sim.schedule import LinkClass, LinkOf, Schedule, nodes_of, over
from samebits.sim.timing import finish_times
from samebits.sim.topology import Link
from samebits.sim.trees import tree

MESSAGES: Final = ("send", "receive")


def clocked(links: Mapping[LinkClass, Link], *, ranks_per_node: int | None = None) -> Timing:
    """Timing over links: between SIPs, and between nodes where ranks are in several."""
    link = over(LinkClass.SIP) if ranks_per_node is None else nodes_of(ranks_per_node)

    def timing(members: Members, calls: Sequence[Call], clocks: Sequence[float]) -> Sequence[float]:
        if calls[0].operation in MESSAGES:
            return _message(calls, clocks, links[LinkClass.SIP])
        schedule = schedule_of(calls, len(members.ranks), link)
        found: list[float] = finish_times(schedule, links, np.array(clocks)).tolist()
        return found

    return timing


def schedule_of(calls: Sequence[Call], ranks: int, link: LinkOf) -> Schedule:
    """The schedule of a collective: gloo's where it adds; where bytes only move, a ring, or a tree."""
    first = calls[0]
    elements = sum(each.numel() for each in first.inputs)
    itemsize = first.inputs[0].element_size() if first.inputs else 1
    if first.operation in ("all-reduce", "reduce-scatter"):
        return gloo_ring(ranks, elements, itemsize, link=link)
    if first.operation == "reduce":
        return gloo_rooted_ring(ranks, elements, itemsize, root=first.root, link=link)
    if first.operation in ("all-gather", "all-to-all"):
        moved = elements * ranks if first.operation == "all-gather" else elements
        return ring_all_gather(ranks, moved, itemsize, link=link)
    # A broadcast, a scatter, a gather, a barrier: down a tree, the barrier with a byte.
    return tree(ranks, max(1, max(sum(each.numel() for each in call.inputs) for call in calls)), itemsize, link=link)


def _message(calls: Sequence[Call], clocks: Sequence[float], link: Link) -> list[float]:
    """A sender goes on once its bytes have left; the receiver when they are there."""
    sent = next(call for call in calls if call.operation == "send").inputs[0]
    begin, nbytes = max(clocks), sent.numel() * sent.element_size()
    left, there = begin + nbytes / link.bytes_per_s, begin + link.seconds(nbytes)
    return [left if call.operation == "send" else there for call in calls]
