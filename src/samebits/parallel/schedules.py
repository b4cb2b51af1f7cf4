"""Who holds, sends and adds what among ranks, as pure functions of whole numbers: ring, lanes, tree, shards.

Knows no tensor and no process. The bits of a sum are fixed by the lanes and the tree over them; ranks only say who
computes which part of it, and in the ring who adds when."""

from __future__ import annotations

from dataclasses import dataclass


def sent_chunk(rank: int, turn: int, ranks: int) -> int:
    """The chunk that a rank sends to rank + 1 in a turn of the ring."""
    return (rank - turn) % ranks


def received_chunk(rank: int, turn: int, ranks: int) -> int:
    """The chunk that a rank receives from rank - 1 in that turn, and adds its own part to."""
    return sent_chunk(rank - 1, turn, ranks)


def owned_chunk(rank: int, ranks: int) -> int:
    """The chunk that a rank holds whole after ranks - 1 turns."""
    return (rank + 1) % ranks


def adder(chunk: int, place: int, ranks: int) -> int:
    """The rank whose part is the place-th of a chunk's sum: chunk, chunk + 1, ..., in that order."""
    return (chunk + place) % ranks


def ring_sums(ranks: int) -> list[list[int]]:
    """Reduce-scatter carried out: for every chunk, whose parts its owner's sum holds, in the order of the additions."""
    held = [{chunk: [rank] for chunk in range(ranks)} for rank in range(ranks)]
    for turn in range(ranks - 1):
        sent = [held[rank][sent_chunk(rank, turn, ranks)] for rank in range(ranks)]
        for rank in range(ranks):
            held[rank][received_chunk(rank, turn, ranks)] = [*sent[(rank - 1) % ranks], rank]
    owner = {owned_chunk(rank, ranks): rank for rank in range(ranks)}
    return [held[owner[chunk]][chunk] for chunk in range(ranks)]


def chunk_start(chunk: int, length: int, ranks: int) -> int:
    """Where a chunk of `length` elements begins: the first length mod ranks chunks are one longer than the others."""
    longer = length % ranks
    return chunk * (length // ranks) + min(chunk, longer)


def chunk_size(chunk: int, length: int, ranks: int) -> int:
    return chunk_start(chunk + 1, length, ranks) - chunk_start(chunk, length, ranks)


def file_rank(file: int, ranks: int) -> int:
    """The rank that reads a file."""
    return file % ranks


def files_of(rank: int, files: int, ranks: int) -> list[int]:
    """The files that a rank reads; fewer files than ranks would leave one without any."""
    if files < ranks:
        raise ValueError(f"shards: {files} files for {ranks} ranks; allowed: at least as many files as ranks")
    if not 0 <= rank < ranks:
        raise ValueError(f"shards: rank is {rank}; allowed: 0 to {ranks - 1}")
    return list(range(rank, files, ranks))


@dataclass(frozen=True, kw_only=True, slots=True)
class Lanes:
    """A global batch in `lanes` chains, each over `sequences` of it; lanes decide bits, ranks do not."""

    lanes: int
    sequences: int

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.lanes & (self.lanes - 1):
            raise ValueError(f"lanes: lanes is {self.lanes}; allowed: 1 or another power of two, for a balanced tree")
        if self.sequences < 1:
            raise ValueError(f"lanes: sequences is {self.sequences} a lane; allowed: at least 1")

    def lane_of(self, sequence: int) -> int:
        """Consecutive sequences of the global batch form a lane."""
        return sequence // self.sequences

    def place_of(self, sequence: int) -> int:
        """Which step of its lane's chain a sequence is."""
        return sequence % self.sequences

    def lanes_of(self, rank: int, ranks: int) -> range:
        """The lanes that a rank computes: consecutive ones, so that a rank holds a whole subtree."""
        if ranks < 1 or self.lanes % ranks:
            raise ValueError(f"lanes: {ranks} ranks for {self.lanes} lanes; allowed: a divisor of the number of lanes")
        each = self.lanes // ranks
        return range(rank * each, (rank + 1) * each)

    def together(self, own: int, fitting: int) -> int:
        """How many of a rank's `own` lanes share a pass with room for `fitting` sequences: a whole subtree, or 1."""
        return min(own, 1 << (max(1, fitting // self.sequences).bit_length() - 1))


def partner(lane: int, distance: int) -> int:
    """The lane whose sum is added at this distance, for lanes that are multiples of twice it."""
    return lane + distance


def tree(lanes: int) -> list[list[tuple[int, int]]]:
    """The balanced tree over a power of two lanes, level by level: (where the sum stays, what is added to it).

    Neighbours first: with consecutive lanes on a rank, all levels but the last log2(ranks) stay within ranks."""
    levels, distance = [], 1
    while distance < lanes:
        levels.append([(lane, partner(lane, distance)) for lane in range(0, lanes, 2 * distance)])
        distance *= 2
    return levels


def tree_of(parts: int) -> list[list[tuple[int, int]]]:
    """The same over any number of parts: `tree` over the next power of two, without the pairs that lack a part."""
    whole = 1 << max(parts - 1, 0).bit_length()
    return [[(stays, added) for stays, added in level if added < parts] for level in tree(whole)]
