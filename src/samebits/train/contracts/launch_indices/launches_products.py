"""Launches of matrix products and log-probabilities: operands of any strides, and the tiles of a result.

What a launch hands over is written here as the functions beside the kernels have it."""

from __future__ import annotations

from typing import Any, Final

from samebits.ops.logprob import triton_logits, triton_statistics
from samebits.ops.matmul import triton_products
from samebits.train.contracts.launch_indices.deciding import Launch
from samebits.train.contracts.launch_indices.handed import within
from samebits.train.contracts.launch_indices.machine import SIZE_LIMIT, Machine
from samebits.train.contracts.launch_indices.values import Anything, Buffer, Number

TILES_BELOW: Final = 2**31 - 2**16
"""Numbers of tiles: outputs of 2^36 numbers in tiles of 16 by 16 and more make fewer, as matmul's own proofs say."""
BYTES_BELOW: Final = 2**62
MERGED_AT_ONCE: Final = 16
"""Blocks that logprob's merge reads at once: its launch has this number alone."""


def tile_at(m: Machine, index: Any, tiles_m: Any, tiles_n: Any, GROUP: Any) -> Any:
    """Of triton_tiles.py:tile_at: every tile has an index below tiles_m tiles_n, so that each of these has one tile.
    That is what MM-PR1 claims, and it runs the function as it stands."""
    tile_m, tile_n = m.unknown(0, tiles_m), m.unknown(0, tiles_n)
    m.must((index >= 0) & (index < tiles_m * tiles_n))
    return tile_m, tile_n


def strides(m: Machine, names: str) -> list[Number]:
    return [m.unknown(0, BYTES_BELOW, 64, name) for name in names.split()]


def spanned(m: Machine, *axes: tuple[Any, Number]) -> Any:
    """Elements from the first to the last of a tensor with these sizes and strides."""
    length: Any = 1
    for size, stride in axes:
        length = length + (size.to(64) - 1) * stride
    m.assume(length < BYTES_BELOW)
    return length


def contiguous(m: Machine, names: tuple[str, str], *operands: tuple[Number, Number]) -> dict[str, Any]:
    """triton_kernel.py:contiguous_axis of (stride of a line, stride of k). The same for both operands: they are loaded
    by calls of one function, which is told of one operand alone."""
    axis = m.one_of("k", "line", "")
    for line, k in operands if axis else ():
        m.assume((k if axis == "k" else line) == 1)
    return dict.fromkeys(names, axis)


def tiles_of(m: Machine, rows: Number, columns: Number, tile_m: Any, tile_n: Any) -> Any:
    m.summaries = SUMMARIES
    tiles = m.cdiv(rows, tile_m) * m.cdiv(columns, tile_n)
    m.assume(tiles < TILES_BELOW)
    return tiles


def dtype_of(m: Machine) -> Any:
    """float32 has another padding than the 16-bit formats."""
    return m.one_of(m.format("float32"), m.format("bfloat16"))


def _matmul_addressed(m: Machine) -> None:
    M, N, K = m.sizes("M N K")
    TILE_M, TILE_N, TILE_K = m.numbers("TILE_M TILE_N TILE_K")
    am, ak, bk, bn = strides(m, "stride_am stride_ak stride_bk stride_bn")
    transposed, resumed, dtype = m.either(), m.either(), dtype_of(m)
    out = Buffer("out", M.to(64) * N)
    m.call(
        triton_products.matmul_addressed,
        program=m.unknown(0, tiles_of(m, M, N, TILE_M, TILE_N)),
        a_ptr=Buffer("a", spanned(m, (M, am), (K, ak)), dtype=dtype),
        b_ptr=Buffer("b", spanned(m, (K, bk), (N, bn)), dtype=dtype),
        out_ptr=None if resumed else out,
        bias_ptr=None if resumed or m.either() else Buffer("bias", M if transposed else N),
        accumulator_ptr=out if resumed else None,
        M=M,
        N=N,
        K=K,
        stride_am=am,
        stride_ak=ak,
        stride_bk=bk,
        stride_bn=bn,
        **contiguous(m, ("A_CONTIGUOUS", "B_CONTIGUOUS"), (am, ak), (bn, bk)),
        OUT_TRANSPOSED=transposed,
        TILE_M=TILE_M,
        TILE_N=TILE_N,
        TILE_K=TILE_K,
        GROUP=m.numbers("GROUP")[0],
    )


def _matmul_described(m: Machine) -> None:
    """Only the bias goes by address."""
    M, N, K = m.sizes("M N K")
    TILE_M, TILE_N, TILE_K = m.numbers("TILE_M TILE_N TILE_K")
    tiles, transposed = tiles_of(m, M, N, TILE_M, TILE_N), m.either()
    (programs,) = m.sizes("programs", below=2**16)
    m.call(
        triton_products.matmul_described,
        program=m.unknown(0, programs),
        a=Anything(m),
        b=Anything(m),
        out=Anything(m),
        bias_ptr=Buffer("bias", M if transposed else N),
        M=M,
        N=N,
        K=K,
        programs=m.one_of(programs, tiles),
        A_TRANSPOSED=m.either(),
        B_TRANSPOSED=False,
        OUT_TRANSPOSED=transposed,
        RESUMED=False,
        TILE_M=TILE_M,
        TILE_N=TILE_N,
        TILE_K=TILE_K,
        GROUP=m.numbers("GROUP")[0],
        PARTS=1,
        FLATTEN=False,
    )


def _logprob(m: Machine, gradient: bool) -> dict[str, Any]:
    """What both kernels are handed beside their operands: statistics of blocks, or what a gradient needs."""
    M, V = m.sizes("M V")
    blocks = m.cdiv(V, 256)
    # Tokens as the kernels read them: int32, -1 where ignored; that they are of the vocabulary is checked before.
    found: dict[str, Any] = {"ids_ptr": Buffer("ids", M, within(-1, V, bits=32)), "M": M, "V": V}
    first = {"lse_ptr": Buffer("lse", M), "g_ptr": Buffer("g", M)}
    statistics = {"maxima_ptr": Buffer("maxima", blocks * M.to(64)), "sums_ptr": Buffer("sums", blocks * M.to(64))}
    statistics["selected_ptr"] = Buffer("selected", M)
    given, left = (first, statistics) if gradient else (statistics, first)
    return {**found, **given, **dict.fromkeys(left), "first": m.unknown(0, SIZE_LIMIT)}


def _logprob_addressed(m: Machine) -> None:
    gradient = m.either()
    given = _logprob(m, gradient)
    M, V = given["M"], given["V"]
    (K,), (TILE_M, TILE_K) = m.sizes("K"), m.numbers("TILE_M TILE_K")
    hm, hk, wv, wk, dz = strides(m, "stride_hm stride_hk stride_wv stride_wk stride_dz")
    m.assume(dz >= V, (M.to(64) - 1) * dz + V < BYTES_BELOW)
    dtype = dtype_of(m)
    m.call(
        triton_logits.logprob_addressed,
        program=m.unknown(0, tiles_of(m, M, V, TILE_M, 256)),
        hidden_ptr=Buffer("hidden", spanned(m, (M, hm), (K, hk)), dtype=dtype),
        weight_ptr=Buffer("weight", spanned(m, (V, wv), (K, wk)), dtype=dtype),
        dz_ptr=Buffer("dz", (M.to(64) - 1) * dz + V) if gradient else None,
        **given,
        K=K,
        stride_hm=hm,
        stride_hk=hk,
        stride_wv=wv,
        stride_wk=wk,
        stride_dz=dz,
        **contiguous(m, ("HIDDEN_CONTIGUOUS", "WEIGHT_CONTIGUOUS"), (hm, hk), (wv, wk)),
        TILE_M=TILE_M,
        TILE_K=TILE_K,
        GROUP=m.numbers("GROUP")[0],
    )


def _logprob_described(m: Machine) -> None:
    """Operands and gradients of logits go through descriptors."""
    gradient = m.either()
    given = _logprob(m, gradient)
    (K,), (TILE_M, TILE_K) = m.sizes("K"), m.numbers("TILE_M TILE_K")
    tiles = tiles_of(m, given["M"], given["V"], TILE_M, 256)
    (programs,) = m.sizes("programs", below=2**16)
    m.call(
        triton_logits.logprob_described,
        program=m.unknown(0, programs),
        hidden=Anything(m),
        weight=Anything(m),
        dz=Anything(m) if gradient else None,
        **given,
        K=K,
        programs=m.one_of(programs, tiles),
        TILE_M=TILE_M,
        TILE_K=TILE_K,
        GROUP=m.numbers("GROUP")[0],
        FLATTEN=False,
    )


def _logprob_known(m: Machine) -> None:
    """A row a program."""
    given = _logprob(m, False)
    M, V = given["M"], given["V"]
    blocks = m.cdiv(V, 256)
    m.call(
        triton_statistics.logprob_known,
        program=m.joined(m.unknown(0, M), blocks, m.unknown(0, blocks)),
        logits_ptr=Buffer("logits", M.to(64) * V),
        **{name: given[name] for name in ("ids_ptr", "maxima_ptr", "sums_ptr", "selected_ptr", "M", "V")},
        blocks=blocks,
        TILE_M=1,
    )


def _merge_blocks(m: Machine) -> None:
    M, blocks = m.sizes("M blocks", below=2**31 - 2**12)
    parts = {f"{name}_ptr": Buffer(name, blocks * M.to(64)) for name in ("maxima", "sums")}
    rows = {f"{name}_ptr": Buffer(name, M) for name in ("selected", "ids", "logprob", "lse")}
    (ROWS,) = m.numbers("ROWS")
    m.call(
        triton_statistics.merge_blocks,
        program=m.unknown(0, m.cdiv(M, ROWS)),
        **parts,
        **rows,
        M=M,
        blocks=blocks,
        ROWS=ROWS,
        AHEAD=MERGED_AT_ONCE,
    )


KERNELS: Final[dict[str, Launch]] = {
    "matmul_addressed": _matmul_addressed,
    "matmul_described": _matmul_described,
    "logprob_addressed": _logprob_addressed,
    "logprob_described": _logprob_described,
    "logprob_known": _logprob_known,
    "merge_blocks": _merge_blocks,
}
SUMMARIES: Final = {"triton_tiles.tile_at": tile_at}
