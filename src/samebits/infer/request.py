"""What is asked of the engine and what it answers: typed values, judged when they are made.

Knows neither a model nor a batch: what only a model can refuse is refused by the engine."""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Real
from typing import Final, Literal

from samebits.ops.sample import LEAST_TEMPERATURE

Finish = Literal["stop", "length", "cancelled"]
# What is drawn with is a float32: a smaller top_p would be 0 there, a larger temperature infinite.
LEAST_TOP_P: Final = 2.0**-149
LARGEST_TEMPERATURE: Final = 2.0**128 - 2.0**104
# The most tokens whose logprobs are told beside the drawn one: each costs a pass over the vocabulary.
MOST_TOP: Final = 20
# The token of an event that brings none.
NO_TOKEN: Final = -1


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. All of it decides bits."""

    temperature: float = 1.0
    """0 takes the most likely token, the first of equals."""
    top_k: int = 0
    """Only the k most likely; 0: all."""
    top_p: float = 1.0
    """Of these the most likely until their probabilities reach top_p."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p"):
            value = getattr(self, name)
            if not isinstance(value, Real) or isinstance(value, bool):
                raise TypeError(f"sampling: {name} is {value!r:.60}; allowed: a number")
        if not (self.temperature == 0 or LEAST_TEMPERATURE <= self.temperature <= LARGEST_TEMPERATURE):
            allowed = f"0, or {LEAST_TEMPERATURE} to {LARGEST_TEMPERATURE:.7g}"
            raise ValueError(f"sampling: temperature is {self.temperature}; allowed: {allowed}")
        if type(self.top_k) is not int or not 0 <= self.top_k < 2**63:
            raise ValueError(f"sampling: top_k is {self.top_k!r}; allowed: a whole number, 0 to 2^63 - 1")
        if not LEAST_TOP_P <= self.top_p <= 1:
            raise ValueError(f"sampling: top_p is {self.top_p}; allowed: {LEAST_TOP_P:.2g} to 1")
        if type(self.seed) is not int or not 0 <= self.seed < 2**64:
            raise ValueError(f"sampling: seed is {self.seed!r}; allowed: a whole number, 0 to 2^64 - 1")


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and how it goes on. The answer is a function of this value and of the weights alone."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop: frozenset[int] = frozenset()
    """Tokens that end the answer; the one that did is its last."""
    number: int | None = None
    """With the seed and the position it keys the draw: several answers to one prompt need several numbers.
    None: a number made of the prompt, never of when the request came."""
    score_prompt: bool = False
    """Whether the prompt's own tokens get logprobs; no page of the prompt is then taken from an earlier request."""
    top_logprobs: int = 0
    """How many of the most likely tokens are told at each position."""

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, tuple | list):
            raise TypeError(f"request: the prompt is a {type(self.prompt).__name__}; allowed: a tuple of token numbers")
        if not isinstance(self.sampling, Sampling):
            raise TypeError(f"request: sampling is {self.sampling!r:.60}; allowed: a Sampling")
        if not isinstance(self.stop, Collection) or any(type(token) is not int for token in self.stop):
            raise TypeError(f"request: stop is {self.stop!r:.60}; allowed: a set of token numbers")
        if type(self.score_prompt) is not bool:
            raise TypeError(f"request: score_prompt is {self.score_prompt!r:.60}; allowed: True, False")
        if not self.prompt:
            raise ValueError("request: the prompt has 0 tokens; allowed: at least 1")
        if type(self.max_tokens) is not int or self.max_tokens < 1:
            raise ValueError(f"request: max_tokens is {self.max_tokens!r}; allowed: a whole number, at least 1")
        if type(self.top_logprobs) is not int or not 0 <= self.top_logprobs <= MOST_TOP:
            raise ValueError(f"request: top_logprobs is {self.top_logprobs!r}; allowed: 0 to {MOST_TOP}")
        if self.number is not None and (type(self.number) is not int or not -(2**63) <= self.number < 2**63):
            raise ValueError(f"request: number is {self.number!r:.60}; allowed: a whole number, -2^63 to 2^63 - 1")

    @property
    def key(self) -> int:
        """The number that keys the draw."""
        if self.number is not None:
            return self.number
        digest = hashlib.blake2b(array("q", self.prompt).tobytes(), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)


@dataclass(frozen=True, slots=True)
class Completion:
    """All of an answer. Logprobs are float32 values of the model as it is, whatever the temperature."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    prompt_logprobs: tuple[float, ...] | None
    """Of prompt[1], prompt[2], ...: the first token comes after nothing. None where not asked for."""
    finished: Finish
    cached_tokens: int
    """Tokens of the prompt that an earlier request had computed."""


@dataclass(frozen=True, slots=True)
class Event:
    """One drawn token, or the end of a request that was cancelled: then the token is -1 and its logprob NaN."""

    ticket: int
    token: int
    logprob: float
    index: int
    """The token's place in the answer."""
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens and their logprobs, likeliest first, of equals the smaller token."""
    finished: Finish | None = None
    prompt_logprobs: tuple[float, ...] | None = None
    """With the first token, where they were asked for."""
    prompt_top: tuple[tuple[tuple[int, float], ...], ...] | None = None
    """Beside each of these the most likely tokens, as in `top`."""
    completion: Completion | None = None
    """With the last event: all of the answer."""


def bits(logprob: float) -> str:
    """The pattern of the float32 that a logprob is, as eight hexadecimal digits: what must be equal to be the same."""
    return struct.pack(">f", logprob).hex()
