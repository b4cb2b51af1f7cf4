"""What is traced of attention by Triton: packed sequences, whose rows are named by sequence and logical position.

So a prompt, a chunk of it and a single token behind its keys meet under the same names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import torch

from samebits.contracts.traced import Call, Case, Memory, Output, Outputs, TracedKernels, checked
from samebits.ops.attention import triton_kernel
from samebits.ops.attention.check import launches
from samebits.ops.attention.forms import SPLIT_KEYS, Rule, Sequences

Pack: TypeAlias = tuple[tuple[int, int], ...]
# Queries and keys of every sequence of a batch: whole prompts, chunks of one, a single token behind its keys.
PACKS: Final[Sequence[Pack]] = (((66, 66),), ((33, 66),), ((1, 66), (19, 65), (2, 2)), ((5, 5), (3, 66)))
FEW_QUERIES: Final[Sequence[Pack]] = (((6, 66),), ((1, 66),), ((2, 66), (5, 5)))
# One query and three behind a border of splits; what is asked of both is one expression, walked or shared out.
MANY_KEYS: Final[Sequence[Pack]] = (((3, SPLIT_KEYS + 2),), ((1, SPLIT_KEYS + 2), (2, 5)))
HEADS, KEY_HEADS, SIZE = 2, 1, 16


def _named(lengths: np.ndarray, first: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The sequence of every element, and its logical position, head and column."""
    rows = np.concatenate([np.full((n, width), number) for number, n in enumerate(lengths)])
    each = zip(lengths, first, strict=True)
    places = np.concatenate([(start + np.arange(n))[:, None] * width + np.arange(width) for n, start in each])
    return rows, places


def _attention(causal: bool, window: int, softcap: float) -> Call:
    def call(memory: Memory, dtype: torch.dtype, pack: Pack) -> Outputs:
        q_length, k_length = (np.array([pair[side] for pair in pack]) for side in (0, 1))
        q_start, k_start = (np.add.accumulate(lengths) - lengths for lengths in (q_length, k_length))
        q = torch.zeros(int(q_length.sum()), HEADS, SIZE, dtype=dtype)
        k, v = (torch.zeros(int(k_length.sum()), KEY_HEADS, SIZE, dtype=dtype) for _ in range(2))
        memory.add("q", q, *_named(q_length, k_length - q_length, HEADS * SIZE))
        memory.add("k", k, *_named(k_length, 0 * k_length, KEY_HEADS * SIZE))
        memory.add("v", v, *_named(k_length, 0 * k_length, KEY_HEADS * SIZE))
        sequences = Sequences(
            q_start=torch.from_numpy(q_start),
            q_length=torch.from_numpy(q_length),
            k_start=torch.from_numpy(k_start),
            k_length=torch.from_numpy(k_length),
            longest_query=int(q_length.max()),
            longest_key=int(k_length.max()),
        )
        rule = Rule(causal=causal, window=window, scale=0.25, softcap=softcap)
        out, lse = triton_kernel.forward(q, k, v, sequences, rule)
        # Without a causal mask a query's keys are those of its whole sequence: compared within one length.
        first = k_length - q_length + (0 if causal else 10**6) * k_length
        rows, places = _named(q_length, first, HEADS * SIZE)
        return {
            "out": Output(out, rows.reshape(out.shape), places.reshape(out.shape)),
            "lse": Output(lse, *_named(q_length, first, HEADS)),
        }

    return call


def _launches(format: str) -> Sequence[object]:
    """Those of the forward pass."""
    return [each for each in checked(launches)(format) if each is None or isinstance(each, triton_kernel.Launch)]


def _over_sequences(words: str, call: Call, packs: Sequence[Pack] = FEW_QUERIES) -> Case:
    """A row is a sequence; there are two results."""
    rows = lambda pack: 2 * len(pack)  # noqa: E731
    return Case(words=words, call=call, batches=packs, rows=rows, launches=_launches, finite=True)


KERNELS = TracedKernels(
    cases=(
        _over_sequences(
            "causal attention, (queries,keys) of each sequence, D 16", _attention(True, 0, 0.0), packs=PACKS
        ),
        _over_sequences("over two splits of keys", _attention(True, 0, 0.0), packs=MANY_KEYS),
        _over_sequences("with a window of 20", _attention(True, 20, 0.0)),
        _over_sequences("without a mask, softcap 30", _attention(False, 0, 30.0)),
    ),
    variants=("CAUSAL", "WINDOWED", "SOFTCAP", "EXACT", "SEVERAL", "ALONE"),
    # Where 16-bit operands leave bits to spare, it takes the hardware's own power of two.
    approximations=dict.fromkeys(
        ("attention_forward", "attention_merge"), frozenset({"ex2.approx.f32", "ex2.approx.ftz.f32"})
    ),
)
