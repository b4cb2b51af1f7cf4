"""The ranks of a run: who this process is among them, and the one way in which they exchange bytes.

Everything that ranks tell each other goes through `Group.post`: messages between two ranks, which add nothing. Whatever
is added is added by our own code, in an order that it says. A message that does not come is an error with names."""

from __future__ import annotations

import os
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from samebits.parallel.agreeing import agree, code_facts
from samebits.parallel.rank_errors import Waiting, explained, not_joined
from samebits.parallel.rank_status import Answering, Standing, shared, tell_failure
from samebits.parallel.rendezvous import Meeting, stay_on_loopback

TIMEOUT: Final = 60.0
TRANSPORT_VARIABLE: Final = "SAMEBITS_TRANSPORT"
SIMULATED: Final = "sim"
# Ranks may start far apart, whatever a message may take: machines load at their own pace.
JOIN_SECONDS: Final = 60.0
Message = tuple[Tensor, int]
"""A contiguous tensor, and the place in the group to which it goes or from which it comes."""

Operation = tuple[Any, Tensor, int]
"""How it is begun, the tensor, and the rank at the other end."""
Begun = tuple[list[Any], list[tuple[Waiting, RuntimeError]]]
"""What is under way, and what could not be begun."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """All ranks of a run. `store` is where they can still be asked when messages fail; None: there is one rank."""

    rank: int = 0
    size: int = 1
    store: Any = None
    device: str = "cpu"
    """Where messages lie."""
    transport: str = "gloo"
    """Which of torch's backends moves them: gloo, on a GPU by way of the host, nccl, or sim in the virtual cluster."""
    timeout: float = TIMEOUT
    """Seconds after which a message that did not come is an error."""
    sent: Counter[str] = field(default_factory=Counter)
    """Bytes that this rank has sent, by what they were for."""
    counted: Counter[str] = field(default_factory=Counter)
    """Exchanges that this rank has taken part in, by what they were for."""
    standing: Standing = field(default_factory=Standing)
    """Where this rank is, for others that wait for it."""
    answering: Answering | None = None
    abandoned: list[Any] = field(default_factory=list)
    """Exchanges that failed. Their other messages are still on their way, and need their memory."""

    @property
    def group(self) -> Group:
        return Group(world=self, members=tuple(range(self.size)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Ranks that work together. Their order in `members` is their place, which decides who is left in a sum."""

    world: World
    members: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def place(self) -> int:
        """Where this rank stands among the members."""
        return self.members.index(self.world.rank)

    def post(self, what: str, sends: Sequence[Message] = (), receives: Sequence[Message] = ()) -> Pending:
        """Begins an exchange; tensors must be left alone until it is waited for. `what` names it in errors."""
        world = self.world
        world.counted[what] += 1
        number = world.counted.total()
        operations: list[Operation] = []
        for tensor, place in sends:
            world.sent[what] += tensor.numel() * tensor.element_size()
            operations.append((dist.isend, tensor, self.members[place]))
        operations += [(dist.irecv, tensor, self.members[place]) for tensor, place in receives]
        operations = [each for each in operations if each[1].numel()]
        waiting = Waiting(
            what=what,
            number=number,
            rank=world.rank,
            members=self.members,
            peers=tuple(peer for _, _, peer in operations),
        )
        landed: list[tuple[Tensor, Tensor]] = []
        if world.transport == "nccl":
            works, refused = _all_at_once(operations, waiting)
        else:
            landed = [(tensor.cpu(), tensor) for _, tensor, _ in operations if tensor.is_cuda]
            if landed:
                operations = [(call, here, peer) for (call, _, peer), (here, _) in zip(operations, landed, strict=True)]
            works, refused = _one_by_one(operations, waiting)
        if refused:
            world.standing.begin(waiting)
            world.abandoned.append(works)
            about, error = refused[0]
            raise explained(world, about, error) from error
        received = landed[len(landed) - sum(tensor.numel() > 0 for tensor, _ in receives) :]
        return Pending(world=world, waiting=waiting, works=works, landed=received)

    def exchange(self, what: str, sends: Sequence[Message] = (), receives: Sequence[Message] = ()) -> None:
        """`post`, waited for."""
        self.post(what, sends, receives).wait()


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending:
    """An exchange under way."""

    world: World
    waiting: Waiting
    works: list[Any]
    landed: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Where messages to a GPU arrive by way of the host, and where they belong."""

    def wait(self) -> None:
        standing = self.world.standing
        standing.begin(self.waiting)
        for number, work in enumerate(self.works):
            # What has come by then is taken; a wait of no time at all would be one without an end.
            left = max(0.001, standing.since + self.world.timeout - time.monotonic())
            try:
                work.wait(timedelta(seconds=left))
            except RuntimeError as error:
                self.world.abandoned.append(self)
                alone = len(self.works) == len(self.waiting.peers)
                raise explained(self.world, self.waiting.about(number) if alone else self.waiting, error) from error
        standing.end()
        for here, there in self.landed:
            there.copy_(here)


def _all_at_once(operations: Sequence[Operation], waiting: Waiting) -> Begun:
    calls = [dist.P2POp(call, _bytes(tensor), peer) for call, tensor, peer in operations]
    try:
        return (list(dist.batch_isend_irecv(calls)) if calls else []), []
    except RuntimeError as error:
        return [], [(waiting, error)]


def _one_by_one(operations: Sequence[Operation], waiting: Waiting) -> Begun:
    """All that can be begun is, whatever cannot: others wait for it, and shall see for themselves who is gone."""
    # Messages of different names never meet: ranks that disagree about what comes next hang, and are named.
    tag = zlib.crc32(waiting.what.encode()) >> 1
    works: list[Any] = []
    refused: list[tuple[Waiting, RuntimeError]] = []
    for number, (call, tensor, peer) in enumerate(operations):
        try:
            works.append(call(_bytes(tensor), peer, tag=tag))
        except RuntimeError as error:
            refused.append((waiting.about(number), error))
    return works, refused


def _bytes(tensor: Tensor) -> Tensor:
    """The same memory as bytes: the way between ranks must not care what the numbers are."""
    if not tensor.is_contiguous():
        raise ValueError(f"ranks: a message has shape {tuple(tensor.shape)}, strides {tensor.stride()}; allowed: dense")
    return tensor.detach().reshape(-1).view(torch.uint8)


def join(*, device: str = "cpu", timeout: float = TIMEOUT) -> World:
    """The world that the launcher's environment describes (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), joined; one
    rank alone where it describes none. Once a process. Ranks with another version of this package or of torch, or other
    sources or another build of it, are refused: their bits are nobody's promise."""
    meeting = Meeting.described(os.environ)
    if meeting is None:
        return World(timeout=timeout)
    if os.environ.get(TRANSPORT_VARIABLE) == SIMULATED:
        return _join_simulated(meeting, timeout)
    rank, size = meeting.rank, meeting.size
    transport = _transport(device, rank)
    stay_on_loopback(meeting.address)
    store, patience = None, max(timeout, JOIN_SECONDS)
    try:
        store = shared(meeting.open_store(patience))
        store.set(f"came/{rank}", "")
        # Before any message: ranks that go different ways would wait for each other.
        facts = code_facts() | {"device": device, "transport": transport}
        agree(World(rank=rank, size=size, store=store, timeout=patience), "code", facts)
        dist.init_process_group(
            transport,
            store=PrefixStore("messages", store),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=patience),
        )
        if transport == "nccl":
            # Its first messages must be everybody's.
            dist.barrier()
    except RuntimeError as error:
        raise not_joined(meeting, store, patience, error) from error
    standing = Standing()
    return World(
        rank=rank,
        size=size,
        store=store,
        device=device,
        transport=transport,
        timeout=timeout,
        standing=standing,
        answering=Answering(rank, store, standing),
    )


def _join_simulated(meeting: Meeting, timeout: float) -> World:
    """A rank of the virtual cluster: one process, so the same code everywhere, and nobody to ask through a store."""
    if SIMULATED.upper() not in dist.Backend._plugins:
        raise ValueError(
            f"ranks: {TRANSPORT_VARIABLE} is {SIMULATED!r} outside of the virtual cluster; allowed: gloo, nccl, or"
            f" `samebits sim run`"
        )
    if not dist.is_initialized():
        dist.init_process_group(SIMULATED, timeout=timedelta(seconds=timeout))
    return World(rank=meeting.rank, size=meeting.size, transport=SIMULATED, timeout=timeout)


def _transport(device: str, rank: int) -> str:
    """The backend, and on CUDA this rank's own GPU. Ranks that share one can only go by way of the host, if told to."""
    asked = os.environ.get(TRANSPORT_VARIABLE, "nccl" if device == "cuda" else "gloo")
    if asked not in ("gloo", "nccl") or (asked == "nccl" and device != "cuda"):
        allowed = "gloo, nccl" if device == "cuda" else "gloo"
        raise ValueError(f"ranks: {TRANSPORT_VARIABLE} is {asked!r} on {device}; allowed: {allowed}")
    if device == "cuda":
        place, devices = int(os.environ.get("LOCAL_RANK", rank)), torch.cuda.device_count()
        if asked == "nccl" and place >= devices:
            raise ValueError(
                f"ranks: this is rank {place} of its machine, which has {devices} GPUs; allowed: a GPU for each rank,"
                f" or {TRANSPORT_VARIABLE}=gloo"
            )
        torch.cuda.set_device(place % devices)
    return asked


def leave(world: World) -> None:
    """Ends a joined world in order."""
    if world.answering is not None:
        tell_failure(world, "left", "")
        world.answering.stop()
        dist.destroy_process_group()
