"""Integer facts of softmax, for all sizes: each row has one program or thread, each term one lane, all lie in bounds.

Runs the real `block_of` on unknowns; the claims are those that all operators of rows share."""

from __future__ import annotations

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth
from samebits.ops.index_claims import EVERY_SIZE, SIZE_LIMIT, row_claims


def maximum_meets_every_element() -> Claim:
    """triton_forward.py, triton_backward.py: blocks of 256 * STEPS columns meet every column once.

    cpu_kernel.cpp:row_shift: groups of MAXIMA vectors, then vectors, then single elements: each element once."""

    def state(z: Symbols) -> Truth:
        H, wide = z.whole("H", least=1, below=SIZE_LIMIT), z.whole("wide", least=1)
        column = z.whole("column", least=0, below=H)
        turn, place = z.divide(column, wide)
        in_a_block = (turn * wide < H) & (turn * wide + place == column) & (place < wide)
        vector, maxima = z.wholes("WIDTH MAXIMA", least=1)
        grouped = H // (maxima * vector) * (maxima * vector)
        rest = grouped + (H - grouped) // vector * z.planted(vector, vector - 1)
        in_vectors = (grouped >= 0) & (grouped <= rest) & (rest <= H) & (H - rest < vector)
        return in_a_block & in_vectors

    return Claim(
        name="the maximum meets every element", state=state, fault="vectors one element short", truncating=True
    )


def rows() -> Proof:
    """triton_forward.py, triton_backward.py, cpu_kernel.cpp. Of triton_shared.py: tests/ops/test_shared_rows.py."""
    return prove([*row_claims(), maximum_meets_every_element()], bound=EVERY_SIZE)
