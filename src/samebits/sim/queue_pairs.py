"""Queue pairs between PEs as data: settings, messages, credits, a direction of a PE, and which queues face each other.

Knows no time; `ipcq` moves messages between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from samebits.sim.addresses import PhysAddr
from samebits.sim.ipcq_faults import Channel
from samebits.sim.topology import OPPOSITE, PE

Payload = npt.NDArray[np.float32]
Neighbours = Mapping[PE, Mapping[str, PE]]
CREDIT_BYTES: Final = 16


class IpcqError(RuntimeError):
    """A queue that broke one of its rules."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSettings:
    """Sizes and costs of the queues."""

    slots: int = 4
    slot_bytes: int = 128 << 10
    overhead: float = 0.0
    """Seconds that a receiver spends on the metadata of a message."""
    copy_bytes_per_s: float = 256e9
    """How fast a receiver copies a slot."""
    retry_after: float | None = None
    """Seconds until a link sends a lost message again; None: never."""
    jitter: float = 0.0
    """Seconds by which a seed may delay each message. Order within a channel is kept."""


@dataclass(frozen=True, slots=True)
class Message:
    number: int
    target: PhysAddr
    payload: Payload


@dataclass(frozen=True, slots=True)
class Credit:
    sender: PE
    dst_rx_base: PhysAddr
    """The ring of which a slot is free again."""
    number: int


@dataclass(slots=True, eq=False)
class QueuePair:
    """One direction of one PE."""

    owner: PE
    direction: str
    rx_base: PhysAddr
    slots: int
    slot_bytes: int
    peer: PE
    peer_rx_base: PhysAddr
    # As a sender. A message is on a wire, then in a slot, then its credit is on a wire, then it is freed.
    sent: int = 0
    freed: int = 0
    on_wire: int = 0
    returning: int = 0
    lost: int = 0
    last_arrival: float = 0.0
    under_way: deque[tuple[Message, float | None]] = field(default_factory=deque)
    """In the order of a link; with a message, after how many seconds it comes again, if it does."""
    held_back: Message | None = None
    # As a receiver.
    ring: dict[int, Message] = field(default_factory=dict)
    seen: int = 0
    taken: int = 0
    discarded: int = 0
    wake: Callable[[], None] | None = None
    """Resumes the program that waits here for a slot."""
    wake_sender: Callable[[], None] | None = None

    @property
    def channel(self) -> Channel:
        return self.owner, self.direction

    @property
    def in_flight(self) -> int:
        return self.sent - self.freed

    @property
    def rx_stop(self) -> PhysAddr:
        return self.rx_base + self.slots * self.slot_bytes


def facing(table: Neighbours, owner: PE, direction: str) -> str:
    """The peer's queue that a direction leads into: the opposite one, else one that points back."""
    peer = table[owner][direction]
    back = table.get(peer, {})
    if back.get(OPPOSITE.get(direction, "")) == owner:
        return OPPOSITE[direction]
    for name, target in back.items():
        if target == owner:
            return name
    raise IpcqError(f"install: {owner} {direction} leads to {peer}, and no queue of it points back")
