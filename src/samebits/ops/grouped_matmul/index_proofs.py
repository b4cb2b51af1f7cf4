"""Integer facts of the grouped product, for all sizes: blocks cover each expert's rows once, programs find theirs.

Models the table of blocks and the kernels' index arithmetic. Tiles and chains are matmul's, and so are their claims."""

from __future__ import annotations

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth
from samebits.ops.grouped_matmul.launch_table import GROUPED
from samebits.ops.index_claims import SIZE_LIMIT, each_once, equal_parts
from samebits.ops.matmul.index_proofs import cpu_single_row, every_product_once, every_tile_once
from samebits.ops.matmul.launch_table import CHAIN_WIDTH


def every_row_in_one_block() -> Claim:
    """triton_kernel.py:block_table: an expert's rows are cut into cdiv(count, tile) blocks from its first row on."""

    def state(z: Symbols) -> Truth:
        return each_once(z, z.whole("count", least=1), z.whole("tile", least=1), name="row")

    return Claim(name="every row in one block", state=state, fault="floor for ceiling", truncating=True)


def blocks_follow_each_other() -> Claim:
    """triton_kernel.py:block_table, by induction over experts: if those before have blocks 0 .. before - 1, expert e
    has before .. last - 1, and searchsorted(last, block, right=True) finds it: before <= block < last."""

    def state(z: Symbols) -> Truth:
        before, count, place = z.wholes("before count place", least=0)
        tile = z.whole("tile", least=1)
        z.assume(place < count)
        last = before + z.ceiling(count, tile)
        within, lane = z.divide(place, tile)
        block = before + z.planted(within, within + 1)
        return z.all_of(before <= block, block < last, (block - before) * tile + lane == place)

    return Claim(name="blocks follow each other", state=state, fault="an expert's blocks begin at its second")


def table_is_long_enough() -> Claim:
    """triton_kernel.py:block_table, by induction: blocks so far <= rows so far // tile + experts so far that have rows.

    One expert more adds cdiv(count, tile) blocks, and 1 to the right side beyond what its rows add."""

    def state(z: Symbols) -> Truth:
        rows, count, busy = z.wholes("rows count busy", least=0)
        tile = z.whole("tile", least=1)
        blocks = z.whole("blocks", least=0)
        z.assume(count >= 1, blocks <= rows // tile + busy)
        more = z.planted(busy + 1, busy)
        return blocks + z.ceiling(count, tile) <= (rows + count) // tile + more

    return Claim(name="the table is long enough", state=state, fault="no block more for a short last one")


def dweight_programs() -> Claim:
    """triton_dweight.py:place_of_program: program -> (expert, tile), tiles_k * tiles_n tiles an expert."""

    def state(z: Symbols) -> Truth:
        experts, tiles = z.wholes("E tiles", least=1)
        expert, tile = z.whole("expert", least=0, below=experts), z.whole("tile", least=0, below=tiles)
        program = expert * tiles + tile
        z.knows(program, tiles, expert, tile)
        found = (program // tiles == expert) & (program % tiles == z.planted(tile, expert))
        return z.all_of(found, program >= 0, program < experts * tiles)

    return Claim(name="every expert's tile has a program", state=state, fault="expert and tile swapped")


def groups_from_the_first_row() -> Claim:
    """triton_chain.py:addressed_chain, triton_dweight.py:grouped_dweight_described: steps are counted from `first`, so
    the group of a row is its number among its expert's own rows div 16, wherever they begin."""

    def state(z: Symbols) -> Truth:
        first, row = z.wholes("first row", least=0)
        claims = []
        for tile_k in sorted({launch.tile_k for launch in GROUPED}):
            step, lane = z.divide(row, tile_k)
            place = z.planted(first, first + 1) + step * tile_k + lane
            group = step * (tile_k // CHAIN_WIDTH) + lane // CHAIN_WIDTH
            claims.append((place - first == row) & (group == row // CHAIN_WIDTH))
        return z.all_of(*claims)

    return Claim(name="16s are counted from an expert's first row", state=state, fault="from the row after it")


def numbers_fit() -> Claim:
    """triton_kernel.py:store_rows and triton_dweight.py multiply in int64; a row, an expert and K N fit together."""

    def state(z: Symbols) -> Truth:
        M, N, K, E = z.wholes("M N K E", least=1, below=SIZE_LIMIT, bits=32)
        row, expert = z.whole("row", least=0, below=M, bits=64), z.whole("expert", least=0, below=E, bits=64)
        column = z.whole("column", least=0, below=N, bits=32)
        z.assume(E.to(64) * K <= 2**31)
        offset, matrix = row * N + column, expert * K * N
        bounds = (offset >= 0) & (offset < M.to(64) * z.planted(N, N - 1)) & (matrix >= 0)
        return bounds & z.fits()

    return Claim(name="numbers fit", state=state, fault="rows one column shorter", truncating=True)


def blocks() -> Proof:
    """triton_kernel.py: block_table and the kernels; triton_dweight.py: place_of_program."""
    claims = [
        every_row_in_one_block(),
        blocks_follow_each_other(),
        table_is_long_enough(),
        dweight_programs(),
        every_tile_once(),
        numbers_fit(),
    ]
    return prove(claims, bound="all sizes, shares of rows and launch numbers >= 1; axes < 2^31 - 2^12")


def chain() -> Proof:
    """triton_chain.py, triton_kernel.py: the steps over K; triton_dweight.py: over an expert's rows."""
    return prove([every_product_once(), groups_from_the_first_row()], bound="all sizes >= 1, every row of the table")


def threads() -> Proof:
    """cpu_kernel.cpp: cover (rows by Parts, columns by width), _cpu/single_row.h:single_row."""

    def columns() -> Claim:
        def state(z: Symbols) -> Truth:
            return each_once(z, z.whole("columns", least=1), z.whole("width", least=1), name="column")

        return Claim(name="each column in one block", state=state, fault="floor for ceiling", truncating=True)

    claims = [columns(), cpu_single_row(), equal_parts(), *map(equal_parts, (4, 6, 14, 384, 588))]
    return prove(claims, bound="all sizes, tilings and numbers of threads >= 1")
