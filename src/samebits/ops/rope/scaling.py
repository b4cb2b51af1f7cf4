"""How fast each pair of a head turns: theta's powers, and the ways in which long-context models bend them.

Knows no tensor and no kernel. Powers and logarithms are taken to forty decimal digits and rounded once, so that no
machine's mathematical library can reach a bit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Context, Decimal, localcontext
from functools import cache
from typing import Any, Final, Self

KINDS: Final = ("linear", "llama3", "yarn")
DIGITS: Final = Context(prec=40)
# What a published config may say beside the numbers that a kind needs, without a change of the frequencies.
SILENT: Final = {"rope_type", "type", "rope_theta", "max_position_embeddings"}
NEEDED: Final = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
OPTIONAL: Final[dict[str, tuple[str, ...]]] = {
    "linear": (),
    "llama3": (),
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeScaling:
    """One way to stretch positions, under the names that published configs use for its numbers."""

    kind: str
    """"linear", "llama3" or "yarn"."""
    factor: float
    """How many times longer the context becomes."""
    original_max_position_embeddings: int = 0
    """llama3, yarn: the context length before stretching."""
    low_freq_factor: float = 1.0
    """llama3: pairs that turn fewer times than this in the original context are stretched by the whole factor."""
    high_freq_factor: float = 4.0
    """llama3: pairs that turn more times than this are left alone."""
    beta_fast: float = 32.0
    """yarn: as high_freq_factor."""
    beta_slow: float = 1.0
    """yarn: as low_freq_factor."""
    truncate: bool = True
    """yarn: whether the range between the two is widened to whole pairs."""
    attention_factor: float | None = None
    """yarn: what sine and cosine are multiplied by; None: 0.1 ln(factor) + 1."""
    text: str = field(init=False, repr=False, compare=False, default="")
    """All of it as JSON: what an operator of torch can be handed."""

    def __post_init__(self) -> None:
        if self.kind == "dynamic":
            raise ValueError(
                "rope: scaling kind 'dynamic' depends on the longest sequence of the batch, so a row would not keep"
                f" its bits; allowed: {', '.join(KINDS)}"
            )
        if self.kind not in KINDS:
            raise ValueError(f"rope: scaling kind is {self.kind!r}; allowed: {', '.join(KINDS)}")
        if not 1.0 <= self.factor < math.inf:
            raise ValueError(f"rope: scaling factor is {self.factor}; allowed: finite, at least 1")
        if self.kind != "linear" and self.original_max_position_embeddings < 1:
            raise ValueError(
                f"rope: original_max_position_embeddings is {self.original_max_position_embeddings};"
                f" allowed with {self.kind!r}: at least 1"
            )
        for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
            if not 0.0 < getattr(self, low) < getattr(self, high) < math.inf:
                raise ValueError(
                    f"rope: {low} is {getattr(self, low)}, {high} is {getattr(self, high)};"
                    f" allowed: finite, 0 < {low} < {high}"
                )
        if self.attention_factor is not None and not 0.0 < self.attention_factor < math.inf:
            raise ValueError(f"rope: attention_factor is {self.attention_factor}; allowed: finite, above 0")
        numbers = {name: value for name, value in asdict(self).items() if name != "text"}
        object.__setattr__(self, "text", json.dumps(numbers))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The scaling whose `text` this is."""
        return cls(**json.loads(text))

    @classmethod
    def from_config(cls, parameters: Mapping[str, Any] | None) -> Self | None:
        """From the `rope_scaling` or `rope_parameters` of a model's config; None where it asks for no scaling.

        A key that would change the frequencies in a way not known here is refused, never passed over."""
        given = {name: value for name, value in (parameters or {}).items() if value is not None}
        kind = given.get("rope_type", given.get("type", "default"))
        known = SILENT | {*NEEDED.get(kind, ()), *OPTIONAL.get(kind, ())}
        if given.get("partial_rotary_factor") == 1.0:
            known.add("partial_rotary_factor")
        if kind in KINDS or kind == "default":
            unknown, missing = sorted(set(given) - known), [name for name in NEEDED.get(kind, ()) if name not in given]
            if unknown or missing:
                raise ValueError(
                    f"rope: scaling {kind!r} was given {', '.join(unknown) or 'nothing'} too much and lacks"
                    f" {', '.join(missing) or 'nothing'}; allowed: {', '.join(sorted(known))}"
                )
        if kind == "default":
            return None
        numbers = {name: given[name] for name in known - SILENT - {"partial_rotary_factor"} if name in given}
        mscale, mscale_all = numbers.pop("mscale", None), numbers.pop("mscale_all_dim", None)
        if mscale and mscale_all and "attention_factor" not in numbers:
            factor = numbers["factor"]
            numbers["attention_factor"] = _attention(factor, mscale) / _attention(factor, mscale_all)
        return cls(kind=kind, **{"factor": 1.0, **numbers})


def _ln(value: float) -> float:
    with localcontext(DIGITS):
        return float(Decimal(value).ln())


def _attention(factor: float, scale: float = 1.0) -> float:
    return 0.1 * scale * _ln(factor) + 1.0


@cache
def _powers(size: int, theta: float) -> tuple[float, ...]:
    """theta ** (-2i / size) for every pair i."""
    with localcontext(DIGITS):
        base = Decimal(theta)
        return tuple(float(base ** (Decimal(-2 * pair) / size)) for pair in range(size // 2))


@cache
def attention_factor(scaling: RopeScaling | None) -> float:
    """What sine and cosine are multiplied by."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    return _attention(scaling.factor) if scaling.attention_factor is None else scaling.attention_factor


@cache
def frequencies(size: int, theta: float, scaling: RopeScaling | None) -> tuple[float, ...]:
    """The angle in radians by which each pair of a head of `size` turns from one position to the next, in float64."""
    plain = _powers(size, theta)
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return tuple(each / scaling.factor for each in plain)
    kept = _kept_by_turns(plain, scaling) if scaling.kind == "llama3" else _kept_by_pair(size, theta, scaling)
    return tuple((1.0 - share) * each / scaling.factor + share * each for each, share in zip(plain, kept, strict=True))


def _kept_by_turns(plain: tuple[float, ...], scaling: RopeScaling) -> list[float]:
    """llama3: how much of each frequency is kept, by how often it turns in the original context."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = [scaling.original_max_position_embeddings * each / (2 * math.pi) for each in plain]
    return [min(max((each - low) / (high - low), 0.0), 1.0) for each in turns]


def _kept_by_pair(size: int, theta: float, scaling: RopeScaling) -> list[float]:
    """yarn: how much of each frequency is kept, falling linearly from pair `first` to pair `last`."""

    def pair_that_turns(times: float) -> float:
        context = scaling.original_max_position_embeddings / (times * 2 * math.pi)
        return size * _ln(context) / (2 * _ln(theta))

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = float(math.floor(first)), float(math.ceil(last))
    first, last = max(first, 0.0), min(last, size - 1.0)
    if first == last:
        last += 0.001
    return [1.0 - min(max((pair - first) / (last - first), 0.0), 1.0) for pair in range(size // 2)]
