"""Where each rank stands, told to any rank that asks: through the store that all of them share, not through messages.

A thread of every rank waits for questions, so that a rank that computes, or waits for another, still answers; one
that is stopped, dead or cut off does not. Knows no tensor, and what is asked costs a rank that works nothing."""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from torch.distributed.distributed_c10d import PrefixStore

if TYPE_CHECKING:
    from samebits.parallel.world import World

T = TypeVar("T")
# As good as for ever: a thread that waits for a question that need not come.
_FOREVER: Final = timedelta(days=365)
# A store that is well answers within a thousandth of this.
STORE_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """One exchange as this rank sees it."""

    what: str
    number: int
    """Which exchange of this rank it is, counted from 1."""
    rank: int
    members: tuple[int, ...]
    """The ranks of the group."""
    peers: tuple[int, ...]
    """The ranks with which this one exchanges, one for each message."""

    def about(self, message: int) -> Waiting:
        """The same exchange, of which one message failed: nothing is said about the other ranks."""
        return replace(self, peers=(self.peers[message],))


@dataclass(kw_only=True, slots=True)
class Standing:
    """Where this rank stands. Written by the rank as it goes, read by the thread that answers for it."""

    waiting: Waiting | None = None
    since: float = field(default_factory=time.monotonic)
    """When it began to wait, or to do something else."""
    last: Waiting | None = None
    """The exchange that ended last."""

    def begin(self, waiting: Waiting) -> None:
        self.waiting, self.since = waiting, time.monotonic()

    def end(self) -> None:
        self.waiting, self.last, self.since = None, self.waiting, time.monotonic()

    def told(self) -> dict[str, Any]:
        shown = self.waiting or self.last
        return {
            "waits": self.waiting is not None,
            "what": shown.what if shown else "",
            "number": shown.number if shown else 0,
            "seconds": time.monotonic() - self.since,
        }


class StoreError(RuntimeError):
    """The store did not answer."""


def within(seconds: float, call: Callable[[], T]) -> T:
    """What a call on a store returns; StoreError where it takes longer or fails. A call that hangs is left hanging in
    its thread: a store behind a cut wire has no other end."""
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True, name="store")
    thread.start()
    thread.join(seconds)
    if not found:
        raise StoreError(f"no answer within {seconds:g} s" if not failed else str(failed[0]).splitlines()[0])
    return found[0]


def shared(store: Any) -> PrefixStore:
    """The part of a launcher's store that is this run's: a run that is started again finds nothing of the last."""
    return PrefixStore(f"samebits/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def tell_failure(world: World, kind: str, line: str, waiting: Waiting | None = None) -> None:
    """Leaves a word about why this rank ends, for the launcher and for ranks that miss it."""
    if world.store is None:
        return
    told: dict[str, Any] = {"kind": kind, "line": line}
    if waiting is not None:
        told |= {"what": waiting.what, "number": waiting.number}
    try:
        within(STORE_SECONDS, lambda: world.store.set(f"failure/{world.rank}", json.dumps(told)))
    except StoreError:
        # Without the store nobody can be told; the error itself still says everything.
        return


def failure_of(store: Any, rank: int) -> dict[str, Any]:
    """What a rank left with `tell_failure`; empty where it left nothing. Blocks where the store does."""
    if not store.check([f"failure/{rank}"]):
        return {}
    told: dict[str, Any] = json.loads(store.get(f"failure/{rank}"))
    return told


def ask(store: Any, ranks: Iterable[int], seconds: float) -> dict[int, dict[str, Any]]:
    """Where those of the ranks stand that answer within some seconds. Blocks where the store does."""
    number = store.add("questions", 1)
    store.set(_question(number), b"")
    missing, found = set(ranks), {}
    end = time.monotonic() + seconds
    while missing and time.monotonic() < end:
        for rank in sorted(missing):
            if store.check([_answer(number, rank)]):
                found[rank] = json.loads(store.get(_answer(number, rank)))
                missing.discard(rank)
        time.sleep(_POLL_SECONDS if missing else 0.0)
    return found


def _question(number: int) -> str:
    return f"question/{number}"


def _answer(number: int, rank: int) -> str:
    return f"answer/{number}/{rank}"


class Answering:
    """The thread that answers for one rank."""

    def __init__(self, rank: int, store: Any, standing: Standing) -> None:
        self._rank, self._standing = rank, standing
        self._store, self._own = store, store.clone()
        self._leaving = False
        self._thread = threading.Thread(target=self._answer, daemon=True, name="answering")
        self._thread.start()
        # A thread inside the store when the interpreter ends would end the process its own way.
        atexit.register(self.stop)

    def _answer(self) -> None:
        number = 0
        while not self._leaving:
            number += 1
            try:
                self._own.wait([_question(number)], _FOREVER)
                self._own.set(_answer(number, self._rank), json.dumps(self._standing.told()))
            except RuntimeError:
                # The store has gone, and with it whoever could ask.
                return

    def stop(self) -> None:
        """Ends the thread: a question of its own wakes it."""
        atexit.unregister(self.stop)
        self._leaving = True
        if self._thread.is_alive():
            try:
                within(STORE_SECONDS, lambda: ask(self._store, (), 0.0))
            except StoreError:
                return
            self._thread.join(STORE_SECONDS)
