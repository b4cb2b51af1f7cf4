"""Integer facts of the distillation loss, for all sizes: rows and lanes, the statistics' places, the target's logit.

Runs the real `block_of` on unknowns; models what the kernels add to it."""

from __future__ import annotations

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth
from samebits.ops.distill_loss.reference import STATISTICS
from samebits.ops.index_claims import EVERY_SIZE, SIZE_LIMIT, row_claims


def statistics_in_bounds() -> Claim:
    """triton_kernel.py: statistics_ptr + rows + kind * M for kinds 0 to 4, int64 from 2 M on: each has its place."""

    def state(z: Symbols) -> Truth:
        M = z.whole("M", least=1, below=SIZE_LIMIT, bits=32)
        row, other_row = z.wholes("row other_row", least=0, below=M, bits=32)
        kind, other = z.wholes("kind other", least=0, below=z.planted(STATISTICS, STATISTICS + 1), bits=64)
        place, other_place = kind * M.to(64) + row, other * M.to(64) + other_row
        alone = z.implies(place == other_place, (kind == other) & (row == other_row))
        return (place >= 0) & (place < STATISTICS * M.to(64)) & alone & z.fits()

    return Claim(name="statistics in bounds", state=state, fault="one kind more than the buffer holds", truncating=True)


def target_in_bounds() -> Claim:
    """triton_kernel.py:distill_loss_forward: rows * V + target is read where row and target exist, in int64."""

    def state(z: Symbols) -> Truth:
        M, V = z.wholes("M V", least=1, below=SIZE_LIMIT, bits=32)
        row, target = z.whole("row", least=0, bits=32), z.whole("target", bits=64)
        known = (row < M) & (target >= 0) & (target < z.planted(V, V + 1))
        place = row.to(64) * V + target
        return z.implies(known, (place >= 0) & (place < M.to(64) * V))

    return Claim(name="target in bounds", state=state, fault="target V allowed", truncating=True)


def rows() -> Proof:
    """triton_kernel.py: load_block, row_maximum, row_total, distill_loss_forward and _backward; cpu_kernel.cpp."""
    return prove([*row_claims(), statistics_in_bounds(), target_in_bounds()], bound=EVERY_SIZE)
