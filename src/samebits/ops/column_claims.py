"""Claims about whole numbers of sums over rows, column by column: the loops of _triton/columns.py and of its kernel for
Hopper, _triton/hopper_columns_kernel.py.

Knows no operator. The loops are modelled here, and every claim names what it models."""

from __future__ import annotations

from typing import Final

from samebits.contracts.integer_proofs import Claim
from samebits.contracts.symbolic import Symbols, Truth
from samebits.ops.index_claims import each_once

EVERY_LAUNCH: Final = "all sizes, launch numbers and numbers of threads >= 1"


def column_claims() -> list[Claim]:
    """Of both kernels."""
    return [rows_in_order(), rows_in_steps(), places_in_turns(), columns_in_programs()]


def rows_in_order() -> Claim:
    """columns.py:column_chains: blocks of ROWS rows; row m is place m mod ROWS of block m div ROWS.

    The dot with ones adds places in order, so rows are added in order whatever ROWS is, and each once."""

    def state(z: Symbols) -> Truth:
        M, size = z.wholes("M ROWS", least=1)
        row, later = z.wholes("row later", least=0, below=M)
        z.assume(row < later)
        (block, place), (next_block, next_place) = z.divide(row, size), z.divide(later, size)
        reached = block * size < z.planted(M, M - size)
        ascending = z.any_of(block < next_block, (block == next_block) & (place < next_place))
        return reached & ascending & (block * size + place == row)

    return Claim(name="rows are added in order", state=state, fault="the last block left out", truncating=True)


def rows_in_steps() -> Claim:
    """hopper_columns_kernel.py, `make` and `add`: whole blocks and then the rest; of a block's rows STEP at a time.

    `add` takes every block that `make` makes, its steps in order, and each step's rows in order: row m is place m mod
    STEP of a step, steps ascend, and no block is left out. In the last block rows from M on are -0."""

    def state(z: Symbols) -> Truth:
        M, step, steps = z.wholes("M STEP steps", least=1)
        size = step * steps
        row, later = z.wholes("row later", least=0, below=M)
        z.assume(row < later)
        whole, blocks = M // size, z.planted((M + size - 1) // size, M // size)
        (block, within), (next_block, next_within) = z.divide(row, size), z.divide(later, size)
        (turn, place), (next_turn, next_place) = z.divide(within, step), z.divide(next_within, step)
        made = z.any_of(block < whole, (block == whole) & (whole * size < M))
        ascending = z.any_of(
            block < next_block,
            (block == next_block) & z.any_of(turn < next_turn, (turn == next_turn) & (place < next_place)),
        )
        return z.all_of(made, block < blocks, turn < steps, block * size + turn * step + place == row, ascending)

    return Claim(name="rows are added step by step", state=state, fault="the rest left out", truncating=True)


def places_in_turns() -> Claim:
    """hopper_columns_kernel.py: waiting for a stage of operands and for a slot of terms, on either side.

    Block b has place b mod N in turn b div N. A barrier lets pass who waits for parity p while the number of its phases
    that are over has another parity. Who fills waits for parity of the turn, flipped, and who empties for that of the
    turn: a place is filled when it was emptied as often as filled, emptied when it was filled once more, and no block
    has the place and turn of another."""

    def state(z: Symbols) -> Truth:
        N = z.whole("N", least=1)
        block, other = z.wholes("block other", least=0)
        (turn, place), (other_turn, other_place) = z.divide(block, N), z.divide(other, N)
        alone = z.implies((turn == other_turn) & (place == other_place), block == other)
        parity = turn % 2
        # Who empties, in its turn: as often emptied as turns are over; filled as often, or once more.
        filled = z.whole("filled", least=turn)
        z.assume(filled <= turn + 1)
        may_empty = z.same(filled % 2 != parity, filled == turn + 1)
        # Who fills, in its turn: as often filled as turns are over; emptied as often, or once less.
        emptied = z.whole("emptied", least=turn - 1)
        z.assume(emptied <= turn, emptied >= 0)
        may_fill = z.same(emptied % 2 != z.planted(1 - parity, parity), emptied == turn)
        return alone & may_empty & may_fill

    return Claim(
        name="a place is filled and emptied in turns", state=state, fault="one parity for both", truncating=True
    )


def columns_in_programs() -> Claim:
    """columns.py:column_chains and hopper_columns_kernel.py:add: COLUMNS a program, of which those before H count."""

    def state(z: Symbols) -> Truth:
        H, columns = z.wholes("H COLUMNS", least=1)
        return each_once(z, H, columns, name="column")

    return Claim(name="each column has one program", state=state, fault="floor for ceiling", truncating=True)
