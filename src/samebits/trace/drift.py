"""Alarms: a run whose numbers drift, told at the first step, with the granularity and the place.

A breach of a contract stops a run; an alarm is told and the run goes on. Knows numbers by name, no model."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

# Steps that a rule looks back on, and how many it must have seen before it compares. As many that alarm, one after the
# other, are a new level.
WINDOW: Final = 50
LEAST: Final = 8
# A gradient norm so many times the median of the window explodes; a loss so many spreads above it diverges; less than
# this share of the median throughput is a drop.
EXPLODES: Final = 10.0
DIVERGES: Final = 8.0
DROPS: Final = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm:
    """What drifts, where, since when."""

    kind: str
    """"not finite", "gradient explosion", "loss divergence", "dead gradient" or "throughput drop"."""
    granularity: str
    brick: str
    step: int
    value: float
    allowed: str

    def __str__(self) -> str:
        seen = f"{self.granularity} {self.brick} is {self.value:.6g}"
        return f"{self.kind}: step {self.step}: {seen}; expected {self.allowed}"

    def facts(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """A block's gradient as a sample shows it."""

    not_finite: int
    zeros: int
    elements: int
    largest: float


class Drift:
    """Watches one run. Each alarm is told once, at the step where it begins, until its cause has gone.

    A number is compared with those before it that raised no alarm: a second spike is told as the first was. Where
    `LEAST` steps in a row alarm, theirs is the level that counts from then on: what comes on top of it is told."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[float]] = {}
        self._aside: dict[str, list[float]] = {}
        """Numbers in a row that alarm."""
        self._on: set[tuple[str, str]] = set()

    def observe(
        self,
        step: int,
        *,
        loss: float,
        norm: float,
        tokens_per_second: float | None = None,
        blocks: Mapping[str, Sampled] | None = None,
    ) -> list[Alarm]:
        """What begins at this step."""
        blocks = blocks or {}
        found = [
            self._finite("step", "loss", step, loss),
            self._finite("step", "gradient norm", step, norm),
            self._above("gradient explosion", "gradient norm", step, norm, EXPLODES * self._median("gradient norm")),
            self._above("loss divergence", "loss", step, loss, self._loss_limit()),
            *(self._block(name, step, sampled) for name, sampled in blocks.items()),
        ]
        if tokens_per_second is not None:
            found.append(self._slow(step, tokens_per_second))
        self._keep("loss", loss, "loss divergence")
        self._keep("gradient norm", norm, "gradient explosion")
        return [alarm for alarm in found if alarm is not None]

    def _finite(self, granularity: str, brick: str, step: int, value: float) -> Alarm | None:
        return self._told(
            not math.isfinite(value),
            Alarm(kind="not finite", granularity=granularity, brick=brick, step=step, value=value, allowed="finite"),
        )

    def _above(self, kind: str, brick: str, step: int, value: float, limit: float) -> Alarm | None:
        alarm = Alarm(
            kind=kind, granularity="step", brick=brick, step=step, value=value, allowed=f"at most {limit:.6g}"
        )
        return self._told(math.isfinite(value) and value > limit, alarm)

    def _block(self, name: str, step: int, sampled: Sampled) -> Alarm | None:
        given = {"granularity": "block", "brick": name, "step": step}
        bad = Alarm(kind="not finite", value=math.nan, allowed="finite", **given)  # type: ignore[arg-type]
        dead = Alarm(kind="dead gradient", value=0.0, allowed="some that is not 0", **given)  # type: ignore[arg-type]
        return self._told(sampled.not_finite > 0, bad) or self._told(sampled.zeros == sampled.elements, dead)

    def _slow(self, step: int, speed: float) -> Alarm | None:
        limit = DROPS * self._median("tokens a second", empty=0.0)
        alarm = Alarm(
            kind="throughput drop",
            granularity="step",
            brick="tokens a second",
            step=step,
            value=speed,
            allowed=f"at least {limit:.6g}",
        )
        told = self._told(speed < limit, alarm)
        self._keep("tokens a second", speed, "throughput drop")
        return told

    def _loss_limit(self) -> float:
        """Above what the window has shown by several of its spreads; a loss that falls steadily has a spread too."""
        seen = self._seen.get("loss", ())
        if len(seen) < LEAST:
            return math.inf
        middle = statistics.median(seen)
        spread = statistics.median(abs(each - middle) for each in seen)
        return max(seen) + DIVERGES * max(spread, 0.01 * abs(middle))

    def _median(self, brick: str, empty: float = math.inf) -> float:
        seen = self._seen.get(brick, ())
        return statistics.median(seen) if len(seen) >= LEAST else empty

    def _keep(self, brick: str, value: float, kind: str) -> None:
        """For what later numbers are compared with. A number that alarms is kept aside until its level has lasted."""
        if not math.isfinite(value):
            return
        seen = self._seen.setdefault(brick, deque(maxlen=WINDOW))
        aside = self._aside.setdefault(brick, [])
        if (kind, brick) not in self._on:
            aside.clear()
            seen.append(value)
            return
        aside.append(value)
        if len(aside) == LEAST:
            seen.clear()
            seen.extend(aside)
            aside.clear()

    def _told(self, wrong: bool, alarm: Alarm) -> Alarm | None:
        key = (alarm.kind, alarm.brick)
        if not wrong:
            self._on.discard(key)
            return None
        if key in self._on:
            return None
        self._on.add(key)
        return alarm
