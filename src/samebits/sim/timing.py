"""The clock of a schedule: when each rank is through, as arrays over ranks, round by round.

A message starts when its sender is ready and its port free, holds the port for its bytes, and arrives latency later:
`start = max(ready, free); free = start + m / B; arrival = free + alpha`. A sender does not wait for the arrival. All
ranks of a round are one array: a ring of 4,096 is 8,190 rounds, not 33 million messages. The closed forms are
what these arrays must give where all ranks start together. Wall time never enters, nor does any value."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from samebits.sim.schedule import IntArray, LinkClass, Round, Schedule
from samebits.sim.topology import Link

FloatArray = npt.NDArray[np.float64]
_NEVER: Final = -math.inf


def finish_times(
    schedule: Schedule, links: Mapping[LinkClass, Link], clocks: FloatArray | None = None, *, overhead: float = 0.0
) -> FloatArray:
    """Every rank's clock after a schedule, from its clocks before it. `overhead`: seconds a rank spends on a round."""
    now = np.zeros(schedule.ranks) if clocks is None else np.array(clocks, dtype=np.float64)
    if now.shape != (schedule.ranks,):
        raise ValueError(f"timing: clocks of shape {now.shape} for {schedule.ranks} ranks; allowed: one each")
    # Where several rounds are under way, a round waits for the one so many before it.
    before = deque([now] * schedule.in_flight, maxlen=schedule.in_flight)
    lane: _Lane | None = None
    ports: dict[int, FloatArray] = {}
    for one in schedule.rounds():
        if lane is None or one.link is not lane.link or one.src is not lane.src:
            lane = _Lane(one, schedule, links)
        now = lane.after(one, before[0], now + overhead if overhead else now, ports)
        before.append(now)
    return now


class _Lane:
    """What rounds with the same senders, receivers and links have in common."""

    def __init__(self, one: Round, schedule: Schedule, links: Mapping[LinkClass, Link]) -> None:
        self.src, self.link, ranks = one.src, one.link, schedule.ranks
        self.alpha, rate = costs_of(one.link, links)
        self.per_element = schedule.itemsize / rate
        self.levels = sorted(set(one.link.tolist()))
        everyone = np.arange(ranks)
        self.once = len(np.unique(one.dst)) == len(one.dst)
        # In a ring every rank sends once and receives once, on one class of link: whole arrays, no scattering.
        self.ring = len(one.src) == ranks and self.once and len(self.levels) == 1 and bool((one.src == everyone).all())
        self.sender_of = np.argsort(one.dst) if self.ring else everyone

    def after(self, one: Round, ready: FloatArray, now: FloatArray, ports: dict[int, FloatArray]) -> FloatArray:
        """The clocks after a round; `ports` says until when each rank's port of a class of link is taken."""
        elements = one.elements
        held = elements * self.per_element
        if self.ring and elements.all():
            port = ports.setdefault(self.levels[0], np.full(len(now), _NEVER))
            np.add(np.maximum(ready, port), held, out=port)
            return np.maximum(now, (port + self.alpha)[self.sender_of])
        after, sent = now.copy(), elements > 0
        for level in self.levels:
            port = ports.setdefault(level, np.full(len(now), _NEVER))
            here = sent & (self.link == level)
            src, dst = one.src[here], one.dst[here]
            done = np.maximum(ready[src], port[src]) + held[here]
            port[src] = done
            if self.once:
                after[dst] = np.maximum(after[dst], done + self.alpha[here])
            else:
                np.maximum.at(after, dst, done + self.alpha[here])
        return after


def costs_of(classes: IntArray, links: Mapping[LinkClass, Link]) -> tuple[FloatArray, FloatArray]:
    """Latency and bandwidth of each transfer; ValueError for a class of link that nothing is said of."""
    table = np.full((2, len(LinkClass)), np.nan)
    for level, link in links.items():
        table[:, level] = link.alpha, link.bytes_per_s
    missing = {LinkClass(number).name for number in set(classes.tolist()) if math.isnan(table[0, number])}
    if missing:
        raise ValueError(
            f"timing: the schedule uses links between {', '.join(sorted(missing))}, which cost nothing said"
        )
    return table[0][classes], table[1][classes]


def served(ready: FloatArray, service: FloatArray) -> FloatArray:
    """When messages that share one link are through, served in the order of the last axis: a loop without a loop.

    finish[i] = max(ready[i], finish[i - 1]) + service[i]."""
    total = np.cumsum(service, axis=-1)
    found: FloatArray = total + np.maximum.accumulate(ready - (total - service), axis=-1)
    return found


def paced(ready: FloatArray, service: float) -> FloatArray:
    """The same where all messages take equally long."""
    before = service * np.arange(ready.shape[-1])
    found: FloatArray = np.maximum.accumulate(ready - before, axis=-1)
    found += before + service
    return found


# Closed forms, for ranks that start together on links that nobody else uses.


def ring_all_reduce(nbytes: float, ranks: int, link: Link) -> float:
    """2 (N - 1) (alpha + n / (N B))."""
    return 2 * (ranks - 1) * (link.alpha + nbytes / (ranks * link.bytes_per_s))


def ring_half(nbytes: float, ranks: int, link: Link) -> float:
    """A reduce-scatter or an all-gather."""
    return ring_all_reduce(nbytes, ranks, link) / 2


def tree_all_reduce(nbytes: float, ranks: int, link: Link) -> float:
    """The fixed binary tree and back, whole buffers: 2 log2(N) (alpha + n / B), for N a power of two."""
    return 2 * math.log2(ranks) * link.seconds(nbytes)


def pipelined_tree(nbytes: float, ranks: int, link: Link) -> float:
    """A tree whose pieces follow each other: 2 log2(N) alpha + 2 n / B."""
    return 2 * math.log2(ranks) * link.alpha + 2 * nbytes / link.bytes_per_s if ranks > 1 else 0.0


def chain_all_reduce(nbytes: float, ranks: int, link: Link, pieces: int = 1) -> float:
    """An accumulator passed from rank to rank and back, in p pieces: 2 ((N - 1) (alpha + m / B) + (p - 1) m / B), of
    m = n / p bytes."""
    piece = nbytes / pieces / link.bytes_per_s
    return 2 * ((ranks - 1) * (link.alpha + piece) + (pieces - 1) * piece) if ranks > 1 else 0.0


def hierarchical_all_reduce(nbytes: float, inside: int, outside: int, near: Link, far: Link) -> float:
    """Reduce-scatter within, all-reduce of a share across, all-gather within."""
    return 2 * ring_half(nbytes, inside, near) + ring_all_reduce(nbytes / inside, outside, far)


def bus_bandwidth(nbytes: float, seconds: float, ranks: int, *, halves: int = 2) -> float:
    """As NCCL's tests report it: (n / t) 2 (N - 1) / N for an all-reduce, half of it for either half."""
    return nbytes / seconds * halves * (ranks - 1) / ranks
