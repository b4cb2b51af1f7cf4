"""Two training runs compared by what they logged: the first step, block, operation and element at which they part.

Numbers of a step are compared as the floats they are. Fingerprints of gradients, where both runs kept them, name the
weight whose gradient was computed first among those that differ, and the element. Computes nothing again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from samebits.trace.fingerprint import Fingerprint, parting
from samebits.train import events
from samebits.train.observing import block_of, fingerprints

# Of a step's event: what equal runs have equal, and what the machine decides.
NUMBERS: Final = ("loss", "norm", "norm_after", "rate", "tokens", "without_gradient")
# What of the environment is free by which promise; the first that differs names it.
PROMISES: Final = {
    "device": "device",
    "machine": "device",
    "ranks": "data",
    "micro_batch_size": "micro",
    "collation": "padding",
    "threads": "tile",
}
# Weights of a layer in the order in which a backward pass comes to their gradients.
BACKWARD: Final = (
    "mlp.down_proj",
    "mlp.up_proj",
    "mlp.gate_proj",
    "post_attention_layernorm",
    "self_attn.o_proj",
    "self_attn.v_proj",
    "self_attn.k_norm",
    "self_attn.q_norm",
    "self_attn.k_proj",
    "self_attn.q_proj",
    "input_layernorm",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The first element of the first gradient that differs."""

    weight: str
    block: str
    operation: str
    element: tuple[int, ...]
    elements: int
    """At most so many differ; 1: it is this one."""
    flipped_bits: str
    """Of its pattern, where it is one element."""
    weights_differing: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Where two runs part."""

    step: int
    numbers: dict[str, tuple[Any, Any]]
    """Of the step's event and its checkpoint, those that differ: both values."""
    place: Place | None
    """None: no fingerprints of that step on both sides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two runs beside each other."""

    steps: int
    """That both have."""
    settings: dict[str, tuple[Any, Any]]
    """Settings that decide bits and differ."""
    environment: dict[str, tuple[Any, Any]]
    """What should decide no bit and differs."""
    difference: Difference | None
    fingerprints: int
    """Steps of which both sides have them."""

    @property
    def promise(self) -> str:
        """Which promise the difference breaks; "": none, for settings that decide bits differ."""
        if self.settings or self.difference is None:
            return ""
        return next((name for key, name in PROMISES.items() if key in self.environment), "repeat")

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "promise": self.promise, "equal": self.difference is None}


def compare(one: Path, other: Path) -> Comparison:
    """Raises ValueError where a folder holds no run, or the two have no step in common."""
    logs = [_log(folder) for folder in (one, other)]
    steps = [_steps(log) for log in logs]
    starts = [next(each for each in log if each["event"] == "start") for log in logs]
    common = sorted(steps[0].keys() & steps[1].keys())
    if not common:
        raise ValueError(f"{one} and {other}: no step in common; allowed: runs that have some")
    kept = [dict(fingerprints(folder)) for folder in (one, other)]
    both = sorted(kept[0].keys() & kept[1].keys())
    return Comparison(
        steps=len(common),
        settings=_differing(*(_without_position(start["settings"]) for start in starts)),
        environment=_differing(*(start.get("environment", {}) for start in starts)),
        difference=_first(common, steps, both, kept),
        fingerprints=len(both),
    )


def _first(
    common: Sequence[int],
    steps: Sequence[Mapping[int, Mapping[str, Any]]],
    both: Sequence[int],
    kept: Sequence[Mapping[int, Mapping[str, Fingerprint]]],
) -> Difference | None:
    for step in sorted({*common, *both}):
        numbers = _differing(*(side[step] for side in steps)) if step in common else {}
        if None in numbers.get("checkpoint", ()):
            del numbers["checkpoint"]  # One of the runs kept none here.
        place = _place(*(side[step] for side in kept)) if step in both else None
        if numbers or place:
            return Difference(step=step, numbers=numbers, place=place)
    return None


def _place(one: Mapping[str, Fingerprint], other: Mapping[str, Fingerprint]) -> Place | None:
    differing = {name: parting(one[name], other[name]) for name in one.keys() & other.keys()}
    found = {name: each for name, each in differing.items() if each is not None}
    if not found:
        return None
    weight = min(found, key=_backward_place)
    parted, shape = found[weight], one[weight].shape
    elements = parted.rows_differing * len(parted.columns)
    return Place(
        weight=weight,
        block=block_of(weight),
        operation=f"gradient of {weight.removesuffix('.weight').split('.')[-1]}",
        element=parted.element(shape),
        elements=elements,
        flipped_bits=f"{parted.xor:#x}" if elements == 1 else "",
        weights_differing=len(found),
    )


def _backward_place(weight: str) -> tuple[int, int, int]:
    """Where a backward pass comes to a weight: head, last norm, layers from the last to the first, embedding."""
    parts = weight.removeprefix("model.").removesuffix(".weight").split(".")
    if parts[0] != "layers":
        return {"lm_head": 0, "norm": 1}.get(parts[0], 3), 0, 0
    name = ".".join(parts[2:])
    return 2, -int(parts[1]), BACKWARD.index(name) if name in BACKWARD else len(BACKWARD)


def _steps(log: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """The numbers of every step, with the digest of its checkpoint where one was kept."""
    found = {each["step"]: {name: each[name] for name in NUMBERS} for each in log if each["event"] == "step"}
    for each in log:
        if each["event"] == "checkpoint" and each["step"] in found:
            found[each["step"]]["checkpoint"] = each["digest"]
    return found


def _without_position(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A run that was resumed says where it went on from."""
    return {key: value for key, value in settings.items() if not key.startswith("position.")}


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = sorted({*one, *other})
    return {key: (one.get(key), other.get(key)) for key in keys if one.get(key) != other.get(key)}


def _log(folder: Path) -> list[dict[str, Any]]:
    if not (folder / events.NAME).is_file():
        raise ValueError(f"{folder}: there is no {events.NAME}; allowed: the folder of a training run")
    return events.read(folder)
