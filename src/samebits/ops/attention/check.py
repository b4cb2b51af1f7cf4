"""How a checker drives attention: inputs, other forms of the same call, launch numbers; rows are whole sequences.

The subjects beside the plain one are attention with fixed options. Bounds are derived in bounds.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments, Bounded, Function, OperatorSpec
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


def _padding(function: Function, arguments: Arguments, dy: Tensor, backend: str) -> Iterator[tuple[str, Results]]:
    """Left padded, right padded and packed, each in a batch with a stranger of another length; padding is NaN."""
    batch, tokens = dy.shape[:2]
    stranger, total = max(1, tokens // 2), tokens + PADDING_TOKENS
    lengths = torch.tensor([tokens] * batch + [stranger], device=dy.device)
    for side in ("left", "right"):
        places = [slice(total - n, total) if side == "left" else slice(0, n) for n in lengths.tolist()]

        def spread(value: Tensor, other: Tensor, fill: float, places: list[slice] = places) -> Tensor:
            rows = value.new_full((batch + 1, total, *value.shape[2:]), fill)
            for n, place in enumerate(places):
                rows[n, place] = value[n] if n < batch else other[0]
            return rows

        others = _strangers({**arguments, "dy": dy}, stranger)
        given = {name: spread(value, others[name], torch.nan) for name, value in arguments.items()}
        padded_dy = spread(dy, others["dy"], 0.0)
        found = _run(function, given, padded_dy, places[:batch], False, lengths=lengths, padding=side)
        yield f"{total - tokens} tokens of NaN on the {side}", found
    others = _strangers({**arguments, "dy": dy}, stranger)
    packed = {
        name: torch.cat([others[name][0], value.flatten(0, 1)]) for name, value in {**arguments, "dy": dy}.items()
    }
    edges = [0, *(stranger + n * tokens for n in range(batch + 1))]
    places = [slice(left, right) for left, right in pairwise(edges[1:])]
    packed_dy = packed.pop("dy")
    found = _run(function, packed, packed_dy, places, True, cu_seqlens=torch.tensor(edges, device=dy.device))
    yield f"packed after a sequence of {stranger}", found


def _chunk(function: Function, arguments: Arguments, dy: Tensor, backend: str) -> Iterator[tuple[str, Results]]:
    """A prompt prefilled in chunks against keys that grow."""
    q, k, v = arguments.values()
    tokens = q.shape[1]
    for length in (size for size in CHUNKS if size < tokens):
        stops = [*range(length, tokens, length), tokens]
        starts = [0, *stops[:-1]]
        with torch.no_grad():
            parts = [function(q[:, i:j], k[:, :j], v[:, :j]) for i, j in zip(starts, stops, strict=True)]
        yield f"chunks of {length} tokens", {"output": torch.cat(parts, 1)}


def _decode(function: Function, arguments: Arguments, cache: DenseCache | PagedCache, first: int) -> list[Tensor]:
    """Tokens from `first` on, one at a time."""
    with torch.no_grad():
        return [
            function(*(value[:, i : i + 1] for value in arguments.values()), cache=cache)
            for i in range(first, arguments["q"].shape[1])
        ]


def _cache(function: Function, arguments: Arguments, dy: Tensor, backend: str) -> Iterator[tuple[str, Results]]:
    """Decode token by token from a dense cache, from pages, after a prefill, and after a prefix in shared pages."""
    k = arguments["k"]
    batch, tokens, key_heads, head = k.shape
    dense = DenseCache.empty(batch, tokens + 5, key_heads, head, dtype=k.dtype, device=k.device)
    yield "token by token with a dense cache", {"output": torch.cat(_decode(function, arguments, dense, 0), 1)}
    for size in PAGE_SIZES:
        count = -(-tokens // size)
        # Pages in no order, so that nothing lies beside what it follows.
        tables = [[(7 * (n * count + i) + 3) % (batch * count) for i in range(count)] for n in range(batch)]
        if len({page for table in tables for page in table}) < batch * count:
            tables = [[batch * count - 1 - n * count - i for i in range(count)] for n in range(batch)]
        paged = PagedCache.empty(
            tables, key_heads, head, pages=batch * count, page_size=size, dtype=k.dtype, device=k.device
        )
        prefix = min(size, tokens)
        with torch.no_grad():
            start = function(*(value[:, :prefix] for value in arguments.values()), cache=paged)
        outputs = [start, *_decode(function, arguments, paged, prefix)]
        yield f"{prefix} tokens at once, then token by token with pages of {size}", {"output": torch.cat(outputs, 1)}
        yield from _shared(function, arguments, size, prefix, start)


def _shared(
    function: Function, arguments: Arguments, size: int, prefix: int, start: Tensor
) -> Iterator[tuple[str, Results]]:
    """Every sequence twice, its first page shared by both."""
    k = arguments["k"]
    batch, tokens, key_heads, head = k.shape
    if prefix < size or tokens == prefix:
        return
    own = -(-(tokens - size) // size)
    tables = [
        [n, *(batch + (copy * batch + n) * own + i for i in range(own))] for copy in range(2) for n in range(batch)
    ]
    pages = batch + 2 * batch * own
    writer = PagedCache.empty(
        [[n] for n in range(batch)], key_heads, head, pages=pages, page_size=size, dtype=k.dtype, device=k.device
    )
    writer.append(k[:, :size], arguments["v"][:, :size])
    reader = PagedCache(writer.k, writer.v, tables, [size] * len(tables))
    twice = {name: torch.cat([value, value]) for name, value in arguments.items()}
    decoded = torch.cat(_decode(function, twice, reader, size), 1)
    for copy in range(2):
        output = torch.cat([start, decoded[copy * batch : (copy + 1) * batch]], 1)
        yield f"copy {copy} of two that share a page of {size}", {"output": output}


def launches(backend: str, format: str) -> Sequence[Mapping[str, object]]:
    """Threads times instruction sets on the CPU; tiles, warps and ways to load by Triton."""
    if backend == "cpu":
        return cpu_launches()
    from samebits.ops.attention.triton_backward import BackwardLaunch
    from samebits.ops.attention.triton_kernel import Launch

    # Few, for every one of them is compiled for every head size and format.
    if format == "float32":
        forward = [
            Launch(tile=16, packed=True, described=False, stages=1),
            Launch(tile=32, described=False, warps=8, stages=1),
        ]
        backward = [BackwardLaunch(queries=32, keys=16, described=False, stages=1)]
    else:
        forward = [
            Launch(tile=16, packed=True, stages=2),
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


def _spec(
    name: str, forms: Mapping[str, Callable[..., Iterator[tuple[str, Results]]]], options: Options, **more: Any
) -> OperatorSpec:
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
