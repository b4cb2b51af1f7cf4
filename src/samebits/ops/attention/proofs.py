"""Proofs about attention by enumeration: every short sequence over a grid of numbers, in every form of a call.

Heads have size 8, the smallest there is, and one number each; the other seven are zero. Each proof is a function
without arguments for the contract; parameters say what a test runs of it. On the CPU, and at the end by Triton, where
the same sequences are walked on a GPU. Trees are in trees.py."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.enumeration import (
    Chunk,
    Judge,
    by_triton,
    enumerated,
    predicate_of,
    same_on_both,
    same_rows,
    within_its_bound,
)
from samebits.contracts.loading import load_contract
from samebits.contracts.proof import Proof
from samebits.contracts.spec import Arguments
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.ops.attention.check import SPECS, launches
from samebits.ops.attention.exact import WINDOWED
from samebits.ops.attention.forms import SPLIT_KEYS

CONTRACT = load_contract(Path(__file__).with_name("contract.yaml"))
HEAD = 8
SEQUENCES_A_CALL = 4096
# Both zeros, numbers whose products round, a score that leaves nothing to the others.
EIGHT = (0.0, -0.0, 0.1, -0.7, 1.0, -1.3, 9.0, 2.0**-30)
FOUR = (-0.7, 0.0, 1.1, 7.0)
GRIDS = {2: EIGHT, 3: FOUR}
"""Tokens to the numbers of which every query, key and value is one."""
BEYOND_A_SPLIT = (SPLIT_KEYS, SPLIT_KEYS + 1, 2 * SPLIT_KEYS + 70)


def _spread(numbers: Tensor, heads: int) -> Tensor:
    """(B, S * heads) numbers as (B, S, heads, 8): one each, and seven zeros."""
    return torch.nn.functional.pad(numbers.reshape(len(numbers), -1, heads, 1), (0, HEAD - 1))


def _sequences(tokens: int, share: int) -> Iterator[Chunk]:
    """Every q, k and v of so many tokens over the grid; of `share` parts the first."""
    grid = torch.tensor(GRIDS[tokens])
    count = len(grid) ** (3 * tokens)
    for start in range(0, count // share, SEQUENCES_A_CALL):
        members = torch.arange(start, min(start + SEQUENCES_A_CALL, count // share))
        digits = torch.stack([members // len(grid) ** place % len(grid) for place in range(3 * tokens)], 1)
        q, k, v = (_spread(grid[part], 1) for part in torch.split(digits, tokens, 1))
        yield Chunk(arguments={"q": q, "k": k, "v": v}, format="float32", members=len(members))


def _both(share: int) -> Iterator[Chunk]:
    for tokens in GRIDS:
        yield from _sequences(tokens, share)


def _count(share: int) -> int:
    return sum(len(numbers) ** (3 * tokens) // share for tokens, numbers in GRIDS.items())


def _own(*identifiers: str) -> dict[str, Judge]:
    return {identifier: predicate_of(CONTRACT, identifier) for identifier in identifiers}


def _proof(spec: str, judges: Mapping[str, Judge], twins: Mapping[str, Sequence[str]], share: int) -> Proof:
    part = "" if share == 1 else f", the first of {share} parts"
    return enumerated(
        CONTRACT,
        SPECS[spec],
        partial(_both, share),
        judges,
        twins,
        expected=_count(share),
        bound=f"S = 2 over 8 numbers (8^6) and S = 3 over 4 (4^9), one number a head, float32{part}",
    )


def every_short_sequence(share: int = 1) -> Proof:
    """Weights, ranges, causality, rows without a key, slots past the length, accuracy."""
    judges = _own("AT-OB1", "AT-OB2", "AT-OB3", "AT-OB5", "AT-OB6", "AT-OB10", "AT-OB16")
    judges["AT-OB106"] = judges["AT-OB7"] = partial(within_its_bound, SPECS["attention"])
    twins = {
        "AT-OB1": ["AT-MU19"],
        "AT-OB2": ["AT-MU2"],
        "AT-OB3": ["AT-MU19"],
        "AT-OB5": ["AT-MU2"],
        "AT-OB6": ["AT-MU19"],
        "AT-OB10": ["AT-MU20"],
        "AT-OB16": ["AT-MU18"],
        "AT-OB106": ["AT-MU1", "AT-MU6"],
        "AT-OB7": ["AT-MU29"],
    }
    return _proof("attention", judges, twins, share)


def _in_other_batches(call: Call) -> str:
    rows = len(call.output)
    parts = [torch.arange(rows - 1, -1, -1), torch.arange(0, rows, 2), torch.tensor([rows // 2, 0])]
    alone = (slice(row, row + 1) for row in range(0, rows, 16))
    return same_rows(call, parts, "in another batch") or same_rows(call, alone, "alone", backward=False)


def _again(call: Call) -> str:
    same = [slice(None)] * 3
    return same_rows(call, same, "again", backward=False) or same_rows(call, same, "again with gradients")


def _launched(call: Call) -> str:
    for numbers in launches(call.backend, call.format):
        with launching(**numbers):
            wrong = same_rows(call, [slice(None)], str(numbers))
        if wrong:
            return wrong
    return ""


def _padded(call: Call) -> str:
    """Two tokens of NaN on one side, and everything packed into one row: output and gradients."""
    batch, tokens = call.output.shape[:2]
    dy = call.output.nan_to_num() + 0.5
    plain = {"output": call.output, **call.gradients(dy)}
    for side, place in (("left", slice(2, None)), ("right", slice(0, tokens))):
        edge = (0, 0, 0, 0, 2, 0) if side == "left" else (0, 0, 0, 0, 0, 2)
        wide = {name: torch.nn.functional.pad(value, edge, value=torch.nan) for name, value in call.arguments.items()}
        options = {"lengths": [tokens] * batch, "padding": side}
        wide_dy = torch.nn.functional.pad(dy, edge)
        found = {"output": call.again(options, **wide), **call.gradients(wide_dy, (), options, **wide)}
        wrong = _differs(plain, {name: value[:, place] for name, value in found.items()}, f"padded on the {side}")
        if wrong:
            return wrong
    packed = {name: value.flatten(0, 1) for name, value in call.arguments.items()}
    options = {"cu_seqlens": list(range(0, batch * tokens + 1, tokens))}
    found = {"output": call.again(options, **packed), **call.gradients(dy.flatten(0, 1), (), options, **packed)}
    return _differs(plain, {name: value.reshape(plain[name].shape) for name, value in found.items()}, "packed")


def _differs(plain: Mapping[str, Tensor], found: Mapping[str, Tensor], words: str) -> str:
    for name, value in found.items():
        differs = compare(plain[name], value)
        if differs is not None:
            return f"{words}: {name}: {differs}"
    return ""


def _form(spec: str, promise: str, call: Call) -> str:
    """The spec's own other forms of a call, forward."""

    def function(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        return call.again(options, q=q, k=k, v=v)

    for words, ask in SPECS[spec].forms[promise](function, call.arguments, call.output, call.backend):
        wrong = _differs({"output": call.output}, ask(), words)
        if wrong:
            return wrong
    return ""


def every_form(share: int = 1) -> Proof:
    """Other batches, padding, packing, chunks, caches, launches, again: the same bits."""
    judges: dict[str, Judge] = {
        "AT-OB102": _in_other_batches,
        "AT-OB101": _again,
        "AT-OB103": _padded,
        "AT-OB105": _launched,
        "AT-OB104": partial(_form, "attention", "chunk"),
        "AT-OB4": partial(_form, "attention", "cache"),
    }
    twins = {
        "AT-OB102": ["AT-MU23"],
        "AT-OB101": ["AT-MU22"],
        "AT-OB103": ["AT-MU25"],
        "AT-OB105": ["AT-MU28"],
        "AT-OB104": ["AT-MU26"],
        "AT-OB4": ["AT-MU13", "AT-MU14", "AT-MU15"],
    }
    return _proof("attention", judges, twins, share)


def every_full_sequence(share: int = 1) -> Proof:
    """Not causal: accuracy and padding."""
    judges: dict[str, Judge] = {"AT-OB206": partial(within_its_bound, SPECS["full"]), "AT-OB203": _padded}
    return _proof("full", judges, {"AT-OB206": ["AT-MU32"], "AT-OB203": ["AT-MU33"]}, share)


def every_capped_sequence(share: int = 1) -> Proof:
    """Scores bent: accuracy and caches."""
    judges: dict[str, Judge] = {
        "AT-OB406": partial(within_its_bound, SPECS["capped"]),
        "AT-OB8": partial(_form, "capped", "cache"),
    }
    return _proof("capped", judges, {"AT-OB406": ["AT-MU36"], "AT-OB8": ["AT-MU37"]}, share)


def every_place_in_a_window(tokens: int = WINDOWED.window + 5) -> Proof:
    """One key and one value differ from the others, at every pair of places: a window cannot be one off unseen."""

    def chunks() -> Iterator[Chunk]:
        for number in FOUR:
            places = torch.cartesian_prod(torch.arange(tokens), torch.arange(tokens))
            q = torch.ones(len(places), tokens)
            k, v = torch.zeros_like(q), torch.full_like(q, 0.1)
            k[torch.arange(len(q)), places[:, 0]] = number
            v[torch.arange(len(q)), places[:, 1]] = number + 2
            arguments = {"q": _spread(q, 1), "k": _spread(k, 1), "v": _spread(v, 1)}
            yield Chunk(arguments=arguments, format="float32", members=len(q))

    judges: dict[str, Judge] = {
        "AT-OB306": partial(within_its_bound, SPECS["windowed"]),
        "AT-OB304": partial(_form, "windowed", "chunk"),
    }
    return enumerated(
        CONTRACT,
        SPECS["windowed"],
        chunks,
        judges,
        {"AT-OB306": ["AT-MU34"], "AT-OB304": ["AT-MU35"]},
        expected=len(FOUR) * tokens**2,
        bound=f"S = {tokens}, window {WINDOWED.window}, {len(FOUR)} numbers at each of {tokens}^2 pairs of places",
    )


def every_sharing_of_heads() -> Proof:
    """Two tokens, four query heads on two key heads, each of two numbers."""

    def chunks() -> Iterator[Chunk]:
        bits = torch.arange(1 << 12)[:, None] >> torch.arange(12) & 1
        numbers = torch.tensor([-0.7, 1.1])[bits]
        q = _spread(numbers[:, :4].repeat(1, 2), 4)
        k, v = (_spread(numbers[:, first : first + 4], 2) for first in (4, 8))
        yield Chunk(arguments={"q": q, "k": k, "v": v}, format="float32", members=len(bits))

    twins = {"AT-OB11": ["AT-MU9", "AT-MU10", "AT-MU11"], "AT-OB12": ["AT-MU10"], "AT-OB13": ["AT-MU12"]}
    return enumerated(
        CONTRACT,
        SPECS["attention"],
        chunks,
        _own("AT-OB11", "AT-OB12", "AT-OB13"),
        twins,
        expected=2**12,
        bound="S = 2, H = 4, K = 2, two numbers in each of 12 places, float32",
    )


def every_split(tails: int = 130) -> Proof:
    """Three splits and a tail of every length up to two blocks and two keys, in every format."""

    def chunks() -> Iterator[Chunk]:
        for format, tail in itertools.product(("float32", "bfloat16", "float16"), range(1, tails + 1)):
            one = torch.ones(1, tail, 1, HEAD, dtype=getattr(torch, format))
            yield Chunk(arguments={"q": one, "k": one, "v": one}, format=format, members=1)

    return enumerated(
        CONTRACT,
        SPECS["attention"],
        chunks,
        _own("AT-OB17"),
        {"AT-OB17": ["AT-MU38", "AT-MU39", "AT-MU40", "AT-MU41"]},
        expected=3 * tails,
        bound=f"one query over three splits and 1 to {tails} keys, alone and packed, all formats",
    )


def _shapes(tokens: int) -> Iterator[Chunk]:
    for format, (batch, length, key_heads, head) in itertools.product(
        ("float32", "bfloat16", "float16"), itertools.product((1, 2), range(1, tokens + 1), (1, 2, 3), (8, 16, 64))
    ):
        arguments: Arguments = {
            name: torch.ones(batch, length, heads, head, dtype=getattr(torch, format))
            for name, heads in (("q", 2 * key_heads), ("k", key_heads), ("v", key_heads))
        }
        yield Chunk(arguments=arguments, format=format, members=1)


def _over_shapes(spec: str, identifier: str, mutant: str, tokens: int) -> Proof:
    sizes = (3, 2, tokens, 3, 3)
    return enumerated(
        CONTRACT,
        SPECS[spec],
        partial(_shapes, tokens),
        _own(identifier),
        {identifier: [mutant]},
        expected=math.prod(sizes),
        bound=f"1 or 2 sequences of 1 to {tokens} tokens, 1 to 3 key heads of 8, 16 or 64",
    )


def every_refusal(tokens: int = 20) -> Proof:
    """Bad input is refused whatever the sizes."""
    return _over_shapes("attention", "AT-OB14", "AT-MU16", tokens)


def every_cache_size(tokens: int = 80) -> Proof:
    """The bytes of a cache follow from its sizes."""
    return _over_shapes("held_bytes", "AT-OB15", "AT-MU17", tokens)


def _lengths(longest: int) -> Iterator[Chunk]:
    """Every short sequence of three tokens, and one of each length with full heads of spread numbers."""
    yield from _sequences(3, 1)
    for tokens in (*range(1, longest + 1), *BEYOND_A_SPLIT):
        count = 3 * tokens * 2 * HEAD
        spread = torch.linspace(-2, 2, count)[torch.arange(count) * 2_654_435_761 % count]
        q, k, v = spread.reshape(3, 1, tokens, 2, HEAD)
        yield Chunk(arguments={"q": q, "k": k[:, :, :1], "v": v[:, :, :1]}, format="float32", members=1)


def every_length_on_both(longest: int = 160) -> Proof:
    """The promise `device`: float32 on the CPU and on a GPU."""
    return same_on_both(
        CONTRACT,
        SPECS["attention"],
        "AT-OB107",
        partial(_lengths, longest),
        expected=len(FOUR) ** 9 + longest + len(BEYOND_A_SPLIT),
        bound=f"S = 3 over 4 numbers (4^9), each length up to {longest} and {BEYOND_A_SPLIT}, forward and backward",
    )


every_short_sequence_by_triton = by_triton(every_short_sequence)
every_form_by_triton = by_triton(every_form)
every_full_sequence_by_triton = by_triton(every_full_sequence)
every_capped_sequence_by_triton = by_triton(every_capped_sequence)
every_place_in_a_window_by_triton = by_triton(every_place_in_a_window)
every_sharing_of_heads_by_triton = by_triton(every_sharing_of_heads)
every_refusal_by_triton = by_triton(every_refusal, tokens=4)
every_split_by_triton = by_triton(every_split)
