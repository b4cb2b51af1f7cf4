"""What is around a training pass on a GPU: norm, what is watched, clipping, AdamW and roundings; beside torch's own.

    PYTHONPATH=src python benchmarks/gpu_update.py --output benchmarks/results/h200_update.json

Bits first: after two updates in two passes over memory everything that is watched or written is that of operators one
after another, or nothing is timed, exit 1. Then whole updates in turns with what the host does and waits for, as a
trainer does: float32 weights, gradients in one piece of memory, roundings to bfloat16. torch's side is clip_grad_norm_
and its fused AdamW, then the same roundings; it watches nothing. Without a GPU nothing is judged, exit 3."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from provenance import provenance
from torch import Tensor

from samebits.bench.shapes import MODELS
from samebits.bench.timing import seconds_of
from samebits.model.weights import shapes
from samebits.ops.grad_norm import grad_norm
from samebits.train import triton_update
from samebits.train.configuration import OptimizerSection
from samebits.train.trainer import clipped, made
from samebits.train.triton_sums import LaneSums
from samebits.train.triton_update import PieceUpdate
from samebits.train.updating import OneByOne, Update

CASES = ("350m", "qwen3-1.7b")
COULD_NOT_BE_JUDGED = 3
COMPARED = 2
WARPS = (2, 4, 8)
MAX_NORM = 1.0
TARGET = 1.0
DEVICE = torch.device("cuda")
SWEEPS = 8.5
"""Over float32 weights: gradients once, then gradients, weights and moments once, the last three written, and half a
sweep for roundings."""


class Given:
    """A model's weights, gradients, moments and roundings; the same for the same name."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(1)
        wanted = shapes(MODELS[name])
        self.weights = {each: 0.02 * torch.randn(shape, device=DEVICE) for each, shape in wanted.items()}
        self.roundings = {each: weight.bfloat16() for each, weight in self.weights.items()}
        self.sums = LaneSums(wanted, False, DEVICE)
        self.gradients = self.sums.gradients()
        self.optimizer = made(self.weights, OptimizerSection(lr=1e-9, max_grad_norm=MAX_NORM))
        for weight in self.weights.values():
            self.optimizer.state[weight] = {"step": 0, **_moments(weight)}

    def draw(self, size: float) -> None:
        """New gradients: what was clipped would not be clipped again."""
        for part in self.sums.parts.values():
            part.normal_(std=size)

    @property
    def whole(self) -> Tensor:
        found = self.sums.whole(self.gradients)
        assert found is not None
        return found

    def by_pieces(self) -> PieceUpdate:
        return PieceUpdate(self.whole, self.gradients, self.weights, self.roundings, self.optimizer)

    def by_operators(self) -> OneByOne:
        return OneByOne(self.gradients, self.weights, self.optimizer, clipped, self._norms, [self.whole])

    def _norms(self, gradients: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
        return grad_norm([self.whole]), grad_norm([gradients[name]])

    def written(self) -> list[Tensor]:
        states = [self.optimizer.state[weight] for weight in self.weights.values()]
        moments = [state[kind] for state in states for kind in ("exp_avg", "exp_avg_sq")]
        return [*self.weights.values(), *moments, *self.roundings.values()]


def _moments(weight: Tensor) -> dict[str, Tensor]:
    return {kind: torch.zeros_like(weight) for kind in ("exp_avg", "exp_avg_sq")}


def updated(given: Given, update: Update) -> list[list[float]]:
    """As a trainer does: it waits for what is watched before weights change, and for what is watched after."""
    norm, magnitudes = update.seen()
    found = [magnitudes.tolist(), [float(norm)]]
    shorter, largest = update.made(norm, MAX_NORM)
    if not update.rounded:
        torch._foreach_copy_(list(given.roundings.values()), list(given.weights.values()))
    return [*found, shorter.tolist(), largest.tolist()]


def differing(name: str) -> str | None:
    """What differs after some updates of both."""
    ours, theirs = Given(name), Given(name)
    by_pieces = ours.by_pieces()
    for number in range(COMPARED):
        for given in (ours, theirs):
            torch.manual_seed(number + 2)
            # The second time short enough to stay as they are.
            given.draw(1e-3 if number == 0 else 1e-9)
        mine, yours = updated(ours, by_pieces), updated(theirs, theirs.by_operators())
        if mine != yours:
            return f"{name}: what is watched of update {number + 1}"
    for place, (left, right) in enumerate(zip(ours.written(), theirs.written(), strict=True)):
        kind = torch.int16 if left.dtype == torch.bfloat16 else torch.int32
        if not torch.equal(left.view(kind), right.view(kind)):
            return f"{name}: tensor {place} of those written"
    return None


def by_torch(given: Given, optimizer: torch.optim.AdamW) -> None:
    torch.nn.utils.clip_grad_norm_(given.weights.values(), MAX_NORM, foreach=True)
    optimizer.step()
    torch._foreach_copy_(list(given.roundings.values()), list(given.weights.values()))


def with_warps(given: Given, update: PieceUpdate, warps: int) -> None:
    triton_update.WARPS = warps  # type: ignore[misc]
    updated(given, update)


def measured(name: str, updates: int) -> dict[str, Any]:
    given = Given(name)
    # Beside ours this one has moments of its own.
    stock = torch.optim.AdamW(given.weights.values(), lr=1e-9, fused=True)
    update = given.by_pieces()
    sides: dict[str, Callable[[], Any]] = {
        "torch": partial(by_torch, given, stock),
        "operators": lambda: updated(given, given.by_operators()),
        **{f"pieces, {warps} warps": partial(with_warps, given, update, warps) for warps in WARPS},
    }
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(updates + 2):
        for side, call in sides.items():
            given.draw(1e-3)
            for each, weight in given.weights.items():
                weight.grad = given.gradients[each]
            taken = seconds_of(call, DEVICE)
            if turn >= 2:
                seconds[side].append(taken)
    times = {side: round(1e3 * statistics.median(each), 3) for side, each in seconds.items()}
    count, ours = sum(weight.numel() for weight in given.weights.values()), times[f"pieces, {WARPS[0]} warps"]
    row = {
        "case": f"{name}, {len(given.weights)} tensors of {count} weights",
        "milliseconds": times,
        "terabytes_a_second": round(SWEEPS * 4 * count / ours / 1e9, 3),
        "ratio": round(times["torch"] / ours, 3),
        "ratio_of_operators": round(times["operators"] / ours, 3),
        "target": TARGET,
    }
    print(json.dumps(row), flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--only", choices=CASES, help="of the models")
    parser.add_argument("--updates", type=int, default=15, help="timed of each side")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu_update: there is no GPU; could not be judged", file=sys.stderr)
        return COULD_NOT_BE_JUDGED
    rows = []
    for name in (options.only,) if options.only else CASES:
        found = differing(name)
        torch.cuda.empty_cache()
        if found:
            print(f"gpu_update: {found}; nothing is timed", file=sys.stderr)
            return 1
        print(f"{name}: every bit is that of operators one after another", flush=True)
        rows.append(measured(name, options.updates))
        torch.cuda.empty_cache()
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    record = {**provenance(__file__, torch.cuda.get_device_name()), **versions, "rows": rows}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
