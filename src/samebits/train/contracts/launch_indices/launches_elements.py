"""Launches of kernels that go over elements, one by one: their sizes, their buffers, and which programs there are.

What a launch hands over is written here as the functions beside the kernels have it."""

from __future__ import annotations

from typing import Any, Final

from samebits.ops._triton import roots
from samebits.ops.adamw import triton_kernel as adamw
from samebits.ops.gelu import triton_kernel as gelu
from samebits.ops.grad_norm import triton_kernel as grad_norm
from samebits.ops.grad_norm.reference import PIECE
from samebits.ops.swiglu import triton_kernel as swiglu
from samebits.train.contracts.launch_indices.deciding import Launch
from samebits.train.contracts.launch_indices.handed import aligned, maybe, table, within
from samebits.train.contracts.launch_indices.machine import Machine
from samebits.train.contracts.launch_indices.values import Anything, Buffer


def _elements(kernel: Any, *names: str, either: str = "") -> Launch:
    """_triton/elements.py:run_elements."""

    def launch(m: Machine) -> None:
        (N,), (BLOCK,) = m.sizes("N", below=2**62, bits=64), m.numbers("BLOCK", below=2**16)
        program = m.unknown(0, m.cdiv(N, BLOCK))
        m.assume(program < 2**31)
        buffers = {f"{name}_ptr": Buffer(name, N) for name in names}
        options = {either: m.either()} if either else {}
        m.call(kernel, program=program, **buffers, N=N, **options, BLOCK=BLOCK, ALIGNED=aligned(m, N))

    return launch


def _adamw_step(m: Machine) -> None:
    """ops/adamw/triton_tables.py:tables: a program's tensor is one of the table, of which the program is a block."""
    (T,), (N,) = m.sizes("T"), m.sizes("N", below=2**62, bits=64)
    (BLOCK,) = m.numbers("BLOCK", below=2**16)
    columns = table(("param", "grad", "exp_avg", "exp_avg_sq", "master"), T, N)
    programs = m.unknown(1, 2**31, bits=64)
    program = m.unknown(0, programs)
    first = within(program.to(64) - m.cdiv(N, BLOCK) + 1, program.to(64) + 1)
    numbers = ("decay", "minus_step_size", "root", "beta1", "rest1", "beta2", "rest2", "eps")
    m.call(
        adamw.adamw_step,
        program=program,
        **columns,
        sizes_ptr=Buffer("sizes", T, lambda *_: N),
        firsts_ptr=Buffer("firsts", T, first),
        owners_ptr=Buffer("owners", programs, within(0, T, 32)),
        **{name: Anything(m) for name in numbers},
        PARAM=Anything(m),
        GRAD=Anything(m),
        MASTER=m.either(),
        BLOCK=BLOCK,
        ALIGNED=aligned(m, N),
    )


def _grad_square_pieces(m: Machine) -> None:
    """The sums of this tensor's pieces and of those that follow it."""
    (N,) = m.sizes("N", below=2**46, bits=64)
    pieces = m.cdiv(N, PIECE)
    later = m.unknown(0, 2**31, bits=64)
    m.call(
        grad_norm.grad_square_pieces,
        program=m.unknown(0, pieces),
        x_ptr=Buffer("x", N),
        sums_ptr=Buffer("sums", pieces + later),
        largest_ptr=maybe(m, Buffer("largest", pieces)),
        N=N,
        ALIGNED=aligned(m, N),
    )


def _grad_square_total(m: Machine) -> None:
    (N,) = m.sizes("N")
    buffers = {"sums_ptr": Buffer("sums", N), "total_ptr": Buffer("total", 1)}
    m.call(grad_norm.grad_square_total, program=m.unknown(0, 1), **buffers, N=N)


def _grad_norm_scale(m: Machine) -> None:
    (N,), (BLOCK,) = m.sizes("N", below=2**62, bits=64), m.numbers("BLOCK", below=2**16)
    program = m.unknown(0, m.cdiv(N, BLOCK))
    m.assume(program < 2**31)
    buffers = {"grad_ptr": Buffer("grad", N), "norm_ptr": Buffer("norm", 1)}
    by_eight = aligned(m, N)
    m.call(
        grad_norm.grad_norm_scale, program=program, **buffers, N=N, max_norm=Anything(m), BLOCK=BLOCK, ALIGNED=by_eight
    )


KERNELS: Final[dict[str, Launch]] = {
    "square_root_elements": _elements(roots.square_root_elements, "x", "y"),
    "swiglu_forward": _elements(swiglu.swiglu_forward, "gate", "up", "y"),
    "swiglu_backward": _elements(swiglu.swiglu_backward, "dy", "gate", "up", "dgate", "dup"),
    "gelu_forward": _elements(gelu.gelu_forward, "x", "y", either="BY_TANH"),
    "gelu_backward": _elements(gelu.gelu_backward, "dy", "x", "dx", either="BY_TANH"),
    "adamw_step": _adamw_step,
    "grad_square_pieces": _grad_square_pieces,
    "grad_square_total": _grad_square_total,
    "grad_norm_scale": _grad_norm_scale,
}
