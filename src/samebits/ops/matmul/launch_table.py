"""Launch numbers of the matrix product on the H200: which tile, for which sizes.

Decides speed alone. Every row gives the same bits, because K is walked upwards in steps that are multiples of 16, the
width of the tensor core's fused addition, and each output has one accumulator. Knows neither Triton nor tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

# The tensor core adds 16 products at a time: a step that were no multiple of it would cut the chain elsewhere.
CHAIN_WIDTH: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One row: decides speed, never bits."""

    tile_m: int
    tile_n: int
    tile_k: int
    warps: int
    stages: int
    loads: Literal["tma", "pointer"] = "tma"
    swap: bool = False
    """Compute the transposed product, so that many columns of b meet few rows of a: for small M."""
    programs_per_sm: int = 0
    """Programs that stay on a multiprocessor and walk over tiles; 0: one program a tile."""
    group: int = 8
    """Tile rows that run side by side, for the cache."""
    parts: Literal[1, 2] = 1
    """Column parts in which a tile is stored: two need half the shared memory."""

    def __post_init__(self) -> None:
        if self.tile_k % CHAIN_WIDTH:
            raise ValueError(f"tile_k must be a multiple of {CHAIN_WIDTH}, got tile_k={self.tile_k}")
        if self.swap and self.parts != 1:
            raise ValueError(f"a swapped tile is stored in one part, got parts={self.parts}")

    def __str__(self) -> str:
        marks = [
            f"{self.tile_m}x{self.tile_n}x{self.tile_k}",
            f"w{self.warps}",
            f"s{self.stages}",
            "pointer" if self.loads == "pointer" else "",
            "swap" if self.swap else "",
            f"persistent{self.programs_per_sm}" if self.programs_per_sm else "",
            f"g{self.group}",
            f"parts{self.parts}" if self.parts > 1 else "",
        ]
        return " ".join(filter(None, marks))


# 16-bit operands through the tensor memory accelerator, from the fewest rows to the most. Measured beside all others by
# benchmarks/gpu_explore.py; what it found is in benchmarks/NOTES.md.
FEW_ROWS: Final = Launch(tile_m=64, tile_n=16, tile_k=256, warps=4, stages=5, swap=True)
FEW_ROWS_MANY_COLUMNS: Final = Launch(tile_m=128, tile_n=16, tile_k=128, warps=4, stages=4, swap=True)
SOME_ROWS: Final = Launch(tile_m=64, tile_n=32, tile_k=128, warps=4, stages=4, swap=True)
SMALL_TILES: Final = Launch(tile_m=64, tile_n=64, tile_k=128, warps=4, stages=6, swap=True)
SMALL_TILES_IN_PAIRS: Final = Launch(tile_m=64, tile_n=64, tile_k=128, warps=4, stages=3, swap=True)
HALF_A_WAVE: Final = Launch(tile_m=64, tile_n=128, tile_k=128, warps=4, stages=4)
ONE_WAVE: Final = Launch(tile_m=128, tile_n=128, tile_k=64, warps=4, stages=6)
FEW_WAVES: Final = Launch(tile_m=128, tile_n=256, tile_k=64, warps=8, stages=4, parts=2, programs_per_sm=1)
MANY_WAVES: Final = Launch(tile_m=128, tile_n=256, tile_k=64, warps=8, stages=3, parts=2, programs_per_sm=1)
# A float32 output needs twice the shared memory, so fewer stages fit beside it.
ONE_WAVE_WIDE: Final = Launch(tile_m=128, tile_n=128, tile_k=64, warps=4, stages=4, parts=2)

# 16-bit operands whose base or strides the tensor memory accelerator cannot take.
UNALIGNED: Final = Launch(tile_m=64, tile_n=64, tile_k=32, warps=4, stages=2, loads="pointer")
UNALIGNED_FEW_ROWS: Final = Launch(tile_m=16, tile_n=64, tile_k=32, warps=4, stages=3, loads="pointer")

# float32: a loop of fused multiply-adds, never tf32.
FLOAT32: Final = Launch(tile_m=128, tile_n=128, tile_k=16, warps=8, stages=3, loads="pointer")
FLOAT32_SMALL: Final = Launch(tile_m=64, tile_n=64, tile_k=16, warps=8, stages=3, loads="pointer")
FLOAT32_FEW_ROWS: Final = Launch(tile_m=16, tile_n=32, tile_k=64, warps=4, stages=4, loads="pointer")

SIXTEEN_BIT: Final = (
    FEW_ROWS,
    FEW_ROWS_MANY_COLUMNS,
    SOME_ROWS,
    SMALL_TILES,
    SMALL_TILES_IN_PAIRS,
    HALF_A_WAVE,
    ONE_WAVE,
    FEW_WAVES,
    MANY_WAVES,
    ONE_WAVE_WIDE,
    UNALIGNED,
    UNALIGNED_FEW_ROWS,
)
TABLE: Final[dict[str, tuple[Launch, ...]]] = {
    "bfloat16": SIXTEEN_BIT,
    "float16": SIXTEEN_BIT,
    "float32": (FLOAT32, FLOAT32_SMALL, FLOAT32_FEW_ROWS),
}

# The multiprocessors of an H200: tiles that run at once.
WAVE: Final = 132


def tiles(m: int, n: int, tile_m: int, tile_n: int) -> int:
    """Tiles that cover an output."""
    return -(-m // tile_m) * -(-n // tile_n)


def select(m: int, n: int, k: int, *, dtype: str, described: bool, wide: bool) -> Launch:
    """The row for these sizes.

    `described`: the tensor memory accelerator can take the operands and the output. `wide`: the output is float32."""
    if dtype == "float32":
        if m <= 16:
            return FLOAT32_FEW_ROWS
        return FLOAT32 if tiles(m, n, 128, 128) >= WAVE else FLOAT32_SMALL
    if not described:
        return UNALIGNED_FEW_ROWS if m <= 16 else UNALIGNED
    if m <= 32:
        few = FEW_ROWS_MANY_COLUMNS if n > 64 * WAVE else FEW_ROWS
        return few if m <= 16 else SOME_ROWS
    large_tiles = tiles(m, n, 128, 128)
    if m <= 64 or (m <= 128 and large_tiles <= WAVE // 2):
        return SMALL_TILES_IN_PAIRS if tiles(m, n, 64, 64) > WAVE else SMALL_TILES
    if large_tiles <= WAVE // 2:
        return HALF_A_WAVE
    if large_tiles <= WAVE:
        return ONE_WAVE_WIDE if wide else ONE_WAVE
    return MANY_WAVES if wide or large_tiles > 8 * WAVE else FEW_WAVES
