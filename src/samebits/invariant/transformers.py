"""attn_implementation="samebits" for transformers: its masks and tensors turned into samebits' one attention.

Loads transformers only in `register`. A mask stays the 2-D padding mask: ones without a hole, padding on the left or
the right. Keys count from a sequence's own first token, wherever padding, a cache or a packed row put it."""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module
from typing import Any, Final
from weakref import ref

import torch
from torch import Tensor

from samebits.invariant.products import backend_of
from samebits.ops.attention import HEAD_MULTIPLE, LONGEST_HEAD

NAME = "samebits"


@cache
def register() -> None:
    """Makes attn_implementation="samebits" known. `invariant_mode` does it where transformers is loaded."""
    transformers = import_module("transformers")
    transformers.AttentionInterface.register(NAME, attention)
    transformers.AttentionMaskInterface.register(NAME, padding_mask)


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
    _check_holes(attention_mask)
    complete = kv_offset == 0 and attention_mask.shape[1] == kv_length
    return None if complete and bool(attention_mask.all()) else attention_mask


def _check_holes(mask_BK: Tensor) -> None:
    steps = mask_BK[:, 1:] & ~mask_BK[:, :-1]
    runs = steps.sum(1) + mask_BK[:, 0]
    if bool((runs > 1).any()):
        row = int((runs > 1).nonzero()[0])
        raise ValueError(
            f"attention 'samebits': attention_mask has a hole in row {row}; allowed: padding on the left or the right"
        )


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    position_ids: Tensor | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """(batch, heads, length, head size) tensors in, (batch, length, heads, head size) out, as transformers wants it."""
    backend = backend_of(query)
    _check_arguments(module, dropout, unused)
    B, heads, S, D = query.shape
    width = _check_sizes(module, query, key, value)
    if attention_mask is not None:
        key, value = _all_keys(key, value, attention_mask.shape[-1])
    K = key.shape[2]
    if cu_seq_lens_q is not None:
        q_start, q_length = _pieces(cu_seq_lens_q)
        k_start, k_length = _pieces(cu_seq_lens_q if cu_seq_lens_k is None else cu_seq_lens_k)
    elif attention_mask is not None:
        q_start, q_length, k_start, k_length = _padded(attention_mask, S)
    else:
        bounds = _packed(position_ids, B, S) if S == K else None
        if bounds is not None:
            q_start, q_length = k_start, k_length = _pieces(bounds)
        else:
            q_start, q_length = k_start, k_length = _rows(B, S, query.device)
            if K != S:
                k_start, k_length = _rows(B, K, query.device)
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    flat = [_widened(x, width).transpose(1, 2).reshape(-1, x.shape[1], width) for x in (query, key, value)]
    out, _ = torch.ops.samebits.attention(
        *flat,
        q_start,
        q_length,
        k_start,
        k_length,
        None,
        0,
        S if cu_seq_lens_q is None else B * S,
        K if cu_seq_lens_q is None else B * K,
        bool(causal),
        sliding_window or 0,
        1.0 / math.sqrt(D) if scaling is None else float(scaling),
        softcap or 0.0,
        backend,
    )
    return out.reshape(B, S, heads, width)[..., : value.shape[-1]], None


def _check_sizes(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor) -> int:
    """The head size to compute with: that of values may differ, and zeros that are added to a head change nothing."""
    heads, width = key.shape[1], -(-max(query.shape[-1], value.shape[-1]) // HEAD_MULTIPLE) * HEAD_MULTIPLE
    if query.shape[-1] != key.shape[-1] or value.shape[1:3] != key.shape[1:3] or not heads or query.shape[1] % heads:
        allowed = (
            "(batch, heads, length, head size), equal head sizes of q and k, heads of q a multiple of those of k and v"
        )
    elif width > LONGEST_HEAD:
        allowed = f"head sizes up to {LONGEST_HEAD}; leave attn_implementation away for others"
    else:
        return width
    shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
    raise ValueError(
        f"attention 'samebits': q, k, v of {type(module).__name__} have shapes {shapes}; allowed: {allowed}"
    )


def _widened(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else torch.nn.functional.pad(x, (0, width - x.shape[-1]))


def _check_arguments(module: torch.nn.Module, dropout: float, unused: dict[str, Any]) -> None:
    if dropout:
        raise ValueError(
            f"attention 'samebits': dropout is {dropout}; allowed: 0, its random numbers depend on the batch"
        )
    for name in ("s_aux", "position_bias", "cache", "head_mask"):
        if unused.get(name) is not None:
            raise ValueError(f"attention 'samebits': {name} is given to {type(module).__name__}; allowed: None")
    if unused.get("output_attentions"):
        raise ValueError("attention 'samebits': output_attentions is True; allowed: False, scores are never stored")


def _all_keys(key: Tensor, value: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Keys at their logical places: without those not filled yet, with zeros for those a sliding cache has dropped.

    No query sees a dropped key; but the blocks that later keys fall into are counted from the first."""
    dropped = length - key.shape[2]
    if dropped < 0:
        return key[:, :, :length], value[:, :, :length]
    if dropped > 0:
        return tuple(torch.nn.functional.pad(x, (0, 0, dropped, 0)) for x in (key, value))  # type: ignore[return-value]
    return key, value


def _padded(mask_BK: Tensor, S: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Starts and lengths of queries and keys. The queries are the last S of the mask's columns."""
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
    # A chunk's keys end where its last query stands: what lies behind a sequence's end is no query either.
    return row * S + (q_first - (K - S)), q_length, row * K + first, k_length


def _packed(position_ids: Tensor | None, B: int, S: int) -> Tensor | None:
    """Bounds of sequences that stand one after the other in a row: positions that begin again at 0 say where."""
    if position_ids is None or position_ids.dim() != 2 or S < 2:
        return None
    return _BOUNDS.of(position_ids, B, S)


def _bounds(position_ids: Tensor, B: int, S: int) -> Tensor | None:
    begins = torch.ones(position_ids.shape, dtype=torch.bool, device=position_ids.device)
    begins[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
    if int(begins.sum()) == position_ids.shape[0]:
        return None
    places = begins.expand(B, S).reshape(-1).nonzero().reshape(-1)
    return torch.cat((places, places.new_tensor([B * S])))


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


def _pieces(bounds: Tensor) -> tuple[Tensor, Tensor]:
    """Starts and lengths between bounds."""
    bounds = bounds.to(torch.int64)
    return bounds[:-1], bounds[1:] - bounds[:-1]
