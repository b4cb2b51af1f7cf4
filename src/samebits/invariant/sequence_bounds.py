"""Where a batch's sequences begin and end in rows of queries and keys: from masks, positions, or ends that are given.

Keys count from a sequence's own first token, wherever padding, a cache or a packed row put it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from weakref import ref

import torch
from torch import Tensor

HOLES: Final = "has_holes"
"""An attribute of a padding mask of which some row is seen in more than one piece."""


def padding_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: Any = None,
    **_: Any,
) -> Tensor | None:
    """The 2-D mask over all keys from the sequences' first on, also those that a cache has dropped or not filled yet.

    None where every key is there. `use_vmap` means a mask of the caller's own, which cannot be read."""
    if use_vmap:
        raise ValueError(
            "attention 'samebits': the model adds a mask function of its own; allowed: causal, full, sliding"
        )
    seen = int(q_offset) + q_length
    if attention_mask is None:
        complete = kv_offset == 0 and kv_length == seen
        return None if complete else torch.ones(batch_size, seen, dtype=torch.bool, device=device)
    attention_mask = attention_mask.bool()
    complete = kv_offset == 0 and attention_mask.shape[1] == kv_length
    if complete and bool(attention_mask.all()):
        return None
    if bool((_runs(attention_mask) > 1).any()):
        attention_mask = attention_mask.clone()
        setattr(attention_mask, HOLES, True)
    return attention_mask


def _runs(mask_BK: Tensor) -> Tensor:
    """Pieces of every row that are seen: more than one where there is a hole."""
    return (mask_BK[:, 1:] & ~mask_BK[:, :-1]).sum(1) + mask_BK[:, 0]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Starts and lengths of the sequences in rows of queries and of keys, and the longest that each can be."""

    q_start: Tensor
    q_length: Tensor
    k_start: Tensor
    k_length: Tensor
    longest: tuple[int, int]
    order: Any = None
    """(batch, queries), where holes were closed: which query stands where now."""


def bounds_of_mask(mask_BK: Tensor, S: int) -> Bounds:
    """Of padding on the left or the right. The queries are the last S of the mask's columns."""
    if mask_BK.dim() != 2:
        raise ValueError(
            f"attention 'samebits': attention_mask has shape {tuple(mask_BK.shape)}; allowed: (batch, keys)"
        )
    B, K = mask_BK.shape
    row = torch.arange(B, device=mask_BK.device)
    k_length = mask_BK.sum(1)
    first = mask_BK.to(torch.int64).argmax(1)
    last = first + k_length
    q_first = first.clamp(min=K - S)
    q_length = (last - q_first).clamp(min=0)
    # A chunk's keys end where its last query stands: what is behind a sequence's end is no query either.
    return Bounds(row * S + (q_first - (K - S)), q_length, row * K + first, k_length, (S, K))


def bounds_without_holes(mask_BK: Tensor, S: int) -> tuple[Bounds, Tensor]:
    """Bounds after what is seen was moved to the beginning of its row, and the order of the keys that does it."""
    B, K = mask_BK.shape
    row, of_queries_BS = torch.arange(B, device=mask_BK.device), mask_BK[:, K - S :]
    order_BS, order_BK = ((~mask).to(torch.int8).argsort(dim=1, stable=True) for mask in (of_queries_BS, mask_BK))
    return Bounds(row * S, of_queries_BS.sum(1), row * K, mask_BK.sum(1), (S, K), order_BS), order_BK


def in_order(x_BHLD: Tensor, order_BL: Tensor) -> Tensor:
    return x_BHLD.gather(2, order_BL[:, None, :, None].expand_as(x_BHLD))


def back_in_place(out_BSHD: Tensor, order_BS: Tensor) -> Tensor:
    """What was computed of queries in that order, at their own places."""
    return torch.empty_like(out_BSHD).scatter(1, order_BS[:, :, None, None].expand_as(out_BSHD), out_BSHD)


def bounds_of_pieces(q_ends: Tensor, k_ends: Tensor, longest: tuple[int, int]) -> Bounds:
    """Of sequences that stand one after the other, between the numbers given."""
    q_ends, k_ends = q_ends.to(torch.int64), k_ends.to(torch.int64)
    return Bounds(q_ends[:-1], q_ends[1:] - q_ends[:-1], k_ends[:-1], k_ends[1:] - k_ends[:-1], longest)


def bounds_of_rows(B: int, S: int, K: int, device: torch.device) -> Bounds:
    """Of rows that are sequences from end to end."""
    q_start, q_length = k_start, k_length = _rows(B, S, device)
    if K != S:
        k_start, k_length = _rows(B, K, device)
    return Bounds(q_start, q_length, k_start, k_length, (S, K))


def packed_ends(position_ids: Tensor | None, B: int, S: int) -> Tensor | None:
    """Bounds of sequences that stand one after the other in a row: positions that begin again at 0 say where."""
    if position_ids is None or position_ids.dim() != 2 or S < 2:
        return None
    return _BOUNDS.of(position_ids, B, S)


def _bounds(position_ids: Tensor, B: int, S: int) -> Tensor | None:
    begins = position_ids[:, 1:] != position_ids[:, :-1] + 1
    return ends_of(begins.expand(B, S - 1)) if bool(begins.any()) else None


def ends_of(begins: Tensor) -> Tensor:
    """Where sequences begin in rows of tokens, and the end of the last; `begins` (rows, length - 1): from the second
    token of every row on."""
    places = torch.nn.functional.pad(begins, (1, 0), value=True).reshape(-1).nonzero().reshape(-1)
    return torch.cat((places, places.new_tensor([begins.shape[0] * (begins.shape[1] + 1)])))


class _Bounds:
    """The bounds of the last positions asked for: a model's layers all ask, and asking makes the host wait."""

    def __init__(self) -> None:
        self._last: tuple[Any, tuple[int, ...], Tensor | None] | None = None

    def of(self, position_ids: Tensor, B: int, S: int) -> Tensor | None:
        if position_ids.is_inference() or not _is_plain(position_ids):  # nothing tells when the first is written to
            return _bounds(position_ids, B, S)
        last, about = self._last, (position_ids._version, B, S)
        if last is None or last[0]() is not position_ids or last[1] != about:
            last = self._last = (ref(position_ids), about, _bounds(position_ids, B, S))
        return last[2]


_BOUNDS: Final = _Bounds()


def _is_plain(tensor: Tensor) -> bool:
    """A tensor of torch's own and no tracer's."""
    return type(tensor) is Tensor


def _rows(B: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Starts and lengths of sequences that are rows."""
    starts = torch.arange(0, B * length, max(length, 1), device=device)
    return starts, torch.full((B,), length, device=device)


def all_keys(key: Tensor, value: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Keys at their logical places: without those not filled yet, with zeros for those a sliding cache has dropped.

    No query sees a dropped key; but the blocks that later keys fall into are counted from the first."""
    dropped = length - key.shape[2]
    if dropped < 0:
        return key[:, :, :length], value[:, :, :length]
    if dropped > 0:
        return tuple(torch.nn.functional.pad(x, (0, 0, dropped, 0)) for x in (key, value))  # type: ignore[return-value]
    return key, value
