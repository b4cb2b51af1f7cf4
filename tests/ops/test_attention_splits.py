"""Attention over more keys than a split: the reference bit for bit at its borders, in every form of a call."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from samebits import native
from samebits.contracts.orders import sum_error
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.attention import DenseCache, PagedCache, attention, attention_with_lse
from samebits.ops.attention.bounds import exact
from samebits.ops.attention.exact import Options
from samebits.ops.attention.forms import SPLIT_KEYS

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LENGTHS = (SPLIT_KEYS - 1, SPLIT_KEYS, SPLIT_KEYS + 1, 2 * SPLIT_KEYS, 2 * SPLIT_KEYS + 1, 6000)
# A window that ends in another split than it begins in, one that skips the first split, one within a single split.
RULES: tuple[dict[str, Any], ...] = (
    {},
    {"causal": False},
    {"window": 2500},
    {"window": 70},
    {"causal": False, "window": 2100, "softcap": 3.0},
    {"softcap": 3.0},
)


def inputs(
    queries: int, keys: int, recipe: str, dtype: torch.dtype, heads: int = 2, key_heads: int = 1
) -> list[Tensor]:
    """q, k and v of one sequence with heads of 8."""
    shapes = ((1, queries, heads, 8), (1, keys, key_heads, 8), (1, keys, key_heads, 8))
    name = str(dtype).removeprefix("torch.")
    return [torch.from_numpy(make(recipe, shape, seed, name)).to(dtype) for seed, shape in enumerate(shapes)]


def same(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], words: object) -> None:
    for a, b, name in zip(left, right, ("out", "lse"), strict=True):
        assert compare(a, b) is None, f"{words} {name}: {compare(a, b)}"


@pytest.mark.parametrize("keys", LENGTHS)
def test_equals_its_reference(keys: int) -> None:
    """One query (the way of decoding) and nine (that of a prompt)."""
    for options in RULES if keys == 6000 else RULES[:1]:
        for queries in (1, 9):
            given = inputs(queries, keys, "normal", torch.float32, heads=1)
            found = attention_with_lse(*given, **options)
            same(found, attention_with_lse(*given, **options, backend="reference"), (options, queries))


@pytest.mark.parametrize("recipe", ["normal", "wide", "infinite", "zeros_signed"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_format_equals_its_reference(dtype: torch.dtype, recipe: str) -> None:
    for queries in (1, 9):
        given = inputs(queries, 2 * SPLIT_KEYS + 70, recipe, dtype)
        same(attention_with_lse(*given), attention_with_lse(*given, backend="reference"), queries)


def test_queries_of_every_split_equal_their_reference() -> None:
    """A prompt of two splits and a half; rows of a tile that lie on both sides of a border."""
    given = inputs(4200, 4200, "normal", torch.float32)
    out, lse = attention_with_lse(*given)
    for start in (0, SPLIT_KEYS - 5, 2 * SPLIT_KEYS - 5, 4190):
        q, rows = given[0][:, start : start + 10], slice(start, start + 10)
        k, v = (x[:, : start + 10] for x in given[1:])
        expected = attention_with_lse(q, k, v, backend="reference")
        same((out[:, rows], lse[:, rows]), expected, start)


def test_threads_and_instruction_sets_do_not_matter() -> None:
    """Fewer tasks than threads: they share the splits of one query, of four, and of one that sees a few keys alone."""
    cases: tuple[tuple[int, dict[str, Any]], ...] = ((1, {}), (2, {}), (1, {"window": 70}), (40, {}))
    for queries, options in cases:
        given = inputs(queries, 6000, "normal", torch.float32)
        with launching(threads=1, instruction_set="baseline"):
            expected = attention_with_lse(*given, **options)
        for instruction_set, threads in itertools.product(native.instruction_sets(), (1, 2, 3, 9)):
            with launching(threads=threads, instruction_set=instruction_set):
                same(attention_with_lse(*given, **options), expected, (instruction_set, threads, queries))


@pytest.mark.parametrize("dtype", DTYPES)
def test_caches_and_chunks_equal_one_pass(dtype: torch.dtype) -> None:
    """Dense and paged, filled by chunks whose borders are not those of splits; then token by token over a border."""
    tokens, border = SPLIT_KEYS + 3, SPLIT_KEYS - 2
    q, k, v = inputs(tokens, tokens, "normal", dtype, 4, 2)
    whole = attention(q, k, v)
    pages = -(-tokens // 16)
    table = [(7 * page + 3) % pages for page in range(pages)]
    cuts = [0, 1000, border, *range(border + 1, tokens + 1)]
    for cache in (
        DenseCache.empty(1, tokens, 2, 8, dtype=dtype),
        PagedCache.empty([table], 2, 8, pages=pages, page_size=16, dtype=dtype),
    ):
        parts = [
            attention(*(x[:, start:stop] for x in (q, k, v)), cache=cache) for start, stop in itertools.pairwise(cuts)
        ]
        found = torch.cat([part for part in parts if isinstance(part, Tensor)], 1)
        assert isinstance(whole, Tensor) and compare(found, whole) is None, type(cache).__name__


def test_splits_are_counted_from_a_sequences_own_first_key() -> None:
    """Packed behind another sequence, and with padding on the left."""
    q, k, v = inputs(5, SPLIT_KEYS + 100, "normal", torch.float32)
    alone = attention_with_lse(q, k, v)
    packed = [torch.cat([x[0, :37], x[0]]) for x in (q[:, :1].expand(-1, 37, -1, -1), k, v)]
    packed[0] = torch.cat([q[0, :1].expand(37, -1, -1), q[0]])
    edges, edges_k = [0, 37, 42], [0, 37, 37 + k.shape[1]]
    out, lse = attention_with_lse(*packed, cu_seqlens=edges, cu_seqlens_k=edges_k)
    same((out[None, 37:], lse[None, 37:]), alone, "packed")


def test_keys_within_one_split_keep_the_bits_they_had() -> None:
    """A window within the second split: the bits of these keys alone, where their blocks begin at the same places."""
    q, k, v = inputs(3, 2 * SPLIT_KEYS, "normal", torch.float32)
    inside = attention_with_lse(q, k, v, window=640)
    own = slice(SPLIT_KEYS, None)
    same(inside, attention_with_lse(q, k[:, own], v[:, own], window=640), "window")


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_is_not_finite_in_an_unseen_split_does_not_reach(poison: float) -> None:
    """The first split of the keys, unseen by a window; then the last, unseen by an earlier query."""
    q, k, v = inputs(12, 2 * SPLIT_KEYS + 6, "normal", torch.float32)
    clean = attention_with_lse(q, k, v, window=SPLIT_KEYS)
    # The first six rows see the last keys of the first split; the others do not.
    for x in (k, v):
        x[:, :SPLIT_KEYS] = poison
    found = attention_with_lse(q, k, v, window=SPLIT_KEYS)
    same((found[0][:, 6:], found[1][:, 6:]), (clean[0][:, 6:], clean[1][:, 6:]), "earlier split")
    assert not bool(found[0][:, :5].isfinite().all(-1).any())
    later = attention_with_lse(*inputs(12, 2 * SPLIT_KEYS + 6, "normal", torch.float32))
    q, k, v = inputs(12, 2 * SPLIT_KEYS + 6, "normal", torch.float32)
    v[:, 2 * SPLIT_KEYS :] = poison
    out, lse = attention_with_lse(q, k, v)
    same((out[:, :6], lse[:, :6]), (later[0][:, :6], later[1][:, :6]), "later split")


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_lie_within_the_bound_of_the_merge(dtype: torch.dtype) -> None:
    """Output and gradients; the same keys without their first split are far outside."""
    given = dict(zip("qkv", inputs(9, 2 * SPLIT_KEYS + 70, "normal", dtype), strict=True))
    leaves = {name: value.requires_grad_() for name, value in given.items()}
    out = attention(*leaves.values())
    assert isinstance(out, Tensor)
    dy = torch.ones_like(out)
    found = dict(zip(("output", *"qkv"), (out, *torch.autograd.grad(out, list(leaves.values()), dy)), strict=True))
    bounds = exact(
        Options(), {name: value.detach() for name, value in given.items()}, dy, partial(sum_error, "chain-1")
    )

    def off(value: Tensor, name: str) -> float:
        return float(((value.detach().double() - bounds[name].exact).abs() / bounds[name].allowed).max())

    assert all(off(value, name) <= 1 for name, value in found.items()), {name: off(found[name], name) for name in found}
    later = attention(given["q"], given["k"][:, SPLIT_KEYS:], given["v"][:, SPLIT_KEYS:])
    assert isinstance(later, Tensor) and off(later, "output") > 1
