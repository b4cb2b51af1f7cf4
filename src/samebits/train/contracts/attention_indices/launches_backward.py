"""Launches of attention backward: row sums, a pass for queries and a pass for keys, each once more with care.

What a launch hands over is written here as the functions beside the kernels have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from samebits.ops.attention.triton_delta import attention_delta
from samebits.ops.attention.triton_dk_dv import attention_dk_dv
from samebits.ops.attention.triton_dq import attention_dq
from samebits.train.contracts.attention_indices.handed import (
    FORMS,
    LENGTHS_BELOW,
    RULES,
    SEQUENCES_BELOW,
    SUMMARIES,
    TILES_TO,
    TURNS,
    Table,
    head_sizes,
    heads,
    line_of,
    ruled,
    strided,
    tile_of,
    whole,
)
from samebits.train.contracts.attention_indices.machine import OneWay
from samebits.train.contracts.launch_indices.values import Anything, Number

PROGRAMS_BELOW: Final = 2**31
"""Of one launch."""
LINES_BELOW: Final = 2**31
"""Of the row sums: two for every head of every sequence."""
BLOCKS: Final = (16, 64, 32, 128)
"""Rows of the blocks that are walked: powers of two, as Triton wants them, and at least what its products take."""
SOURCES: Final = ("addressed", "described", "careful", "addressed")
CASES: Final = tuple(
    (SOURCES[first ^ TURNS[1][second]], RULES[first], FORMS[second], BLOCKS[first ^ second])
    for first in range(4)
    for second in range(4)
)
"""How blocks come, the rule, (aligned, padded), rows of a block: any two in every combination."""


def statistics_of(m: OneWay, sequences: Number, every: Number, longest: Number) -> dict[str, Any]:
    """-lse and delta, (sequences, 2, heads, pitch): the pitch is the next multiple of 4."""
    (pitch,) = m.sizes("pitch", below=2**31)
    m.assume(pitch >= longest)
    m.assume(sequences * 2 * every < LINES_BELOW)
    return {"statistics_ptr": whole(m, "statistics", sequences, 2, every, pitch), "pitch": pitch.to(64)}


def _delta(m: OneWay) -> None:
    m.summaries = SUMMARIES
    aligned, padded = m.one_of(*FORMS)
    (sequences,), (tokens,) = m.sizes("sequences", below=SEQUENCES_BELOW), m.sizes("tokens", below=2**31)
    (longest,) = m.sizes("longest", below=LENGTHS_BELOW)
    (ROWS,) = m.numbers("ROWS", below=TILES_TO + 1)
    every, _, _ = heads(m)
    head, width = head_sizes(m, padded)
    m.assume(*([head % 8 == 0] if aligned else []))
    tiles, tile = tile_of(m, longest, ROWS)
    place = line_of(m, sequences, every, every)
    m.call(
        attention_delta,
        program=m.joined(place, tiles, tile),
        out_ptr=whole(m, "out", tokens, every, head),
        **strided(m, "do", tokens, every, head, aligned),
        lse_ptr=whole(m, "lse", tokens, every),
        **statistics_of(m, sequences, every, longest),
        **Table(longest, tokens).buffers("q", sequences),
        heads=every,
        tiles=tiles,
        ROWS=ROWS,
        HEAD=head,
        PADDED=width,
        STEPS=Anything(m),
        ALIGNED=aligned,
    )


def _pass(kernel: Any, keys: bool) -> Callable[[OneWay], None]:
    """triton_backward.py:launch: tiles of queries or of keys; those of the careful pass are smaller."""

    def launch(m: OneWay) -> None:
        m.summaries = SUMMARIES
        source, rule, (aligned, padded), block = m.one_of(*CASES)
        (sequences,) = m.sizes("sequences", below=SEQUENCES_BELOW)
        tokens, key_tokens = m.sizes("tokens key_tokens", below=2**31)
        longest, longest_key = m.sizes("longest longest_key", below=LENGTHS_BELOW)
        (rows,) = m.numbers("rows", below=TILES_TO + 1)
        every, key_heads, group = heads(m, as_product=keys)
        head, width = head_sizes(m, padded)
        length, lines = (longest_key, key_heads) if keys else (longest, every)
        tiles, tile = tile_of(m, length, rows)
        first_tile, first_tiles = rows, tiles
        if source == "careful":
            (first_tile,) = m.numbers("first_tile", below=TILES_TO + 1)
            first_tiles = m.cdiv(length, first_tile)
        place = line_of(m, sequences, lines, every, group if keys else 1)
        m.assume(sequences * lines * first_tiles < PROGRAMS_BELOW)
        given = {"k": (key_tokens, key_heads), "v": (key_tokens, key_heads)}
        outputs = {f"d{name}": size for name, size in given.items()} if keys else {"dq": (tokens, every)}
        described = ("q_described", "do_described", "statistics_described") if keys else ("k_described", "v_described")
        operands: dict[str, Any] = {}
        for name, (long, wide) in {"q": (tokens, every), "do": (tokens, every), **given}.items():
            operands |= strided(m, name, long, wide, head, aligned)
        m.call(
            kernel,
            program=m.joined(place, tiles, tile if keys else tiles - 1 - tile),
            **operands,
            **statistics_of(m, sequences, every, longest),
            wrong_ptr=whole(m, "wrong", sequences, lines, first_tiles),
            **{f"{name}_ptr": whole(m, name, *size, head) for name, size in outputs.items()},
            **{name: Anything(m) for name in described},
            **Table(longest, tokens).buffers("q", sequences),
            **Table(longest_key, key_tokens).buffers("k", sequences),
            heads=every,
            tiles=tiles,
            first_tile=first_tile,
            first_tiles=first_tiles,
            **ruled(m, rule),
            scale=Anything(m),
            HEAD=head,
            PADDED=width,
            GROUP=group,
            QUERIES=block if keys else rows,
            KEYS=rows if keys else block,
            DESCRIBED=source == "described",
            CAREFUL=source == "careful",
            ALIGNED=aligned,
            EXACT=False,
        )

    return launch


KERNELS: Final[dict[str, Callable[[OneWay], None]]] = {
    "attention_delta": _delta,
    "attention_dq": _pass(attention_dq, False),
    "attention_dk_dv": _pass(attention_dk_dv, True),
}
