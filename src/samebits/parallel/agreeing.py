"""Facts that all ranks of a run must have alike, compared before they work together: what differs is named in one line.

Facts go through the store that all ranks share, not through messages, so that ranks that differ in anything can still
be told so. Knows no setting; whoever calls says what decides bits."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from platform import machine
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from samebits.native import NativeError, library_digests
from samebits.native.sources import PACKAGE
from samebits.parallel.rank_errors import HungError, LostError
from samebits.parallel.rank_status import STORE_SECONDS, StoreError, failure_of, tell_failure, within

if TYPE_CHECKING:
    from samebits.parallel.world import World

POLL_SECONDS: Final = 0.02
# A value longer than this is shown by its start and its digest.
LONGEST_SHOWN: Final = 100
# Of facts that differ, one is told with its values and so many more by name.
MOST_NAMED: Final = 6
Facts = Mapping[str, Any]
"""Names and plain values. A name that a rank does not have is compared among those that have it."""


def agree(world: World, what: str, facts: Facts) -> None:
    """Compares facts on all ranks; a ValueError on every rank where they differ, and it is the same line on each.

    All ranks ask in the same order. `what` says in errors what was compared."""
    if world.size == 1:
        return
    number = world.store.add(f"facts/{what}/{world.rank}", 1)
    _agree(world, f"facts/{what}/{number}", what, facts)


@cache
def code_facts() -> dict[str, str]:
    """Version and digest of the package, of its native library on this kind of machine, and the version of torch."""
    import samebits

    whole = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        whole.update(file.relative_to(PACKAGE).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    facts = {
        "samebits version": samebits.__version__,
        "samebits code": f"sha256:{whole.hexdigest()}",
        "torch version": torch.__version__.partition("+")[0],
    }
    try:
        sources, built = library_digests()
    except NativeError:
        # A machine may do without it; whoever calls it there is told why.
        return facts
    return facts | {"native sources": f"sha256:{sources}", f"native library ({machine()})": f"sha256:{built}"}


def digest_of(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 of named tensors: names, dtypes, shapes and bits."""
    state = hashlib.sha256()
    for name, tensor in tensors:
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        state.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"sha256:{state.hexdigest()}"


def _agree(world: World, prefix: str, what: str, facts: Facts) -> None:
    try:
        everyones = within(world.timeout + STORE_SECONDS, lambda: _gathered(world, prefix, what, facts))
    except StoreError as broken:
        raise LostError(f"rank {world.rank}: {what} of all ranks cannot be compared: {broken}") from broken
    if isinstance(everyones, LostError):
        tell_failure(world, "lost", str(everyones))
        raise everyones
    if isinstance(everyones, HungError):
        tell_failure(world, "hung", str(everyones))
        raise everyones
    line = difference(everyones)
    if line:
        _wait_for_readers(world, prefix)
        raise ValueError(f"ranks: {line}")


def _gathered(world: World, prefix: str, what: str, facts: Facts) -> list[dict[str, Any]] | HungError | LostError:
    """What every rank says, in the order of ranks; or who did not."""
    store, end = world.store, time.monotonic() + world.timeout
    store.set(f"{prefix}/{world.rank}", json.dumps(facts))
    missing = set(range(world.size))
    while missing := {rank for rank in missing if not store.check([f"{prefix}/{rank}"])}:
        for rank in sorted(missing):
            if failure := failure_of(store, rank):
                said = failure["line"] or failure["kind"]
                return LostError(f"rank {world.rank}: rank {rank} ended before it told its {what}: {said}")
        if time.monotonic() > end:
            late = ", ".join(map(str, sorted(missing)))
            return HungError(
                f"rank {world.rank} waited {world.timeout:.1f} s for the {what} of rank {late}, which did not come"
            )
        time.sleep(POLL_SECONDS)
    return [json.loads(store.get(f"{prefix}/{rank}")) for rank in range(world.size)]


def _wait_for_readers(world: World, prefix: str) -> None:
    """Rank 0 may serve the store, and ends: not before everybody has read from it, or a moment has passed."""
    names = [f"{prefix}/read/{rank}" for rank in range(world.size)]

    def wait() -> bool:
        world.store.set(names[world.rank], "")
        end = time.monotonic() + STORE_SECONDS
        while not world.store.check(names) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
        return True

    try:
        within(2 * STORE_SECONDS, wait)
    except StoreError:
        # The store has gone with the rank that served it, which had read everything.
        return


def difference(everyones: Sequence[Facts]) -> str:
    """The first fact that ranks do not have alike, with both values, and the names of others; empty where there is
    none."""
    lines = []
    names = []
    for name in dict.fromkeys(name for facts in everyones for name in facts):
        having = [rank for rank, facts in enumerate(everyones) if name in facts]
        first = everyones[having[0]][name]
        other = next((rank for rank in having if not _same(everyones[rank][name], first)), None)
        if other is not None:
            values = f"{_shown(first)} on rank {having[0]} and {_shown(everyones[other][name])} on rank {other}"
            lines.append(f"{name} is {values}; allowed: one value on all ranks")
            names.append(name)
    if not lines:
        return ""
    more = ", ".join(names[1 : MOST_NAMED + 1]) + (" and more" if len(names) > MOST_NAMED + 1 else "")
    return lines[0] + (f" (also different: {more})" if more else "")


def _same(left: Any, right: Any) -> bool:
    """As JSON writes them: 1 is not 1.0, and 0.0 is not -0.0."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def _shown(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    if len(text) <= LONGEST_SHOWN:
        return text.strip('"') if isinstance(value, str) and value.startswith("sha256:") else text
    return f"{text[:40]}... (sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]})"
