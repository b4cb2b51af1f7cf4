"""Seconds of a collective over GPUs: rings by protocol, in-switch sums, direct exchanges, across nodes and within.

A group is so many ranks, so many of them in each node. NCCL's ring is modelled, not reproduced: its order varies with
topology, channels and size, and so does what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from samebits.sim.gpus import Fabric, Protocol


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that take part in a collective."""

    size: int
    per_node: int
    """How many of them share a node."""

    def __post_init__(self) -> None:
        if not 1 <= self.per_node <= self.size or self.size % self.per_node:
            raise ValueError(f"group: {self.per_node} of {self.size} ranks a node; allowed: a divisor, at least 1")

    @property
    def nodes(self) -> int:
        return self.size // self.per_node


def _rate(fabric: Fabric, group: Group, protocol: Protocol) -> float:
    """Bytes a second round a ring: the slower of a GPU's link and of the ports of a node's members together."""
    near = fabric.node_bytes_per_s * protocol.efficiency if group.per_node > 1 else math.inf
    if group.nodes == 1:
        return near
    return min(near, group.per_node * fabric.port_bytes_per_s(group.nodes))


def _step_latency(fabric: Fabric, group: Group, protocol: Protocol) -> float:
    """Seconds of N - 1 steps round a ring, of which one in each node leaves it."""
    inside = group.nodes * (group.per_node - 1)
    across = group.nodes - 1 if group.nodes > 1 else 0
    return min(inside, group.size - 1 - across) * protocol.alpha + across * fabric.step_alpha(group.nodes)


def half(fabric: Fabric, group: Group, nbytes: float) -> float:
    """A reduce-scatter or an all-gather of `nbytes` in all, by the best protocol: round a ring, or, where steps between
    many nodes would take longer than the bytes, by trees between them."""
    return min(ring_half(fabric, group, nbytes), tree_half(fabric, group, nbytes))


def ring_half(fabric: Fabric, group: Group, nbytes: float) -> float:
    if group.size == 1:
        return 0.0
    share = (group.size - 1) / group.size
    return fabric.start + min(
        _step_latency(fabric, group, protocol) + share * nbytes / _rate(fabric, group, protocol)
        for protocol in fabric.protocols
    )


def tree_half(fabric: Fabric, group: Group, nbytes: float) -> float:
    """log2 of the nodes in steps, as NCCL's parallel aggregated trees have them."""
    if group.size == 1:
        return 0.0
    share, near = (group.size - 1) / group.size, fabric.protocols[-1]
    across = math.log2(group.nodes) * fabric.step_alpha(group.nodes) if group.nodes > 1 else 0.0
    return fabric.start + across + (group.per_node - 1) * near.alpha + share * nbytes / _rate(fabric, group, near)


def ring_all_reduce(fabric: Fabric, group: Group, nbytes: float) -> float:
    """Both halves; one start."""
    if group.size == 1:
        return 0.0
    return 2 * (ring_half(fabric, group, nbytes) - fabric.start) + fabric.start


def tree_all_reduce(fabric: Fabric, group: Group, nbytes: float) -> float:
    """Trees between nodes, chains within: few steps, a little less bandwidth."""
    if group.size == 1:
        return 0.0
    near, steps = fabric.protocols[-1], math.log2(group.nodes) if group.nodes > 1 else 0.0
    latency = 2 * (steps * fabric.step_alpha(group.nodes) + (group.per_node - 1) * near.alpha)
    return fabric.start + latency + 2 * nbytes / _rate(fabric, group, near)


def in_switch_all_reduce(fabric: Fabric, group: Group, nbytes: float) -> float:
    """Sums made by the switches of a node; shares of them, one a GPU, go round between nodes at the same time."""
    protocol = fabric.in_switch
    if protocol is None or group.per_node != fabric.per_node:
        return math.inf
    near = nbytes / (fabric.node_bytes_per_s * protocol.efficiency)
    across, nodes = 0.0, group.nodes
    if nodes > 1:
        across = 2 * (nodes - 1) / nodes * nbytes / group.per_node / fabric.port_bytes_per_s(nodes)
    steps = 2 * math.log2(nodes) * fabric.step_alpha(nodes) if nodes > 1 else 0.0
    return fabric.start + protocol.alpha + steps + max(near, across)


def all_reduce(fabric: Fabric, group: Group, nbytes: float) -> float:
    """The fastest of those."""
    return min(kind(fabric, group, nbytes) for kind in (ring_all_reduce, tree_all_reduce, in_switch_all_reduce))


def exchange(fabric: Fabric, group: Group, nbytes: float) -> float:
    """Every rank sends each other rank its part of `nbytes`, one message each: what keeps the order of a sum.

    Messages within the node and through the rank's own port go side by side; each costs a step to post."""
    if group.size == 1:
        return 0.0
    small, large = fabric.protocols[0], fabric.protocols[-1]
    part = nbytes / group.size
    near = (group.per_node - 1) * part / (fabric.node_bytes_per_s * large.efficiency)
    far = (group.size - group.per_node) * part / fabric.port_bytes_per_s(group.nodes) if group.nodes > 1 else 0.0
    posting = (group.size - 1) * max(small.alpha, POSTING)
    reach = fabric.step_alpha(group.nodes) if group.nodes > 1 else large.alpha
    return fabric.start + reach + max(near, far, posting)


# Assumed: seconds to post one message of an exchange.
POSTING = 0.5e-6


def hop(fabric: Fabric, group: Group, nbytes: float) -> tuple[float, float]:
    """One message to the next rank of a group: (latency, seconds for which the link is taken)."""
    if group.nodes > 1:
        return fabric.step_alpha(group.nodes), nbytes / fabric.port_bytes_per_s(group.nodes)
    return HOP_ALPHA, nbytes / (fabric.node_bytes_per_s * fabric.protocols[-1].efficiency)


# Assumed: seconds of a message between two GPUs of a node, posted from a stream.
HOP_ALPHA = 5e-6
