"""Links in use: when a message that leaves now arrives, given what is on its way already.

A message holds each link of its route for its bytes over the link's bandwidth; its head goes on as soon as it may. So
it takes the sum of the latencies, and its bytes once over the slowest link: propagation, overhead of nodes, drain."""

from __future__ import annotations

from collections import Counter

from samebits.sim.schedule import LinkClass
from samebits.sim.topology import PE, Topology


class Wires:
    """The links of a machine and until when each is taken."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.bytes_on: Counter[tuple[object, ...]] = Counter()
        """Bytes that each wire has carried."""
        self.bytes_at: Counter[LinkClass] = Counter()
        """The same by class of link."""
        self._free_at: dict[tuple[object, ...], float] = {}
        self._routes: dict[tuple[PE, PE], list[tuple[LinkClass, tuple[object, ...], float, float]]] = {}

    def arrival(self, now: float, source: PE, target: PE, nbytes: int) -> float:
        """When the last byte is there. The links are taken meanwhile."""
        time, slowest = now, 0.0
        for level, wire, alpha, bytes_per_s in self._route(source, target):
            start = max(time, self._free_at.get(wire, 0.0))
            self._free_at[wire] = start + nbytes / bytes_per_s
            self.bytes_on[wire] += nbytes
            self.bytes_at[level] += nbytes
            time, slowest = start + alpha, max(slowest, nbytes / bytes_per_s)
        return time + slowest

    def unloaded(self, source: PE, target: PE, nbytes: int) -> float:
        """How long it takes on links that nobody else uses."""
        route = self._route(source, target)
        return sum(alpha for _, _, alpha, _ in route) + max((nbytes / rate for _, _, _, rate in route), default=0.0)

    def _route(self, source: PE, target: PE) -> list[tuple[LinkClass, tuple[object, ...], float, float]]:
        found = self._routes.get((source, target))
        if found is None:
            links = self.topology.links
            found = [
                (hop.level, hop.wire, links[hop.level].alpha, links[hop.level].bytes_per_s)
                for hop in self.topology.route(source, target)
            ]
            self._routes[source, target] = found
        return found
