"""What a training step would cost on so many GPUs, with which layout, with and without each promise.

For every number of GPUs and every set of promises the fastest allowed layout is taken. A prediction is a model's
word: `validate` says how far such words were off where others have measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from samebits.sim.gpus import Cluster
from samebits.sim.layouts import Layout, Training, layouts_of, memory, refusals
from samebits.sim.step import Step
from samebits.sim.step_clock import Event

EFFICIENCIES: Final = ("gemm_efficiency", "attention_efficiency", "memory_efficiency")
# Of the preset's efficiencies; slower kernels are a mistake.
SLOWEST: Final = 0.01
BISECTIONS: Final = 24
# Nothing, each promise alone, both: what keeping the bits of one device adds.
SETS: Final[tuple[tuple[str, ...], ...]] = ((), ("data",), ("tensor",), ("data", "tensor"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """A step of one layout."""

    gpus: int
    promises: tuple[str, ...]
    layout: Layout
    seconds: float
    tokens_per_s: float
    utilisation: float
    """Products' FLOPs over the peak of all GPUs."""
    memory: float
    """Bytes of a GPU."""
    waiting: float
    """The part of the step in which a GPU's kernels wait for messages."""
    beside_native: float
    """Its time over that of the same layout without promises."""
    sent: dict[str, float]
    """Bytes of the first rank's collectives, by what they are for."""
    events: tuple[Event, ...] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        return {
            "gpus": self.gpus,
            "promises": list(self.promises),
            "layout": str(self.layout),
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_s,
            "utilisation": self.utilisation,
            "memory_bytes": self.memory,
            "waiting": self.waiting,
            "against_same_layout": self.beside_native,
            "bytes": self.sent,
        }


@dataclass(frozen=True, slots=True)
class Refused:
    """A number of GPUs on which no layout is allowed, and why not."""

    gpus: int
    promises: tuple[str, ...]
    reasons: tuple[tuple[Layout, str], ...]

    def __str__(self) -> str:
        layout, reason = self.reasons[-1]
        more = f"; {len(self.reasons) - 1} other layouts are refused too" if len(self.reasons) > 1 else ""
        return f"{self.gpus:,} GPUs as {layout}: {reason}{more}"

    def as_dict(self) -> dict[str, Any]:
        told = [{"layout": str(layout), "reason": reason} for layout, reason in self.reasons]
        return {"gpus": self.gpus, "promises": list(self.promises), "refused": told}


def as_fast_as(cluster: Cluster, training: Training, tokens_per_s: float) -> Cluster:
    """The same GPUs with kernels as fast as one of them was measured to be on this training, if it had the memory."""
    if not tokens_per_s > 0:
        raise ValueError(f"measured is {tokens_per_s} tokens a second; allowed: above 0")
    low, high = SLOWEST, 1 / max(cluster.device.gemm_efficiency, cluster.device.memory_efficiency)

    def scaled(factor: float) -> Cluster:
        device = cluster.device
        changed = {name: getattr(device, name) * factor for name in EFFICIENCIES}
        return replace(cluster, device=replace(device, **changed))

    def rate(factor: float) -> float:
        return training.tokens / Step(training, Layout(1, 1), scaled(factor), frozenset()).run().finish

    if not rate(low) <= tokens_per_s <= rate(high):
        raise ValueError(
            f"measured is {tokens_per_s:,.0f} tokens a second; allowed on a {cluster.device.name}:"
            f" {rate(low):,.0f} to {rate(high):,.0f}, at its peak"
        )
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if rate(middle) < tokens_per_s else (low, middle)
    return scaled(low)


def predict(training: Training, layout: Layout, cluster: Cluster, promises: Sequence[str]) -> Prediction:
    """One layout, which must be allowed."""
    chosen = frozenset(promises)
    step = Step(training, layout, cluster, chosen)
    clock = step.run()
    seconds = clock.finish
    native = predict(training, layout, cluster, ()).seconds if chosen else seconds
    return Prediction(
        gpus=layout.size,
        promises=tuple(promises),
        layout=layout,
        seconds=seconds,
        tokens_per_s=training.tokens / seconds,
        memory=memory(training, layout, chosen),
        utilisation=training.flops / seconds / layout.size / cluster.device.flops[training.dtype],
        waiting=clock.waited / seconds,
        beside_native=seconds / native,
        sent=dict(step.sent),
        events=tuple(clock.events),
    )


def fastest(
    training: Training, gpus: int, cluster: Cluster, promises: Sequence[str], layouts: Sequence[Layout] = ()
) -> Prediction | Refused:
    """The fastest allowed layout of so many GPUs, among some or among all."""
    tried = [layout for layout in layouts if layout.size == gpus] or list(layouts_of(gpus, cluster))
    refused = [
        (layout, reasons[0])
        for layout in tried
        if (reasons := refusals(training, layout, cluster, frozenset(promises)))
    ]
    allowed = [layout for layout in tried if layout not in dict(refused)]
    if not allowed:
        return Refused(gpus, tuple(promises), tuple(refused))
    found = [predict(training, layout, cluster, promises) for layout in allowed]
    return min(found, key=lambda each: each.seconds)


def predict_all(
    training: Training, gpus: Sequence[int], cluster: Cluster, layouts: Sequence[Layout] = ()
) -> list[Prediction | Refused]:
    """Every number of GPUs with every set of promises."""
    for count in gpus:
        if count < 1:
            raise ValueError(f"gpus is {count}; allowed: at least 1")
    unused = [str(layout) for layout in layouts if layout.size not in gpus]
    if unused:
        sizes = ", ".join(f"{count:,}" for count in gpus)
        raise ValueError(f"layout {unused[0]} is not for {sizes} GPUs; allowed: data times tensor is one of them")
    return [fastest(training, count, cluster, promises, layouts) for count in gpus for promises in SETS]
