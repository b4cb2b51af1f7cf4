"""The schedules among ranks: proved, carried out on small sizes, and refused where they cannot be."""

from __future__ import annotations

import pytest

from samebits.parallel import schedule_proofs
from samebits.parallel.schedules import Lanes, chunk_size, chunk_start, files_of, owned_chunk, ring_sums, tree


@pytest.mark.parametrize("name", ["ring", "sharding", "lanes"])
def test_schedules_are_proved(name: str) -> None:
    proof = getattr(schedule_proofs, name)()
    assert proof.proved, proof
    assert proof.planted == proof.expected


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_the_ring_adds_in_rank_order(ranks: int) -> None:
    assert ring_sums(ranks) == [[(chunk + place) % ranks for place in range(ranks)] for chunk in range(ranks)]
    assert sorted(owned_chunk(rank, ranks) for rank in range(ranks)) == list(range(ranks))


def test_seven_elements_on_three_ranks() -> None:
    assert [chunk_size(chunk, 7, 3) for chunk in range(3)] == [3, 2, 2]
    assert [chunk_start(chunk, 7, 3) for chunk in range(4)] == [0, 3, 5, 7]


def test_files_are_shared_out() -> None:
    shards = [files_of(rank, 10, 4) for rank in range(4)]
    assert shards == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert sorted(file for shard in shards for file in shard) == list(range(10))


def test_fewer_files_than_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^shards: 3 files for 4 ranks; allowed: at least as many files as ranks$"):
        files_of(0, 3, 4)
    with pytest.raises(ValueError, match=r"^shards: rank is 4; allowed: 0 to 3$"):
        files_of(4, 10, 4)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_lanes_of_a_sequence_ignore_ranks(ranks: int) -> None:
    lanes = Lanes(lanes=8, sequences=3)
    owned = [list(lanes.lanes_of(rank, ranks)) for rank in range(ranks)]
    assert [lane for some in owned for lane in some] == list(range(8))
    assert [(lanes.lane_of(n), lanes.place_of(n)) for n in range(24)] == [(n // 3, n % 3) for n in range(24)]
    first_levels = tree(8)[: 3 - (ranks.bit_length() - 1)]
    rank_of = {lane: rank for rank, some in enumerate(owned) for lane in some}
    assert all(rank_of[stays] == rank_of[other] for level in first_levels for stays, other in level)


@pytest.mark.parametrize("own", [1, 2, 8])
def test_lanes_that_share_a_pass_are_a_subtree_that_fits(own: int) -> None:
    lanes = Lanes(lanes=8, sequences=3)
    for fitting in range(1, 40):
        together = lanes.together(own, fitting)
        assert own % together == 0 and (together == 1 or together * lanes.sequences <= fitting)
        assert together == own or 2 * together * lanes.sequences > fitting


def test_ranks_that_do_not_divide_the_lanes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^lanes: 3 ranks for 8 lanes; allowed: a divisor of the number of lanes$"):
        Lanes(lanes=8, sequences=1).lanes_of(0, 3)
    with pytest.raises(ValueError, match=r"^lanes: lanes is 6; allowed: 1 or another power of two"):
        Lanes(lanes=6, sequences=1)
    with pytest.raises(ValueError, match=r"^lanes: sequences is 0 a lane; allowed: at least 1$"):
        Lanes(lanes=8, sequences=0)


def test_the_tree_is_balanced() -> None:
    assert tree(4) == [[(0, 1), (2, 3)], [(0, 2)]]
    assert tree(1) == []
