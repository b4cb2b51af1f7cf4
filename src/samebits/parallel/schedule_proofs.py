"""Integer facts of the schedules: shards are disjoint and complete, chunks tile a tensor, the ring adds in one order,
any number of ranks that divides the lanes computes the same lanes.

Runs the real functions of `schedules` on unknowns; what loops is carried out for every size up to a bound."""

from __future__ import annotations

from typing import Any, Final

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth
from samebits.parallel import schedules

MOST_RANKS: Final = 16
MOST_LANES: Final = 64


def ring_addresses() -> Claim:
    """schedules.py: sent_chunk, received_chunk, owned_chunk, adder. For any number of ranks.

    What rank - 1 sends is what rank receives; a chunk moves on by one rank a turn, so the part added at place t is that
    of rank chunk + t; after ranks - 1 turns the receiver of the last turn is the owner."""

    def state(z: Symbols) -> Truth:
        ranks = z.whole("ranks", least=2)
        rank, turn = z.whole("rank", least=0, below=ranks), z.whole("turn", least=0, below=ranks - 1)
        received = schedules.received_chunk(rank, turn, ranks)  # type: ignore[arg-type]
        passed_on = schedules.sent_chunk(rank, turn + 1, ranks)  # type: ignore[arg-type]
        adds = schedules.adder(received, turn + z.planted(1, 2), ranks)  # type: ignore[arg-type]
        owned = schedules.owned_chunk(rank, ranks)  # type: ignore[arg-type]
        last = z.implies(turn == ranks - 2, received == owned)
        starts = z.implies(turn == 0, schedules.sent_chunk(rank, 0, ranks) == rank)  # type: ignore[arg-type]
        return z.all_of(received == passed_on, adds == rank, last, starts)

    return Claim(name="addresses of the ring", state=state, fault="parts added one place late")


def ring_carried_out(ranks: int) -> Claim:
    """schedules.py:ring_sums, carried out: the sum of chunk c is that of parts c, c + 1, ..., each once."""

    def state(z: Symbols) -> Truth:
        sums = schedules.ring_sums(ranks)
        wanted = [[schedules.adder(chunk, place, ranks) for place in range(ranks)] for chunk in range(ranks)]
        return z.all_of(*(parts[:: z.planted(1, -1)] == right for parts, right in zip(sums, wanted, strict=True)))

    return Claim(name=f"ring of {ranks}", state=state, fault="parts added backwards")


def chunks_tile() -> Claim:
    """schedules.py: chunk_start, chunk_size: consecutive ranges from 0 to the length, sizes one apart."""

    def state(z: Symbols) -> Truth:
        ranks, each, longer = z.whole("ranks", least=1), z.whole("each", least=0), z.whole("longer", least=0)
        z.assume(longer < ranks)
        length = ranks * each + longer
        z.knows(length, ranks, each, longer)
        chunk = z.whole("chunk", least=0, below=ranks)
        start_of = z.source(schedules.chunk_start)
        start, stop = start_of(chunk, length, ranks), start_of(chunk + 1, length, ranks)
        ends = z.implies(chunk == 0, start == 0) & z.implies(
            chunk + 1 == ranks, stop == z.planted(length, each * ranks)
        )
        return z.all_of(ends, start <= stop, stop - start >= each, stop - start <= each + 1, stop <= length)

    return Claim(name="chunks tile the length", state=state, fault="the remainder lost")


def shards() -> Claim:
    """schedules.py: file_rank: every file has one rank, and with at least as many files as ranks every rank a file."""

    def state(z: Symbols) -> Truth:
        ranks, files = z.wholes("ranks files", least=1)
        z.assume(files >= z.planted(ranks, 1))
        file, rank = z.whole("file", least=0, below=files), z.whole("rank", least=0, below=ranks)
        reader: Any = schedules.file_rank(file, ranks)  # type: ignore[arg-type]
        # files_of walks rank, rank + ranks, ...: it meets a file when their difference is a multiple of ranks.
        turn = file // ranks
        met = (reader + turn * ranks == file) & (turn >= 0)
        return z.all_of(reader >= 0, reader < ranks, met, rank < files)

    return Claim(name="shards are disjoint and complete", state=state, fault="fewer files than ranks")


def lanes_ignore_ranks() -> Claim:
    """schedules.py: Lanes. A sequence's lane and its step there depend on no rank; each lane has one rank.

    So any number of ranks that divides the lanes computes the same chains, and whole chains."""

    def state(z: Symbols) -> Truth:
        ranks, each, sequences = z.wholes("ranks lanes_of_a_rank sequences", least=1)
        lanes = ranks * each
        sequence = z.whole("sequence", least=0, below=z.planted(lanes * sequences, lanes * sequences + 1))
        lane, place = z.divide(sequence, sequences)
        rank, within = z.divide(lane, each)
        first, stop = rank * each, (rank + 1) * each
        return (
            (lane >= 0)
            & (lane < lanes)
            & (place < sequences)
            & (rank >= 0)
            & (rank < ranks)
            & (first <= lane)
            & (lane < stop)
            & (within < each)
        )

    return Claim(name="lanes ignore ranks", state=state, fault="one sequence too many")


def subtrees() -> Claim:
    """schedules.py: partner, with distances that divide a rank's lanes: such an addition stays within the rank."""

    def state(z: Symbols) -> Truth:
        pairs, distance, rank = z.whole("pairs", least=1), z.whole("distance", least=1), z.whole("rank", least=0)
        each = pairs * (2 * distance)
        step = z.whole("step", least=0, below=z.planted(pairs, pairs + 1))
        lane = rank * each + step * (2 * distance)
        other: Any = schedules.partner(lane, distance)  # type: ignore[arg-type]
        return z.all_of(lane >= rank * each, other < (rank + 1) * each, other > lane)

    return Claim(name="a rank holds whole subtrees", state=state, fault="a pair of the next rank")


def tree_carried_out(lanes: int) -> Claim:
    """schedules.py:tree, carried out: every lane is added once, lane 0 is left, and depth is log2 of the lanes."""

    def state(z: Symbols) -> Truth:
        added = [other for level in schedules.tree(lanes) for _, other in level]
        alive = set(range(lanes))
        in_time = True
        for level in schedules.tree(lanes):
            in_time &= all(stays in alive and other in alive and stays < other for stays, other in level)
            alive -= {other for _, other in level}
        lane = z.whole("lane", least=z.planted(1, 0), below=lanes) if lanes > 1 else z.whole("lane", least=0, below=1)
        times = sum((z.choose(lane == other, 1, 0) for other in added), start=z.planted(0, 1) if lanes == 1 else 0)
        depth_right = len(schedules.tree(lanes)) == lanes.bit_length() - 1
        wanted = 1 if lanes > 1 else 0
        return z.all_of(times == wanted, in_time, alive == {0}, depth_right)

    return Claim(name=f"tree over {lanes} lanes", state=state, fault="lane 0 is added too")


def ring() -> Proof:
    """schedules.py: the ring's addresses for any number of ranks, and the ring carried out."""
    claims = [ring_addresses(), *(ring_carried_out(ranks) for ranks in range(2, MOST_RANKS + 1))]
    return prove(
        claims, bound=f"addresses for all numbers of ranks; carried out for every number from 2 to {MOST_RANKS}"
    )


def sharding() -> Proof:
    """schedules.py: chunks of a tensor, files of a rank."""
    return prove([chunks_tile(), shards()], bound="all lengths, files and numbers of ranks")


def lanes() -> Proof:
    """schedules.py: Lanes, partner, tree."""
    sizes = [2**power for power in range(1, MOST_LANES.bit_length())]
    claims = [lanes_ignore_ranks(), subtrees(), *map(tree_carried_out, sizes)]
    return prove(
        claims, bound=f"all batches, lanes and ranks that divide them; trees for every power of two up to {MOST_LANES}"
    )
