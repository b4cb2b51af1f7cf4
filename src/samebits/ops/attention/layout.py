"""Where each sequence's rows lie in a flat (tokens, heads, D) tensor: dense, padded left or right, or packed.

Knows no kernel and no cache. What is wrong with lengths or boundaries is one line; their values are asked for only
where that costs no graph: not while torch compiles, not while a CUDA graph is captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from samebits.ops.arguments import check_dimensions, check_equal, check_integer

PADDINGS = ("left", "right")
Numbers = Tensor | Sequence[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Sequence n has rows start[n] .. start[n] + length[n]; `longest` is at least the largest length."""

    start: Tensor
    length: Tensor
    longest: int


def flat(tensor: Tensor) -> Tensor:
    """(B, S, H, D) or (T, H, D) as (tokens, H, D), last axis contiguous; a view where the strides allow it."""
    joined = tensor if tensor.dim() == 3 else tensor.reshape(-1, *tensor.shape[2:])
    return joined if joined.stride(-1) == 1 else joined.contiguous()


def dense(tensor: Tensor) -> Spread:
    """Every sequence of a (B, S, ...) tensor at its full length."""
    batch, length = tensor.shape[:2]
    start = torch.arange(batch, device=tensor.device) * length
    return Spread(start=start, length=torch.full_like(start, length), longest=length)


def padded(tensor: Tensor, lengths: Numbers, padding: str | None) -> Spread:
    """A (B, S, ...) tensor whose sequence n holds lengths[n] tokens, at the left or the right end of its row."""
    if padding not in PADDINGS:
        raise ValueError(f"attention: padding is {padding!r}; allowed with lengths: left, right")
    check_dimensions("attention", "q with lengths", tensor, 4)
    whole, length = dense(tensor), _tensor("lengths", lengths, tensor.device)
    check_equal("attention", "the length of lengths", length.shape[0], "the batch of q", tensor.shape[0])
    for n, value in enumerate(_values(lengths, length)):
        if not 0 <= value <= whole.longest:
            raise ValueError(f"attention: lengths[{n}] is {value}; allowed: 0 to {whole.longest}, the tokens of a row")
    start = whole.start if padding == "right" else whole.start + (whole.longest - length)
    return Spread(start=start, length=length, longest=whole.longest)


def packed(name: str, tensor: Tensor, edges: Numbers | Spread) -> Spread:
    """A (T, ...) tensor cut at edges 0, ..., T."""
    check_dimensions("attention", f"the tensor of {name}", tensor, 3)
    return edges if isinstance(edges, Spread) else boundaries(name, edges, tensor.shape[0], tensor.device)


def boundaries(name: str, numbers: Numbers, tokens: int, device: torch.device) -> Spread:
    """Sequences end to end: what `cu_seqlens` says, to be given in its place to the attention of many layers."""
    edges = _tensor(name, numbers, device)
    if edges.shape[0] < 1:
        raise ValueError(f"attention: {name} is empty; allowed: one more number than sequences")
    known = _values(numbers, edges)
    longest = tokens
    if known:
        if known[0] != 0:
            raise ValueError(f"attention: {name} starts at {known[0]}; allowed: 0")
        for n in range(1, len(known)):
            if known[n] < known[n - 1]:
                raise ValueError(
                    f"attention: {name}[{n}] is {known[n]}, {name}[{n - 1}] is {known[n - 1]}; allowed: not decreasing"
                )
        if known[-1] != tokens:
            raise ValueError(f"attention: {name} ends at {known[-1]}, the tensor has {tokens} tokens; they must agree")
        longest = max((right - left for left, right in pairwise(known)), default=0)
    return Spread(start=edges[:-1], length=edges[1:] - edges[:-1], longest=longest)


def _tensor(name: str, numbers: Numbers, device: torch.device) -> Tensor:
    if not isinstance(numbers, Tensor):
        numbers = [check_integer("attention", f"{name}[{n}]", number) for n, number in enumerate(numbers)]
        return torch.tensor(numbers, dtype=torch.int64).to(device)
    given = numbers
    if given.dtype not in (torch.int32, torch.int64) or given.dim() != 1:
        raise ValueError(
            f"attention: {name} has dtype {str(given.dtype).removeprefix('torch.')} and shape {tuple(given.shape)};"
            " allowed: int32 or int64, one dimension"
        )
    return given.to(device=device, dtype=torch.int64)


def _values(numbers: Numbers, tensor: Tensor) -> list[int]:
    """The numbers where they can be read, else none."""
    if not isinstance(numbers, Tensor):
        return [int(number) for number in numbers]
    if torch.compiler.is_compiling() or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()):
        return []
    values: list[int] = tensor.tolist()
    return values
