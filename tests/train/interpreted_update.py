"""An update in two passes over memory, by Triton's interpreter, beside operators one after another on the CPU.

Run with TRITON_INTERPRET=1, in a process of its own, which prints a line of JSON: by case, the first difference or
null. Told `planted`, it plants one fault after another; told `runs`, it compares whole runs of a trainer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
import triton
import triton.language as tl
from tests.ops.interpreted_attention import install
from tests.train.replayed_operations import cuda_graphs_on_the_cpu
from tests.train.small_run import small, trainer_of
from tests.train.updates import CASES, both
from torch import Tensor
from triton.runtime import interpreter

from samebits.checker.tracing.comparing import without_gpu
from samebits.numerics.bits import compare
from samebits.train import triton_pieces, triton_update
from samebits.train.trainer import Trainer
from samebits.train.triton_passes import CapturedPasses
from samebits.train.triton_update import PieceUpdate

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


def compared(*case: Any, bad: bool) -> dict[str, str | None]:
    with without_gpu():
        return both(*case, bad=bad, device=torch.device("cpu"))


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
            answers = compared(*FAULTY, bad=False)
        noticed = [f"{case}: {each}" for case, each in answers.items() if each is not None]
        found[fault] = next(iter(noticed), None)
    return found


def main(asked: str) -> dict[str, str | None]:
    if asked:
        return {"runs": runs, "planted": planted}[asked]()
    found: dict[str, str | None] = {}
    for case in CASES:
        found |= compared(*case, bad=False)
    return found | compared(*CASES[3], bad=True)


if __name__ == "__main__":
    install()
    interpreter.InterpreterBuilder.create_fp_trunc = rounded
    print(json.dumps(main("".join(sys.argv[1:]))))
