"""What went wrong between ranks, in one line: who was waited for, who had come and who had not.

Knows no tensor. A rank whose exchange fails asks the others through the store that all of them share; one that is
stopped or cut off cannot answer, and is named for it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from samebits.parallel.rank_status import STORE_SECONDS, StoreError, Waiting, ask, failure_of, tell_failure, within

if TYPE_CHECKING:
    from samebits.parallel.rendezvous import Meeting
    from samebits.parallel.world import World

__all__ = ["HungError", "LostError", "RankError", "Waiting", "explained", "not_joined"]

# Others are given this long to say where they stand; a rank that is alive needs a thousandth of it.
GRACE_SECONDS: Final = 3.0
# A rank that gave up waiting closes its connections first and says so next; a dead one says nothing.
LAST_WORD_SECONDS: Final = 3.0
_TIMED_OUT: Final = ("timed out", "timeout")
_CLOSED: Final = ("closed", "reset by peer", "broken pipe", "unreachable", "no route to host", "refused")


class RankError(RuntimeError):
    """An exchange that could not be ended."""


class HungError(RankError):
    """Somebody did not come."""


class LostError(RankError):
    """Somebody has gone."""


def explained(world: World, waiting: Waiting, error: RuntimeError) -> RankError:
    """The error to raise in place of the transport's."""
    words = str(error).lower()
    if any(each in words for each in _TIMED_OUT):
        return _hung(world, waiting)
    if any(each in words for each in _CLOSED):
        return _lost(world, waiting)
    line = f"{_place(waiting)}: {_first_line(error)}"
    tell_failure(world, "raised", line)
    return RankError(line)


def not_joined(meeting: Meeting, store: Any, timeout: float, error: RuntimeError) -> RankError:
    """The error of a rank that could not join; `store` is None where not even that was found."""
    size = meeting.size
    start = f"rank {meeting.rank}: {size} ranks did not join within {timeout:.1f} s"
    if store is None:
        asked = f"no rank 0 or launcher of this run answers at {meeting.where}; is one started there?"
        return HungError(f"{start}: the store cannot be reached: {asked} ({_first_line(error)})")
    try:
        came = within(GRACE_SECONDS, lambda: [each for each in range(size) if store.check([f"came/{each}"])])
    except StoreError as broken:
        return HungError(f"{start}: the store cannot be reached: {broken}")
    missing = [each for each in range(size) if each not in came]
    if not missing:
        return RankError(f"{start}: all came, and then: {_first_line(error)}")
    return HungError(f"{start}: {_names(came)} came, {_names(missing)} did not")


def _hung(world: World, waiting: Waiting) -> RankError:
    waited = time.monotonic() - world.standing.since

    def found() -> tuple[dict[int, dict[str, Any]], dict[int, dict[str, Any]]]:
        # First, so that those whose connection this rank has just closed learn why.
        tell_failure(world, "hung", "", waiting)
        others = [each for each in waiting.members if each != waiting.rank]
        answers = ask(world.store, others, GRACE_SECONDS)
        return answers, {each: failure_of(world.store, each) for each in others}

    start = f"{_place(waiting)} waited {waited:.1f} s"
    try:
        answers, failures = within(GRACE_SECONDS + STORE_SECONDS, found)
    except StoreError as broken:
        return HungError(f"{start} for {_names(waiting.peers)}: the store cannot be reached to ask them: {broken}")
    line = f"{start}: {arrivals(waiting, answers, failures)}"
    tell_failure(world, "hung", line, waiting)
    return HungError(line)


def arrivals(
    waiting: Waiting, answers: Mapping[int, Mapping[str, Any]], failures: Mapping[int, Mapping[str, Any]]
) -> str:
    """Who arrived at the exchange and who did not, from what they answered and from what failed ranks left behind."""
    arrived, others = [waiting.rank], []
    for rank in waiting.members:
        if rank == waiting.rank:
            continue
        # A rank that gave up waiting was there, whatever it answers, or no longer answers, now.
        told = failures[rank] if failures.get(rank, {}).get("kind") == "hung" else answers.get(rank)
        if told and told.get("waits", True) and told["what"] == waiting.what:
            arrived.append(rank)
        else:
            others.append(f"rank {rank} did not ({_elsewhere(told, failures.get(rank, {}))})")
    if not others:
        return f"{_names(sorted(arrived))} all arrived, and wait for each other"
    return f"{_names(sorted(arrived))} arrived, {', '.join(others)}"


def _elsewhere(told: Mapping[str, Any] | None, failure: Mapping[str, Any]) -> str:
    if failure.get("kind") == "left":
        return "it had left"
    if failure and failure["kind"] != "hung":
        return f"it had failed: {failure['line']}"
    if told is None:
        return "it does not answer: stopped, dead or cut off"
    exchange = f'exchange {told["number"]} "{told["what"]}"'
    if told.get("waits", True):
        return f"it waits in {exchange}"
    last = f"its last was {exchange}" if told["number"] else "it was in none before"
    return f"it answers, and is in no exchange for {told['seconds']:.1f} s; {last}"


def _lost(world: World, waiting: Waiting) -> RankError:
    """A closed connection: of a rank that died, unless somebody gave up waiting and closed it."""

    def gave_up() -> bool:
        end = time.monotonic() + LAST_WORD_SECONDS
        while True:
            kinds = {each: failure_of(world.store, each).get("kind") for each in waiting.members}
            if "hung" in kinds.values():
                return True
            if all(kinds[peer] for peer in waiting.peers) or time.monotonic() > end:
                return False
            time.sleep(0.02)

    line = f"{_place(waiting)}: the connection to {_names(waiting.peers)} was lost"
    try:
        if within(LAST_WORD_SECONDS + STORE_SECONDS, gave_up):
            return _hung(world, waiting)
    except StoreError as broken:
        return LostError(f"{line}, and the store cannot be reached: {broken}")
    tell_failure(world, "lost", line, waiting)
    return LostError(line)


def _place(waiting: Waiting) -> str:
    return f'rank {waiting.rank}: exchange {waiting.number} "{waiting.what}"'


def _names(ranks: Sequence[int]) -> str:
    listed = sorted(set(ranks))
    return f"rank{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
