"""Integer facts of rmsnorm, for all sizes: rows and lanes as in all operators of rows, and the weight's chain.

Runs the real `block_of` on unknowns; models the loops over rows and the C++."""

from __future__ import annotations

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth
from samebits.ops.column_claims import EVERY_LAUNCH, column_claims
from samebits.ops.index_claims import EVERY_SIZE, each_once, row_claims, vector_share


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
    """_triton/columns.py: column_chains; _triton/hopper_columns_kernel.py; cpu_kernel.cpp: its counterpart."""
    return prove([*column_claims(), cpu_columns()], bound=EVERY_LAUNCH)
