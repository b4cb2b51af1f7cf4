"""Sums without an order: float32 parts as whole numbers, added exactly on any number of ranks, rounded once.

Whole numbers have no order of addition, so the backend's own all-reduce may add them, and it does not matter which rank
holds which part. An element costs 56 bytes of message instead of 4: for small sums, such as losses and norms, where any
layout of the parts is wanted. Gradients are better off with the tree.

The result is the float32 nearest to the exact sum, ties to even; beyond the largest float32 an infinity. A sum of zero
is +0, whatever the signs of its parts' zeros. A NaN among the parts, or infinities of both signs, give NaN; infinities
of one sign give that infinity."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from samebits.parallel import collectives
from samebits.parallel.world import Group

# A float32 is a whole number of 2^-149, below 2^277 in magnitude: 6 digits of 48 bits. An int64 leaves a digit 15 more
# bits for the sum over ranks, and the last digit, of which a float32 fills 37 bits, 26 for the sum over all parts.
UNIT: Final = -149
DIGITS: Final = 6
DIGIT_BITS: Final = 48
MOST_RANKS: Final = 2**14
MOST_PARTS: Final = 2**25
# Behind the digits, one word counts what is not a number: NaN, +infinity and -infinity, in 20 bits each, 0 or 1 a rank.
WORDS: Final = DIGITS + 1
COUNT_BITS: Final = 20
# A part adds to a digit twice at most, so that this many of them fit an int64 before they are carried.
PARTS_AT_ONCE: Final = 2**13
_BELOW: Final = (1 << DIGIT_BITS) - 1


def exact_sum(group: Group, parts_PN: Tensor, what: str = "exact sum") -> Tensor:
    """(N) on every rank: the exact sum over all parts of all ranks, rounded to float32 once. P may differ between ranks
    and be 0."""
    if parts_PN.dim() != 2 or parts_PN.dtype != torch.float32:
        raise ValueError(
            f"{what}: parts have shape {tuple(parts_PN.shape)} {parts_PN.dtype}; allowed: 2 dimensions, torch.float32"
        )
    if group.size > MOST_RANKS or parts_PN.shape[0] * group.size > MOST_PARTS:
        raise ValueError(
            f"{what}: {parts_PN.shape[0]} parts on one of {group.size} ranks; allowed: {MOST_RANKS} ranks,"
            f" {MOST_PARTS // group.size} parts each"
        )
    words_WN = whole_numbers(parts_PN)
    flat = words_WN.view(-1)
    if group.size == group.world.size:
        collectives.native_all_reduce(group, flat)
    else:
        # A part of the world has no all-reduce of the backend's; for whole numbers ours is the same sum.
        collectives.all_reduce(group, flat, what)
    return rounded(words_WN)


def whole_numbers(parts_PN: Tensor) -> Tensor:
    """(WORDS, N) int64: the sum over P as digits of 2^-149, lowest first, each but the last within one digit's bits."""
    words_WN = torch.zeros(WORDS, parts_PN.shape[1], dtype=torch.int64, device=parts_PN.device)
    digits_DN, no_number_N = words_WN[:DIGITS], words_WN[DIGITS]
    for first in range(0, parts_PN.shape[0], PARTS_AT_ONCE):
        some_PN = parts_PN[first : first + PARTS_AT_ONCE]
        _add(digits_DN, torch.where(some_PN.isfinite(), some_PN, 0.0))
        _carry(digits_DN)
    for place, found_PN in enumerate((parts_PN.isnan(), parts_PN == torch.inf, parts_PN == -torch.inf)):
        no_number_N |= found_PN.any(0).long() << COUNT_BITS * place
    return words_WN


def _add(digits_DN: Tensor, parts_PN: Tensor) -> None:
    """Adds finite parts: each has 24 bits, which lie in one digit or in two neighbours."""
    bits_PN = parts_PN.contiguous().view(torch.int32).long()
    field_PN = bits_PN >> 23 & 0xFF
    significand_PN, sign_PN = bits_PN & 0x7FFFFF | (field_PN > 0).long() << 23, 1 - 2 * (bits_PN < 0).long()
    place_PN = field_PN.clamp(min=1) - 1
    digit_PN, shift_PN = place_PN // DIGIT_BITS, place_PN % DIGIT_BITS
    room_PN = DIGIT_BITS - shift_PN
    low_PN = (significand_PN & (1 << room_PN) - 1) << shift_PN
    digits_DN.scatter_add_(0, digit_PN, sign_PN * low_PN)
    # The highest digit has room for all of a float32: what would go beyond it is 0.
    digits_DN.scatter_add_(0, (digit_PN + 1).clamp(max=DIGITS - 1), sign_PN * (significand_PN >> room_PN))


def _carry(digits_DN: Tensor) -> None:
    """The same numbers, with all digits but the highest in 0 to 2^48 - 1; the highest has the sign."""
    for lower_N, upper_N in pairwise(digits_DN):
        upper_N += lower_N >> DIGIT_BITS
        lower_N &= _BELOW


def rounded(words_WN: Tensor) -> Tensor:
    """(N) float32: the numbers that the words stand for, to nearest, ties to even."""
    digits_DN = words_WN[:DIGITS].clone()
    _carry(digits_DN)
    negative_N = digits_DN[-1] < 0
    digits_DN *= 1 - 2 * negative_N.long()
    _carry(digits_DN)
    size_N = _magnitude(digits_DN).to(torch.float32)
    value_N = torch.where(negative_N, -size_N, size_N)
    nan_N, plus_N, minus_N = (words_WN[DIGITS] >> COUNT_BITS * place & (1 << COUNT_BITS) - 1 for place in range(3))
    value_N[plus_N > 0] = torch.inf
    value_N[minus_N > 0] = -torch.inf
    value_N[(nan_N > 0) | (plus_N > 0) & (minus_N > 0)] = torch.nan
    return value_N


def _magnitude(digits_DN: Tensor) -> Tensor:
    """(N) float64 of at most 52 bits, at least 26 where bits were dropped; the last one is set if any of those was set.

    So it rounds to float32 as the number itself does: what is dropped decides a tie and nothing else."""
    number_DN = torch.arange(DIGITS, device=digits_DN.device)[:, None].expand_as(digits_DN)
    top_N = torch.where(digits_DN != 0, number_DN, 0).amax(0)
    upper_N = digits_DN.gather(0, top_N[None])[0]
    lower_N = digits_DN.gather(0, (top_N - 1).clamp(min=0)[None])[0] * (top_N > 0)
    dropped_N = ((digits_DN != 0) & (number_DN < top_N - 1)).any(0)
    exponent_N = DIGIT_BITS * top_N + UNIT
    # A short upper digit takes 36 bits of the lower one beside it.
    short_N = upper_N < 1 << 26
    dropped_N |= torch.where(short_N, lower_N & (1 << 12) - 1, lower_N) != 0
    window_N = torch.where(short_N, upper_N << 36 | lower_N >> 12, upper_N)
    exponent_N = torch.where(short_N, exponent_N - 36, exponent_N)
    long_N = window_N >= 1 << 52
    dropped_N |= long_N & (window_N & (1 << 12) - 1 != 0)
    window_N = torch.where(long_N, window_N >> 12, window_N) | dropped_N.long()
    exponent_N = torch.where(long_N, exponent_N + 12, exponent_N)
    power_N = (exponent_N + 1023 << 52).view(torch.float64)
    return window_N.double() * power_N
