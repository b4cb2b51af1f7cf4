"""Integer facts of the gradient norm, for all sizes: pieces of 65536, lanes within a piece, lanes over their sums.

Models the loops of the kernels; lanes and elements are those that all operators share."""

from __future__ import annotations

from samebits.contracts.integer_proofs import Claim, prove
from samebits.contracts.proof import Proof
from samebits.contracts.symbolic import Symbols, Truth
from samebits.ops.grad_norm.reference import LANES, PIECE
from samebits.ops.index_claims import fold_of_lanes, lane_of_an_element, program_elements


def every_element_in_one_piece() -> Claim:
    """triton_kernel.py:grad_square_pieces: 2048 elements a turn in 8 parts of 256; element i meets lane i mod 256 of
    its piece, once, ascending. count fits int32; offsets are int64."""

    def state(z: Symbols) -> Truth:
        N = z.whole("N", least=1, below=2**62, bits=64)
        element = z.whole("element", least=0, below=N, bits=64)
        piece, within = z.divide(element, PIECE)
        first = piece * PIECE
        count = z.smaller(N - first, PIECE).to(32)
        turn, rest = z.divide(within, 2048)
        part, lane = z.divide(rest, LANES)
        offset = turn * 2048 + part * z.planted(LANES, LANES - 1) + lane
        reached = (turn * 2048 < count) & (part < 8) & (offset < count) & (piece < z.ceiling(N, PIECE))
        return reached & (first + offset == element) & (lane == within % LANES) & z.fits()

    return Claim(name="every element in one piece and lane", state=state, fault="parts overlap by one", truncating=True)


def every_piece_in_the_total() -> Claim:
    """triton_kernel.py:square_sum: piece p of a tensor is number first + p; first is what the tensors before it made.

    grad_square_total meets number i in lane i mod 256."""

    def state(z: Symbols) -> Truth:
        before, size, later = z.wholes("pieces_before size size_of_the_next", least=0)
        z.assume(size >= 1, later >= 1)
        here, there = z.ceiling(size, PIECE), z.ceiling(later, PIECE)
        piece, other = z.whole("piece", least=0, below=here), z.whole("other", least=0, below=there)
        number, next_number = before + piece, before + z.planted(here, here - 1) + other
        turn, lane = z.divide(number, LANES)
        return (number < next_number) & (turn * LANES + lane == number) & (turn * LANES < before + here)

    return Claim(name="every piece in the total", state=state, fault="tensors overlap by one piece", truncating=True)


def pieces() -> Proof:
    """triton_kernel.py: grad_square_pieces, grad_square_total, grad_norm_scale; cpu_kernel.cpp: pieces_of."""
    claims = [
        every_element_in_one_piece(),
        every_piece_in_the_total(),
        fold_of_lanes(LANES),
        lane_of_an_element(),
        program_elements(False),
        program_elements(True),
    ]
    return prove(claims, bound="all sizes < 2^62, all numbers of tensors, all blocks < 2^16")
