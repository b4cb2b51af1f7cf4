"""The next tokens of some requests, and the logprobs they had: what happens between a hidden row and an event.

A token is drawn by its own row, its request's seed and number, and its position. Knows no pages and no batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samebits.infer.scheduler import Job
from samebits.model import Model
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
    """Some rows have logits from which nothing can be drawn."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__(f"logits of rows {rows} are not finite")
        self.rows = rows


def draw(model: Model, hidden_MK: Tensor, jobs: Sequence[Job]) -> list[Drawn]:
    """The next token of each job, whose last one so far has the row of the same place."""
    logits_MV = model.logits(hidden_MK)
    tokens = _tokens(logits_MV, jobs)
    likeliest = [_likeliest(logits_MV[row], job.request.top_logprobs) for row, job in enumerate(jobs)]
    asked = [[max(token, 0), *others] for token, others in zip(tokens, likeliest, strict=True)]
    logprobs = _logprobs(model, logits_MV, asked)
    if min(tokens) < 0 or any(each != each for row in logprobs for each in row):
        raise NotFiniteError((~torch.isfinite(logits_MV).all(1)).nonzero()[:, 0].tolist())
    return [
        Drawn(token, values[0], tuple(zip(others, values[1:], strict=True)))
        for token, others, values in zip(tokens, likeliest, logprobs, strict=True)
    ]


def likeliest(model: Model, hidden_MK: Tensor, counts: Sequence[int]) -> list[tuple[tuple[int, float], ...]]:
    """The most likely next tokens of each row and their logprobs, so many as are asked for."""
    found: list[tuple[tuple[int, float], ...]] = [()] * len(counts)
    wanted = [row for row, count in enumerate(counts) if count]
    for start in range(0, len(wanted), LOGITS_AT_ONCE):
        rows = wanted[start : start + LOGITS_AT_ONCE]
        logits_MV = model.logits(hidden_MK[rows])
        asked = [_likeliest(logits_V, counts[row]) for logits_V, row in zip(logits_MV, rows, strict=True)]
        for row, ids, values in zip(rows, asked, _logprobs(model, logits_MV, asked), strict=True):
            found[row] = tuple(zip(ids, values, strict=True))
    return found


def _tokens(logits_MV: Tensor, jobs: Sequence[Job]) -> list[int]:
    """-1 where there is none. Rows of one seed are drawn in one call; each is drawn by itself all the same."""
    tokens = [0] * len(jobs)
    by_seed: dict[int, list[int]] = {}
    for row, job in enumerate(jobs):
        by_seed.setdefault(job.request.sampling.seed, []).append(row)
    for seed, rows in by_seed.items():
        drawn = sample(
            logits_MV if len(rows) == len(jobs) else logits_MV[rows],
            seed=seed,
            **_choices([jobs[row] for row in rows], logits_MV.device),
        )
        for row, token in zip(rows, drawn.tolist(), strict=True):
            tokens[row] = token
    return tokens


def _choices(jobs: Sequence[Job], device: torch.device) -> dict[str, Any]:
    """What `sample` is told about each row; the position is that of the token to come."""
    ways = [job.request.sampling for job in jobs]
    whole = {
        "requests": [job.number for job in jobs],
        "positions": [len(job.tokens) for job in jobs],
        "top_k": [way.top_k for way in ways],
    }
    parts = {"temperature": [way.temperature for way in ways], "top_p": [way.top_p for way in ways]}
    numbers = {name: torch.tensor(values, dtype=torch.int64).to(device) for name, values in whole.items()}
    return numbers | {name: torch.tensor(values, dtype=torch.float32).to(device) for name, values in parts.items()}


def _likeliest(logits_V: Tensor, count: int) -> list[int]:
    """The tokens with the largest logits, of equals the smaller first: `topk` alone leaves that open."""
    if count == 0:
        return []
    least = logits_V.topk(min(count, len(logits_V))).values[-1]
    candidates = (logits_V >= least).nonzero()[:, 0]
    order = logits_V[candidates].sort(descending=True, stable=True).indices[:count]
    found: list[int] = candidates[order].tolist()
    return found


def _logprobs(model: Model, logits_MV: Tensor, asked: Sequence[Sequence[int]]) -> list[list[float]]:
    """Of the asked tokens of each row, by the model's own operator, without a second pass over the head's weight.

    The operator multiplies, then takes the logprob. One times a logit plus zeros is that logit, so a row of the
    identity as hidden state and the logits as weight give the bits of the hidden state and the head's weight."""
    rows = [row for row, ids in enumerate(asked) for _ in ids]
    ids = torch.tensor([each for ids in asked for each in ids], dtype=torch.int64).to(logits_MV.device)
    identity_MM = torch.eye(len(asked), dtype=logits_MV.dtype, device=logits_MV.device)
    hidden = identity_MM if len(rows) == len(asked) else identity_MM[rows]
    values = iter(model.operators.logprob(hidden, logits_MV.T, ids, None).tolist())
    return [[next(values) for _ in row] for row in asked]
