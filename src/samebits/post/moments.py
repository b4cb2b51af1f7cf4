"""Second moments of what flows into each weight: for two channels the sum of their product over all tokens.

A sequence's channels are rounded to whole numbers, so its sums are exact in float64 and have no order; sequences are
added in theirs. What flows into keys and values counts as much as its token is looked at: a token that all later ones
look at is one in the text and half of what they read. Knows no method that uses it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from samebits import ops
from samebits.model.batch import Batch
from samebits.model.model import Model
from samebits.nn import OURS

# Decide bits. With 512 tokens no sum reaches 2^(9 + 6 + 2 * 18), and 2^53 is where float64 begins to round.
CHANNEL_BITS: Final = 18
ATTENTION_BITS: Final = 6
SHARE_BITS: Final = 30
LOOKED_AT: Final = ("k_proj.weight", "v_proj.weight")


@dataclass(slots=True)
class _Heard:
    """What a forward pass says: sums by the first weight that reads an input, and who else reads it."""

    names: dict[int, str]
    leaving_out: tuple[str, ...]
    total: dict[str, Tensor] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    waiting: list[tuple[str, Tensor]] = field(default_factory=list)
    last: tuple[str, Tensor] | None = None

    def linear(self, x: Tensor, weight: Tensor, sums: None) -> Tensor:
        name = self.names[weight.data_ptr()]
        if name.endswith(LOOKED_AT):
            self.waiting.append((name, x))
        elif not name.endswith(self.leaving_out):
            self._add(name, x, None)
        return OURS.linear(x, weight, sums)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, **options: object) -> Tensor:
        looked = looked_at(q, k)
        for name, x in self.waiting:
            self._add(name, x, looked)
        self.waiting.clear()
        return OURS.attention(q, k, v, **options)

    def _add(self, name: str, x: Tensor, looked: Tensor | None) -> None:
        """Several weights read one input, one after another: it is summed once."""
        same = self.last is not None and self.last[1] is x and (looked is None) != self.last[0].endswith(LOOKED_AT)
        if same and self.last is not None:
            self.first[name] = self.last[0]
            return
        found = products(x.reshape(-1, x.shape[-1]), looked)
        self.total[name] = self.total[name] + found if name in self.total else found
        self.first[name] = name
        self.last = name, x


def second_moments(
    model: Model, sequences: Sequence[Sequence[int]], tell: Callable[[int], None], leaving_out: tuple[str, ...] = ()
) -> dict[str, Tensor]:
    """By weight: float64 (K, K); weights that read the same share one. `leaving_out`: ends of names."""
    heard = _Heard({weight.data_ptr(): name for name, weight in model.weights.items()}, leaving_out)
    listening = replace(model, operators=replace(OURS, linear=heard.linear, attention=heard.attention))
    with torch.no_grad():
        for sequence in sequences:
            listening.hidden(Batch.of([sequence]))
            heard.last = None
            tell(1)
    return {name: heard.total[first] for name, first in heard.first.items()}


def products(x_TK: Tensor, looked_T: Tensor | None) -> Tensor:
    """float64 (K, K): the sum over tokens, each as often as `looked_T` says, of the channels' products."""
    wide = x_TK.double()
    unit = _unit(wide.abs().amax(0))
    whole = torch.round(wide / unit)
    weighted = whole if looked_T is None else whole * looked_T[:, None]
    # Whole numbers below 2^53 in every partial sum: whatever order torch adds them in.
    return (weighted.T @ whole) * unit[:, None] * unit


def _unit(largest_K: Tensor) -> Tensor:
    """The powers of two of which the largest numbers are 2^CHANNEL_BITS at most."""
    exponent = torch.frexp(largest_K).exponent.long() - CHANNEL_BITS
    return (exponent + 1023 << 52).view(torch.float64)


def looked_at(q_THD: Tensor, k_THD: Tensor) -> Tensor:
    """float64 (T), whole: how much all tokens of a sequence look at each, times 2^ATTENTION_BITS; a mean over heads."""
    tokens, heads, head = q_THD.shape
    group, later = heads // k_THD.shape[1], torch.ones(tokens, tokens).triu(1).bool()
    total = torch.zeros(tokens, dtype=torch.float64)
    for number in range(heads):
        keys = k_THD[:, number // group].float()
        scores = ops.linear(q_THD[:, number].float(), keys) * (1 / math.sqrt(head))
        shares = ops.softmax(scores.masked_fill(later, -math.inf))
        # Whole numbers again: exact.
        total += torch.round(shares.double() * 2.0**SHARE_BITS).sum(0)
    return torch.round(total / heads * 2.0 ** (ATTENTION_BITS - SHARE_BITS))
