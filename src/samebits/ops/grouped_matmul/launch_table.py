"""Launch numbers of the grouped product on the H200: rows of matmul's table that suit many products in one launch.

Decides speed alone. Knows neither Triton nor tensors."""

from __future__ import annotations

from typing import Final

from samebits.ops.matmul.launch_table import (
    FLOAT32,
    FLOAT32_FEW_ROWS,
    FLOAT32_SMALL,
    HALF_A_WAVE,
    ONE_WAVE,
    UNALIGNED,
    UNALIGNED_FEW_ROWS,
    WAVE,
    Launch,
    tiles,
)

# Through the tensor memory accelerator, for experts with few rows; a swapped tile could not store its rows apart.
FEW_ROWS: Final = Launch(tile_m=16, tile_n=128, tile_k=128, warps=4, stages=4)

SIXTEEN_BIT: Final = (FEW_ROWS, HALF_A_WAVE, ONE_WAVE, UNALIGNED, UNALIGNED_FEW_ROWS)
TABLE: Final[dict[str, tuple[Launch, ...]]] = {
    "bfloat16": SIXTEEN_BIT,
    "float16": SIXTEEN_BIT,
    "float32": (FLOAT32, FLOAT32_SMALL, FLOAT32_FEW_ROWS),
}
GROUPED: Final = (*SIXTEEN_BIT, *TABLE["float32"])


def select(m: int, n: int, experts: int, dtype: str, *, described: bool) -> Launch:
    """The row for these sizes, as if the rows were shared out evenly: how they are is known on the device alone.

    `described`: the tensor memory accelerator can take the operands."""
    each = -(-m // experts)
    if dtype == "float32":
        if each <= 16:
            return FLOAT32_FEW_ROWS
        return FLOAT32 if experts * tiles(each, n, 128, 128) >= WAVE else FLOAT32_SMALL
    if not described:
        return UNALIGNED_FEW_ROWS if each <= 16 else UNALIGNED
    if each <= 32:
        return FEW_ROWS
    return ONE_WAVE if experts * tiles(each, n, 128, 128) >= WAVE else HALF_A_WAVE
