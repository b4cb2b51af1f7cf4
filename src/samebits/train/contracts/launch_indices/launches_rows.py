"""Launches of kernels that go over rows: their sizes, their buffers, and which programs there are.

What a launch hands over is written here as the functions beside the kernels have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from samebits.ops._triton import columns
from samebits.ops.attention import triton_uncovered
from samebits.ops.distill_loss import triton_kernel as distill_loss
from samebits.ops.distill_loss.reference import STATISTICS
from samebits.ops.embedding import triton_kernel as embedding
from samebits.ops.layernorm import triton_kernel as layernorm
from samebits.ops.rmsnorm import triton_kernel as rmsnorm
from samebits.ops.rmsnorm.triton_kept import LANES
from samebits.ops.rope import triton_kernel as rope
from samebits.ops.sample import triton_kernel as sample
from samebits.ops.softmax import triton_kernel as softmax
from samebits.train.contracts.launch_indices.deciding import Launch
from samebits.train.contracts.launch_indices.handed import aligned, maybe, within
from samebits.train.contracts.launch_indices.machine import Machine
from samebits.train.contracts.launch_indices.values import Anything, Buffer, Number

# Columns of a step: a counter of columns passes its end by less than 2^12.
STEPS_BELOW: Final = 16


def _kept(m: Machine, H: Number) -> dict[str, Any]:
    """rmsnorm/triton_kept.py:steps_of: the blocks of a row that is kept, or of a step along one that is not."""
    if not m.either():
        return {"STEPS": m.numbers("STEPS", below=STEPS_BELOW)[0], "KEPT": False}
    (STEPS,) = m.numbers("STEPS")
    m.assume(LANES * (STEPS - 1) < H, H <= LANES * STEPS)
    return {"STEPS": STEPS, "KEPT": True}


def _rows(kernel: Any, of: Mapping[str, str], optional: str = "", kept: bool = False, **others: Any) -> Launch:
    """Programs over blocks of rows. `of` says of which size each buffer is: "MH", "M" or "H"."""

    def launch(m: Machine) -> None:
        M, H = m.sizes("M H")
        (ROWS,) = m.numbers("ROWS")
        steps = _kept(m, H) if kept else {"STEPS": m.numbers("STEPS", below=STEPS_BELOW)[0]}
        length = {"MH": M.to(64) * H, "M": M, "H": H}
        buffers = {
            f"{name}_ptr": maybe(m, Buffer(name, length[size]))
            if name in optional.split()
            else Buffer(name, length[size])
            for name, size in of.items()
        }
        more = {name: Anything(m) if each is None else m.either() for name, each in others.items()}
        program = m.unknown(0, m.cdiv(M, ROWS))
        m.call(kernel, program=program, **buffers, M=M, H=H, **more, ROWS=ROWS, **steps, ALIGNED=aligned(m, H))

    return launch


def _rmsnorm_forward(m: Machine) -> None:
    """There is a buffer for the sums x + residual where there is a residual."""
    M, H = m.sizes("M H")
    (ROWS,) = m.numbers("ROWS")
    MH, residual = M.to(64) * H, m.either()
    m.call(
        rmsnorm.rmsnorm_forward,
        program=m.unknown(0, m.cdiv(M, ROWS)),
        x_ptr=Buffer("x", MH),
        residual_ptr=Buffer("residual", MH) if residual else None,
        weight_ptr=Buffer("weight", H),
        y_ptr=Buffer("y", MH),
        hidden_ptr=Buffer("hidden", MH) if residual else None,
        rstd_ptr=Buffer("rstd", M),
        M=M,
        H=H,
        reciprocal=Anything(m),
        eps=Anything(m),
        ROWS=ROWS,
        **_kept(m, H),
        ALIGNED=aligned(m, H),
    )


def _column_chains(m: Machine) -> None:
    """_triton/columns.py:add_rows: of x there may be none, and of means none with it."""
    M, H = m.sizes("M H")
    ROWS, COLUMNS = m.numbers("ROWS COLUMNS")
    MH = M.to(64) * H
    x, mean = m.one_of((True, True), (True, False), (False, False))
    m.call(
        columns.column_chains,
        program=m.unknown(0, m.cdiv(H, COLUMNS)),
        dy_ptr=Buffer("dy", MH),
        x_ptr=Buffer("x", MH) if x else None,
        mean_ptr=Buffer("mean", M) if mean else None,
        rstd_ptr=Buffer("rstd", M) if x else None,
        accumulator_ptr=Buffer("accumulator", H),
        M=M,
        H=H,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        ALIGNED=aligned(m, H),
    )


def _distill(kernel: Any, forward: bool) -> Launch:
    """Statistics lie one array of M after the other; what of them is asked for depends on the terms of the loss."""

    def launch(m: Machine) -> None:
        M, V = m.sizes("M V")
        (ROWS,) = m.numbers("ROWS")
        MV = M.to(64) * V
        divergence, entropy = m.one_of((True, True), (True, False), (False, True))
        targets = Buffer("targets", M, within(-(2**63), 2**63))
        first = {"loss_ptr": Buffer("loss", M)} if forward else {"upstream_ptr": Buffer("upstream", M)}
        last = {} if forward else {"dstudent_ptr": Buffer("dstudent", MV)}
        m.call(
            kernel,
            program=m.unknown(0, m.cdiv(M, ROWS)),
            **first,
            student_ptr=Buffer("student", MV),
            teacher_ptr=Buffer("teacher", MV),
            targets_ptr=targets if entropy or m.either() else None,
            statistics_ptr=Buffer("statistics", (STATISTICS if entropy else STATISTICS - 1) * M.to(64)),
            **last,
            M=M,
            V=V,
            ignore_index=m.unknown(bits=64),
            inverse=Anything(m),
            divergence_weight=Anything(m),
            entropy_weight=Anything(m),
            ROWS=ROWS,
            ALIGNED=aligned(m, V),
            DIVERGENCE=divergence,
            ENTROPY=entropy,
        )

    return launch


def _sample_rows(m: Machine) -> None:
    M, V = m.sizes("M V")
    (STEPS,) = m.numbers("STEPS", below=STEPS_BELOW)
    names = ("requests", "positions", "temperature", "top_k", "top_p", "seeds", "tokens")
    m.call(
        sample.sample_rows,
        program=m.unknown(0, M),
        logits_ptr=Buffer("logits", M.to(64) * V),
        **{f"{name}_ptr": Buffer(name, M) for name in names},
        V=V,
        STEPS=STEPS,
        ALIGNED=aligned(m, V),
    )


def _embedding_forward(m: Machine) -> None:
    """The public function checks that ids are those of the table."""
    M, H, V = m.sizes("M H V")
    ROWS, COLUMNS = m.numbers("ROWS COLUMNS")
    blocks = m.cdiv(H, COLUMNS)
    m.call(
        embedding.embedding_forward,
        program=m.joined(m.unknown(0, m.cdiv(M, ROWS)), blocks, m.unknown(0, blocks)),
        ids_ptr=Buffer("ids", M, within(0, V)),
        weight_ptr=Buffer("weight", V.to(64) * H),
        y_ptr=Buffer("y", M.to(64) * H),
        M=M,
        H=H,
        ROWS=ROWS,
        COLUMNS=COLUMNS,
        ALIGNED=aligned(m, H),
    )


def _embedding_backward(m: Machine) -> None:
    M, H, V = m.sizes("M H V")
    ROWS, COLUMNS = m.numbers("ROWS COLUMNS")
    blocks = m.cdiv(H, COLUMNS)
    m.call(
        embedding.embedding_backward,
        program=m.joined(m.unknown(0, M), blocks, m.unknown(0, blocks)),
        dy_ptr=Buffer("dy", M.to(64) * H),
        sorted_ptr=Buffer("sorted", M, within(0, V)),
        positions_ptr=Buffer("positions", M, within(0, M)),
        sums_ptr=Buffer("sums", V.to(64) * H),
        M=M,
        H=H,
        padding=m.unknown(bits=64),
        RESUME=m.either(),
        ROWS=ROWS,
        COLUMNS=COLUMNS,
    )


def _rope_rotate(m: Machine) -> None:
    """The factor and the sign of the sine say nothing of an address."""
    M, H, P = m.sizes("M H P")
    HEADS, PAIRS = m.numbers("HEADS PAIRS")
    blocks = m.cdiv(P, PAIRS)
    size = M.to(64) * H * (2 * P)
    m.assume(M.to(64) * H < 2**40, P < 2**20)
    m.call(
        rope.rope_rotate,
        program=m.joined(m.unknown(0, M), blocks, m.unknown(0, blocks)),
        x_ptr=Buffer("x", size),
        positions_ptr=Buffer("positions", M),
        frequencies_ptr=Buffer("frequencies", P),
        y_ptr=Buffer("y", size),
        H=H,
        P=P,
        factor=Anything(m),
        SCALED=m.either(),
        INTERLEAVED=m.either(),
        OPPOSITE=False,
        ALIGNED=aligned(m, P),
        HEADS=HEADS,
        PAIRS=PAIRS,
    )


def _attention_uncovered(m: Machine) -> None:
    """Two tensors of the same tokens, and a table of sequences."""
    T, S, W, second = m.sizes("T S W second")
    (ROWS,) = m.numbers("ROWS")
    m.call(
        triton_uncovered.attention_uncovered,
        program=m.unknown(0, m.cdiv(T, ROWS)),
        ptr=Buffer("first", T.to(64) * W),
        second_ptr=Buffer("second", T.to(64) * second),
        start_ptr=Buffer("start", S),
        length_ptr=Buffer("length", S),
        tokens=T,
        count=S,
        width=W,
        second_width=second,
        SECOND=Anything(m),
        ROWS=ROWS,
    )


KERNELS: Final[dict[str, Launch]] = {
    "attention_uncovered": _attention_uncovered,
    "softmax_forward": _rows(softmax.softmax_forward, {"x": "MH", "y": "MH"}, LOGARITHM=True),
    "softmax_backward": _rows(softmax.softmax_backward, {"dy": "MH", "y": "MH", "dx": "MH"}, LOGARITHM=True),
    "rmsnorm_forward": _rmsnorm_forward,
    "rmsnorm_backward_input": _rows(
        rmsnorm.rmsnorm_backward_input,
        {"dy": "MH", "hidden": "MH", "weight": "H", "rstd": "M", "dhidden": "MH", "dx": "MH"},
        "dhidden",
        kept=True,
        reciprocal=None,
    ),
    "layernorm_forward": _rows(
        layernorm.layernorm_forward,
        {"x": "MH", "weight": "H", "bias": "H", "y": "MH", "mean": "M", "rstd": "M"},
        "weight bias",
        kept=True,
        count=None,
        eps=None,
    ),
    "layernorm_backward_input": _rows(
        layernorm.layernorm_backward_input,
        {"dy": "MH", "x": "MH", "weight": "H", "mean": "M", "rstd": "M", "dx": "MH"},
        "weight",
        kept=True,
        count=None,
    ),
    "column_chains": _column_chains,
    "distill_loss_forward": _distill(distill_loss.distill_loss_forward, True),
    "distill_loss_backward": _distill(distill_loss.distill_loss_backward, False),
    "sample_rows": _sample_rows,
    "embedding_forward": _embedding_forward,
    "embedding_backward": _embedding_backward,
    "rope_rotate": _rope_rotate,
}
