"""What launches of attention hand over: tables of sequences, tensors of heads, and functions that touch no memory.

Written as the functions beside the kernels have it, and trusted. Knows no kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from samebits.train.contracts.launch_indices.machine import Machine
from samebits.train.contracts.launch_indices.values import Address, Anything, Buffer, Flag, Number

LENGTHS_BELOW: Final = 2**30
"""Lengths of a sequence, and windows: positions and counters of blocks are int32 (ATT-PR2, `numbers_fit`)."""
HEADS_BELOW: Final = 2**15
SEQUENCES_BELOW: Final = 2**30
ELEMENTS_BELOW: Final = 2**62
TILES_TO: Final = 128
"""Rows of a tile at most."""


def _numbers(count: int, machine: Machine, *given: Any, **named: Any) -> Any:
    """What a device function gives that is handed numbers alone, and so touches no memory."""
    if any(isinstance(each, Address) for each in (*given, *named.values())):
        raise TypeError("an address is handed to a function that is said to touch no memory")
    return Anything(machine) if count == 1 else tuple(Anything(machine) for _ in range(count))


def _some(machine: Machine, *_: Any) -> Flag:
    """Where something is not finite more is loaded, and nothing less."""
    return Flag(machine, machine.flag_term(True), {})


SUMMARIES: Final[dict[str, Callable[..., Any]]] = {
    "triton_blocks.any_of": _some,
    "triton_blocks.not_finite": partial(_numbers, 1),
    "triton_blocks.power_of_two": partial(_numbers, 1),
    "triton_blocks.fold": partial(_numbers, 1),
    "triton_blocks.capped": partial(_numbers, 2),
    "triton_blocks.seen": partial(_numbers, 1),
    "triton_blocks.add_product": partial(_numbers, 1),
    "triton_forward_walk.attend": partial(_numbers, 3),
    "triton_merge.merged": partial(_numbers, 3),
    "triton_merge.finished": partial(_numbers, 2),
    "triton_backward_walks.scaled": partial(_numbers, 1),
}


@dataclass(slots=True)
class Table:
    """Where each sequence's rows lie: start and length stay what they are however often they are read."""

    longest: Any
    rows: Any
    """start + length is at most this; with pages length is, and starts mean nothing."""
    paged: bool = False
    read: list[tuple[Any, Number, Number]] = field(default_factory=list)

    def of(self, m: Machine, offset: Any) -> tuple[Number, Number]:
        place = m.term(offset)
        for known, start, length in self.read:
            if known.eq(place):
                return start, length
        start, length = m.unknown(0, bits=64), m.unknown(0, bits=64)
        m.assume(length <= self.longest, (length if self.paged else start + length) <= self.rows)
        self.read.append((m.kept(place), start, length))
        return start, length

    def buffers(self, name: str, count: Number) -> dict[str, Buffer]:
        columns = {f"{name}_start": 0, f"{name}_length": 1}
        return {
            f"{each}_ptr": Buffer(each, count, lambda m, offset, mask, column=column: self.of(m, offset)[column])
            for each, column in columns.items()
        }


def heads(m: Machine, as_product: bool = False) -> tuple[Number, Number, Number]:
    """(heads, key heads, heads of a group): whole groups. Heads have a name of their own, or are the product of the two
    where a kernel counts them so."""
    key_heads, group = m.sizes("key_heads GROUP", below=HEADS_BELOW)
    every: Number = key_heads * group
    if not as_product:
        (every,) = m.sizes("heads", below=HEADS_BELOW)
        m.assume(every == key_heads * group)
        m.quotients.append((every.term, group.term, key_heads.term, m.term(0)))
    m.assume(every < HEADS_BELOW)
    return every, key_heads, group


def shown(m: Machine, flag: Flag) -> None:
    """What follows, and from then on is known."""
    m.must(flag)
    m.assume(flag)


def line_of(m: Machine, sequences: Number, lines: Number, every: Number, pack: Any = 1) -> Number:
    """Any line of any sequence, numbered line after line; a line has so many heads."""
    sequence, line = m.unknown(0, sequences), m.unknown(0, lines)
    shown(m, (sequences.to(64) - 1 - sequence) * every >= 0)
    shown(m, (lines - 1 - line) * pack >= 0)
    return m.joined(sequence, lines, line)


def tile_of(m: Machine, length: Any, rows: Any) -> tuple[Number, Number]:
    """(how many tiles of so many rows there are, any one of them)."""
    tiles: Number = m.cdiv(length, rows)
    shown(m, tiles <= LENGTHS_BELOW)
    tile = m.unknown(0, tiles)
    shown(m, (tiles - 1 - tile) * rows >= 0)
    return tiles, tile


def head_sizes(m: Machine, padded: bool) -> tuple[Number, Number]:
    """(HEAD, PADDED): multiples of 8 up to 256, and the power of two that is not below, 16 at least."""
    (head,) = m.numbers("HEAD", below=257)
    m.assume(head % 8 == 0)
    if not padded:
        return head, head
    (power,) = m.numbers("PADDED", below=257)
    m.assume(head < power)
    return head, power


def strided(m: Machine, name: str, tokens: Number, heads: Any, head: Number, aligned: bool) -> dict[str, Any]:
    """A tensor (tokens, heads, HEAD) of any strides but the last, which is 1; `aligned`: both are multiples of 8."""
    token, line = (m.unknown(0, ELEMENTS_BELOW, 64, f"stride_{name}_{axis}") for axis in ("token", "head"))
    m.assume(*([each % 8 == 0 for each in (token, line)] if aligned else []))
    return {**_spanning(m, name, (tokens, token), (heads, line), head), f"{name}_head": line}


def side_by_side(m: Machine, name: str, tokens: Number, heads: Any, head: Number) -> dict[str, Any]:
    """The same where heads lie side by side and tokens a multiple of 8 apart."""
    token = m.unknown(0, ELEMENTS_BELOW, 64, f"stride_{name}_token")
    m.assume(token % 8 == 0)
    return _spanning(m, name, (tokens, token), (heads, head), head)


def _spanning(m: Machine, name: str, tokens: Any, heads: Any, head: Number) -> dict[str, Any]:
    length = (tokens[0].to(64) - 1) * tokens[1] + (heads[0].to(64) - 1) * heads[1] + head
    m.assume(length < ELEMENTS_BELOW)
    return {f"{name}_ptr": Buffer(name, length), f"{name}_token": tokens[1]}


def whole(m: Machine, name: str, *sizes: Any) -> Buffer:
    """A contiguous tensor."""
    length = sizes[0].to(64)
    for each in sizes[1:]:
        length = length * each
    m.assume(length < ELEMENTS_BELOW)
    return Buffer(name, length)


RULES: Final = ((True, False, True), (True, True, False), (False, True, True), (False, False, False))
"""(causal, windowed, with a softcap): a softcap changes numbers alone, and is met both ways."""
FORMS: Final = ((True, False), (True, True), (False, False), (False, True))
"""(aligned, padded)."""
TURNS: Final = ((0, 1, 2, 3), (0, 2, 3, 1), (0, 3, 1, 2))
"""Multiples of the second of two numbers of four: added to the first, bit by bit, each meets all of either."""


def ruled(m: Machine, rule: tuple[bool, bool, bool]) -> dict[str, Any]:
    causal, windowed, softcap = rule
    (window,) = m.sizes("window", below=LENGTHS_BELOW)
    numbers = {name: Anything(m) for name in ("c", "cap_factor", "cap")}
    return {"CAUSAL": causal, "WINDOWED": windowed, "SOFTCAP": softcap, "window": window, **numbers}
