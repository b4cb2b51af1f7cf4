"""Many tensors in one launch: tables on the device say where each tensor is, and whose block a program's is.

Tables hold addresses and sizes and nothing else, so they are remembered by these: tensors that come to lie where others
were are found as those were. Knows nothing of AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from samebits.ops._triton.sizes import cdiv

KEPT: Final = 32
"""Tables that are remembered: a trainer's weights, gradients and moments stay where they are."""
NUMBERS: Final = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
Row = tuple[int, ...]
"""Of one tensor: addresses and other whole numbers, the number of its elements last."""


@triton.jit
def pointers_of(ptr, offsets, ALIGNED: tl.constexpr):
    pointers = ptr + offsets
    if ALIGNED:
        pointers = tl.multiple_of(pointers, 16)
    return pointers


@triton.jit
def memory_of(column_ptr, tensor, NUMBER: tl.constexpr, ALIGNED: tl.constexpr):
    """Where the memory of a tensor begins, by its address in a table, for numbers of this kind."""
    pointer = tl.load(column_ptr + tensor).to(tl.pointer_type(NUMBER))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


def tables(rows: Sequence[Row], block: int, device: torch.device) -> tuple[Tensor, ...]:
    """The columns of the rows, then each tensor's first program, then each program's tensor."""
    if device.type != "cuda":
        return _made(tuple(rows), block, device)
    if torch.cuda.is_current_stream_capturing():
        # Of the graph's own memory: its replays write the table anew, and nobody else reads it.
        return _made(tuple(rows), block, device)
    # By stream, too: what one stream writes, or gives back, another one does not wait for.
    return _remembered(tuple(rows), block, device, torch._C._cuda_getCurrentRawStream(device.index))


def _made(rows: tuple[Row, ...], block: int, device: torch.device) -> tuple[Tensor, ...]:
    """Written by launches whose arguments the numbers are: the host copies nothing and waits for nothing, so that a
    CUDA graph can have it."""
    programs = [cdiv(row[-1], block) for row in rows]
    firsts = list(accumulate(programs, initial=0))
    numbers = [*chain.from_iterable(zip(*rows, strict=True)), *firsts[:-1]]
    cells = torch.zeros(len(numbers), dtype=torch.int64, device=device)
    torch._foreach_add_(list(cells.unbind()), numbers)
    columns = cells.view(-1, len(rows))
    every = torch.arange(firsts[-1], device=device)
    owners = torch.searchsorted(columns[-1], every, right=True, out_int32=True).sub_(1)
    return (*columns.unbind(), owners)


@lru_cache(maxsize=KEPT)
def _remembered(rows: tuple[Row, ...], block: int, device: torch.device, stream: int) -> tuple[Tensor, ...]:
    return _made(rows, block, device)
