"""The virtual accelerator: SIPs on a grid, cubes on a mesh in each, PEs in a cube; links, and routes between PEs.

A SIP is one device and one rank. A PE is named by its three coordinates, never by one number: a flat index has two
readings, over all SIPs and within one, and they drift apart without a sound. Knows neither tensors nor time; a link
only says what a message costs on it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from samebits.sim.schedule import LinkClass

Cell = tuple[int, int]
"""A column and a row."""
# What the address format can name.
MOST_SIPS: Final = 1 << 16
MOST_CUBES: Final = 1 << 6
MOST_PES: Final = 1 << 4


# Where a queue of a PE leads, as kernels name it. Further queues may have any name.
OPPOSITE: Final = {
    "E": "W",
    "W": "E",
    "N": "S",
    "S": "N",
    "sip_E": "sip_W",
    "sip_W": "sip_E",
    "sip_N": "sip_S",
    "sip_S": "sip_N",
}


@dataclass(frozen=True, order=True, slots=True)
class PE:
    """A processing element, by its place."""

    sip: int
    cube: int
    pe: int

    def __str__(self) -> str:
        return f"sip {self.sip} cube {self.cube} pe {self.pe}"


@dataclass(frozen=True, slots=True)
class Link:
    """Latency (alpha) and bandwidth of a link; a message of m bytes takes alpha + m / bandwidth."""

    alpha: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not (self.alpha >= 0 and math.isfinite(self.alpha)):
            raise ValueError(f"link: alpha is {self.alpha}; allowed: seconds, at least 0")
        if not (self.bytes_per_s > 0 and math.isfinite(self.bytes_per_s)):
            raise ValueError(f"link: bytes_per_s is {self.bytes_per_s}; allowed: above 0")

    def seconds(self, nbytes: float) -> float:
        return self.alpha + nbytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Hop:
    """One link of a route. `wire` names it: messages with the same wire wait for each other."""

    level: LinkClass
    wire: tuple[object, ...]


class NoRouteError(ValueError):
    """Two places that no links join."""


def grid_of(count: int, width: int | None = None, height: int | None = None) -> Cell:
    """Width and height of the SIPs' grid: as said, else a square."""
    if (width is None) != (height is None):
        raise ValueError(f"topology: width is {width}, height is {height}; allowed: both or neither")
    if width is not None and height is not None:
        if width < 1 or height < 1 or width * height != count:
            raise ValueError(f"topology: {count} SIPs as {width} x {height}; allowed: width times height is {count}")
        return width, height
    side = math.isqrt(count)
    if count < 1 or side * side != count:
        raise ValueError(f"topology: {count} SIPs are no square; allowed: width and height, or 1, 4, 9, ...")
    return side, side


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """Sizes and links of a machine."""

    sips: int = 1
    width: int | None = None
    height: int | None = None
    torus: bool = True
    """Whether the SIPs' grid is joined at its ends."""
    cube_mesh: Cell = (4, 4)
    pes: int = 8
    """Of a cube."""
    links: dict[LinkClass, Link] = field(default_factory=dict)
    missing: frozenset[tuple[object, ...]] = frozenset()
    """Wires that are not there."""

    def __post_init__(self) -> None:
        for name, value, most in (
            ("sips", self.sips, MOST_SIPS),
            ("pes", self.pes, MOST_PES),
            ("cubes", self.cubes, MOST_CUBES),
        ):
            if not 1 <= value <= most:
                raise ValueError(f"topology: {name} is {value}; allowed: 1 to {most}")
        _ = self.grid

    @property
    def grid(self) -> Cell:
        return grid_of(self.sips, self.width, self.height)

    @property
    def cubes(self) -> int:
        return self.cube_mesh[0] * self.cube_mesh[1]

    @property
    def root_cube(self) -> int:
        """The cube in the middle, where a SIP's links to other SIPs end."""
        return self.cube_at((self.cube_mesh[0] // 2, self.cube_mesh[1] // 2))

    def cube_at(self, cell: Cell) -> int:
        return cell[1] * self.cube_mesh[0] + cell[0]

    def cell_of_cube(self, cube: int) -> Cell:
        return cube % self.cube_mesh[0], cube // self.cube_mesh[0]

    def sip_at(self, cell: Cell) -> int:
        return cell[1] * self.grid[0] + cell[0]

    def cell_of_sip(self, sip: int) -> Cell:
        return sip % self.grid[0], sip // self.grid[0]

    def check(self, pe: PE) -> PE:
        """This PE, or an error where there is none."""
        for name, value, count in (("sip", pe.sip, self.sips), ("cube", pe.cube, self.cubes), ("pe", pe.pe, self.pes)):
            if not 0 <= value < count:
                raise ValueError(f"topology: no {pe}: {name} is {value}; allowed: 0 to {count - 1}")
        return pe

    def all_pes(
        self, sips: Sequence[int] | None = None, cubes: int | None = None, pes: int | None = None
    ) -> Iterator[PE]:
        """Every PE of some SIPs, the first `cubes` cubes and `pes` PEs of each."""
        for sip in range(self.sips) if sips is None else sips:
            for cube in range(self.cubes if cubes is None else cubes):
                for pe in range(self.pes if pes is None else pes):
                    yield self.check(PE(sip, cube, pe))

    def route(self, source: PE, target: PE) -> list[Hop]:
        """The links from one PE to another: along the row, then along the column, of cubes and of SIPs alike."""
        self.check(source), self.check(target)
        if source == target:
            return []
        hops = [Hop(LinkClass.PE, ("pe out", source))]
        at = source.cube
        if source.sip != target.sip:
            hops += self._across_cubes(source.sip, at, self.root_cube)
            hops += self._across_sips(source.sip, target.sip)
            at = self.root_cube
        hops += self._across_cubes(target.sip, at, target.cube)
        for hop in hops:
            if hop.wire in self.missing or hop.level not in self.links:
                raise NoRouteError(f"topology: no route from {source} to {target}: no link {hop.wire}")
        return hops

    def alpha(self, source: PE, target: PE) -> float:
        """Propagation and the overhead of every node between two PEs."""
        return sum(self.links[hop.level].alpha for hop in self.route(source, target))

    def _across_cubes(self, sip: int, at: int, to: int) -> list[Hop]:
        cells = _walk(self.cell_of_cube(at), self.cell_of_cube(to), self.cube_mesh, wrap=False)
        return [Hop(LinkClass.CUBE, ("cube", sip, self.cube_at(a), self.cube_at(b))) for a, b in pairwise(cells)]

    def _across_sips(self, at: int, to: int) -> list[Hop]:
        cells = _walk(self.cell_of_sip(at), self.cell_of_sip(to), self.grid, wrap=self.torus)
        return [Hop(LinkClass.SIP, ("sip", self.sip_at(a), self.sip_at(b))) for a, b in pairwise(cells)]


def _walk(at: Cell, to: Cell, size: Cell, *, wrap: bool) -> list[Cell]:
    """Cells from one to another, first along the row; the short way round where ends are joined."""
    cells = [at]
    for axis in (0, 1):
        while cells[-1][axis] != to[axis]:
            here, length = list(cells[-1]), size[axis]
            forward = (to[axis] - here[axis]) % length
            step = 1 if (forward <= length - forward if wrap else to[axis] > here[axis]) else -1
            here[axis] = (here[axis] + step) % length
            cells.append((here[0], here[1]))
    return cells
