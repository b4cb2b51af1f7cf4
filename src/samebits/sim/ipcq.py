"""IPCQ: ring queues from PE to PE, with credits. Who sent a message is never looked at; addresses decide.

A queue pair is one direction of one PE: a ring of slots in its own memory into which the peer writes, and the right to
write into one ring of the peer. A message is matched by the address it is written to, a credit by the base of the ring
that it frees a slot of. A payload is captured when its send is issued; a receiver copies the slot before its credit
leaves. Every message has a number: what comes twice is discarded, what comes too early is never consumed."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from samebits.sim.addresses import DEFAULT_MAP, PAGE, MemoryMap, PhysAddr
from samebits.sim.events import Engine
from samebits.sim.ipcq_faults import Channel, FaultPlan
from samebits.sim.queue_pairs import (
    CREDIT_BYTES,
    Credit,
    IpcqError,
    Message,
    Neighbours,
    Payload,
    QueuePair,
    QueueSettings,
    facing,
)
from samebits.sim.topology import PE
from samebits.sim.wires import Wires


class Queues:
    """All queue pairs of a machine."""

    def __init__(
        self,
        engine: Engine,
        wires: Wires,
        settings: QueueSettings,
        faults: FaultPlan,
        memory: MemoryMap = DEFAULT_MAP,
        seed: int | None = None,
    ) -> None:
        self.engine, self.wires, self.settings, self.faults = engine, wires, settings, faults
        self._region = memory.regions["ipcq"]
        self._pairs: dict[PE, dict[str, QueuePair]] = {}
        self._jitter = random.Random(f"jitter {seed}")
        self._touched: set[Channel] = set()
        self.out_of_order: list[str] = []
        """What came too early, told in full."""
        engine.after_event.append(self.check)

    # Install

    def install(self, table: Neighbours, latency: Callable[[PE], float]) -> None:
        """Sends every PE its neighbours and the bases of their rings. A PE that is not there is refused at once."""
        for owner, directions in table.items():
            for place in (owner, *directions.values()):
                self.wires.topology.check(place)
        ring = self.settings.slots * self.settings.slot_bytes
        each = -(-ring // PAGE) * PAGE
        bases = {
            owner: {
                name: PhysAddr.at(owner, self._region.start + each * number) for number, name in enumerate(directions)
            }
            for owner, directions in table.items()
        }
        for owner, directions in table.items():
            if each * len(directions) > self._region.size:
                raise IpcqError(
                    f"install: {len(directions)} rings of {each:,} bytes for {owner}; there are"
                    f" {self._region.size:,} bytes"
                )
            pairs = {
                name: QueuePair(
                    owner,
                    name,
                    bases[owner][name],
                    self.settings.slots,
                    self.settings.slot_bytes,
                    peer,
                    bases[peer][facing(table, owner, name)],
                )
                for name, peer in directions.items()
            }
            self.engine.at(self.engine.now + latency(owner), partial(self._take_in, owner, pairs))

    def _take_in(self, owner: PE, pairs: dict[str, QueuePair]) -> None:
        self._pairs[owner] = pairs

    def pair(self, owner: PE, direction: str) -> QueuePair:
        found = self._pairs.get(owner, {}).get(direction)
        if found is None:
            known = ", ".join(self._pairs.get(owner, {})) or "none"
            raise IpcqError(f"{owner} has no queue {direction}; installed: {known}")
        return found

    def all_pairs(self) -> list[QueuePair]:
        return [pair for pairs in self._pairs.values() for pair in pairs.values()]

    # Sending

    def send(self, pair: QueuePair, payload: Payload) -> None:
        """Writes a captured payload into the peer's next slot; the caller has made sure of a credit."""
        if payload.nbytes > pair.slot_bytes:
            raise IpcqError(f"{pair.owner} {pair.direction}: {payload.nbytes} bytes; a slot has {pair.slot_bytes}")
        number = pair.sent
        target = pair.peer_rx_base + number % pair.slots * pair.slot_bytes
        message = Message(number, target, payload)
        pair.sent, pair.on_wire = pair.sent + 1, pair.on_wire + 1
        self._touched.add(pair.channel)
        arrival = self.wires.arrival(self.engine.now, pair.owner, pair.peer, payload.nbytes)
        if self.settings.jitter:
            arrival += self._jitter.random() * self.settings.jitter
        self._under_way(pair, message, arrival)

    def _under_way(self, pair: QueuePair, message: Message, arrival: float) -> None:
        fault = self.faults.message(pair.channel, message.number)
        kind = fault.kind if fault else ""
        if kind == "lose" and self.settings.retry_after is None:
            pair.on_wire, pair.lost = pair.on_wire - 1, pair.lost + 1
            return
        if fault and kind in ("delay", "lose"):
            arrival += fault.amount if kind == "delay" else self.settings.retry_after or 0.0
        # A link delivers in order: nothing overtakes what is late.
        pair.last_arrival = arrival = max(arrival, pair.last_arrival)
        if kind == "reorder":
            pair.held_back = message
            return
        pair.under_way.append((message, fault.amount if fault and kind == "duplicate" else None))
        self.engine.at(arrival, lambda: self._arrive(pair))

    def _arrive(self, pair: QueuePair) -> None:
        """What has been on the link longest: events of one instant may run in any order, a link's messages may not."""
        message, again = pair.under_way.popleft()
        self._deliver(message, pair)
        if again is not None:
            self.engine.at(self.engine.now + again, lambda: self._deliver(message, pair))
        if pair.held_back is not None and pair.held_back.number < message.number:
            late, pair.held_back = pair.held_back, None
            self._deliver(late, pair)

    # Arriving

    def matched(self, message: Message) -> QueuePair:
        """The queue whose ring holds the address that was written to."""
        for pair in self._pairs.get(message.target.owner, {}).values():
            if pair.rx_base <= message.target < pair.rx_stop:
                return pair
        raise IpcqError(f"a message to {message.target} is in nobody's ring")

    def _deliver(self, message: Message, source: QueuePair) -> None:
        pair = self.matched(message)
        if message.number > pair.seen:
            # Nobody can tell yet whether the one before is late or lost. This one is dropped, and told of.
            what = f"message {message.number} of {source.owner} {source.direction}"
            self.out_of_order.append(f"{what} came before message {pair.seen} and was not consumed")
            source.on_wire, source.lost = source.on_wire - 1, source.lost + 1
            self._touched.add(source.channel)
            return
        if message.number < pair.seen:
            pair.discarded += 1
            return
        pair.seen += 1
        source.on_wire -= 1
        self._touched.add(source.channel)
        # Data and metadata become visible together.
        pair.ring[message.number % pair.slots] = message
        if pair.wake is not None:
            wake, pair.wake = pair.wake, None
            wake()

    # Receiving

    def filled(self, pair: QueuePair) -> bool:
        """Whether the slot that is read next holds the message that is due."""
        held = pair.ring.get(pair.taken % pair.slots)
        return held is not None and held.number == pair.taken

    def take(self, pair: QueuePair, done: Callable[[Payload], None]) -> None:
        """Copies the slot, then returns its credit; the receive ends when the credit is out."""
        nbytes = pair.ring[pair.taken % pair.slots].payload.nbytes
        copied = self.engine.now + self.settings.overhead + nbytes / self.settings.copy_bytes_per_s
        self.engine.at(copied, lambda: self._return_credit(pair, self._copy(pair), done))

    def _copy(self, pair: QueuePair) -> Payload:
        payload: Payload = pair.ring[pair.taken % pair.slots].payload.copy()
        return payload

    def _return_credit(self, pair: QueuePair, payload: Payload, done: Callable[[Payload], None]) -> None:
        number = pair.taken
        del pair.ring[number % pair.slots]
        pair.taken += 1
        sender = self.sender_into(pair)
        sender.returning += 1
        self._touched.add(sender.channel)
        arrival = self.wires.arrival(self.engine.now, pair.owner, pair.peer, CREDIT_BYTES)
        credit = Credit(pair.owner, pair.rx_base, number)
        if self.faults.credit_lost(sender.channel, number):
            sender.returning, sender.lost = sender.returning - 1, sender.lost + 1
        else:
            self.engine.at(arrival, lambda: self._credited(credit, pair.peer))
        self.engine.at(arrival, lambda: done(payload))

    def sender_into(self, pair: QueuePair) -> QueuePair:
        """The peer's queue that writes into this one's ring."""
        for other in self._pairs[pair.peer].values():
            if other.peer_rx_base == pair.rx_base:
                return other
        raise IpcqError(f"{pair.peer} has no queue into {pair.owner} {pair.direction}")

    def freed_by(self, credit: Credit, at: PE) -> QueuePair:
        """The queue of a PE that a credit is for: the one that writes into the ring named by it."""
        for pair in self._pairs[at].values():
            if pair.peer_rx_base == credit.dst_rx_base:
                return pair
        raise IpcqError(f"{at} got a credit for {credit.dst_rx_base}, into which it does not write")

    def _credited(self, credit: Credit, at: PE) -> None:
        pair = self.freed_by(credit, at)
        pair.freed, pair.returning = pair.freed + 1, pair.returning - 1
        self._touched.add(pair.channel)
        if pair.wake_sender is not None:
            wake, pair.wake_sender = pair.wake_sender, None
            wake()

    def told(self) -> str:
        """The end of a report: what was noticed, and what was injected."""
        return "".join(f"; {each}" for each in self.out_of_order) + self.faults.told()

    # What must hold after every event

    def check(self) -> None:
        """0 <= in flight <= slots, and sent = freed + in flight, counted where messages are."""
        for owner, direction in self._touched:
            pair = self._pairs[owner][direction]
            ring = next(other.ring for other in self._pairs[pair.peer].values() if other.rx_base == pair.peer_rx_base)
            counted = pair.on_wire + len(ring) + pair.returning + pair.lost
            if not (0 <= pair.in_flight <= pair.slots and min(pair.on_wire, pair.returning) >= 0):
                raise IpcqError(
                    f"{owner} {direction}: {pair.in_flight} messages in flight, {pair.returning} credits;"
                    f" allowed: 0 to {pair.slots}{self.faults.told()}"
                )
            if pair.sent != pair.freed + counted:
                raise IpcqError(
                    f"{owner} {direction}: {pair.sent} sent, {pair.freed} freed, {counted} in flight"
                    f"{self.faults.told()}"
                )
        self._touched.clear()
