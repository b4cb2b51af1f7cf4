"""Weights in groups of few bits: codes, and for each group a scale, with or without a minimum; to and from numbers.

The formats are those of GGUF (Q4_0, Q4_1, Q8_0) and of compressed-tensors (four bits, any group). A number comes back
as code times scale, plus the minimum, in float32, each operation rounded once. Rounding to nearest follows ggml's
reference; the search tries other scales and keeps the one whose error, weighted by what flows through each channel, is
least. Everything is elementwise or a sum by halves: no thread decides a bit. Knows no file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

# Decides bits: how much finer or coarser than the plain scale the search tries, in steps of the range of codes.
CANDIDATES: Final = tuple(step / 5 for step in range(-3, 8))


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """What a group stores. Codes are from `least` to `most`; scale and minimum are kept in `store`."""

    name: str
    group: int
    least: int
    most: int
    minimum: bool
    store: torch.dtype


FORMATS: Final = {
    "q4_0": Format(name="q4_0", group=32, least=-8, most=7, minimum=False, store=torch.float16),
    "q4_1": Format(name="q4_1", group=32, least=0, most=15, minimum=True, store=torch.float16),
    "q8_0": Format(name="q8_0", group=32, least=-127, most=127, minimum=False, store=torch.float16),
}


def packed_format(group: int) -> Format:
    """Four bits in groups of `group`, as compressed-tensors packs them."""
    return Format(name=f"int4-g{group}", group=group, least=-8, most=7, minimum=False, store=torch.bfloat16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grouped:
    """A matrix in groups along its rows."""

    format: Format
    codes: Tensor
    """int8 (N, K / group, group)."""
    scale: Tensor
    """(N, K / group), in the format's storage type."""
    minimum: Tensor | None

    def numbers(self) -> Tensor:
        """float32 (N, K): what the codes stand for."""
        found = self.codes.float() * self.scale.float()[..., None]
        if self.minimum is not None:
            found = found + self.minimum.float()[..., None]
        return found.reshape(len(self.codes), -1)

    def rows(self, which: slice | Tensor) -> Grouped:
        """Some of the rows, or all in another order."""
        minimum = None if self.minimum is None else self.minimum[which]
        return Grouped(format=self.format, codes=self.codes[which], scale=self.scale[which], minimum=minimum)


def round_to_nearest(weight: Tensor, format: Format) -> Grouped:
    """Each group by its own extremes, as ggml's reference does it."""
    x = _groups(weight, format)
    scale, minimum = _plain_scale(x, format)
    return _stored(_codes(x, scale, minimum, format), scale, minimum, format)


def search(weight: Tensor, format: Format, importance: Tensor) -> Grouped:
    """The best of the plain scale and the candidates around it; `importance` (K) weighs each channel's squared error.

    For each candidate's codes the scale (and the minimum) are the least squares' own, then rounded to storage."""
    x = _groups(weight, format)
    h = importance.double().reshape(-1, format.group).expand(x.shape)
    scale, minimum = _plain_scale(x, format)
    best = _stored(_codes(x, scale, minimum, format), scale, minimum, format)
    error = _error(x, h, best)
    for step in CANDIDATES:
        finer = scale / (1.0 + step / format.most)
        codes = _codes(x, finer, minimum, format)
        tried = _stored(codes, *_least_squares(x, h, codes, format, finer), format)
        found = _error(x, h, tried)
        better = found < error
        error = torch.where(better, found, error)
        best = _chosen(better, tried, best)
    return best


def _groups(weight: Tensor, format: Format) -> Tensor:
    if weight.dim() != 2 or weight.shape[1] % format.group:
        raise ValueError(
            f"{format.name}: a weight has shape {tuple(weight.shape)}; allowed: rows of a multiple of {format.group}"
        )
    if not bool(weight.isfinite().all()):
        raise ValueError(f"{format.name}: a weight is not finite; allowed: finite numbers")
    return weight.float().reshape(len(weight), -1, format.group)


def _plain_scale(x: Tensor, format: Format) -> tuple[Tensor, Tensor | None]:
    """float32 (N, groups): what ggml's reference takes, before it is stored."""
    if format.minimum:
        # Of zeros of both signs the first, as in the loop of ggml; amin does not promise one of them.
        least = x.gather(-1, x.argmin(-1, keepdim=True))[..., 0]
        return (x.amax(-1) - least) / format.most, least
    if format.most == -format.least:
        return x.abs().amax(-1) / format.most, None
    # The number of the largest magnitude gets the code that only one sign has; the first of two.
    place = x.abs().argmax(-1, keepdim=True)
    return x.gather(-1, place)[..., 0] / format.least, None


def _codes(x: Tensor, scale: Tensor, minimum: Tensor | None, format: Format) -> Tensor:
    """int8: the nearest code, halves as ggml rounds them."""
    inverse = (1.0 / scale)[..., None]
    # A group of nothing, or of next to nothing, has codes of zero.
    inverse = torch.where(inverse.isfinite(), inverse, torch.zeros_like(inverse))
    if minimum is not None:
        found = torch.trunc((x - minimum[..., None]) * inverse + 0.5)
    elif format.most == -format.least:
        scaled = x * inverse
        # Away from zero at a half: the plain rounding of C.
        whole = torch.floor(scaled.abs())
        found = torch.sign(scaled) * (whole + torch.floor(2 * (scaled.abs() - whole)))
    else:
        found = torch.trunc(x * inverse + (0.5 - format.least)) + format.least
    return found.clamp(format.least, format.most).to(torch.int8)


def _stored(codes: Tensor, scale: Tensor, minimum: Tensor | None, format: Format) -> Grouped:
    kept = None if minimum is None else minimum.to(format.store)
    found = scale.to(format.store)
    if not all(bool(each.isfinite().all()) for each in (found, kept) if each is not None):
        largest = torch.finfo(format.store).max
        raise ValueError(f"{format.name}: a scale or a minimum is too large to be stored; allowed: up to {largest:g}")
    return Grouped(format=format, codes=codes, scale=found, minimum=kept)


def _error(x: Tensor, h: Tensor, tried: Grouped) -> Tensor:
    """float64 (N, groups): the weighted sum of squared differences."""
    gap = x.double() - tried.numbers().reshape(x.shape).double()
    return _sum(h * gap * gap)


def _least_squares(x: Tensor, h: Tensor, codes: Tensor, format: Format, scale: Tensor) -> tuple[Tensor, Tensor | None]:
    """The scale, and the minimum, with the least weighted error for these codes."""
    q, wide = codes.double(), x.double()
    qq, qx = _sum(h * q * q), _sum(h * q * wide)
    if not format.minimum:
        return torch.where(qq > 0, qx / qq, scale.double()).float(), None
    ones, sums, tops = _sum(h), _sum(h * q), _sum(h * wide)
    determinant = ones * qq - sums * sums
    found = torch.where(determinant > 0, (ones * qx - sums * tops) / determinant, scale.double())
    least = torch.where(ones > 0, (tops - found * sums) / ones, wide.amin(-1))
    return found.float(), least.float()


def _chosen(better: Tensor, tried: Grouped, best: Grouped) -> Grouped:
    minimum = None
    if best.minimum is not None and tried.minimum is not None:
        minimum = torch.where(better, tried.minimum, best.minimum)
    return Grouped(
        format=best.format,
        codes=torch.where(better[..., None], tried.codes, best.codes),
        scale=torch.where(better, tried.scale, best.scale),
        minimum=minimum,
    )


def _sum(terms: Tensor) -> Tensor:
    """Over the last axis by halves; its length is a power of two."""
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        terms = terms[..., :half] + terms[..., half:]
    return terms[..., 0]
