"""Memory that a collective or a message still uses: whether the program has written to it meanwhile.

On real processes such a write meets the transfer somewhere in the middle. What the cluster itself writes is no such
write: it goes past autograd's version counters, which every operator in place moves on. A counter is shared by all
views of a memory, so that numbers are compared too: a write beside the part that is under way is left alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from samebits.sim.results import digest_of


@dataclass(frozen=True, slots=True)
class InFlight:
    """A tensor as it was when it was handed over."""

    tensor: Tensor
    version: int
    digest: str

    @property
    def changed(self) -> bool:
        return self.tensor._version != self.version and digest_of([self.tensor]) != self.digest


def handed_over(tensors: Iterable[Tensor]) -> tuple[InFlight, ...]:
    """What is to be watched, each tensor once. Tensors of inference mode have no counter."""
    once = {id(each): each for each in tensors if not each.is_inference()}
    return tuple(InFlight(each, each._version, digest_of([each])) for each in once.values())


def race_of(rank: int, what: str, site: str, watched: Iterable[InFlight]) -> str:
    """What a rank did to tensors that it had handed over; empty where it left them alone."""
    for each in watched:
        if each.changed:
            shown = f"{str(each.tensor.dtype).removeprefix('torch.')}{list(each.tensor.shape)}"
            return (
                f"rank {rank} writes to the {shown} of its {what} at {site} before that is complete;"
                " allowed: once it has waited for it"
            )
    return ""
