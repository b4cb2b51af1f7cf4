"""Physical addresses of the virtual accelerator: `sip 16 | cube 6 | pe 4 | local_offset 38` bits, and what is where.

What a PE owns is in named regions of its local offsets, disjoint and with holes between them. An address in a hole
belongs to nothing and is refused. Knows no tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from samebits.sim.topology import MOST_CUBES, MOST_PES, MOST_SIPS, PE

OFFSET_BITS: Final = 38
PE_BITS: Final = MOST_PES.bit_length() - 1
CUBE_BITS: Final = MOST_CUBES.bit_length() - 1
SIP_BITS: Final = MOST_SIPS.bit_length() - 1
PAGE: Final = 4096
NAMES: Final = ("registers", "tcm", "sram", "ipcq", "hbm")


class AddressError(ValueError):
    """An address that names nothing."""


@dataclass(frozen=True, order=True, slots=True)
class PhysAddr:
    """A byte of one PE."""

    sip: int
    cube: int
    pe: int
    local_offset: int

    def __post_init__(self) -> None:
        for name, bits in (("sip", SIP_BITS), ("cube", CUBE_BITS), ("pe", PE_BITS), ("local_offset", OFFSET_BITS)):
            value = getattr(self, name)
            if not 0 <= value < 1 << bits:
                raise AddressError(f"address: {name} is {value}; allowed: 0 to {(1 << bits) - 1}")

    @classmethod
    def at(cls, pe: PE, local_offset: int) -> PhysAddr:
        return cls(pe.sip, pe.cube, pe.pe, local_offset)

    @property
    def owner(self) -> PE:
        return PE(self.sip, self.cube, self.pe)

    def encode(self) -> int:
        """As the one number that hardware sees."""
        number = (self.sip << CUBE_BITS | self.cube) << PE_BITS | self.pe
        return number << OFFSET_BITS | self.local_offset

    @classmethod
    def decode(cls, number: int) -> PhysAddr:
        if not 0 <= number < 1 << 64:
            raise AddressError(f"address: {number:#x}; allowed: 64 bits")
        high = number >> OFFSET_BITS
        return cls(
            high >> (CUBE_BITS + PE_BITS),
            high >> PE_BITS & (MOST_CUBES - 1),
            high & (MOST_PES - 1),
            number & ((1 << OFFSET_BITS) - 1),
        )

    def __add__(self, nbytes: int) -> PhysAddr:
        return PhysAddr(self.sip, self.cube, self.pe, self.local_offset + nbytes)


@dataclass(frozen=True, slots=True)
class Region:
    """Local offsets of one resource of every PE."""

    start: int
    size: int

    @property
    def stop(self) -> int:
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """The regions of a PE, by name."""

    regions: Mapping[str, Region]

    def __post_init__(self) -> None:
        for name, region in self.regions.items():
            if name not in NAMES:
                raise ValueError(f"memory map: a region is called {name!r}; allowed: {', '.join(NAMES)}")
            if region.start % PAGE or region.size % PAGE or region.size < PAGE or region.start < 0:
                raise ValueError(
                    f"memory map: {name} is {region.size:#x} bytes at {region.start:#x}; allowed: multiples of {PAGE}"
                )
            if region.stop > 1 << OFFSET_BITS:
                raise ValueError(f"memory map: {name} ends at {region.stop:#x}; allowed: {1 << OFFSET_BITS:#x}")
        placed = sorted((region.start, region.stop, name) for name, region in self.regions.items())
        for (_, stop, name), (start, _, other) in pairwise(placed):
            if start < stop:
                raise ValueError(f"memory map: {other} begins at {start:#x}, within {name}; allowed: from {stop:#x}")

    def region_of(self, address: PhysAddr) -> str:
        """Whose byte this is; an error where it is in a hole."""
        for name, region in self.regions.items():
            if region.start <= address.local_offset < region.stop:
                return name
        raise AddressError(f"address: {address.local_offset:#x} of {address.owner} is in no region")

    def decode(self, number: int) -> tuple[PhysAddr, str]:
        """An address and its region, from the one number."""
        address = PhysAddr.decode(number)
        return address, self.region_of(address)


DEFAULT_MAP: Final = MemoryMap(
    {
        "registers": Region(0x0000_0000, 64 << 10),
        "tcm": Region(0x0010_0000, 1 << 20),
        "sram": Region(0x0100_0000, 16 << 20),
        "ipcq": Region(0x0400_0000, 32 << 20),
        "hbm": Region(0x10_0000_0000, 6 << 30),
    }
)
"""The sizes that the seed leaves open; each region is followed by a hole."""
