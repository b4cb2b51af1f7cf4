"""Tiles of a product in CUDA C++, what each takes of a multiprocessor, and which one a model of the machine chooses.

Decides speed alone. Knows neither CUDA nor tensors."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

K_BYTES: Final = 128
"""Of a line of operands in a stage: 64 numbers of 16 bits, what the copies swizzle."""
BOX_BYTES: Final = 64 * K_BYTES
SHARED_BYTES: Final = 226 * 1024
"""Of a multiprocessor's shared memory that a program may fill."""
BARRIER_BYTES: Final = 2048
"""Kept for barriers, and for the first stage to begin at a multiple of 1024."""
MOST_STAGES: Final = 8
FEWEST_STAGES: Final = 3
STAGES_OF_SEVERAL_STEPS: Final = 4
STAGED_LINE: Final = 72
"""Numbers of a line of results in shared memory: 64, and 8 so that lines begin at other banks."""
# Warpgroups that compute, lines of the left operand that each has, and the widest tile whose sums fit their registers.
SHAPES: Final = ((1, 64, 256), (2, 64, 256), (2, 128, 192), (3, 64, 176))
WIDTHS: Final = (*range(8, 112, 8), *range(112, 257, 16))
MULTIPROCESSORS: Final = 132
"""Of an H200."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    groups: int
    """Warpgroups that compute; one more copies."""
    lines: int
    """Of the left operand that each of them has: 64 or 128."""
    width: int
    left_by_lines: bool
    """Whether the left operand's lines, not their elements, are side by side in memory."""
    right_by_columns: bool
    """The same of the right operand's columns."""
    transposed: bool
    """Whether the result is stored so."""
    pair: bool = False
    """Two programs, one tile below the other, copy half of the right operand each, for both."""

    @property
    def height(self) -> int:
        return self.groups * self.lines

    @property
    def step_bytes(self) -> int:
        """Of both operands, 64 deep. Columns side by side come in boxes of 64."""
        right = -(-self.width // 64) * BOX_BYTES if self.right_by_columns else self.width * K_BYTES
        return self.height * K_BYTES + right

    @property
    def steps(self) -> int:
        """Of a stage: a short chain of products waits for its stage longer than it computes, so the more the better."""
        most = (SHARED_BYTES - BARRIER_BYTES - self.staged_bytes) // self.step_bytes
        return next((steps for steps in (4, 2) if self.height == 64 and most >= STAGES_OF_SEVERAL_STEPS * steps), 1)

    @property
    def stage_bytes(self) -> int:
        return self.steps * self.step_bytes

    @property
    def staged_bytes(self) -> int:
        """Of results on their way: two blocks of 64 lines for each warpgroup."""
        return self.groups * 2 * 64 * STAGED_LINE * 2

    @property
    def stages(self) -> int:
        return min(MOST_STAGES, (SHARED_BYTES - BARRIER_BYTES - self.staged_bytes) // self.stage_bytes)

    @property
    def shared_bytes(self) -> int:
        return 1024 + self.stages * self.stage_bytes + self.staged_bytes

    def __str__(self) -> str:
        layouts = ("lines" if self.left_by_lines else "k") + " " + ("columns" if self.right_by_columns else "k")
        marks = " transposed" * self.transposed + " pair" * self.pair
        return f"{self.height}x{self.width} by {self.groups} {layouts}{marks}"


def tiles(*, by_columns: bool) -> Iterator[Tile]:
    """Of a row-major result a b, a's rows side by side in K; `by_columns`: b's columns are side by side, else its K.

    The transposed product has b on the left: its lines are b's columns."""
    for groups, lines, widest in SHAPES:
        for width in WIDTHS:
            for transposed in (False, True):
                for pair in (False, True):
                    left, right = (by_columns, False) if transposed else (False, by_columns)
                    tile = Tile(
                        groups=groups,
                        lines=lines,
                        width=width,
                        left_by_lines=left,
                        right_by_columns=right,
                        transposed=transposed,
                        pair=pair,
                    )
                    halved = width % 16 == 0 and (not right or width > 64)
                    if width <= widest and tile.stages >= FEWEST_STAGES and (halved or not pair):
                        yield tile


# Of an H200, in cycles of 1.6 GHz: what fits 2,100 measured times best, to 7 % in the mean. The tile chosen by it
# takes 1.4 % longer in the mean than the quickest of those that were tried.
CACHE_BYTES: Final = {False: 61.0, True: 39.0}
"""A cycle of a multiprocessor from the second cache, alone or where two programs copy for each other."""
MEMORY_BYTES: Final = 2140.0
"""A cycle of all of them."""
LAUNCH_CYCLES: Final = 2150.0
TILE_CYCLES: Final = 1400.0
PAIR_CYCLES: Final = 800.0
"""Of a tile, for two that wait for each other."""
COLUMN_CYCLES: Final = 3.8
"""Of 64 results on their way to memory."""
WAIT_CYCLES: Final = {1: 33.0, 2: 23.0, 3: 23.0, 4: 23.0}
"""Of a product 16 deep, however narrow, by how many of them a step has side by side."""
STAGE_CYCLES: Final = 107.0
"""Between the products of one stage and the next, where there is one chain alone; not measured for stages of more than
one step."""
ROUNDNESS: Final = 6
"""Work and copies from memory overlap, but for their ends: the sixth root of the sum of their sixth powers."""


def cycles(tile: Tile, m: int, n: int, k: int) -> float:
    """What a product of an m x k and a k x n matrix takes by this tile."""
    if tile.transposed:
        m, n = n, m
    together = 2 if tile.pair else 1
    count = -(-m // (tile.height * together)) * -(-n // tile.width)
    rounds = -(-count // (MULTIPROCESSORS // together))
    blocks = tile.height // 64
    # 64 x width x 16 takes width / 2 cycles, or what its operands take from shared memory, or what a short one waits.
    alone = STAGE_CYCLES / tile.steps / 4 if blocks == 1 else 0.0
    products = 4 * blocks * max(1.11 * tile.width / 2, 34 + tile.width / 4, WAIT_CYCLES[blocks] + alone)
    copied = (tile.height + tile.width / together) * K_BYTES / CACHE_BYTES[tile.pair]
    ends = TILE_CYCLES + COLUMN_CYCLES * blocks * tile.width + PAIR_CYCLES * tile.pair
    working = rounds * (-(-k // 64) * max(products, copied) + ends)
    memory = 2 * (k * (m + n) + m * n) / MEMORY_BYTES
    return LAUNCH_CYCLES + math.pow(working**ROUNDNESS + memory**ROUNDNESS, 1 / ROUNDNESS)


def chosen(m: int, n: int, k: int, *, by_columns: bool, count: int = 1) -> list[Tile]:
    """The tiles that take least by the model, best first."""
    return heapq.nsmallest(count, tiles(by_columns=by_columns), key=lambda tile: (cycles(tile, m, n, k), str(tile)))
