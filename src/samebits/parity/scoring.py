"""What the engine said of its tokens beside what the trainer's forward says of them: counted in bits, summed exactly.

Knows neither a reward nor an optimizer. On-policy to the last bit means: no token differs, every ratio is 1.0, and the
divergence is 0.0, all of them exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.model.batch import IGNORED, Batch
from samebits.model.model import Model
from samebits.numerics.bits import compare as compare_bits
from samebits.numerics.elementary import elementary

Spoken = tuple[Sequence[int], Sequence[int]]
"""A prompt and the tokens that were sampled after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The logprobs of an engine and of a trainer, token by token."""

    tokens: int
    mismatched: int
    """Tokens whose two logprobs differ in a bit."""
    largest_difference: float
    """Of trainer - engine, in magnitude, exactly."""
    divergence: float
    """Mean of ratio - 1 - log ratio: an estimate of KL(engine, trainer), never below 0 and 0 only on-policy."""
    least_ratio: float
    most_ratio: float
    """Of the importance ratios exp(trainer - engine), in float32, as the loss uses them."""
    first: str
    """The first difference in hexadecimal, or nothing."""

    @property
    def exact(self) -> bool:
        """Whether what was sampled is what the trainer sees, to the last bit."""
        return not self.mismatched and self.divergence == 0.0 and self.least_ratio == self.most_ratio == 1.0

    def __str__(self) -> str:
        if self.exact:
            return f"0 of {self.tokens} tokens differ; ratio 1 and divergence 0, exactly"
        ratios = f"ratio {self.least_ratio:.9g} to {self.most_ratio:.9g}"
        differences = f"{self.mismatched} of {self.tokens} tokens differ, by up to {self.largest_difference:.3g}"
        return f"{differences}; {ratios}, divergence {self.divergence:.3g}; first {self.first}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"exact": self.exact}


def score(model: Model, spoken: Sequence[Spoken]) -> Tensor:
    """float32, one for each sampled token of all sequences in order: its logprob by one packed forward pass."""
    batch = Batch.of([[*prompt, *tokens[:-1]] for prompt, tokens in spoken], device=model.device)
    targets = [target for prompt, tokens in spoken for target in (*[IGNORED] * (len(prompt) - 1), *tokens)]
    targets_T = torch.tensor(targets, device=model.device)
    logprobs_T = model.logprobs(model.hidden(batch), targets_T)
    return logprobs_T[targets_T != IGNORED]


def importance_ratios(trainer: np.ndarray, engine: np.ndarray) -> np.ndarray:
    """exp(trainer - engine) in float32, by the one exponential that has the same bits everywhere; of equals 1.0."""
    return elementary("exp", np.asarray(trainer - engine, np.float32))


def compare(engine: Tensor, trainer: Tensor) -> Comparison:
    """Both float32, one logprob a token."""
    if engine.shape != trainer.shape or engine.dim() != 1 or not len(engine):
        raise ValueError(
            f"scoring: the engine has logprobs {list(engine.shape)}, the trainer {list(trainer.shape)};"
            " allowed: one a token, of as many tokens, at least 1"
        )
    for name, values in (("engine", engine), ("trainer", trainer)):
        if not bool(values.isfinite().all()):
            place = int((~values.isfinite()).nonzero()[0])
            raise ValueError(f"scoring: the {name}'s logprob of token {place} is {values[place]}; allowed: finite")
    found = compare_bits(engine, trainer)
    ratios = importance_ratios(numbers(trainer), numbers(engine))
    # float32 numbers subtract exactly in float64 unless they lie more than 2^29 apart.
    differences = (numbers(trainer).astype(np.float64) - numbers(engine).astype(np.float64)).tolist()
    return Comparison(
        tokens=len(engine),
        mismatched=0 if found is None else found.count,
        largest_difference=max(map(abs, differences)),
        divergence=math.fsum(math.expm1(each) - each for each in differences) / len(differences),
        least_ratio=float(ratios.min()),
        most_ratio=float(ratios.max()),
        first="" if found is None else str(found).partition("first ")[2],
    )


def numbers(values: Tensor) -> np.ndarray:
    """The tensor's values where Python can read them."""
    array: np.ndarray = values.detach().cpu().numpy()
    return array
