"""Queues with one defect each, for tests that must notice it."""

from __future__ import annotations

from collections.abc import Callable

from samebits.sim.ipcq import Queues
from samebits.sim.queue_pairs import Credit, Payload, QueuePair
from samebits.sim.topology import PE


class CreditBeforeCopy(Queues):
    """The credit leaves first; the slot is read when the copy ends, and the next message may be in it already."""

    def take(self, pair: QueuePair, done: Callable[[Payload], None]) -> None:
        slot, early = pair.taken % pair.slots, pair.ring[pair.taken % pair.slots]
        copied = self.engine.now + early.payload.nbytes / self.settings.copy_bytes_per_s
        self._return_credit(pair, early.payload, lambda _: None)
        self.engine.at(copied, lambda: done(pair.ring.get(slot, early).payload.copy()))


class CreditBySender(Queues):
    """A credit goes to the first queue whose peer sent it; with two queues to one peer that is the wrong one."""

    def freed_by(self, credit: Credit, at: PE) -> QueuePair:
        return next(pair for pair in self._pairs[at].values() if pair.peer == credit.sender)


class ArrivalBySender(Queues):
    """A message goes to the first queue whose peer sent it, not to the ring that it was written into."""

    def matched(self, message):  # type: ignore[no-untyped-def]
        pairs = self._pairs[message.target.owner].values()
        right = super().matched(message)
        return next(pair for pair in pairs if pair.peer == right.peer)


class FreeCredit(Queues):
    """A credit that costs nothing, as a failed look-up of its route once made it."""

    def _return_credit(self, pair: QueuePair, payload: Payload, done: Callable[[Payload], None]) -> None:
        wires, self.wires = self.wires, _NoTime(self.wires)  # type: ignore[assignment]
        super()._return_credit(pair, payload, done)
        self.wires = wires


class _NoTime:
    def __init__(self, wires: object) -> None:
        self._wires = wires

    def arrival(self, now: float, source: PE, target: PE, nbytes: int) -> float:
        return now


class SkipsDuplicates(Queues):
    """A duplicate is taken for a new message."""

    def _deliver(self, message, source):  # type: ignore[no-untyped-def]
        pair = self.matched(message)
        if message.number < pair.seen:
            pair.ring[pair.seen % pair.slots] = type(message)(pair.seen, message.target, message.payload)
            pair.seen += 1
            return
        super()._deliver(message, source)


class AnyOrderOfAnInstant(Queues):
    """Messages of one link that arrive at one instant, in whatever order the engine draws."""

    def _under_way(self, pair, message, arrival):  # type: ignore[no-untyped-def]
        pair.last_arrival = arrival = max(arrival, pair.last_arrival)
        self.engine.at(arrival, lambda: self._deliver(message, pair))
