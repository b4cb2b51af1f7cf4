"""What every backend of attention is told besides q, k and v: which rows belong to which sequence, and who sees whom.

A backend is a module with two functions of these arguments (storage dtype float32, bfloat16 or float16):

    forward(q_THD, k_THD, v_THD, sequences, rule) -> (out_THD, lse2_TH)
    backward(dout_THD, q_THD, k_THD, v_THD, out_THD, lse2_TH, sequences, rule) -> (dq_THD, dk_THD, dv_THD)

q is (query tokens, query heads, D), k and v are (key tokens, key heads, D): last axis contiguous, other strides free.
Query head h uses key head h // (query heads / key heads). out, lse2 (float32) and the gradients are contiguous; rows of
no sequence hold 0 in out and in the gradients and +inf in lse2. backward has no pages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

# Decides bits: keys of a block, counted from the sequence's own first key, wherever it lies in memory.
BLOCK_KEYS = 64
# Decides bits: keys of a split, counted likewise; each is a softmax of its own, and splits are merged left to right.
SPLIT_KEYS = 32 * BLOCK_KEYS
# Decides bits: partial sums of a row's weights; a block's 64 weights are folded by halves down to these.
WEIGHT_LANES = 8
# The logarithm of e to the base 2 in float64, written down: a C library need not round it like this.
LOG2_E = 1.4426950408889634


def rescalings(keys: int) -> int:
    """How often what is summed of a row may be multiplied by a power: at each block of a split, at each merge."""
    splits = -(-keys // SPLIT_KEYS)
    return -(-min(keys, SPLIT_KEYS) // BLOCK_KEYS) + max(0, splits - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequences:
    """Sequence n has queries q_start[n] .. q_start[n] + q_length[n] of q and keys likewise; queries come last."""

    q_start: Tensor
    """(N) int64, on the device of q; so are the next three."""
    q_length: Tensor
    k_start: Tensor
    """Not read where there are pages."""
    k_length: Tensor
    pages: Tensor | None = None
    """(N, most pages) int32: key j of sequence n is row pages[n, j // page_size] * page_size + j % page_size of k."""
    page_size: int = 0
    """A multiple of 16; 0 without pages."""
    longest_query: int
    """At least the largest of q_length, known without asking the device."""
    longest_key: int

    @property
    def count(self) -> int:
        return self.q_start.shape[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Which keys a query sees and how scores become weights. The query at place i stands at i + k_length - q_length."""

    causal: bool
    window: int
    """Keys less than this far from the query are seen; 0 means any distance."""
    scale: float
    softcap: float
    """0 means none."""

    @property
    def score_factor(self) -> float:
        """With a softcap, what a score is multiplied by inside the tanh; a float32."""
        return float(np.float32(self.scale / self.softcap)) if self.softcap else 1.0

    @property
    def cap(self) -> float:
        """With a softcap, what the tanh is multiplied by; a float32."""
        return float(np.float32(self.softcap))

    @property
    def exponent_factor(self) -> float:
        """c: weights are 2^(c z - maximum); a float32."""
        return float(np.float32(LOG2_E if self.softcap else self.scale * LOG2_E))

    @property
    def gradient_factor(self) -> float:
        """What the chains of dq and dk are multiplied by at their end; a float32."""
        return float(np.float32(self.scale))

    def seen(self, position: int, k_length: int) -> tuple[int, int]:
        """The keys [first, stop) that the query at `position` sees; empty where first >= stop."""
        first = max(0, position - self.window + 1) if self.window else 0
        ahead = 1 if self.causal else self.window or k_length - position
        return first, min(k_length, position + ahead)
