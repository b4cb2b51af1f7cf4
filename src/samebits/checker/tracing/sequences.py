"""How the tracer calls attention: packed sequences, whose rows are named by sequence and logical position.

So a prompt, a chunk of it and a single token behind its keys meet under the same names. Knows no expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch

from samebits.checker.tracing.components import Output, Outputs, checked_launches, kernels
from samebits.checker.tracing.memory import Memory

# Queries and keys of every sequence of a batch: whole prompts, chunks of one, a single token behind its keys.
PACKS: Final = (((66, 66),), ((33, 66),), ((1, 66), (19, 65), (2, 2)), ((5, 5), (3, 66)))
FEW_QUERIES: Final = (((6, 66),), ((1, 66),), ((2, 66), (5, 5)))


def attention(
    causal: bool, window: int, softcap: float
) -> Callable[[Memory, torch.dtype, tuple[tuple[int, int], ...]], Outputs]:
    def call(memory: Memory, dtype: torch.dtype, pack: tuple[tuple[int, int], ...]) -> Outputs:
        from samebits.ops.attention.forms import Rule, Sequences

        heads, key_heads, size = 2, 1, 16
        q_length, k_length = (np.array([pair[side] for pair in pack]) for side in (0, 1))
        q_start, k_start = (np.cumsum(lengths) - lengths for lengths in (q_length, k_length))

        def named(lengths: np.ndarray, first: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
            """The sequence of every element, and its logical position, head and column."""
            rows = np.concatenate([np.full((n, width), number) for number, n in enumerate(lengths)])
            places = np.concatenate(
                [
                    (start + np.arange(n))[:, None] * width + np.arange(width)
                    for n, start in zip(lengths, first, strict=True)
                ]
            )
            return rows, places

        q = torch.zeros(int(q_length.sum()), heads, size, dtype=dtype)
        k, v = (torch.zeros(int(k_length.sum()), key_heads, size, dtype=dtype) for _ in range(2))
        memory.add("q", q, *named(q_length, k_length - q_length, heads * size))
        memory.add("k", k, *named(k_length, 0 * k_length, key_heads * size))
        memory.add("v", v, *named(k_length, 0 * k_length, key_heads * size))
        sequences = Sequences(
            q_start=torch.from_numpy(q_start),
            q_length=torch.from_numpy(q_length),
            k_start=torch.from_numpy(k_start),
            k_length=torch.from_numpy(k_length),
            longest_query=int(q_length.max()),
            longest_key=int(k_length.max()),
        )
        rule = Rule(causal=causal, window=window, scale=0.25, softcap=softcap)
        out, lse = kernels("attention").forward(q, k, v, sequences, rule)
        # Without a causal mask a query's keys are those of its whole sequence: compared within one length.
        length = 0 if causal else 10**6
        rows, places = named(q_length, k_length - q_length + length * k_length, heads * size)
        rows_lse, places_lse = named(q_length, k_length - q_length + length * k_length, heads)
        return {
            "out": Output(out, rows.reshape(out.shape), places.reshape(out.shape)),
            "lse": Output(lse, rows_lse, places_lse),
        }

    return call


def attention_launches(format: str) -> Sequence[object]:
    from samebits.ops.attention.triton_kernel import Launch

    return [launch for launch in checked_launches("attention")(format) if launch is None or isinstance(launch, Launch)]
