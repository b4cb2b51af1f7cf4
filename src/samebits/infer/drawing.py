"""The next tokens of some requests, and the logprobs they had: what happens between a hidden row and an event.

A token is drawn by its own row, its request's seed and number, and its position. Knows no pages and no batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

import torch
from torch import Tensor

from samebits.infer.request import NO_TOKEN
from samebits.infer.scheduler import Job
from samebits.model import Model
from samebits.nn.strategy import Operators
from samebits.ops import sample

# M rows, K hidden, V vocabulary.

# Rows of a prompt whose logits are in memory at one time.
LOGITS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token, its logprob, and the likeliest tokens with theirs."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class NotFiniteError(ArithmeticError):
    """Some rows have logits from which nothing can be drawn: they are not finite, or not over their temperature."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__(f"logits of rows {rows} are not finite")
        self.rows = rows


@dataclass(frozen=True, slots=True)
class Choices:
    """How each of M rows is drawn from, as `sample` reads it."""

    whole: Tensor
    """int64 (4, M): request, position, top_k, seed."""
    parts: Tensor
    """float32 (2, M): temperature, top_p."""

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> Choices:
        """Of the token to come of each job."""
        ways = [job.request.sampling for job in jobs]
        whole = (
            [job.number for job in jobs],
            [len(job.tokens) for job in jobs],
            [way.top_k for way in ways],
            # As signed numbers of the same 64 bits.
            [way.seed - (way.seed >> 63 << 64) for way in ways],
        )
        parts = ([way.temperature for way in ways], [way.top_p for way in ways])
        return cls(torch.tensor(whole, dtype=torch.int64), torch.tensor(parts, dtype=torch.float32))

    def to(self, device: torch.device) -> Choices:
        return Choices(self.whole.to(device), self.parts.to(device))


def tokens_and_logprobs(operators: Operators, logits_MV: Tensor, choices: Choices) -> tuple[Tensor, Tensor]:
    """(int64, float32) of every row; -1 and 0 where no token can be drawn."""
    requests, positions, top_k, seeds = choices.whole
    temperature, top_p = choices.parts
    tokens_M = sample(
        logits_MV, seed=seeds, requests=requests, positions=positions, temperature=temperature, top_k=top_k, top_p=top_p
    )
    return tokens_M, operators.logprob_of_logits(logits_MV, tokens_M, ignore_index=NO_TOKEN)


def draw(
    model: Model, logits_MV: Tensor, jobs: Sequence[Job], drawn: tuple[Tensor, Tensor] | None = None
) -> list[Drawn]:
    """The next token of each job, whose last one so far has the row of the same place. `drawn`: as
    `tokens_and_logprobs` gives them, if the pass has them already."""
    if drawn is None:
        drawn = tokens_and_logprobs(model.operators, logits_MV, Choices.of(jobs).to(logits_MV.device))
    tokens, logprobs = drawn[0].tolist(), drawn[1].tolist()
    wrong = [
        row for row, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)) if token < 0 or isnan(logprob)
    ]
    if wrong:
        raise NotFiniteError(wrong)
    others = _with_likeliest(model, logits_MV, [job.request.top_logprobs for job in jobs])
    return list(map(Drawn, tokens, logprobs, others))


def likeliest(model: Model, hidden_MK: Tensor, counts: Sequence[int]) -> list[tuple[tuple[int, float], ...]]:
    """The most likely next tokens of each row and their logprobs, so many as are asked for."""
    found: list[tuple[tuple[int, float], ...]] = [()] * len(counts)
    wanted = [row for row, count in enumerate(counts) if count]
    for start in range(0, len(wanted), LOGITS_AT_ONCE):
        rows = wanted[start : start + LOGITS_AT_ONCE]
        told = _with_likeliest(model, model.logits(hidden_MK[rows]), [counts[row] for row in rows])
        for row, each in zip(rows, told, strict=True):
            found[row] = each
    return found


def _with_likeliest(model: Model, logits_MV: Tensor, counts: Sequence[int]) -> list[tuple[tuple[int, float], ...]]:
    """Of each row the tokens with the largest logits, of equals the smaller first, with their logprobs."""
    asked = [_likeliest(logits_MV[row], count) if count else [] for row, count in enumerate(counts)]
    rows = [row for row, ids in enumerate(asked) for _ in ids]
    if not rows:
        return [()] * len(counts)
    ids = torch.tensor([each for ids in asked for each in ids], dtype=torch.int64).to(logits_MV.device)
    values = iter(model.operators.logprob_of_logits(logits_MV[rows], ids).tolist())
    return [tuple((each, next(values)) for each in ids) for ids in asked]


def _likeliest(logits_V: Tensor, count: int) -> list[int]:
    """`topk` alone leaves open which of equals it takes."""
    least = logits_V.topk(min(count, len(logits_V))).values[-1]
    candidates = (logits_V >= least).nonzero()[:, 0]
    order = logits_V[candidates].sort(descending=True, stable=True).indices[:count]
    found: list[int] = candidates[order].tolist()
    return found
