"""The same numbers laid out otherwise in memory: offsets, strides, views, with NaN in every gap.

A layout is a letter and an offset: c contiguous, p rows padded, s every second column, r every second row, t
transposed, v rows cut out of a larger batch, w out of rows several times as wide, e one row expanded. "t+3" is
transposed, its storage starting 3 early.
"g+3" draws the axes' order in memory and a gap behind each by seed 3; arguments with j lie in one storage: rows
side by side, as a fused projection leaves them, others end to end, as in a flat buffer of weights."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

LETTERS = "cpsrtvegjw"
_PATTERN = re.compile(rf"([{LETTERS}])(?:\+(\d+))?")
PADDING, WIDER = 3, 4
MOST_OFFSET = 63
GAPS = (0, 1, 3, 8)


def parsed(layout: str) -> tuple[str, int]:
    """Letter and offset; what is none is a ValueError."""
    found = _PATTERN.fullmatch(layout)
    if found is None or int(found[2] or 0) > MOST_OFFSET:
        raise ValueError(
            f"layout={layout!r} cannot be read; allowed: one of {' '.join(LETTERS)}, and an offset up to +{MOST_OFFSET}"
        )
    return found[1], int(found[2] or 0)


def letters_for(shape: tuple[int, ...], *, rows: bool) -> str:
    """The letters that mean something for an argument of this shape."""
    if len(shape) < 1:
        return "c"
    if len(shape) == 1:
        return "csv" if rows else "cs"
    return "cpsrtgwv" if rows else "cpsrtgw"


def laid_out(values: Tensor, layout: str) -> Tensor:
    """A tensor with the values' bits in the layout asked for; one that cannot have it is contiguous."""
    letter, offset = parsed(layout)
    if not values.dim():
        return values.clone()
    if letter == "e":
        return _at(values[:1], offset).expand(values.shape)
    make = _MAKERS[letter] if values.dim() > 1 or letter in "csvg" else _at
    return make(values, offset)


def _gap(values: Tensor, shape: list[int], offset: int) -> Tensor:
    """A larger tensor of NaN (of zeros for whole numbers), `offset` elements into its storage."""
    fill = float("nan") if values.is_floating_point() else 0
    size = 1
    for each in shape:
        size *= each
    storage = torch.full((size + MOST_OFFSET + 1,), fill, dtype=values.dtype, device=values.device)
    return storage[offset : offset + size].view(shape)


def _at(values: Tensor, offset: int) -> Tensor:
    if not offset:
        return values.clone(memory_format=torch.contiguous_format)
    return _gap(values, list(values.shape), offset).copy_(values)


def _padded(values: Tensor, offset: int) -> Tensor:
    shape = list(values.shape)
    return _gap(values, [*shape[:-1], shape[-1] + PADDING], offset)[..., : shape[-1]].copy_(values)


def _wide(values: Tensor, offset: int) -> Tensor:
    """As a projection leaves them that was made for several layers at once: rows begin at multiples of 64."""
    shape = list(values.shape)
    width = -(-WIDER * shape[-1] // 64) * 64 + 64
    return _gap(values, [*shape[:-1], width], offset)[..., : shape[-1]].copy_(values)


def _columns(values: Tensor, offset: int) -> Tensor:
    shape = list(values.shape)
    return _gap(values, [*shape[:-1], 2 * shape[-1]], offset)[..., ::2].copy_(values)


def _rows(values: Tensor, offset: int) -> Tensor:
    shape = list(values.shape)
    return _gap(values, [2 * shape[0], *shape[1:]], offset)[::2].copy_(values)


def _transposed(values: Tensor, offset: int) -> Tensor:
    shape = list(values.shape)
    swapped = [shape[-1], *shape[1:-1], shape[0]]
    return _gap(values, swapped, offset).transpose(0, -1).copy_(values)


def _view(values: Tensor, offset: int) -> Tensor:
    shape = list(values.shape)
    before = offset or 1
    return _gap(values, [before + shape[0] + 2, *shape[1:]], 0)[before : before + shape[0]].copy_(values)


def _general(values: Tensor, seed: int) -> Tensor:
    source = random.Random(seed)
    axes = source.sample(range(values.dim()), values.dim())
    held = [values.shape[axis] + source.choice(GAPS) for axis in axes]
    inner = _gap(values, held, source.choice(GAPS))[tuple(slice(values.shape[axis]) for axis in axes)]
    return inner.permute([axes.index(axis) for axis in range(values.dim())]).copy_(values)


def joined(values: Mapping[str, Tensor], *, rows: bool) -> dict[str, Tensor]:
    """Tensors of one format in one storage: rows side by side, others end to end."""
    flat = {name: each.reshape(each.shape[0], -1) if rows else each.reshape(-1) for name, each in values.items()}
    whole, place, found = torch.cat(list(flat.values()), -1), 0, {}
    for name, each in flat.items():
        width = each.shape[-1]
        found[name] = whole.narrow(-1, place, width).view(values[name].shape)
        place += width
    return found


_MAKERS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "c": _at,
    "p": _padded,
    "s": _columns,
    "r": _rows,
    "t": _transposed,
    "v": _view,
    "g": _general,
    "j": _at,
    "w": _wide,
}
