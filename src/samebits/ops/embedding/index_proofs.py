"""Integer facts of the embedding, for all sizes: sorted ids fall into segments, each walked once, in order.

Models the kernels' loops; a sorted array appears by the few places that an argument needs, with what sorting says."""

from __future__ import annotations

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth
from samebits.ops.index_claims import SIZE_LIMIT, each_once, row_shares, vector_share


def every_position_has_a_walker() -> Claim:
    """triton_kernel.py:embedding_backward, by induction: place 0 walks; where the id stays, its walker goes on; where
    it changes, the place walks itself. `walker` is that of the place before."""

    def state(z: Symbols) -> Truth:
        place, walker = z.wholes("place walker", least=0)
        here, before, at_walker = z.wholes("id_here id_before id_at_walker", least=0)
        # Sorted, and the place before is within its walker's segment.
        z.assume(place >= 1, walker < place, before <= here, at_walker == before)
        walks_itself = here != z.planted(before, before + 1)
        goes_on = (here == at_walker) & (walker <= place)
        return z.any_of(walks_itself & (here != before), goes_on & ~walks_itself)

    return Claim(name="every position has a walker", state=state, fault="the id before is misread")


def no_position_has_two_walkers() -> Claim:
    """triton_kernel.py:embedding_backward: two places that walk cannot both reach one position."""

    def state(z: Symbols) -> Truth:
        first, second, position = z.wholes("first second position", least=0)
        id_first, id_before_second, id_second, id_position = z.wholes("id_first id_before_second id_second id_position")
        z.assume(first < second, second <= position)
        z.assume(id_first <= id_before_second, id_before_second <= id_second, id_second <= id_position)
        second_walks = id_before_second != id_second
        both_reach = (id_first == id_position) & (id_second == id_position)
        return z.implies(both_reach, ~second_walks if not z.faulty else second_walks)

    return Claim(name="no position has two walkers", state=state, fault="a place walks where the id stays")


def a_segment_in_order() -> Claim:
    """triton_kernel.py:embedding_backward: ROWS places a turn, on to the next turn while its first id is the token.

    A position of the segment lies in turn (position - first) div ROWS; every turn up to it begins in the segment."""

    def state(z: Symbols) -> Truth:
        M, size, first, position = z.wholes("M ROWS first position", least=0)
        z.assume(size >= 1, first <= position, position < M)
        turn, place = z.divide(position - first, size)
        earlier = z.whole("earlier_turn", least=0)
        z.assume(earlier <= turn)
        begins = first + earlier * size
        # Between two places with the token's id a sorted array holds nothing else.
        in_segment = (first <= begins) & (begins <= z.planted(position, position - 1))
        return in_segment & (first + turn * size + place == position) & (place < size) & (begins < M)

    return Claim(
        name="a segment is walked in order", state=state, fault="turns begin before their positions", truncating=True
    )


def programs() -> Claim:
    """triton_kernel.py: program -> (block of rows or place, block of columns); cdiv(H, COLUMNS) blocks a row."""

    def state(z: Symbols) -> Truth:
        count, H, columns = z.wholes("rows H COLUMNS", least=1)
        row, column = z.whole("row", least=0, below=count), z.whole("column", least=0, below=H)
        blocks = z.planted(z.ceiling(H, columns), H // columns)
        block, lane = z.divide(column, columns)
        program = row * blocks + block
        z.knows(program, blocks, row, block)
        found = (program // blocks == row) & (program % blocks * columns + lane == column)
        return found & (program >= 0) & (program < count * blocks)

    return Claim(name="every row and column has a program", state=state, fault="floor for ceiling", truncating=True)


def rows_in_bounds() -> Claim:
    """triton_kernel.py: ids * H + column and row * H + column in int64; the public function checks that ids lie in 0 ..
    V - 1."""

    def state(z: Symbols) -> Truth:
        V, M, H = z.wholes("V M H", least=1, below=SIZE_LIMIT, bits=32)
        token, row = z.whole("id", least=0, below=V, bits=64), z.whole("row", least=0, bits=64)
        column = z.whole("column", least=0, bits=32)
        inside = (row < M) & (column < z.planted(H, H + 1))
        source, target = token * H + column, row * H + column
        bounds = (source >= 0) & (source < V.to(64) * H) & (target >= 0) & (target < M.to(64) * H)
        return z.implies(inside, bounds & z.fits())

    return Claim(name="rows in bounds", state=state, fault="one column too many", truncating=True)


def cpu_columns() -> Claim:
    """cpu_kernel.cpp:accumulate: shares of columns, at least LEAST_COLUMNS; every thread walks all positions."""

    def state(z: Symbols) -> Truth:
        width, least = z.wholes("width LEAST_COLUMNS", least=1)
        return each_once(z, width, z.larger(vector_share(z, width), least), name="column")

    return Claim(name="each column has one thread", state=state, fault="floor for ceiling", truncating=True)


def segments() -> Proof:
    """triton_kernel.py: embedding_backward; the ids are sorted (stably, by torch.sort)."""
    claims = [every_position_has_a_walker(), no_position_has_two_walkers(), a_segment_in_order()]
    return prove(claims, bound="all sizes and launch numbers >= 1, all sorted ids")


def rows() -> Proof:
    """triton_kernel.py: embedding_forward, embedding_backward; cpu_kernel.cpp: embedding_forward, accumulate."""
    claims = [programs(), rows_in_bounds(), row_shares(), cpu_columns()]
    return prove(claims, bound="all sizes, launch numbers and numbers of threads >= 1; in Triton axes < 2^31 - 2^12")
