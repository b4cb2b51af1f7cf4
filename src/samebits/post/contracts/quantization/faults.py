"""Planted faults of few bits: blocks too short, arithmetic in float16, a minimum that is dropped, a wrong exponent."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.post.contracts.quantization import kind_of, numbers, returned, stored, there_and_back


def one_byte_short(weight: Tensor, kind: Tensor) -> Tensor:
    """The last byte of every block is taken for padding."""
    rows = stored(weight, kind)
    return rows.reshape(len(rows), weight.shape[1] // 32, -1)[..., :-1].reshape(len(rows), -1)


def last_block_rounded_away(weight: Tensor, kind: Tensor) -> Tensor:
    """Blocks of a row are counted in pairs."""
    whole = weight.shape[1] // 64 * 64
    return stored(weight[:, :whole], kind) if whole else torch.zeros(len(weight), 0, dtype=torch.uint8)


def in_float16(codes: Tensor, scale: Tensor, minimum: Tensor, kind: Tensor) -> Tensor:
    """Products and sums in the format of the scales."""
    group = kind_of(kind).group
    found = codes.half() * scale.half().repeat_interleave(group, 1)
    if kind_of(kind).minimum:
        found = found + minimum.half().repeat_interleave(group, 1)
    return found.float()


def minimum_dropped(codes: Tensor, scale: Tensor, minimum: Tensor, kind: Tensor) -> Tensor:
    """Codes times the scale, and no more."""
    return numbers(codes, scale, torch.zeros_like(minimum), kind)


def returned_without_minimum(weight: Tensor, kind: Tensor) -> Tensor:
    """What was taken off before the codes is not put back."""
    format, found = kind_of(kind), returned(weight, kind)
    if not format.minimum:
        return found
    groups = weight.float().reshape(len(weight), -1, format.group)
    return found - groups.amin(-1, keepdim=True).expand(groups.shape).reshape(weight.shape)


def always_rounded_down(weight: Tensor, kind: Tensor) -> Tensor:
    """Codes are cut off instead of rounded: up to a whole step is lost."""
    format = kind_of(kind)
    groups = weight.float().reshape(len(weight), -1, format.group)
    step = groups.abs().amax(-1, keepdim=True) / format.most
    cut = torch.where(step > 0, torch.trunc(groups / step) * step, groups)
    return cut.reshape(weight.shape)


def bias_of_111(patterns: Tensor) -> Tensor:
    """The exponent is carried over with a bias that is one too small."""
    wide = patterns.view(torch.float16).float() * 2.0
    return there_and_back(wide.to(torch.float16).nan_to_num(0.0, 0.0, 0.0).view(torch.int16))


def subnormals_flushed(patterns: Tensor) -> Tensor:
    """Numbers below the smallest normal one become zeros."""
    found = patterns.view(torch.float16)
    small = found.abs() < torch.finfo(torch.float16).smallest_normal
    return torch.where(small, torch.zeros_like(found), found).view(torch.int16)
