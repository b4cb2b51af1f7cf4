"""transformers' default attention ("sdpa") in a block: by samebits' attention where a model's masks are causal ones.

Every form of a sequence must go the same way, so a model is asked, not a call: whether its file makes causal masks,
with a sliding window or without, by transformers' functions, and no others. Then a mask carries what it was made from:
the padding, the window, where packed sequences begin. Other models and other attention take the way of any mask.
Outside of blocks both functions are transformers' own."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, nn

from samebits.invariant import transformers
from samebits.invariant.compound import mode_of_call
from samebits.invariant.sequence_bounds import ends_of, padding_mask
from samebits.ops.attention import LONGEST_HEAD

NAME: Final = "sdpa"
MAKERS: Final = ("create_causal_mask", "create_sliding_window_causal_mask", "create_masks_for_generate")
OTHER_MASKS: Final = (
    "or_mask_function",
    "and_mask_function",
    "block_sequence_ids",
    "create_chunked_causal_mask",
    "allow_is_causal_skip",  # a model that makes something of the mask
)
NOT_TAKEN: Final = ("position_bias", "cache", "s_aux", "head_mask", "softcap", "output_attentions")
"""Arguments of attention that samebits' own has no place for."""
FOREIGN: Final = (
    "{module} was given a mask that transformers' own functions did not make, and its bits would not be those of the"
    " same tokens without it; allowed: a 2-D attention_mask, or model.set_attn_implementation('eager')"
)
MARK: Final = "made_from"


@dataclass(frozen=True, slots=True)
class Made:
    """What a mask was made from, beside being causal."""

    padding: Tensor | None
    """(batch, keys)"""
    window: int
    ends: Tensor | None
    """Where packed sequences begin and the last one ends, counted over all rows of the batch."""


def install() -> None:
    """Once; transformers is loaded. Without functions that can be read, all models take the way of any mask."""
    interfaces, masking = import_module("transformers.modeling_utils"), import_module("transformers.masking_utils")
    if _can_be_read(masking):
        functions, masks = interfaces.AttentionInterface, masking.AttentionMaskInterface
        functions.register(NAME, _attention(functions._global_mapping[NAME]))
        masks.register(NAME, _mask(masks._global_mapping[NAME]))


def _attention(stock: Callable[..., Any]) -> Callable[..., Any]:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> Any:
        mode = mode_of_call()
        if mode is None or not _is_ours(module, query, value, options):
            return stock(module, query, key, value, attention_mask, **options)
        made = Made(None, 0, None) if attention_mask is None else getattr(attention_mask, MARK, None)
        if made is None:
            mode.escape("a mask of another's making", FOREIGN.format(module=type(module).__name__))
            return stock(module, query, key, value, attention_mask, **options)
        return transformers.attention(
            module,
            query,
            key,
            value,
            made.padding,
            scaling=options.get("scaling"),
            dropout=options.get("dropout", 0.0),
            sliding_window=made.window,
            is_causal=True,
            cu_seq_lens_q=made.ends,
        )

    return attention


def _is_ours(module: nn.Module, query: Tensor, value: Tensor, options: dict[str, Any]) -> bool:
    """The same answer for every form of a sequence: nothing here depends on lengths, padding or a cache."""
    causal = options.get("is_causal")
    return (
        bool(getattr(module, "is_causal", False) if causal is None else causal)
        and max(query.shape[-1], value.shape[-1]) <= LONGEST_HEAD
        and all(options.get(name) is None or options[name] is False for name in NOT_TAKEN)
        and _makes_causal_masks_alone(type(module).__module__)
    )


@cache
def _makes_causal_masks_alone(module: str) -> bool:
    try:
        text = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return False
    return any(name in text for name in MAKERS) and not any(name in text for name in OTHER_MASKS)


def _mask(stock: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    def mask(*args: Any, **options: Any) -> Tensor | None:
        kind = _kind(options.get("mask_function")) if mode_of_call() is not None and not args else None
        if kind is None or options.get("use_vmap"):
            return stock(*args, **options)
        window, packed_BS = kind
        padding_BK, made = padding_mask(**options), stock(**options)
        if made is None and padding_BK is None:
            return None  # rows that are sequences from end to end
        if made is None:
            made = stock(**{**options, "allow_is_causal_skip": False})
        ends = None if packed_BS is None else ends_of(packed_BS[:, 1:] != packed_BS[:, :-1])
        setattr(made, MARK, Made(padding_BK, window, ends))
        return made

    return mask


def _kind(function: Any) -> tuple[int, Tensor | None] | None:
    """(window or 0, numbers of packed sequences or None) of a causal mask's function; None: another mask's."""
    parts = list(_parts(function))
    windows = [value for name, value in parts if name == "sliding_window"]
    packed = [value for name, value in parts if name == "packed_sequence_mask"]
    known = len(windows) + len(packed) + 1 == len(parts) and ("causal", None) in parts
    return (windows[0] if windows else 0, packed[0] if packed else None) if known and len(windows) < 2 else None


def _parts(function: Any) -> Iterator[tuple[str, Any]]:
    """What transformers' functions of masks were made from: they are closures that say so."""
    name = getattr(function, "__qualname__", "")
    if name == "causal_mask_function":
        yield "causal", None
    elif name == "and_masks.<locals>.and_mask":
        for each in inspect.getclosurevars(function).nonlocals["mask_functions"]:
            yield from _parts(each)
    elif name == "sliding_window_overlay.<locals>.inner_mask":
        yield "sliding_window", inspect.getclosurevars(function).nonlocals["sliding_window"]
    elif name == "packed_sequence_mask_function.<locals>.inner_mask":
        yield "packed_sequence_mask", inspect.getclosurevars(function).nonlocals["packed_sequence_mask"]
    else:
        yield "another", function


def _can_be_read(masking: Any) -> bool:
    """Whether functions that transformers makes here are understood, and another is not taken for one."""
    packed = torch.zeros(1, 2, dtype=torch.int64)
    try:
        both = masking.and_masks(masking.causal_mask_function, masking.packed_sequence_mask_function(packed))
        window = masking.sliding_window_causal_mask_function(7)
        other = masking.and_masks(masking.causal_mask_function, masking.padding_mask_function(packed))
        found = [_kind(each) for each in (masking.causal_mask_function, window, both, other)]
    except (AttributeError, KeyError, TypeError):
        return False
    return found[:2] == [(0, None), (7, None)] and found[2] is not None and found[2][1] is packed and found[3] is None
