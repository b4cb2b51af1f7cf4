"""Which captured step an engine decodes by: the model's own pass, or on Hopper the same bits by fewer kernels.

It can be forced, and an engine says which one it has. Decides speed alone. Imports Triton where a GPU is used only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Final

import torch

from samebits.infer.decode_step import DecodeStep, can_capture, captured_keys, captured_rows, capturing
from samebits.infer.pages import LayerCache
from samebits.model import Model
from samebits.model.model import PARTS
from samebits.model.weights import prefix
from samebits.ops._triton.device import missing
from samebits.ops.attention.forms import BLOCK_KEYS

VARIABLE: Final = "SAMEBITS_DECODE_STEP"
"""Says for a whole process what an engine's argument `decode_step` says for one."""
PLAIN: Final = "plain"
HOPPER: Final = "hopper"
NONE: Final = "none"
"""Decoding goes through the model each time: its operators are others, or its weights are cut over ranks."""
# Programmatic launches and Gluon as hopper_step uses them.
LEAST_TRITON: Final = (3, 6)
DTYPES: Final = (torch.bfloat16, torch.float16)
# What attention's kernel there is made for: halves of 64 columns, pages that are parts of a block of 64 keys or blocks.
HEAD_SIZES: Final = (64, 128)
PAGE_SIZES: Final = (8, 16, 32)
MOST_HEADS: Final = 64
"""Of queries that share a key head."""


def chosen_step(model: Model, page_size: int, asked: str | None = None) -> str:
    """ "plain", "hopper" or "none". What is asked for, by argument or else by environment, is taken or refused."""
    asked = os.environ.get(VARIABLE) if asked is None else asked
    if asked not in (None, PLAIN, HOPPER):
        raise ValueError(
            f"engine: decode_step, or {VARIABLE}, is {asked!r}; allowed: {PLAIN!r}, {HOPPER!r}, or nothing"
        )
    lack = None if asked == PLAIN else lacks(model, page_size)
    if asked == HOPPER and lack is not None:
        raise ValueError(f"engine: decode_step {HOPPER!r} needs {lack}; usable here: {PLAIN!r}")
    if not can_capture(model):
        return NONE
    return PLAIN if asked == PLAIN or lack is not None else HOPPER


def lacks(model: Model, page_size: int) -> str | None:
    """What the step for Hopper needs and does not find, or None."""
    if not can_capture(model):
        return "samebits' operators on whole weights"
    if model.device.type != "cuda":
        return f"a CUDA GPU and the model is on {model.device.type}"
    lack = missing(model.device)
    if lack is not None:
        return lack
    found = version("triton")
    if tuple(int(each) for each in found.split(".")[:2]) < LEAST_TRITON:
        return f"Triton {'.'.join(map(str, LEAST_TRITON))} or later and {found} is installed"
    return lacking_sizes(model, page_size) or lacking_weights(model)


def lacking_sizes(model: Model, page_size: int) -> str | None:
    """Which size its attention is not made for."""
    config = model.config
    if config.head_dim not in HEAD_SIZES:
        return f"heads of {' or '.join(map(str, HEAD_SIZES))} and they have {config.head_dim}"
    group = config.num_attention_heads // model.key_heads
    if group > MOST_HEADS:
        return f"at most {MOST_HEADS} query heads for a key head and there are {group}"
    if page_size not in PAGE_SIZES and page_size % BLOCK_KEYS:
        sizes = ", ".join(map(str, PAGE_SIZES))
        return f"pages of {sizes} tokens or of a multiple of {BLOCK_KEYS} and they have {page_size}"
    return None


def lacking_weights(model: Model) -> str | None:
    """What its weights lack for that, wherever they are."""
    dtypes = {weight.dtype for weight in model.weights.values()}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        return f"all weights in bfloat16 or in float16 and they have {', '.join(sorted(map(str, dtypes)))}"
    return None if _joined(model) else "a model made by for_inference()"


def _joined(model: Model) -> bool:
    """Whether weights that meet one input lie end to end in the joined one: none was put in another's place since."""
    weights: Mapping[str, torch.Tensor] = model.weights
    for layer in range(model.config.num_hidden_layers):
        for part, names in PARTS.items():
            joined = model.joined.get(f"{prefix(layer)}{part}")
            if joined is None or not joined.is_contiguous():
                return False
            address = joined.data_ptr()
            for name in names:
                weight = weights[f"{prefix(layer)}{part}.{name}_proj.weight"]
                if weight.data_ptr() != address or not weight.is_contiguous():
                    return False
                address += weight.numel() * weight.element_size()
    return True


class DecodeSteps:
    """The captured steps of an engine: by rows, and the keys that each can hold."""

    def __init__(self, model: Model, caches: Sequence[LayerCache], limit: int, asked: str | None) -> None:
        """`limit`: the most keys of a request."""
        self._caches, self._limit, self._asked = caches, limit, asked
        self._capturing = capturing(model.device)
        self._made: dict[tuple[int, int], DecodeStep] = {}
        self.use(model)

    def use(self, model: Model) -> None:
        """Go on with other weights, for which none is made yet."""
        self.kind, self._model = chosen_step(model, self._caches[0].page_size, self._asked), model
        self._made.clear()

    def step(self, requests: int, keys: int) -> DecodeStep:
        """For so many requests, of which none has more keys."""
        rows, capacity = captured_rows(requests, self._model.device), captured_keys(keys, self._limit)
        if (rows, capacity) not in self._made:
            pages = -(-capacity // self._caches[0].page_size)
            made = step_type(self.kind)
            self._made[rows, capacity] = made(self._model, self._caches, rows, pages, self._capturing)
        return self._made[rows, capacity]


def step_type(name: str) -> type[DecodeStep]:
    if name == PLAIN:
        return DecodeStep
    found: type[DecodeStep] = import_module("samebits.infer.hopper_step.step").HopperStep
    return found
