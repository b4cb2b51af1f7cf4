"""What goes wrong on the virtual cluster, each kind with a name of its own; a message says who, where and what for."""

from __future__ import annotations

from collections.abc import Mapping

from torch.multiprocessing.spawn import ProcessRaisedException


class SimError(Exception):
    """Something that the virtual cluster found wrong in a program, or in the way it was asked to run one.

    No RuntimeError: torch takes those of a store for a wait that was too short, and waits again."""


class DeadlockError(SimError):
    """Every rank waits, and nothing is under way that could end a wait."""


class NonProgressError(SimError):
    """A rank runs on without an event or a wait, so that no other rank can."""


class MismatchError(SimError):
    """Members of a group entered different collectives at the same place of its sequence."""


class RaceError(SimError):
    """A rank wrote to memory that a collective or a message still used."""


class CollectiveTimeoutError(SimError):
    """A collective took longer, in simulated time, than the timeout of its group."""


class InjectedCrashError(SimError):
    """A crash that a fault plan asked for."""


class SpawnException(ProcessRaisedException):
    """Ranks failed. `errors` holds root causes only, by rank, in rank order; ranks ended for it are not there.

    `abandoned` are ranks that would not end: each swallowed SystemExit twice, or never came back to a wait."""

    def __init__(
        self, errors: Mapping[int, BaseException], told: Mapping[int, str], abandoned: tuple[int, ...] = ()
    ) -> None:
        self.errors = dict(sorted(errors.items()))
        self.told = dict(told)
        self.abandoned = abandoned
        first = next(iter(self.errors), abandoned[0] if abandoned else 0)
        lines = [f"rank {rank}: {type(error).__name__}: {error}" for rank, error in self.errors.items()]
        lines += [
            f"rank {rank} swallowed SystemExit twice, or never came to a wait, and was abandoned" for rank in abandoned
        ]
        traces = [f"\n-- Rank {rank} ended with this error:\n{self.told[rank]}" for rank in self.errors if rank in told]
        super().__init__("\n".join([*lines, *traces]), first, 0)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.errors, self.told, self.abandoned)
