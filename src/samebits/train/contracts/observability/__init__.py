"""Runs of the trainer into a folder, seen twice: what their log says, and what was applied while they went on.

Rows of text are sequences, two of which make an update. Times of day are in no output: they never repeat."""

from __future__ import annotations

import ast
import io
import math
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from samebits.model import Model
from samebits.model.contracts.small_model import SMALL
from samebits.ops.adamw import AdamW
from samebits.ops.grad_norm import grad_norm
from samebits.records.shipped import PACKAGE
from samebits.train import events, lanes
from samebits.train.configuration import ModelSection, OptimizerSection, Overrides, TrainConfig
from samebits.train.contracts.small_run import config_of, data_of
from samebits.train.running import run
from samebits.train.trainer import OURS, Parts, clipped, made
from samebits.train.watch import BreachError

BATCH: Final = 2
RATE: Final = 2.0**-8
LOGGED: Final = ("loss", "norm", "norm_after", "rate", "tokens")
PRINTING: Final = ("print", "sys.stdout.write", "sys.stderr.write", "pprint.pprint", "breakpoint")
# What a person watches while a run goes on; all else that prints is a program, and says so in its last lines.
SCREENS: Final = ("train/display.py", "parallel/launching.py")


def config_for(text: Tensor, steps: int) -> TrainConfig:
    """A run of the small model that shows nothing and begins from weights of its seed."""
    names = Overrides.__dataclass_fields__
    shape = Overrides(**{name: getattr(SMALL, name) for name in names})
    config = config_of(BATCH, BATCH, RATE, steps, width=text.shape[1] - 1)
    optimizer = replace(config.optimizer, warmup_steps=1)
    return replace(config, model=ModelSection(preset="tiny", overrides=shape), optimizer=optimizer)


def logged(text: Tensor, counts: Tensor, steps: int, parts: Parts = OURS) -> tuple[list[dict[str, Any]], str]:
    """The events of a whole run, and the breach that stopped it, or ""."""
    with TemporaryDirectory() as folder:
        stopped = ""
        try:
            run(config_for(text, steps), Path(folder), parts=parts, data=data_of(text, counts))
        except BreachError as breach:
            stopped = breach.contract
        return events.read(Path(folder)), stopped


def steps_of(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in found if each["event"] == "step"]


@dataclass(slots=True)
class Applied:
    """What passed through the parts of a trainer, step by step; `made` makes the optimizer that applies it."""

    made: Callable[[dict[str, Tensor], OptimizerSection], AdamW] = made
    rows: list[dict[str, float]] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    """Those of the step, as they are when they are applied."""

    def backward(self, model: Model, examples: list[lanes.Example], cut: lanes.Cut) -> lanes.Backward:
        found = lanes.backward(model, examples, cut)
        self.rows.append({"loss": found.loss, "tokens": found.targets})
        return found

    def clip(self, gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
        clipped(gradients, norm, max_norm)
        self.rows[-1]["norm"], self.gradients = float(norm), gradients

    def optimizer(self, weights: dict[str, Tensor], section: OptimizerSection) -> AdamW:
        found = self.made(weights, section)
        found.register_step_pre_hook(self._applies)
        return found

    def _applies(self, used: Optimizer, *_: object) -> None:
        """The rate and the gradients with which an update is made."""
        self.rows[-1] |= {"rate": used.param_groups[0]["lr"], "norm_after": float(grad_norm(self.gradients))}

    @property
    def parts(self) -> Parts:
        return Parts(backward=self.backward, clip=self.clip, optimizer=self.optimizer)


def log_and_truth(
    text: Tensor,
    counts: Tensor,
    steps: Tensor,
    *,
    optimizer: Callable[[dict[str, Tensor], OptimizerSection], AdamW] = made,
) -> Tensor:
    """(2, steps, 5) float64: loss, norm before and after clipping, rate and tokens; as logged, and as applied."""
    applied = Applied(made=optimizer)
    found = steps_of(logged(text, counts, int(steps), applied.parts)[0])
    rows = [[[row[name] for name in LOGGED] for row in each] for each in (found, applied.rows)]
    return torch.tensor(rows, dtype=torch.float64)


def _lost_at(step: int, loss: float) -> Parts:
    """A backward pass whose loss at a step is `loss`."""
    passes = [0]

    def backward(model: Model, examples: list[lanes.Example], cut: lanes.Cut) -> lanes.Backward:
        passes[0] += 1
        found = lanes.backward(model, examples, cut)
        return replace(found, loss=loss) if passes[0] == step else found

    return Parts(backward=backward)


def lost_run(text: Tensor, counts: Tensor, steps: Tensor, at: Tensor, *, loss: float = math.nan) -> Tensor:
    """Of a run whose loss is no number at step `at`, and is handed on as `loss`: steps in its log, breaches in it that
    tell the step and say nan, whether the run was stopped by one."""
    found, stopped = logged(text, counts, int(steps), _lost_at(int(at), loss))
    breaches = [each for each in found if each["event"] == "breach"]
    told = sum(each["step"] == int(at) and "nan" in each["message"] for each in breaches)
    return torch.tensor([len(steps_of(found)), told, int(bool(stopped))])


def speeds(text: Tensor, counts: Tensor, steps: Tensor, *, parts: Parts = OURS) -> Tensor:
    """(steps, 2): tokens a second times the seconds of the step, to a thousandth; and the tokens of the step."""
    found = steps_of(logged(text, counts, int(steps), parts)[0])
    return torch.tensor(
        [[round(each["tokens_per_second"] * each["seconds"], 3), each["tokens"]] for each in found], dtype=torch.float64
    )


def printed(text: Tensor, counts: Tensor, steps: Tensor, *, parts: Parts = OURS, more: str = "") -> Tensor:
    """Lines of library code that print, and characters that a run printed. `more`: source beside the library's."""
    shown = io.StringIO()
    with redirect_stdout(shown), redirect_stderr(shown):
        logged(text, counts, int(steps), parts)
    return torch.tensor([library_prints() + _prints(more), len(shown.getvalue())])


@cache
def library_prints() -> int:
    """Lines that print in files that are neither programs nor screens."""
    total = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        name, source = path.relative_to(PACKAGE).as_posix(), path.read_text()
        if not (name.startswith("cli/") or name in SCREENS or "__main__" in source or name.endswith("__main__.py")):
            total += _prints(source)
    return total


def _prints(source: str) -> int:
    # Few files have such a word in them at all; only those are parsed.
    if not any(f"{word}(" in source for word in PRINTING):
        return 0
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return sum(ast.unparse(call.func) in PRINTING for call in calls)
