"""Attention on the CPU: its reference bit for bit, forms of a call, caches, torch's checks, NaN, bad input."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from samebits import native
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.attention import DenseCache, PagedCache, attention, attention_with_lse

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
RECIPES = ("normal", "wide", "cancelling", "subnormal", "infinite", "zeros_signed")
# Batch, queries, keys, query heads, key heads, head size: no more keys than a vector, two blocks, a chunk, a group.
SHAPES = ((2, 5, 5, 2, 2, 8), (1, 67, 67, 1, 1, 16), (1, 9, 140, 3, 1, 24))
RULES: tuple[dict[str, Any], ...] = (
    {},
    {"causal": False},
    {"window": 19},
    {"causal": False, "window": 7},
    {"softcap": 3.0},
    {"scale": 0.3},
)


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype)


def inputs(shape: tuple[int, ...], recipe: str = "normal", dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """q, k, v and a cotangent."""
    batch, queries, keys, heads, key_heads, head = shape
    sizes = ((queries, heads), (keys, key_heads), (keys, key_heads))
    made = [tensor(recipe, (batch, *size, head), seed, dtype) for seed, size in enumerate(sizes)]
    return [*made, tensor("normal", (batch, queries, heads, head), 9, dtype)]


def outputs(q: Tensor, k: Tensor, v: Tensor, dy: Tensor, **options: Any) -> dict[str, Tensor]:
    """Everything the spec computes."""
    leaves = [leaf.detach().requires_grad_() for leaf in (q, k, v)]
    y, lse = attention_with_lse(*leaves, **options)
    return {"y": y, "lse": lse, **dict(zip("qkv", torch.autograd.grad(y, leaves, dy), strict=True))}


def plain(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    y = attention(q, k, v, **options)
    assert isinstance(y, Tensor)
    return y


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, recipe: str) -> None:
    """cpu == reference, bit for bit, forward and backward; every rule on the smallest shape."""
    few = recipe != "normal"
    pairs = [(SHAPES[0], RULES), (SHAPES[1], RULES[: 1 if few else 2]), (SHAPES[2], RULES[2::2] if few else RULES)]
    for shape, rules in pairs:
        for options in rules:
            given = inputs(shape, recipe, dtype)
            ours, reference = outputs(*given, **options), outputs(*given, **options, backend="reference")
            for name in reference:
                difference = compare(ours[name], reference[name])
                assert difference is None, f"{shape} {options} {name}: {difference}"


def test_threads_and_instruction_sets_do_not_matter() -> None:
    """baseline == avx2 == avx512, for 1 to 9 threads: tasks of whole heads and tasks of parts of one."""
    given = inputs((1, 150, 170, 2, 1, 40), "wide")
    for options in ({}, {"window": 50}):
        with launching(threads=1, instruction_set="baseline"):
            expected = outputs(*given, **options)
        for instruction_set, threads in itertools.product(native.instruction_sets(), (1, 2, 3, 9)):
            with launching(threads=threads, instruction_set=instruction_set):
                for name, value in outputs(*given, **options).items():
                    assert compare(value, expected[name]) is None, (instruction_set, threads, name)


@pytest.mark.parametrize("head", [64, 96, 128, 256])
def test_values_are_those_of_torch(head: int) -> None:
    """Within the rounding of either: weights add to 1, so errors stay near 2^-24 times the longest chain."""
    q, k, v, _ = inputs((2, 90, 90, 4, 2, head))
    for causal in (True, False):
        ours = plain(q, k, v, causal=causal)
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        theirs = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=causal, enable_gqa=True)
        bound = 2.0**-24 * (head + 90) * 8 * float(v.abs().max())
        assert float((ours - theirs.transpose(1, 2)).abs().max()) < bound


@pytest.mark.parametrize("options", RULES)
def test_gradcheck(options: dict[str, Any]) -> None:
    """The gradient formulas, in float64 on the reference path."""
    q, k, v = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((1, 3, 2, 8), (1, 5, 1, 8), (1, 5, 1, 8))
    )
    assert gradcheck(lambda *given: attention(*given, **options, backend="reference"), (q, k, v))


def test_layouts_do_not_matter() -> None:
    """Any token and head strides; one tensor that holds q, k and v side by side."""
    given = inputs((2, 40, 40, 2, 2, 16))
    expected = outputs(*given)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    joined = torch.stack(given[:3], 2)
    strided = [torch.cat([x, x], -1)[..., :16] for x in given]
    columns = [x.transpose(1, 3).contiguous().transpose(1, 3) for x in given]
    for other in (turned, [*joined.unbind(2), given[3]], strided, columns):
        for name, value in outputs(*other).items():
            assert compare(value, expected[name]) is None, name


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_chunk_equals_its_rows(dtype: torch.dtype) -> None:
    q, k, v, _ = inputs((2, 150, 150, 2, 1, 32), "wide", dtype)
    for options in ({}, {"window": 70}, {"softcap": 3.0}):
        whole, lse = attention_with_lse(q, k, v, **options)
        for start, stop in ((0, 1), (63, 64), (64, 150), (149, 150), (100, 131)):
            part = attention_with_lse(q[:, start:stop], k[:, :stop], v[:, :stop], **options)
            assert compare(part[0], whole[:, start:stop]) is None, (options, start, stop)
            assert compare(part[1], lse[:, start:stop]) is None, (options, start, stop)


def test_packed_sequences_of_any_length() -> None:
    """Packed, with an empty sequence among them; queries and keys cut at different places."""
    q, k, v, dy = (x[0] for x in inputs((1, 90, 120, 2, 1, 16)))
    edges, edges_k = [0, 1, 1, 70, 90], [0, 3, 4, 80, 120]
    found = outputs(q, k, v, dy, cu_seqlens=edges, cu_seqlens_k=torch.tensor(edges_k, dtype=torch.int32))
    for n in range(4):
        queries, keys = slice(edges[n], edges[n + 1]), slice(edges_k[n], edges_k[n + 1])
        alone = outputs(q[None, queries], k[None, keys], v[None, keys], dy[None, queries])
        for name, value in alone.items():
            place = keys if name in "kv" else queries
            assert compare(value[0], found[name][place]) is None, (n, name)


def test_padding_is_zero_and_takes_no_part() -> None:
    given = inputs((2, 30, 30, 2, 2, 16))
    for side, kept in (("left", slice(20, 30)), ("right", slice(0, 10))):
        found = outputs(*given, lengths=[30, 10], padding=side)
        alone = outputs(*(x[1:, kept] for x in given))
        for name, value in alone.items():
            assert compare(found[name][1:, kept], value) is None, (side, name)
        outside = slice(0, 20) if side == "left" else slice(10, 30)
        assert compare(found["y"][1, outside], torch.zeros(20, 2, 16)) is None
        assert compare(found["q"][1, outside], torch.zeros(20, 2, 16)) is None
        assert bool((found["lse"][1, outside] == -torch.inf).all())


def test_caches_of_ragged_sequences() -> None:
    """Prompts of different lengths, then one token each: dense, and pages that lie anywhere."""
    q, k, v, _ = inputs((3, 70, 70, 4, 2, 16))
    lengths = [33, 70, 5]
    tables = [[4, 2, 0], [9, 8, 7, 6, 5], [3]]
    caches = (DenseCache.empty(3, 71, 2, 16), PagedCache.empty(tables, 2, 16, pages=10, page_size=16))
    new = [tensor("normal", (3, 1, heads, 16), 20 + i) for i, heads in enumerate((4, 2, 2))]
    for cache in caches:
        prompts = plain(q, k, v, lengths=lengths, padding="right", cache=cache)
        assert compare(prompts, plain(q, k, v, lengths=lengths, padding="right")) is None
        step = plain(*new, cache=cache)
        again = plain(new[0], None, None, cache=cache)
        assert cache.lengths == [34, 71, 6]
        for n, length in enumerate(lengths):
            whole = [
                torch.cat([old[n : n + 1, :length], fresh[n : n + 1]], 1)
                for old, fresh in zip((q, k, v), new, strict=True)
            ]
            expected = plain(*whole)[:, -1:]
            assert compare(step[n : n + 1], expected) is None and compare(again[n : n + 1], expected) is None


def test_a_packed_prompt_fills_a_cache() -> None:
    q, k, v, _ = (x[0] for x in inputs((1, 40, 40, 2, 1, 8)))
    cache = DenseCache.empty(2, 30, 1, 8)
    edges = torch.tensor([0, 15, 40])
    assert compare(plain(q, k, v, cu_seqlens=edges, cache=cache), plain(q, k, v, cu_seqlens=edges)) is None
    other = DenseCache.empty(2, 30, 1, 8)
    other.append(k, v, cu_seqlens=edges)
    assert cache.lengths == other.lengths == [15, 25] and compare(cache.k, other.k) is None


def test_torch_accepts_the_operators() -> None:
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in ((7, 2, 8), (9, 1, 8), (9, 1, 8)))
    tables = tuple(torch.tensor(each) for each in ([0, 3], [3, 4], [0, 4], [4, 5]))
    rule = (4, 5, True, 0, 0.35, 0.0, "cpu")
    operators = torch.ops.samebits
    torch.library.opcheck(operators.attention.default, (q, k, v, *tables, None, 0, *rule))
    with torch.no_grad():
        pages = torch.tensor([[1], [0]], dtype=torch.int32)
        paged = torch.randn(32, 1, 8)
        given = (q.detach(), paged, paged, *tables, pages, 16, *rule)
        torch.library.opcheck(operators.attention.default, given)
    out, lse2 = torch.randn(7, 2, 8), torch.rand(7, 2)
    dense = (x.detach() for x in (q, k, v))
    torch.library.opcheck(
        operators.attention_gradients.default, (torch.randn(7, 2, 8), *dense, out, lse2, *tables, *rule)
    )


def test_compiled_equals_eager() -> None:
    compiled = torch.compile(lambda q, k, v: plain(q, k, v, softcap=5.0) * 2, dynamic=True, fullgraph=True)
    for tokens in (3, 70):
        *given, dy = inputs((2, tokens, tokens, 2, 1, 16))
        leaves = [x.requires_grad_() for x in given]
        eager_out, compiled_out = plain(*leaves, softcap=5.0) * 2, compiled(*leaves)
        assert compare(compiled_out, eager_out) is None
        eager = torch.autograd.grad(eager_out, leaves, dy)
        for left, right in zip(torch.autograd.grad(compiled_out, leaves, dy), eager, strict=True):
            assert compare(left, right) is None


def test_compiled_packed_equals_eager() -> None:
    """Boundaries are not read while torch compiles."""
    q, k, v, _ = (x[0] for x in inputs((1, 40, 40, 2, 1, 8)))
    edges = torch.tensor([0, 15, 40])
    compiled = torch.compile(lambda q, k, v, edges: plain(q, k, v, cu_seqlens=edges), fullgraph=True)
    assert compare(compiled(q, k, v, edges), plain(q, k, v, cu_seqlens=edges)) is None


def test_empty_batches_and_rows_without_keys() -> None:
    for shape in ((0, 4, 4, 2, 1, 8), (2, 0, 0, 2, 1, 8), (2, 0, 5, 2, 1, 8)):
        found = outputs(*inputs(shape))
        assert found["y"].shape == (shape[0], shape[1], 2, 8) and found["k"].shape == (shape[0], shape[2], 1, 8)
        assert compare(found["k"], torch.zeros(found["k"].shape)) is None
    # More queries than keys: the first two stand before the first key.
    found = outputs(*inputs((1, 5, 3, 2, 1, 8)))
    assert compare(found["y"][:, :2], torch.zeros(1, 2, 2, 8)) is None
    assert bool((found["lse"][:, :2] == -torch.inf).all()) and bool(found["lse"][:, 2:].isfinite().all())
    assert compare(found["q"][:, :2], torch.zeros(1, 2, 2, 8)) is None
    none = outputs(*inputs((1, 2, 0, 2, 1, 8)))
    assert compare(none["y"], torch.zeros(1, 2, 2, 8)) is None and bool((none["lse"] == -torch.inf).all())


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("poisoned", ["q", "k", "v"])
def test_what_is_not_seen_does_not_reach(poisoned: str, poison: float) -> None:
    """NaN or infinity at token 40: rows that do not see it keep their bits, and so do their gradients."""
    q, k, v, dy = inputs((1, 70, 70, 2, 1, 16))
    clean = outputs(q, k, v, dy, window=20)
    given = {"q": q.clone(), "k": k.clone(), "v": v.clone()}
    given[poisoned][0, 40] = poison
    found = outputs(*given.values(), dy, window=20)
    reached = slice(40, 41 if poisoned == "q" else 60)
    for rows in (slice(0, reached.start), slice(reached.stop, 70)):
        for name in ("y", "lse", "q"):
            assert compare(found[name][:, rows], clean[name][:, rows]) is None, (name, rows)
    assert not bool(found["y"][:, reached].isfinite().all(-1).any()) or poisoned == "k"
    for rows in (slice(0, 21), slice(60, 70)):
        assert compare(found["v"][:, rows], clean["v"][:, rows]) is None, rows
        assert compare(found["k"][:, rows], clean["k"][:, rows]) is None, rows


Q, K, V = torch.ones(2, 4, 4, 8), torch.ones(2, 4, 2, 8), torch.ones(2, 4, 2, 8)
FLAT = torch.ones(6, 2, 8)


def packed_with(edges: Any, **options: Any) -> Any:
    return lambda: attention(FLAT, FLAT, FLAT, cu_seqlens=edges, **options)


def cached(cache: Any, *given: Tensor | None) -> Any:
    return lambda: attention(*(given or (Q, K, V)), cache=cache)


BAD: dict[str, tuple[Any, str]] = {
    "integers": (lambda: attention(Q.int(), K.int(), V.int()), "q has dtype int32; allowed with backend='cpu'"),
    "mixed dtypes": (lambda: attention(Q, K.half(), V), "k has dtype float16, q has float32; they must agree"),
    "no batch axis": (lambda: attention(Q[0], K[0], V[0]), r"q has shape \(4, 4, 8\) and cu_seqlens is None"),
    "one axis": (lambda: attention(Q[0, 0, 0], K, V), r"q has shape \(8,\); allowed: \(B, S, H, D\)"),
    "head size": (lambda: attention(Q[..., :7], K[..., :7], V[..., :7]), "head size is 7; allowed: a multiple of 8"),
    "head sizes": (lambda: attention(Q.repeat(1, 1, 1, 2), K, V), "the head size of q is 16, that of k is 8"),
    "heads": (lambda: attention(Q[:, :, :3], K, V), "q has 3 heads, k has 2; allowed: a multiple of those of k"),
    "k and v": (lambda: attention(Q, K, V[:, :3]), r"k has shape \(2, 4, 2, 8\), v has \(2, 3, 2, 8\)"),
    "batches": (lambda: attention(Q[:1], K, V), "the batch of q is 1, that of k is 2; they must agree"),
    "window": (lambda: attention(Q, K, V, window=0), r"window is 0; allowed: a whole number, 1 to 2\^30, or None"),
    "scale": (lambda: attention(Q, K, V, scale=0.0), "scale is 0.0; allowed: finite, above 0"),
    "softcap": (lambda: attention(Q, K, V, softcap=-1.0), "softcap is -1.0; allowed: finite, above 0, or None"),
    "wrong device": (lambda: attention(Q, K, V, backend="triton"), "backend='triton' takes tensors on 'cuda'"),
    "no keys": (lambda: attention(Q, None, None), "k or v is None; allowed with a cache only"),
    "not from 0": (packed_with([1, 6]), "cu_seqlens starts at 1; allowed: 0"),
    "not to the end": (packed_with(torch.tensor([0, 5])), "cu_seqlens ends at 5, the tensor has 6 tokens"),
    "decreasing": (packed_with([0, 4, 3, 6]), r"cu_seqlens\[2\] is 3, cu_seqlens\[1\] is 4; allowed: not decreasing"),
    "no boundaries": (packed_with([]), "cu_seqlens is empty"),
    "boundaries' dtype": (packed_with(torch.tensor([0.0, 6.0])), "cu_seqlens has dtype float32"),
    "sequences": (packed_with([0, 6], cu_seqlens_k=[0, 2, 6]), "the number of sequences of cu_seqlens_k is 2"),
    "both": (packed_with([0, 6], lengths=[6], padding="left"), "cu_seqlens and lengths are both given"),
    "keys alone": (lambda: attention(Q, K, V, cu_seqlens_k=[0, 4]), "cu_seqlens_k is given and cu_seqlens is None"),
    "padding": (lambda: attention(Q, K, V, lengths=[1, 2]), "padding is None; allowed with lengths: left, right"),
    "no lengths": (lambda: attention(Q, K, V, padding="left"), "padding is 'left' and lengths is None"),
    "length": (lambda: attention(Q, K, V, lengths=[1, 5], padding="left"), r"lengths\[1\] is 5; allowed: 0 to 4"),
    "lengths": (lambda: attention(Q, K, V, lengths=[1], padding="left"), "the length of lengths is 1, the batch"),
    "short cache": (cached(DenseCache.empty(2, 3, 2, 8)), "sequence 0 needs 4 keys, the cache holds at most 3"),
    "short pages": (
        cached(PagedCache.empty([[0], []], 2, 8, pages=1)),
        "sequence 1 needs 4 keys, the cache holds at most 0",
    ),
    "cache batch": (cached(DenseCache.empty(3, 4, 2, 8)), "the number of sequences of q is 2, that of the cache is 3"),
    "cache heads": (cached(DenseCache.empty(2, 4, 1, 8)), r"k has heads and head size \(2, 8\), the cache \(1, 8\)"),
    "cache group": (cached(DenseCache.empty(2, 4, 3, 8)), "q has 4 heads, the cache has 3; allowed: a multiple"),
    "cache dtype": (cached(DenseCache.empty(2, 4, 2, 8, dtype=torch.float16)), "the cache's k has dtype float16"),
    "half a pair": (cached(DenseCache.empty(2, 4, 2, 8), Q, K, None), "one of k and v is None; allowed: both"),
    "gradient": (cached(DenseCache.empty(2, 4, 2, 8), Q, K.clone().requires_grad_(), V), "a cache keeps no gradients"),
    "shared page": (
        cached(PagedCache.empty([[0, 1], [0, 2]], 2, 8, pages=3)),
        "sequence 0 would write to page 0, which 2 sequences share; allowed: pages of its own",
    ),
    "page size": (lambda: PagedCache.empty([[0]], 2, 8, pages=1, page_size=24), "page size is 24; allowed: a multiple"),
    "page": (lambda: PagedCache.empty([[0, 5]], 2, 8, pages=2), r"tables\[0\] names page 5; allowed: 0 to 1"),
    "cache length": (lambda: DenseCache(K, V, [1, 5]), r"lengths\[1\] is 5; allowed: 0 to 4, the capacity"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    call, text = BAD[case]
    with pytest.raises(ValueError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)
