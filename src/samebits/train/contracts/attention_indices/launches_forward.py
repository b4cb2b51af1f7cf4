"""Launches of attention forward: a tile of queries against its keys, and the merge of splits.

What a launch hands over is written here as the functions beside the kernels have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from samebits.ops.attention.forms import BLOCK_KEYS, SPLIT_KEYS
from samebits.ops.attention.triton_forward import attention_forward
from samebits.ops.attention.triton_kernel import STATES_AT_ONCE
from samebits.ops.attention.triton_merge import attention_merge
from samebits.train.contracts.attention_indices.handed import (
    ELEMENTS_BELOW,
    FORMS,
    LENGTHS_BELOW,
    RULES,
    SUMMARIES,
    TILES_TO,
    TURNS,
    Table,
    head_sizes,
    heads,
    line_of,
    ruled,
    shown,
    strided,
    tile_of,
    whole,
)
from samebits.train.contracts.attention_indices.machine import OneWay
from samebits.train.contracts.launch_indices.values import Anything, Buffer, Number

SPLIT: Final = SPLIT_KEYS // BLOCK_KEYS


def _pages(m: OneWay, sequences: Number) -> tuple[dict[str, Any], Any, Any]:
    """(what names the pages, keys in memory, the most keys that a sequence's pages hold): keys and values are whole
    pages, one after the other."""
    pages, most = m.sizes("pages most_pages", below=2**31)
    (page_size,) = m.sizes("page_size", below=2**20)
    row = m.unknown(0, ELEMENTS_BELOW, 64, "pages_row")
    length = (sequences.to(64) - 1) * row + most
    m.assume(length < ELEMENTS_BELOW)

    def page(machine: Any, offset: Any, mask: Any) -> Number:
        found: Number = machine.unknown(0, pages)
        return found

    given = {"pages_ptr": Buffer("pages", length, page), "pages_row": row, "page_size": page_size}
    return given, pages.to(64) * page_size, most.to(64) * page_size


SOURCES: Final = ("addressed", "described", "paged", "addressed")
PACKED: Final = (False, True, False, True)
SHARES: Final = ("", "walked", "alone", "alone")
CASES: Final = tuple(
    (
        RULES[first],
        FORMS[second],
        *(each[first ^ turn[second]] for each, turn in zip((SOURCES, SHARES, PACKED), TURNS, strict=True)),
    )
    for first in range(4)
    for second in range(4)
)
"""The rule, (aligned, padded), where keys come from, what becomes of splits, whether heads share a tile: any two in
every combination."""


def _forward(m: OneWay) -> None:
    m.summaries = SUMMARIES
    rule, (aligned, padded), source, shared, packed = m.one_of(*CASES)
    sequences, tokens, key_tokens, TILE = m.sizes("sequences tokens key_tokens TILE", below=2**31)
    longest, longest_key = m.sizes("longest longest_key", below=LENGTHS_BELOW)
    m.assume(TILE <= TILES_TO)
    every, key_heads, group = heads(m)
    head, width = head_sizes(m, padded)
    pages: dict[str, Any] = {"pages_ptr": None, "pages_row": 0, "page_size": 0}
    held: Any = key_tokens
    if source == "paged":
        pages, key_tokens, held = _pages(m, sequences)
    pack, lines = (group, key_heads) if packed else (1, every)
    m.assume(*([group <= TILE] if packed else []))
    queries = TILE // pack
    shown(m, queries >= 1)
    tiles, tile = tile_of(m, longest, queries)
    splits = m.cdiv(longest_key, SPLIT_KEYS)
    place = line_of(m, sequences, lines, every, pack)
    program = m.joined(place, tiles, tiles - 1 - tile)
    if shared == "alone":
        program = m.joined(program, splits, m.unknown(0, splits))
    m.call(
        attention_forward,
        program=program,
        **strided(m, "q", tokens, every, head, aligned),
        **strided(m, "k", key_tokens, key_heads, head, aligned),
        **strided(m, "v", key_tokens, key_heads, head, aligned),
        k_described=Anything(m),
        v_described=Anything(m),
        out_ptr=whole(m, "out", tokens, every, head),
        lse_ptr=whole(m, "lse", tokens, every),
        **_states(m, shared, splits, tokens, every, head),
        **Table(longest, tokens).buffers("q", sequences),
        **Table(longest_key, held, source == "paged").buffers("k", sequences),
        **pages,
        states=tokens.to(64) * every,
        heads=every,
        tiles=tiles,
        splits=splits,
        **ruled(m, rule),
        HEAD=head,
        PADDED=width,
        GROUP=group,
        PACK=pack,
        TILE=TILE,
        DESCRIBED=source == "described",
        PAGED=source == "paged",
        ALIGNED=aligned,
        EXACT=False,
        SEVERAL=bool(shared),
        ALONE=shared == "alone",
        SPLIT=SPLIT,
    )


def _states(m: OneWay, shared: str, splits: Number, tokens: Number, every: Number, head: Number) -> dict[str, Any]:
    """triton_kernel.py:_states."""
    alone = shared == "alone"
    rows = [whole(m, name, tokens, every, splits) if alone else None for name in ("totals", "maxima")]
    sums = whole(m, "sums", tokens, every, head, *([splits] if alone else [])) if shared else None
    return {"sums_ptr": sums, "totals_ptr": rows[0], "maxima_ptr": rows[1]}


def _merge(m: OneWay) -> None:
    m.summaries = SUMMARIES
    head, width = head_sizes(m, m.either())
    sequences, tokens = m.sizes("sequences tokens", below=2**31)
    longest, longest_key = m.sizes("longest longest_key", below=LENGTHS_BELOW)
    every, _, _ = heads(m)
    splits = m.cdiv(longest_key, SPLIT_KEYS)
    place = m.joined(m.unknown(0, sequences), longest, m.unknown(0, longest))
    lengths = Table(longest_key, longest_key, paged=True).buffers("k", sequences)
    m.call(
        attention_merge,
        program=m.joined(place, every, m.unknown(0, every)),
        out_ptr=whole(m, "out", tokens, every, head),
        lse_ptr=whole(m, "lse", tokens, every),
        **_states(m, "alone", splits, tokens, every, head),
        **Table(longest, tokens).buffers("q", sequences),
        k_length_ptr=lengths["k_length_ptr"],
        states=tokens.to(64) * every,
        heads=every,
        longest_query=longest,
        c=Anything(m),
        HEAD=head,
        PADDED=width,
        EXACT=False,
        SPLIT=SPLIT,
        AT_ONCE=STATES_AT_ONCE,
    )


KERNELS: Final[dict[str, Callable[[OneWay], None]]] = {"attention_forward": _forward, "attention_merge": _merge}
