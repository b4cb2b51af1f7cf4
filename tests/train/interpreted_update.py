"""An update in two passes over memory, by Triton's interpreter, beside operators one after another on the CPU.

Run with TRITON_INTERPRET=1, in a process of its own, which prints a line of JSON: by case, the first difference or
null. Told `planted`, it plants one fault after another; told `runs`, it compares whole runs of a trainer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
import triton
import triton.language as tl
from tests.ops.interpreted_attention import install
from tests.train.replayed_operations import cuda_graphs_on_the_cpu
from tests.train.small_run import small, trainer_of
from tests.train.test_lane_sums import SHAPES, filled
from torch import Tensor
from triton.runtime import interpreter

from samebits.checker.tracing.comparing import without_gpu
from samebits.numerics.bits import compare
from samebits.ops.adamw import AdamW
from samebits.ops.grad_norm import grad_norm
from samebits.train import triton_pieces, triton_update
from samebits.train.trainer import Trainer, clipped
from samebits.train.triton_passes import CapturedPasses
from samebits.train.triton_update import PieceUpdate
from samebits.train.updating import OneByOne, Update

CASES = (
    ("around a piece", None, 0.5),
    ("around a piece", torch.float16, 1e6),
    ("an empty one between", torch.bfloat16, 0.5),
    ("empty at the end", torch.float32, 1.0),
    ("one element", None, 1.0),
)
"""Shapes, what passes round to, and the norm that is allowed: clipped and not."""
FAULTY = ("an empty one between", None, 3.0)
"""Where the last bits of both norms are those of one order alone."""
RUNS = {
    "float32, a tied head": ("data.documents=joined",),
    "bfloat16, a head of its own": ("training.dtype=bfloat16", "model.overrides.tie_word_embeddings=false"),
}


def rounded(builder: Any, source: Any, kind: Any) -> Any:
    """To bfloat16 as a GPU rounds; the interpreter cuts."""
    if kind.scalar != tl.bfloat16:
        return builder.cast_impl(source, kind)
    bits = torch.from_numpy(source.data.copy()).bfloat16().view(torch.int16).numpy().view("uint16")
    return interpreter.TensorHandle(bits, kind.scalar)


def drawn(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    made_by = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=made_by) for name, shape in shapes.items()}


def optimizer_of(weights: dict[str, Tensor]) -> AdamW:
    """Two groups with other numbers, on its third update; moments as they could be."""
    groups = [[each for each in weights.values() if each.numel() and (each.dim() > 1) == matrix] for matrix in (1, 0)]
    numbers = ({"lr": 1e-2, "weight_decay": 0.1}, {"lr": 1e-3, "weight_decay": 0.0})
    found = AdamW([{"params": some, **each} for some, each in zip(groups, numbers, strict=True)], betas=(0.9, 0.95))
    first, second = (drawn({name: tuple(each.shape) for name, each in weights.items()}, seed) for seed in (7, 8))
    for name, weight in weights.items():
        found.state[weight] = {"step": 2, "exp_avg": first[name], "exp_avg_sq": second[name].square()}
    return found


def outcome(update: Update, weights: dict[str, Tensor], optimizer: AdamW, max_norm: float) -> dict[str, Tensor]:
    """Everything that is watched and written."""
    norm, magnitudes = update.seen()
    seen = {"norm": norm.clone(), "magnitudes": magnitudes}
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    shorter, largest = update.made(norm, max_norm)
    seen |= {"norms after": shorter, "largest": largest}
    kept = [name for name, weight in weights.items() if weight.numel()]
    seen["steps"] = torch.tensor([optimizer.state[weights[name]]["step"] for name in kept], dtype=torch.float32)
    states = {
        f"{kind} {name}": optimizer.state[weights[name]][kind] for name in kept for kind in ("exp_avg", "exp_avg_sq")
    }
    return {**seen, **weights, **states}


def both(shapes: str, kind: torch.dtype | None, max_norm: float, bad: bool) -> dict[str, str | None]:
    found = []
    for ours in (True, False):
        sums, weights = filled(SHAPES[shapes], True, 1), drawn(SHAPES[shapes], 5)
        if bad:
            next(iter(sums.parts.values())).view(-1)[0] = torch.nan
        gradients, optimizer = sums.gradients(), optimizer_of(weights)
        roundings = None if kind is None else {name: each.to(kind) for name, each in weights.items()}
        whole = sums.whole(gradients)
        assert whole is not None
        if ours:
            with without_gpu():
                update = PieceUpdate(whole, gradients, weights, roundings, optimizer)
                seen = outcome(update, weights, optimizer, max_norm)
        else:
            by_operators = OneByOne(gradients, weights, optimizer, clipped, norms, [whole])
            seen = outcome(by_operators, weights, optimizer, max_norm)
            roundings = None if kind is None else {name: each.to(kind) for name, each in weights.items()}
        found.append(seen | {f"rounding of {name}": each for name, each in (roundings or {}).items()})
    wrong = {name: compare(found[0][name], each) for name, each in found[1].items()}
    case = f"{shapes}, {kind}, {max_norm}, {bad}"
    return {f"{case}: {name}": None if each is None else str(each) for name, each in wrong.items()}


def norms(gradients: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    return grad_norm(gradients.values()), grad_norm([gradients[name]])


class Interpreted(CapturedPasses):
    """Updates as on a GPU, though there is none."""

    def update(self, gradients: Any, weights: Any, optimizer: Any, model: Any) -> PieceUpdate | None:
        whole = self._lanes[0].whole(gradients)
        assert whole is not None
        return self.update_of(whole, gradients, weights, optimizer, model)


def run(settings: tuple[str, ...], ours: bool) -> tuple[Any, list[Tensor]]:
    trainer: Trainer = trainer_of(small(*settings))
    trainer.captured = Interpreted() if ours else None
    records, seen = [], list[Tensor]()
    for _ in range(2):
        if ours:
            with without_gpu(), cuda_graphs_on_the_cpu():
                records.append(replace(trainer.step(), seconds=0.0))
        else:
            records.append(replace(trainer.step(), seconds=0.0))
        tensors = [*trainer.weights.values(), *trainer.moments().values(), *trainer.model().weights.values()]
        seen.extend(each.clone() for each in tensors)
    assert trainer.counted() == dict.fromkeys(trainer.counted(), 2)
    return records, seen


def runs() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name, settings in RUNS.items():
        (records, seen), (wanted, expected) = run(settings, True), run(settings, False)
        wrong = [compare(*pair) for pair in zip(seen, expected, strict=True)]
        found[f"{name}: numbers"] = None if records == wanted else f"{records} and {wanted}"
        found[f"{name}: tensors"] = next((str(each) for each in wrong if each is not None), None)
    return found


@triton.jit
def neighbours_first(lanes, ROWS: tl.constexpr):
    for step in tl.static_range(8):
        lanes = tl.reduce(tl.reshape(lanes, (ROWS, 128 >> step, 2)), 2, one_more)
    return tl.reshape(lanes, (ROWS,))


@triton.jit
def one_more(low, high):
    return low + high


@triton.jit
def never_clipped(norm, max_norm):
    return norm * 0 + 1.0


def shorter(tables: Callable[..., Any]) -> Callable[..., Any]:
    def cut(*arguments: Any) -> Any:
        *columns, firsts, owners = tables(*arguments)
        columns[-1].sub_(1)
        return *columns, firsts, owners

    return cut


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "lanes": (triton_pieces, "fold_by_halves", neighbours_first),
    "unclipped": (triton_pieces, "scale_of", never_clipped),
    "left out": (triton_update, "tables", shorter(triton_update.tables)),
}


def planted() -> dict[str, str | None]:
    """Of each fault what was noticed first."""
    found: dict[str, str | None] = {}
    for fault, (module, name, wrong) in FAULTS.items():
        with patch.object(module, name, wrong):
            answers = both(*FAULTY, bad=False)
        noticed = [f"{case}: {each}" for case, each in answers.items() if each is not None]
        found[fault] = next(iter(noticed), None)
    return found


def main(asked: str) -> dict[str, str | None]:
    if asked:
        return {"runs": runs, "planted": planted}[asked]()
    found: dict[str, str | None] = {}
    for case in CASES:
        found |= both(*case, bad=False)
    return found | both(*CASES[3], bad=True)


if __name__ == "__main__":
    install()
    interpreter.InterpreterBuilder.create_fp_trunc = rounded
    print(json.dumps(main("".join(sys.argv[1:]))))
