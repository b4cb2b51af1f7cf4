"""Integer facts of rmsnorm, for all sizes: rows and lanes as in all operators of rows, and the weight's chain.

Runs the real `block_of` on unknowns; models the loop over rows and the C++."""

from __future__ import annotations

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth
from samebits.ops.index_claims import EVERY_SIZE, each_once, row_claims, vector_share


def rows_in_order() -> Claim:
    """_triton/columns.py:column_chains: blocks of ROWS rows; row m is place m mod ROWS of block m div ROWS.

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


def cpu_columns() -> Claim:
    """cpu_kernel.cpp:backward_weight: shares of columns, at most WEIGHT_COLUMNS; four rows a turn, ascending."""

    def state(z: Symbols) -> Truth:
        width, most = z.wholes("width WEIGHT_COLUMNS", least=1)
        return each_once(z, width, z.smaller(vector_share(z, width), most), name="column")

    return Claim(name="each column has one thread", state=state, fault="floor for ceiling", truncating=True)


def rows() -> Proof:
    """triton_kernel.py: rmsnorm_forward, rmsnorm_backward_input; cpu_kernel.cpp: forward and backward of the input."""
    return prove(row_claims(), bound=EVERY_SIZE)


def weight() -> Proof:
    """_triton/columns.py: column_chains; cpu_kernel.cpp: its counterpart."""
    return prove([rows_in_order(), cpu_columns()], bound="all sizes, launch numbers and numbers of threads >= 1")
