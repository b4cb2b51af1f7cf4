"""Launches of the trainer's own kernels: an update in pieces of the norm's order, magnitudes from pieces to tensors.

What a launch hands over is written here as train/triton_update.py has it."""

from __future__ import annotations

from typing import Final

from samebits.ops.grad_norm.reference import PIECE
from samebits.train import triton_pieces
from samebits.train.contracts.launch_indices.deciding import Launch
from samebits.train.contracts.launch_indices.handed import aligned, table, within
from samebits.train.contracts.launch_indices.machine import Machine
from samebits.train.contracts.launch_indices.values import Anything, Buffer


def _update_pieces(m: Machine) -> None:
    """A program's tensor is one of the table; its pieces follow each other among those of all tensors."""
    (T,), (N,) = m.sizes("T"), m.sizes("N", below=2**46, bits=64)
    here, every, programs = m.cdiv(N, PIECE), m.unknown(1, 2**31, bits=64), m.unknown(1, 2**31, bits=64)
    program = m.unknown(0, programs)
    numbers = ("max_norm", "decay", "minus_step_size", "root", "beta1", "rest1", "beta2", "rest2", "eps")
    m.call(
        triton_pieces.update_pieces,
        program=program,
        **table(("param", "grad", "exp_avg", "exp_avg_sq", "master"), T, N),
        pieces_ptr=Buffer("pieces", T, within(0, every - here + 1)),
        sizes_ptr=Buffer("sizes", T, lambda *_: N),
        firsts_ptr=Buffer("firsts", T, within(program.to(64) - here + 1, program.to(64) + 1)),
        owners_ptr=Buffer("owners", programs, within(0, T, 32)),
        norm_ptr=Buffer("norm", 1),
        sums_ptr=Buffer("sums", every),
        largest_ptr=Buffer("largest", every),
        **{name: Anything(m) for name in numbers},
        PARAM=Anything(m),
        MASTER=m.either(),
        ALIGNED=aligned(m, N),
    )


def _largest_of_tensors(m: Machine) -> None:
    """A tensor's pieces end where those of the next one begin."""
    T, every = m.sizes("T every")
    m.call(
        triton_pieces.largest_of_tensors,
        program=m.unknown(0, T),
        pieces_ptr=Buffer("pieces", every),
        borders_ptr=Buffer("borders", T + 1, within(0, every + 1, 32)),
        largest_ptr=Buffer("largest", T),
    )


KERNELS: Final[dict[str, Launch]] = {"update_pieces": _update_pieces, "largest_of_tensors": _largest_of_tensors}
