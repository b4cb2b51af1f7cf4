"""How a checker drives attention: inputs, other forms of the same call, launch numbers; rows are whole sequences.

The subjects beside the plain one are attention with fixed options. Bounds are derived in bounds.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, Form, Forms, Function, OperatorSpec
from samebits.native.launch_numbers import cpu_launches
from samebits.numerics.recipes import make
from samebits.ops.attention import DenseCache, PagedCache, attention
from samebits.ops.attention.bounds import exact
from samebits.ops.attention.cache import PAGE_MULTIPLE
from samebits.ops.attention.exact import CAPPED, FULL, WINDOWED, Options, cache_bytes64

PADDING_TOKENS = 37
CHUNKS = (1, 3, 16, 64, 100)
PAGE_SIZES = (16, 64)
Results = dict[str, Tensor]


def full(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
    """Every key is seen."""
    return _one(attention(q, k, v, causal=False, **options))  # type: ignore[arg-type]


def windowed(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
    """The query's own key and the 18 before it are seen."""
    return _one(attention(q, k, v, window=WINDOWED.window, **options))  # type: ignore[arg-type]


def capped(q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
    """Scores are bent to at most 3."""
    return _one(attention(q, k, v, softcap=CAPPED.softcap, **options))  # type: ignore[arg-type]


def held_bytes(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Bytes of a dense cache that holds k and v, and of one in pages of 16."""
    batch, tokens, key_heads, head = k.shape
    count = -(-tokens // PAGE_MULTIPLE)
    tables = [[n * count + page for page in range(count)] for n in range(batch)]
    dense = DenseCache.empty(batch, tokens, key_heads, head, dtype=k.dtype, device=k.device)
    paged = PagedCache.empty(
        tables, key_heads, head, pages=batch * count, page_size=PAGE_MULTIPLE, dtype=k.dtype, device=k.device
    )
    for cache in (dense, paged):
        cache.append(k, v)
    return torch.tensor([dense.bytes, paged.bytes])


def _one(result: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    assert isinstance(result, Tensor)
    return result


def _make(shape: Sequence[int], recipe: str, format: str, seed: int) -> Arguments:
    batch, tokens, heads, key_heads, head = shape
    sizes = {"q": heads, "k": key_heads, "v": key_heads}
    return {
        name: torch.from_numpy(make(recipe, (batch, tokens, count, head), 3 * seed + i, format)).to(
            getattr(torch, format)
        )
        for i, (name, count) in enumerate(sizes.items())
    }


def _strangers(arguments: Arguments, length: int) -> Arguments:
    """One more sequence of another length, made of the batch's own numbers in another order."""
    return {name: value[:1].flip(1)[:, :length] for name, value in arguments.items()}


def _run(
    function: Function, given: Arguments, dy: Tensor, places: list[slice], flat: bool, **options: object
) -> Results:
    """Output and gradients of the call, each cut back to the sequences at `places`, as (B, S, H, D)."""
    leaves = {name: value.detach().requires_grad_() for name, value in given.items()}
    output = function(*leaves.values(), **options)
    gradients = torch.autograd.grad(output, list(leaves.values()), dy)
    results = {"output": output.detach(), **dict(zip(leaves, gradients, strict=True))}
    if flat:
        return {name: torch.stack([value[place] for place in places]) for name, value in results.items()}
    return {name: torch.stack([value[n, place] for n, place in enumerate(places)]) for name, value in results.items()}


def _padding(function: Function, arguments: Arguments, dy: Tensor, backend: str) -> Iterator[Form]:
    """Left padded, right padded and packed, each in a batch with a stranger of another length; padding is NaN."""
    batch, tokens = dy.shape[:2]
    stranger, total = max(1, tokens // 2), tokens + PADDING_TOKENS
    others = _strangers({**arguments, "dy": dy}, stranger)

    def padded(side: str) -> Results:
        lengths = torch.tensor([tokens] * batch + [stranger], device=dy.device)
        places = [slice(total - n, total) if side == "left" else slice(0, n) for n in lengths.tolist()]

        def spread(value: Tensor, other: Tensor, fill: float) -> Tensor:
            rows = value.new_full((batch + 1, total, *value.shape[2:]), fill)
            for n, place in enumerate(places):
                rows[n, place] = value[n] if n < batch else other[0]
            return rows

        given = {name: spread(value, others[name], torch.nan) for name, value in arguments.items()}
        padded_dy = spread(dy, others["dy"], 0.0)
        return _run(function, given, padded_dy, places[:batch], False, lengths=lengths, padding=side)

    def packed() -> Results:
        joined = {
            name: torch.cat([others[name][0], value.flatten(0, 1)]) for name, value in {**arguments, "dy": dy}.items()
        }
        edges = [0, *(stranger + n * tokens for n in range(batch + 1))]
        places = [slice(left, right) for left, right in pairwise(edges[1:])]
        packed_dy = joined.pop("dy")
        return _run(function, joined, packed_dy, places, True, cu_seqlens=torch.tensor(edges, device=dy.device))

    for side in ("left", "right"):
        yield f"{total - tokens} tokens of NaN on the {side}", partial(padded, side)
    yield f"packed after a sequence of {stranger}", packed


def _chunk(function: Function, arguments: Arguments, dy: Tensor, backend: str) -> Iterator[Form]:
    """A prompt prefilled in chunks against keys that grow."""
    q, k, v = arguments.values()
    tokens = q.shape[1]

    def chunked(length: int) -> Results:
        stops = [*range(length, tokens, length), tokens]
        starts = [0, *stops[:-1]]
        with torch.no_grad():
            parts = [function(q[:, i:j], k[:, :j], v[:, :j]) for i, j in zip(starts, stops, strict=True)]
        return {"output": torch.cat(parts, 1)}

    for length in (size for size in CHUNKS if size < tokens):
        yield f"chunks of {length} tokens", partial(chunked, length)


def _decode(function: Function, arguments: Arguments, cache: DenseCache | PagedCache, first: int) -> list[Tensor]:
    """Tokens from `first` on, one at a time."""
    with torch.no_grad():
        return [
            function(*(value[:, i : i + 1] for value in arguments.values()), cache=cache)
            for i in range(first, arguments["q"].shape[1])
        ]


def _cache(function: Function, arguments: Arguments, dy: Tensor, backend: str) -> Iterator[Form]:
    """Decode token by token from a dense cache, from pages, after a prefill, and after a prefix in shared pages."""
    k = arguments["k"]
    batch, tokens, key_heads, head = k.shape

    def from_dense() -> Results:
        dense = DenseCache.empty(batch, tokens + 5, key_heads, head, dtype=k.dtype, device=k.device)
        return {"output": torch.cat(_decode(function, arguments, dense, 0), 1)}

    yield "token by token with a dense cache", from_dense
    for size in PAGE_SIZES:
        prefix = min(size, tokens)
        words = f"{prefix} tokens at once, then token by token with pages of {size}"
        yield words, partial(_paged, function, arguments, size, prefix)
        if size < tokens:
            for copy in range(2):
                shared = partial(_shared, function, arguments, size, copy)
                yield f"copy {copy} of two that share a page of {size}", shared


def _pages(k: Tensor, tables: list[list[int]], pages: int, size: int) -> PagedCache:
    return PagedCache.empty(tables, k.shape[2], k.shape[3], pages=pages, page_size=size, dtype=k.dtype, device=k.device)


def _prefilled(function: Function, arguments: Arguments, cache: PagedCache, prefix: int) -> Tensor:
    with torch.no_grad():
        return function(*(value[:, :prefix] for value in arguments.values()), cache=cache)


def _paged(function: Function, arguments: Arguments, size: int, prefix: int) -> Results:
    batch, tokens = arguments["k"].shape[:2]
    count = -(-tokens // size)
    # Pages in no order, so that no page is next to the one it follows.
    tables = [[(7 * (n * count + i) + 3) % (batch * count) for i in range(count)] for n in range(batch)]
    if len({page for table in tables for page in table}) < batch * count:
        tables = [[batch * count - 1 - n * count - i for i in range(count)] for n in range(batch)]
    paged = _pages(arguments["k"], tables, batch * count, size)
    start = _prefilled(function, arguments, paged, prefix)
    return {"output": torch.cat([start, *_decode(function, arguments, paged, prefix)], 1)}


def _shared(function: Function, arguments: Arguments, size: int, copy: int) -> Results:
    """Every sequence twice, its first page shared by both; one of the two."""
    k = arguments["k"]
    batch, tokens = k.shape[:2]
    own = -(-(tokens - size) // size)
    tables = [
        [n, *(batch + (twin * batch + n) * own + i for i in range(own))] for twin in range(2) for n in range(batch)
    ]
    writer = _pages(k, [[n] for n in range(batch)], batch + 2 * batch * own, size)
    writer.append(k[:, :size], arguments["v"][:, :size])
    reader = PagedCache(writer.k, writer.v, tables, [size] * len(tables))
    twice = {name: torch.cat([value, value]) for name, value in arguments.items()}
    decoded = torch.cat(_decode(function, twice, reader, size), 1)
    start = _prefilled(function, arguments, _pages(k, [[n] for n in range(batch)], batch, size), size)
    return {"output": torch.cat([start, decoded[copy * batch : (copy + 1) * batch]], 1)}


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; tiles, warps and ways to load by Triton."""
    if backend == "cpu":
        return cpu_launches()
    from samebits.ops.attention.triton_backward import BackwardLaunch
    from samebits.ops.attention.triton_kernel import Launch

    # Few, for every one of them is compiled for every head size and format.
    if format == "float32":
        forward = [
            Launch(tile=16, packed=True, described=False, shared=True, stages=1),
            Launch(tile=32, described=False, warps=8, stages=1),
        ]
        backward = [BackwardLaunch(queries=32, keys=16, described=False, stages=1)]
    else:
        forward = [
            Launch(tile=16, packed=True, shared=True, warps=2, stages=2),
            Launch(tile=64, described=False, stages=1),
            Launch(tile=128, warps=8, stages=1),
        ]
        backward = [
            BackwardLaunch(queries=16, keys=16, described=False, stages=1),
            BackwardLaunch(queries=32, keys=64, warps=8, stages=1),
        ]
    return [{"launch": launch} for launch in (*forward, *backward)]


def _exact_bytes(arguments: Arguments, dy: Tensor, error: Callable[[int], float]) -> Mapping[str, Bounded]:
    exact_bytes = cache_bytes64(*arguments.values())
    return {"output": Bounded(exact=exact_bytes, allowed=torch.zeros_like(exact_bytes))}


def _spec(name: str, forms: Mapping[str, Forms], options: Options, **more: Any) -> OperatorSpec:
    return OperatorSpec(
        name=name,
        row_arguments=("q", "k", "v"),
        shared_arguments=(),
        shape_axes="BSHKD",
        make=_make,
        exact=partial(exact, options),
        launches=launches,
        forms=forms,
        **more,
    )


_FORMS = {"padding": _padding, "chunk": _chunk, "cache": _cache}
SPECS = {
    "attention": _spec("attention", _FORMS, Options(), aliases=("sdpa",)),
    "full": _spec("full", {"padding": _padding}, FULL, implied={"causal": False, "is_causal": False}),
    "windowed": _spec("windowed", _FORMS, WINDOWED),
    "capped": _spec("capped", _FORMS, CAPPED),
    "held_bytes": OperatorSpec(
        name="held_bytes",
        row_arguments=("q", "k", "v"),
        shared_arguments=(),
        shape_axes="BSHKD",
        make=_make,
        exact=_exact_bytes,
        launches=launches,
        differentiable=False,
    ),
}
