"""The CUDA C++ of a tile: product.cu with its numbers, and the one instruction whose text depends on the width."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cuda_products.tiles import STAGED_LINE, Tile

BODY: Final = Path(__file__).with_name("product.cu").read_text()
ELEMENTS: Final = {"bfloat16": ("bf16", "__nv_bfloat16"), "float16": ("f16", "__half")}


def source(tile: Tile, dtype: str) -> str:
    short, element = ELEMENTS[dtype]
    numbers = {
        "GROUPS": tile.groups,
        "GROUP_LINES": tile.lines,
        "WIDTH": tile.width,
        "STAGES": tile.stages,
        "STEPS": tile.steps,
        "TOGETHER": 2 if tile.pair else 1,
        "LEFT_BY_LINES": int(tile.left_by_lines),
        "RIGHT_BY_COLUMNS": int(tile.right_by_columns),
        "TRANSPOSED": int(tile.transposed),
        "STAGED_LINE": STAGED_LINE,
        "ELEMENT": element,
        "BFLOAT16": int(dtype == "bfloat16"),
    }
    defined = "".join(f"#define {name} {value}\n" for name, value in numbers.items())
    return defined + _multiply_add(tile, short) + BODY


def _multiply_add(tile: Tile, short: str) -> str:
    """sums <- sums + a b of 64 lines, 16 deep, or a b alone: one link of the chain."""
    count = tile.width // 2
    registers = ", ".join(f"%{place}" for place in range(count))
    operands = ", ".join(f'"+f"(sums[{place}])' for place in range(count))
    layouts = f"{int(tile.left_by_lines)}, {int(tile.right_by_columns)}"
    given = f"float (&sums)[{count}], unsigned long long a, unsigned long long b, int go_on"
    return f"""
__device__ __forceinline__ void multiply_add({given}) {{
  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\n"
    "wgmma.mma_async.sync.aligned.m64n{tile.width}k16.f32.{short}.{short} {{{registers}}}, %{count}, %{count + 1}, "
    "p, 1, 1, {layouts};\\n}}\\n" : {operands} : "l"(a), "l"(b), "r"(go_on));
}}
"""
