"""Integer facts of the selected log-probability, for all vocabularies: blocks of 256 columns, merged in order.

Runs matmul's `tile_at` on unknowns; models the loops over blocks and chunks, and the C++."""

from __future__ import annotations

from typing import Final

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth
from samebits.ops.index_claims import SIZE_LIMIT, equal_parts, fold_of_lanes, row_shares
from samebits.ops.logprob.gradients import ROW_MULTIPLE, SCRATCH_BYTES
from samebits.ops.logprob.reference import BLOCK
from samebits.ops.matmul.index_proofs import every_product_once, every_tile_once, loads_in_bounds, resident_programs

BOUND: Final = "all rows, vocabularies, tiles, chunks and numbers of threads >= 1; in Triton axes < 2^31 - 2^12"


def every_logit_in_one_block() -> Claim:
    """triton_statistics.py:block_statistics: columns n + (0 .. 255), n a multiple of 256; place = block * M + row.

    Each logit in one block, at lane v mod 256; each (block, row) has a place of its own in blocks * M numbers."""

    def state(z: Symbols) -> Truth:
        M, V = z.wholes("M V", least=1, below=SIZE_LIMIT)
        v, row = z.whole("v", least=0, below=V), z.whole("row", least=0, below=M)
        other_block, other_row = z.whole("other_block", least=0), z.whole("other_row", least=0, below=M)
        blocks = z.planted(z.ceiling(V, BLOCK), V // BLOCK)
        tile, lane = z.divide(v, BLOCK)
        block = tile * BLOCK // BLOCK
        place = block * M + row
        alone = z.implies(other_block * M + other_row == place, (other_block == block) & (other_row == row))
        return (tile < blocks) & (lane == v % BLOCK) & (place >= 0) & (place < blocks * M) & alone

    return Claim(name="every logit in one block", state=state, fault="floor for ceiling", truncating=True)


def selected_in_one_block() -> Claim:
    """triton_statistics.py:block_statistics: the block with n <= id < n + 256, and no other, stores its logit."""

    def state(z: Symbols) -> Truth:
        V = z.whole("V", least=1)
        token, tile = z.whole("id", least=0, below=V), z.whole("tile", least=0)
        n = tile * BLOCK
        stores = (token >= n) & (token < n + z.planted(BLOCK, BLOCK + 1))
        return z.same(stores, tile == token // BLOCK) & (token // BLOCK < z.ceiling(V, BLOCK))

    return Claim(name="one block has the selected logit", state=state, fault="blocks overlap by one", truncating=True)


def merged_in_order() -> Claim:
    """triton_statistics.py:merge_blocks: AHEAD blocks a turn, place = row + block * M; block b in turn b div AHEAD."""

    def state(z: Symbols) -> Truth:
        M, blocks, ahead = z.wholes("M blocks AHEAD", least=1)
        row, block = z.whole("row", least=0, below=M), z.whole("block", least=0, below=blocks)
        turn, step = z.divide(block, ahead)
        place = row + (turn * ahead + step) * z.planted(M, M + 1)
        return (
            (turn * ahead < blocks) & (turn * ahead + step == block) & (place == block * M + row) & (place < blocks * M)
        )

    return Claim(name="blocks are merged in order", state=state, fault="places one row too far", truncating=True)


def chunks_at_blocks() -> Claim:
    """gradients.py:Selection.chunks: chunks cover the vocabulary once; each but the last ends at a multiple of 256.

    So a chain over the vocabulary is resumed at multiples of 16, and a chunk's blocks are those of the whole."""

    def state(z: Symbols) -> Truth:
        rows, vocabulary, size = z.wholes("rows vocabulary element_size", least=1)
        z.assume(z.any_of(size == 2, size == 4, size == 8))
        fitting = z.larger(SCRATCH_BYTES // (rows * size * BLOCK), 1)
        width = z.smaller(fitting * z.planted(BLOCK, BLOCK - 1), -(-vocabulary // ROW_MULTIPLE) * ROW_MULTIPLE)
        v = z.whole("v", least=0, below=vocabulary)
        chunk, column = z.divide(v, width)
        first = chunk * width
        stop = z.smaller(first + width, vocabulary)
        whole = z.any_of(stop == vocabulary, width == fitting * BLOCK)
        return (first < vocabulary) & (v < stop) & (column < width) & whole & (width >= 1)

    return Claim(name="chunks end at blocks", state=state, fault="blocks of 255")


def cpu_panels() -> Claim:
    """cpu_kernel.cpp:each_panel and forward: PANEL columns (a multiple of 256) a task; block (column + at) div 256."""

    def state(z: Symbols) -> Truth:
        vocabulary, in_a_panel = z.wholes("vocabulary blocks_in_a_panel", least=1)
        panel = in_a_panel * BLOCK
        v = z.whole("v", least=0, below=vocabulary)
        number, inside = z.divide(v, panel)
        column = number * panel
        columns = z.smaller(panel, vocabulary - column)
        at = inside // BLOCK * BLOCK
        block = (column + z.planted(at, inside + 1)) // BLOCK
        whole_or_tail = z.any_of(at + BLOCK <= columns, inside - at < columns - at)
        return (number < (vocabulary + panel - 1) // panel) & (block == v // BLOCK) & whole_or_tail & (inside < columns)

    return Claim(name="panels hold whole blocks", state=state, fault="a block one column early", truncating=True)


def vocabulary_blocks() -> Proof:
    """triton_logits.py: both kernels; triton_statistics.py: block_statistics, merge_blocks; gradients.py: chunks."""
    claims = [
        every_tile_once(),
        resident_programs(),
        every_product_once(),
        loads_in_bounds(),
        every_logit_in_one_block(),
        selected_in_one_block(),
        merged_in_order(),
        chunks_at_blocks(),
        fold_of_lanes(BLOCK),
    ]
    return prove(claims, bound=BOUND)


def threads() -> Proof:
    """cpu_kernel.cpp: each_panel, forward, merge; _cpu/chain.h: Parts; _cpu/rows.h: each_row."""
    return prove([cpu_panels(), equal_parts(588), row_shares()], bound=BOUND)
