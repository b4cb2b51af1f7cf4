"""Where a tensor is within one SIP: a policy for cubes and PEs, the shards that come of it, and their memory.

A policy knows no SIP. Which SIP a tensor is on is said once, by `resolve_dp_policy(..., target_sip=...)`; a tensor over
several SIPs is one call for each. Uneven sizes are cut as `torch.chunk` cuts them. Bytes are counted in the order of
shards: a shard is dense, and the shards of one tensor, replicas left out, follow each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from samebits.sim.addresses import DEFAULT_MAP, PAGE, MemoryMap, PhysAddr
from samebits.sim.topology import PE, Topology

POLICIES: Final = ("replicate", "column_wise", "row_wise")
Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class DPPolicy:
    """How a tensor is laid out over the cubes of a SIP, and over the PEs of a cube."""

    cube: str = "replicate"
    pe: str = "replicate"
    num_cubes: int | None = None
    """All of the SIP's unless said."""
    num_pes: int | None = None

    def __post_init__(self) -> None:
        for name in ("cube", "pe"):
            if getattr(self, name) not in POLICIES:
                raise ValueError(f"DPPolicy: {name} is {getattr(self, name)!r}; allowed: {', '.join(POLICIES)}")
        for name in ("num_cubes", "num_pes"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ValueError(f"DPPolicy: {name} is {count}; allowed: at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardSpec:
    """One PE's part of a tensor."""

    sip: int
    cube: int
    pe: int
    offset_bytes: int
    nbytes: int

    @property
    def owner(self) -> PE:
        return PE(self.sip, self.cube, self.pe)


@dataclass(frozen=True, slots=True)
class LocalShard:
    """Rows and columns of a tensor on a PE of a cube, before anyone says which SIP: what the resolvers return."""

    cube: int
    pe: int
    rows: Span
    columns: Span

    @property
    def elements(self) -> int:
        return (self.rows[1] - self.rows[0]) * (self.columns[1] - self.columns[0])


def chunk_spans(length: int, parts: int) -> list[Span]:
    """Pieces of ceil(length / parts), the last ones short or empty: `torch.chunk`, filled up to `parts`."""
    each = -(-length // parts)
    cuts = [min(number * each, length) for number in range(parts + 1)]
    return list(pairwise(cuts))


def replicate(rows: Span, columns: Span, parts: int) -> list[tuple[Span, Span]]:
    return [(rows, columns)] * parts


def column_wise(rows: Span, columns: Span, parts: int) -> list[tuple[Span, Span]]:
    return [
        (rows, (columns[0] + start, columns[0] + stop)) for start, stop in chunk_spans(columns[1] - columns[0], parts)
    ]


def row_wise(rows: Span, columns: Span, parts: int) -> list[tuple[Span, Span]]:
    return [((rows[0] + start, rows[0] + stop), columns) for start, stop in chunk_spans(rows[1] - rows[0], parts)]


_RESOLVERS: Final[dict[str, Callable[[Span, Span, int], list[tuple[Span, Span]]]]] = {
    "replicate": replicate,
    "column_wise": column_wise,
    "row_wise": row_wise,
}


def tiled(policy: DPPolicy, shape: tuple[int, int], cubes: int, pes: int) -> list[LocalShard]:
    """The cubes' cut, and in each part the PEs' cut."""
    parts = _RESOLVERS[policy.cube]((0, shape[0]), (0, shape[1]), cubes)
    return [
        LocalShard(cube, pe, rows, columns)
        for cube, (part_rows, part_columns) in enumerate(parts)
        for pe, (rows, columns) in enumerate(_RESOLVERS[policy.pe](part_rows, part_columns, pes))
    ]


def local_shards(policy: DPPolicy, shape: Sequence[int], topology: Topology) -> list[LocalShard]:
    """A policy carried out on a tensor, a vector being one row."""
    if not 1 <= len(shape) <= 2 or min(shape) < 0:
        raise ValueError(f"placement: the shape is {tuple(shape)}; allowed: 1 or 2 axes")
    cubes, pes = policy.num_cubes or topology.cubes, policy.num_pes or topology.pes
    for name, count, most in (("num_cubes", cubes, topology.cubes), ("num_pes", pes, topology.pes)):
        if count > most:
            raise ValueError(f"placement: {name} is {count}; allowed: at most {most}, which the SIP has")
    matrix = (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])
    return tiled(policy, matrix, cubes, pes)


def resolve_dp_policy(
    policy: DPPolicy, shape: Sequence[int], itemsize: int, *, target_sip: int, topology: Topology
) -> list[ShardSpec]:
    """Every PE's shard on one SIP."""
    found: list[ShardSpec] = []
    offsets: dict[tuple[Span, Span], int] = {}
    end = 0
    for shard in local_shards(policy, shape, topology):
        key, nbytes = (shard.rows, shard.columns), shard.elements * itemsize
        if key not in offsets:
            offsets[key], end = end, end + nbytes
        topology.check(PE(target_sip, shard.cube, shard.pe))
        found.append(ShardSpec(sip=target_sip, cube=shard.cube, pe=shard.pe, offset_bytes=offsets[key], nbytes=nbytes))
    return found


class Allocators:
    """Memory of every PE, by (sip, cube, pe): first fit, in pages of the HBM region."""

    def __init__(self, topology: Topology, memory: MemoryMap = DEFAULT_MAP) -> None:
        self.topology, self._region = topology, memory.regions["hbm"]
        self._taken: dict[PE, dict[int, int]] = {}

    def allocate(self, owner: PE, nbytes: int) -> PhysAddr:
        taken = self._taken.setdefault(self.topology.check(owner), {})
        size, at = max(PAGE, -(-nbytes // PAGE) * PAGE), self._region.start
        for start, length in sorted(taken.items()):
            if start - at >= size:
                break
            at = start + length
        if at + size > self._region.stop:
            free = self._region.size - sum(taken.values())
            raise MemoryError(f"{owner}: {size:,} bytes asked for; {free:,} are free, in pieces")
        taken[at] = size
        return PhysAddr.at(owner, at)

    def free(self, owner: PE, address: PhysAddr) -> None:
        """Gives memory back under the key it was taken by."""
        if address.owner != owner:
            raise ValueError(f"free: {address.owner} took this memory, {owner} frees it; allowed: who took it")
        if self._taken.get(owner, {}).pop(address.local_offset, None) is None:
            raise ValueError(f"free: {owner} has nothing at {address.local_offset:#x}; allowed: what was allocated")

    def place(self, shards: Sequence[ShardSpec]) -> list[PhysAddr]:
        """Memory for every shard of a tensor."""
        return [self.allocate(shard.owner, shard.nbytes) for shard in shards]

    def used(self, owner: PE) -> int:
        return sum(self._taken.get(owner, {}).values())
