"""Integer facts of cross-entropy: its chunks of rows; the blocks of the vocabulary are those of the log-probability.

Models the loop of `one_pass`. Knows no kernel: cross-entropy runs logprob's."""

from __future__ import annotations

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth
from samebits.ops.cross_entropy.one_pass import SCRATCH_NUMBERS
from samebits.ops.logprob.index_proofs import BOUND, every_logit_in_one_block, merged_in_order, selected_in_one_block


def chunks_of_rows() -> Claim:
    """one_pass.py:loss_and_sums: chunks of `height` rows cover all rows once, in order, and fit the scratch memory.

    On the CPU a chain is one fused multiply-add a step, so it can be resumed after any row."""

    def state(z: Symbols) -> Truth:
        rows, vocabulary = z.wholes("rows vocabulary", least=1)
        chunks = -(-(rows * vocabulary) // SCRATCH_NUMBERS)
        height = z.planted(-(-rows // chunks), rows // chunks)
        row = z.whole("row", least=0, below=rows)
        chunk, place = z.divide(row, height)
        stop = z.smaller((chunk + 1) * height, rows)
        return (chunk * height < rows) & (row < stop) & (place < height) & (chunk < chunks) & (height >= 1)

    return Claim(name="chunks of rows", state=state, fault="floor for ceiling")


def vocabulary_blocks() -> Proof:
    """one_pass.py: loss_and_sums; logprob/triton_statistics.py: block_statistics, merge_blocks."""
    claims = [chunks_of_rows(), every_logit_in_one_block(), selected_in_one_block(), merged_in_order()]
    return prove(claims, bound=BOUND)
