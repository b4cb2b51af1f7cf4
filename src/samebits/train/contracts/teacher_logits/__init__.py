"""What is kept of a teacher's logits: all of them, or the largest of each row with the exact remainder; and its error.

Knows no file and no model. In float32, all of them are kept bit for bit. Any other form gives back logits whose
softmax at the run's temperature is the live one but for the error that `error` measures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from samebits.numerics.elementary import evaluate
from samebits.ops.softmax import softmax

LOGITS: Final = "logits"
IDS: Final = "ids"
REST: Final = "rest"
"""The logit that each token beside the kept ones has: together they are as probable as they were."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How logits are kept. R rows of V tokens, of which K stay."""

    vocab_size: int
    temperature: float
    """At which the remainder and the error are measured."""
    top_k: int | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.top_k is not None and not 1 <= self.top_k < self.vocab_size:
            allowed = f"1 to {self.vocab_size - 1}, or left out to keep all"
            raise ValueError(f"distillation.top_k: is {self.top_k} of {self.vocab_size} tokens; allowed: {allowed}")

    @property
    def exact(self) -> bool:
        """Whether what is kept has the bits of what was computed."""
        return self.top_k is None and self.dtype == "float32"

    def facts(self) -> dict[str, Any]:
        """What two stores of one form have in common."""
        kept = {"vocab_size": self.vocab_size, "top_k": self.top_k, "dtype": self.dtype}
        return kept if self.exact else kept | {"temperature": self.temperature}

    @property
    def row_bytes(self) -> int:
        """Of one row, as it is kept."""
        size = torch.finfo(getattr(torch, self.dtype)).bits // 8
        return self.vocab_size * size if self.top_k is None else self.top_k * (size + 4) + 4

    def kept(self, logits_RV: Tensor) -> dict[str, Tensor]:
        """Of float32 logits, what is written."""
        if self.exact:
            return {LOGITS: logits_RV}
        dtype = getattr(torch, self.dtype)
        # Rounded are distances from the largest: a probability forgives an error that is small beside its distance.
        start_R1 = logits_RV.amax(-1, keepdim=True) if dtype != torch.float32 else logits_RV.new_zeros(1)
        if self.top_k is None:
            return {LOGITS: (logits_RV - start_R1).to(dtype)}
        ids_RK = largest(logits_RV, self.top_k)
        largest_RK = (logits_RV.gather(-1, ids_RK) - start_R1).to(dtype)
        rest_R = self._rest(logits_RV, ids_RK) - start_R1.squeeze(-1)
        return {IDS: ids_RK.to(torch.int32), LOGITS: largest_RK, REST: rest_R}

    def restored(self, kept: Mapping[str, Tensor]) -> Tensor:
        """float32 (R, V) of what was written."""
        if self.top_k is None:
            return kept[LOGITS].float()
        logits_RV = kept[REST][:, None].repeat(1, self.vocab_size)
        return logits_RV.scatter_(-1, kept[IDS].long(), kept[LOGITS].float())

    def error(self, logits_RV: Tensor, kept: Mapping[str, Tensor]) -> float:
        """The most by which a token's probability is off."""
        if self.exact:
            return 0.0
        live_RV, found_RV = self.probabilities(logits_RV), self.probabilities(self.restored(kept))
        return float((live_RV - found_RV).abs().max())

    def probabilities(self, logits_RV: Tensor) -> Tensor:
        inverse = float(np.float32(1.0) / np.float32(self.temperature))
        return softmax(logits_RV * inverse)

    def _rest(self, logits_RV: Tensor, ids_RK: Tensor) -> Tensor:
        """T log(mean probability of the others / the largest probability) above the largest logit; -inf of nothing.

        The sum of the others' probabilities is exact, and rounded once."""
        p_RV = self.probabilities(logits_RV)
        highest_R = p_RV.amax(-1)
        others_RV = p_RV.scatter(-1, ids_RK, 0.0)
        sums_R = np.array([math.fsum(row) for row in others_RV.cpu().numpy().tolist()])
        share_R = sums_R / (self.vocab_size - ids_RK.shape[1]) / highest_R.cpu().numpy().astype(np.float64)
        with np.errstate(divide="ignore"):
            below_R = evaluate("log", share_R.astype(np.float32)) * np.float32(self.temperature)
        return logits_RV.amax(-1) + torch.from_numpy(below_R).to(logits_RV.device)


def largest(logits_RV: Tensor, count: int) -> Tensor:
    """int64 (R, count): the tokens of the largest logits, ascending; of equal ones the smaller tokens."""
    least_R1 = logits_RV.topk(count, -1).values[:, -1:]
    above_RV, equal_RV = logits_RV > least_R1, logits_RV == least_R1
    wanted_R1 = count - above_RV.sum(-1, keepdim=True)
    chosen_RV = above_RV | (equal_RV & (equal_RV.cumsum(-1) <= wanted_R1))
    return chosen_RV.nonzero()[:, 1].reshape(len(logits_RV), count)
