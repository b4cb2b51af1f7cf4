"""Two training runs compared by what they logged: the first step, block, operation and element at which they part.

Numbers of a step are compared as the floats they are. Fingerprints of gradients, where both runs kept them, name the
weight whose gradient was computed first among those that differ, and the element; where an update parted, the two
checkpoints do. Computes nothing again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from samebits.parity.run_logs import Step, fingerprints_of, steps_of
from samebits.trace.fingerprint import Fingerprint, parting
from samebits.train import checkpoint
from samebits.train.manifest import CheckpointError
from samebits.train.observing import block_of

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
Gradients = Mapping[str, Fingerprint]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The first element of the first gradient that differs; or, where it was the update, of the first tensor."""

    weight: str
    block: str
    operation: str
    element: tuple[int, ...]
    exact: bool
    """That element is known to differ; else its index is the first row and the first column that do."""
    elements: int
    """At most so many differ; 1: it is this one."""
    flipped_bits: str
    """Of its pattern, where it is the only one of its row."""
    weights_differing: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Where two runs part."""

    step: int
    part: str
    """Of the step, the first that is known to differ: sequences, forward, backward, norm, clipping, rate, update, or
    backward or update; breach, where one of the runs was stopped. All that comes behind it follows from it."""
    numbers: dict[str, tuple[Any, Any]]
    """Of the step's event and its checkpoint, those that differ: both values."""
    place: Place | None
    """Behind sequences and forward it is a consequence. None: nothing that was kept of that step names one."""
    gradients_compared: bool
    """Both sides have fingerprints of that step."""
    weights_before: bool
    """The weights before the step are known to be equal, by checkpoints of the step before it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two runs beside each other."""

    steps: int
    """That both have."""
    last_steps: tuple[int, int]
    """Of each run."""
    settings: dict[str, tuple[Any, Any]]
    """Settings that decide bits and differ, at the step where the runs part or before it."""
    environment: dict[str, tuple[Any, Any]]
    """What should decide no bit and differs there."""
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
    folders = (one, other)
    steps = [steps_of(folder) for folder in folders]
    common = sorted(steps[0].keys() & steps[1].keys())
    if not common:
        raise ValueError(f"{one} and {other}: no step in common; allowed: runs that have some")
    kept = [fingerprints_of(folder) for folder in folders]
    difference = _first(common, steps, kept, folders)
    # What was set otherwise later is no cause.
    before = [step for step in common if difference is None or step <= difference.step]
    return Comparison(
        steps=len(common),
        last_steps=(max(steps[0]), max(steps[1])),
        settings=_first_values([_differing(*(side[step].settings for side in steps)) for step in before]),
        environment=_first_values([_differing(*(side[step].environment for side in steps)) for step in before]),
        difference=difference,
        fingerprints=len([step for step in common if _compared(kept, step)]),
    )


def _first(
    common: Sequence[int],
    steps: Sequence[Mapping[int, Step]],
    kept: Sequence[Mapping[int, Gradients]],
    folders: Sequence[Path],
) -> Difference | None:
    for last, step in pairwise([common[0] - 1, *common]):
        numbers = _numbers(*(side[step].numbers for side in steps))
        compared = _compared(kept, step)
        place = _place(*(side[step] for side in kept)) if compared else None
        if not numbers and place is None:
            continue
        part = _part(numbers, place, compared)
        if part in ("update", "backward or update"):
            changed, place = _updated(folders, step)
            numbers |= changed
        return Difference(
            step=step,
            part=part,
            numbers=numbers,
            place=place,
            gradients_compared=compared,
            weights_before=_equal_checkpoints(*(side[last].numbers if last in side else {} for side in steps)),
        )
    return None


def _numbers(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Those that differ of what both sides have; a breach may be on one alone."""
    both = {*(one.keys() & other.keys()), "breach"}
    found = {name: pair for name, pair in _differing(one, other).items() if name in both}
    # Hashes of two kinds say nothing of each other.
    kinds = {digest.partition(":")[0] for digest in found.get("checkpoint", ())}
    return {name: pair for name, pair in found.items() if name != "checkpoint" or len(kinds) == 1}


def _equal_checkpoints(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return "checkpoint" in one and one["checkpoint"] == other.get("checkpoint")


def _part(numbers: Mapping[str, Any], place: Place | None, compared: bool) -> str:
    """In the order of a step: what comes later follows from what came before."""
    if "breach" in numbers:
        return "breach"
    if "tokens" in numbers:
        return "sequences"
    if "loss" in numbers:
        return "forward"
    if place is not None or "without_gradient" in numbers or ("norm" in numbers and not compared):
        return "backward"
    of_number = {"norm": "norm", "norm_after": "clipping", "rate": "rate"}
    # A gradient can differ in a bit that its norm does not show.
    last = "update" if compared else "backward or update"
    return next((part for name, part in of_number.items() if name in numbers), last)


def _compared(kept: Sequence[Mapping[int, Gradients]], step: int) -> bool:
    """Both sides have fingerprints of a step, of equal names, shapes and formats: only then is there an element to
    name."""
    if not all(step in side for side in kept):
        return False
    one, other = (side[step] for side in kept)
    kinds = [{name: (each.shape, each.dtype) for name, each in side.items()} for side in (one, other)]
    return kinds[0] == kinds[1]


def _place(one: Gradients, other: Gradients) -> Place | None:
    differing = {name: parting(one[name], other[name]) for name in one}
    found = {name: each for name, each in differing.items() if each is not None}
    if not found:
        return None
    weight = min(found, key=_backward_place)
    parted, shape = found[weight], one[weight].shape
    return Place(
        weight=weight,
        block=block_of(weight),
        operation=f"gradient of {_last_name(weight)}",
        element=parted.element(shape),
        exact=parted.exact,
        elements=parted.rows_differing * len(parted.columns),
        flipped_bits=f"{parted.xor:#x}" if parted.alone else "",
        weights_differing=len(found),
    )


def _updated(folders: Sequence[Path], step: int) -> tuple[dict[str, tuple[Any, Any]], Place | None]:
    """By the two checkpoints of a step: plain values that differ, and the first tensor; weights before moments."""
    try:
        one, other = (checkpoint.read(folder, step) for folder in folders)
    except CheckpointError:
        return {}, None
    states = [{**each.state, **each.state.get("facts", {})} for each in (one, other)]
    plain = {f"state.{key}": pair for key, pair in _differing(*states).items() if key != "facts"}
    for left, right in ((one.weights, other.weights), (one.optimizer, other.optimizer)):
        found = {name: _parted(left[name], right[name]) for name in left.keys() & right.keys()}
        differing = {name: each for name, each in found.items() if each is not None}
        if differing:
            return plain, _tensor_place(differing, left, right)
    return plain, None


def _parted(one: Tensor, other: Tensor) -> Tensor | None:
    """Where the bits of two float32 tensors differ; None: nowhere, or they are of two kinds."""
    if one.shape != other.shape or one.dtype != torch.float32 or other.dtype != torch.float32:
        return None
    places = (one.view(torch.int32) != other.view(torch.int32)).nonzero()
    return places if len(places) else None


def _tensor_place(differing: Mapping[str, Tensor], left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Place:
    def weight_of(name: str) -> str:
        return name.removeprefix("exp_avg.").removeprefix("exp_avg_sq.")

    name = min(differing, key=lambda each: (_backward_place(weight_of(each)), each))
    places, weight = differing[name], weight_of(name)
    element = tuple(places[0].tolist())
    patterns = [int(side[name].view(torch.int32)[element]) & 0xFFFFFFFF for side in (left, right)]
    what = "update" if name == weight else name.removesuffix(f".{weight}")
    return Place(
        weight=weight,
        block=block_of(weight),
        operation=f"{what} of {_last_name(weight)}",
        element=element,
        exact=True,
        elements=len(places),
        flipped_bits=f"{patterns[0] ^ patterns[1]:#x}" if len(places) == 1 else "",
        weights_differing=len({weight_of(each) for each in differing}),
    )


def _last_name(weight: str) -> str:
    return weight.removesuffix(".weight").split(".")[-1]


def _backward_place(weight: str) -> tuple[int, int, int]:
    """Where a backward pass comes to a weight: head, last norm, layers from the last to the first, embedding."""
    parts = weight.removeprefix("model.").removesuffix(".weight").split(".")
    if parts[0] != "layers":
        return {"lm_head": 0, "norm": 1}.get(parts[0], 3), 0, 0
    name = ".".join(parts[2:])
    return 2, -int(parts[1]), BACKWARD.index(name) if name in BACKWARD else len(BACKWARD)


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = sorted({*one, *other})
    return {key: (one.get(key), other.get(key)) for key in keys if not _same(one.get(key), other.get(key))}


def _same(one: Any, other: Any) -> bool:
    """Of two floats the bits: -0.0 is not 0.0."""
    return repr(one) == repr(other) if isinstance(one, float) and isinstance(other, float) else bool(one == other)


def _first_values(found: Sequence[Mapping[str, tuple[Any, Any]]]) -> dict[str, tuple[Any, Any]]:
    """Of each key the values at the first step where they differ."""
    first: dict[str, tuple[Any, Any]] = {}
    for each in found:
        first = {**each, **first}
    return first
