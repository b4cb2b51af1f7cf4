"""Topology, placement and addresses of the virtual accelerator: what is refused, and that shards tile a tensor."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import samebits.sim
from samebits.sim.addresses import DEFAULT_MAP, NAMES, PAGE, AddressError, MemoryMap, PhysAddr, Region
from samebits.sim.placement import Allocators, DPPolicy, LocalShard, ShardSpec, local_shards, resolve_dp_policy
from samebits.sim.schedule import LinkClass
from samebits.sim.topology import PE, Link, NoRouteError, Topology, grid_of

LINKS = {level: Link(1e-8, 1e11) for level in LinkClass}
SIX = Topology(sips=6, width=3, height=2, links=LINKS)
policies = st.builds(
    DPPolicy,
    cube=st.sampled_from(["replicate", "column_wise", "row_wise"]),
    pe=st.sampled_from(["replicate", "column_wise", "row_wise"]),
    num_cubes=st.integers(1, 16),
    num_pes=st.integers(1, 8),
)


def test_R6_no_flat_index_of_a_pe_exists() -> None:
    """Neither a name nor a conversion: a PE is three numbers."""
    assert not hasattr(PE(0, 1, 2), "__index__") and not hasattr(PE(0, 1, 2), "__int__")
    sources = [file.read_text() for file in Path(samebits.sim.__path__[0]).rglob("*.py")]
    assert sources and not any(re.search(r"pe_index|flat_pe|global_pe", source) for source in sources)


def test_R7_the_grid_is_said_or_a_square() -> None:
    assert grid_of(6, 3, 2) == (3, 2) and grid_of(16) == (4, 4) and grid_of(1) == (1, 1)
    with pytest.raises(ValueError, match="6 SIPs are no square"):
        grid_of(6)
    with pytest.raises(ValueError, match="6 SIPs as 4 x 2"):
        Topology(sips=6, width=4, height=2)
    with pytest.raises(ValueError, match="both or neither"):
        grid_of(6, 3)


def test_routes_go_along_rows_then_columns_and_the_short_way_round() -> None:
    hops = SIX.route(PE(0, 0, 0), PE(2, 15, 7))
    assert [hop.level for hop in hops].count(LinkClass.SIP) == 1, "0 and 2 are joined at the ends of the row"
    flat = dataclasses.replace(SIX, torus=False)
    assert [hop.level for hop in flat.route(PE(0, 0, 0), PE(2, 15, 7))].count(LinkClass.SIP) == 2
    assert SIX.route(PE(1, 3, 2), PE(1, 3, 2)) == []
    assert [hop.level for hop in SIX.route(PE(1, 0, 0), PE(1, 15, 0))].count(LinkClass.CUBE) == 6


def test_a_route_that_is_not_there_is_refused() -> None:
    cut = dataclasses.replace(SIX, missing=frozenset({("cube", 0, 0, 1)}))
    with pytest.raises(NoRouteError, match="no route from sip 0 cube 0 pe 0 to sip 0 cube 1 pe 0"):
        cut.route(PE(0, 0, 0), PE(0, 1, 0))
    with pytest.raises(ValueError, match="no sip 6 cube 0 pe 0: sip is 6; allowed: 0 to 5"):
        SIX.route(PE(6, 0, 0), PE(0, 0, 0))


@pytest.mark.parametrize("word", ["sip", "num_sips"])
def test_R32_a_policy_knows_no_sip(word: str) -> None:
    with pytest.raises(TypeError, match=word):
        DPPolicy(**{word: 1})  # type: ignore[arg-type]
    assert [field.name for field in dataclasses.fields(DPPolicy)] == ["cube", "pe", "num_cubes", "num_pes"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        DPPolicy().cube = "row_wise"  # type: ignore[misc]
    with pytest.raises(ValueError, match="cube is 'diagonal'; allowed: replicate, column_wise, row_wise"):
        DPPolicy(cube="diagonal")


def test_R33_a_shard_has_no_flat_index() -> None:
    shard = ShardSpec(sip=0, cube=1, pe=2, offset_bytes=0, nbytes=4)
    with pytest.raises(TypeError, match="pe_index"):
        ShardSpec(sip=0, cube=1, pe=2, offset_bytes=0, nbytes=4, pe_index=3)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="pe_index"):
        _ = shard.pe_index  # type: ignore[attr-defined]
    assert [field.name for field in dataclasses.fields(shard)] == ["sip", "cube", "pe", "offset_bytes", "nbytes"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        shard.pe = 3  # type: ignore[misc]


def test_R34_the_target_sip_is_said_once_and_all_shards_carry_it() -> None:
    with pytest.raises(TypeError, match="target_sip"):
        resolve_dp_policy(DPPolicy(), (4, 4), 4, topology=SIX)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="num_sips"):
        resolve_dp_policy(DPPolicy(), (4, 4), 4, target_sip=0, num_sips=2, topology=SIX)  # type: ignore[call-arg]
    policy = DPPolicy(cube="row_wise", pe="column_wise")
    calls = [resolve_dp_policy(policy, (64, 64), 2, target_sip=sip, topology=SIX) for sip in (2, 5)]
    assert [{shard.sip for shard in call} for call in calls] == [{2}, {5}]
    assert [dataclasses.replace(shard, sip=5) for shard in calls[0]] == calls[1], "nothing else depends on it"
    with pytest.raises(ValueError, match="sip is 6; allowed: 0 to 5"):
        resolve_dp_policy(policy, (4, 4), 4, target_sip=6, topology=SIX)


def test_R35_memory_is_freed_under_the_key_it_was_taken_by() -> None:
    memory, owner, other = Allocators(SIX), PE(1, 2, 3), PE(2, 2, 3)
    first, second = memory.allocate(owner, 5000), memory.allocate(owner, 1)
    assert second.local_offset - first.local_offset == 2 * PAGE and memory.used(owner) == 3 * PAGE
    with pytest.raises(ValueError, match="sip 1 cube 2 pe 3 took this memory, sip 2 cube 2 pe 3 frees it"):
        memory.free(other, first)
    memory.free(owner, first)
    with pytest.raises(ValueError, match="has nothing at"):
        memory.free(owner, first)
    assert memory.allocate(owner, 100) == first, "what was freed is used again"
    with pytest.raises(MemoryError, match="bytes asked for"):
        memory.allocate(owner, DEFAULT_MAP.regions["hbm"].size)


@given(policies, st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_R36_resolvers_return_cube_local_records(policy: DPPolicy, rows: int, columns: int) -> None:
    found = local_shards(policy, (rows, columns), SIX)
    assert all(type(shard) is LocalShard and not hasattr(shard, "sip") for shard in found)
    lifted = resolve_dp_policy(policy, (rows, columns), 4, target_sip=3, topology=SIX)
    assert [(shard.cube, shard.pe) for shard in found] == [(shard.cube, shard.pe) for shard in lifted]


@given(policies, st.integers(0, 40), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_R37_shards_tile_the_tensor_and_replicas_are_equal(policy: DPPolicy, rows: int, columns: int) -> None:
    """Every element is in one distinct shard; bytes of distinct shards follow each other without a gap."""
    tensor = torch.arange(rows * columns).view(rows, columns)
    local = local_shards(policy, (rows, columns), SIX)
    specs = resolve_dp_policy(policy, (rows, columns), 8, target_sip=0, topology=SIX)
    held = [tensor[slice(*shard.rows), slice(*shard.columns)].flatten() for shard in local]
    by_offset: dict[int, torch.Tensor] = {}
    for spec, values in zip(specs, held, strict=True):
        assert spec.nbytes == 8 * len(values)
        if spec.nbytes:
            assert torch.equal(by_offset.setdefault(spec.offset_bytes, values), values), "replicas are byte-equal"
    ends = [(offset, offset + 8 * len(values)) for offset, values in sorted(by_offset.items())]
    assert all(stop == start for (_, stop), (start, _) in pairwise(ends))
    assert sorted(torch.cat([*by_offset.values(), tensor[:0, 0]]).tolist()) == list(range(rows * columns))


@given(st.integers(1, 40), st.integers(1, 16))
@settings(max_examples=60, deadline=None)
def test_R37_uneven_sizes_follow_torch_chunk(columns: int, parts: int) -> None:
    policy = DPPolicy(cube="column_wise", num_cubes=parts, num_pes=1)
    widths = [shard.columns[1] - shard.columns[0] for shard in local_shards(policy, (1, columns), SIX)]
    chunks = [len(piece) for piece in torch.arange(columns).chunk(parts)]
    assert widths == chunks + [0] * (parts - len(chunks))


@given(st.integers(0, 2**16 - 1), st.integers(0, 63), st.integers(0, 15), st.integers(0, 2**38 - 1))
def test_R53_an_address_comes_back_from_its_number(sip: int, cube: int, pe: int, offset: int) -> None:
    address = PhysAddr(sip, cube, pe, offset)
    assert PhysAddr.decode(address.encode()) == address and 0 <= address.encode() < 2**64


@given(st.integers(0, 2**64 - 1))
def test_R53_a_number_comes_back_from_its_address(number: int) -> None:
    assert PhysAddr.decode(number).encode() == number


def test_R53_holes_and_overflows_are_refused() -> None:
    with pytest.raises(AddressError, match="64 bits"):
        PhysAddr.decode(1 << 64)
    with pytest.raises(AddressError, match="local_offset is 274877906944"):
        PhysAddr(0, 0, 0, (1 << 38) - 8) + 8
    for region in DEFAULT_MAP.regions.values():
        with pytest.raises(AddressError, match="is in no region"):
            DEFAULT_MAP.decode(PhysAddr(3, 2, 1, region.stop).encode())


def test_R53_regions_are_disjoint_aligned_and_named() -> None:
    assert set(DEFAULT_MAP.regions) == set(NAMES)
    for name, region in DEFAULT_MAP.regions.items():
        for offset in (region.start, region.stop - 1):
            assert DEFAULT_MAP.decode(PhysAddr(1, 2, 3, offset).encode()) == (PhysAddr(1, 2, 3, offset), name)
    with pytest.raises(ValueError, match="sram begins at 0x1000, within tcm"):
        MemoryMap({"tcm": Region(0, 2 * PAGE), "sram": Region(PAGE, PAGE)})
    with pytest.raises(ValueError, match="allowed: multiples of 4096"):
        MemoryMap({"tcm": Region(100, PAGE)})
    with pytest.raises(ValueError, match="'cache'; allowed: registers, tcm"):
        MemoryMap({"cache": Region(0, PAGE)})
