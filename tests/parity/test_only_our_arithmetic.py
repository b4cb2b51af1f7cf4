"""Only our arithmetic decides bits: inside operators, trainer and engine torch does exact things alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.parity.watching import NotOursError, Watching

from samebits import ops
from samebits.parity import portable
from samebits.parity.portable.drawing import Draw
from samebits.parity.portable.operators import CASES
from samebits.parity.portable.whole import CONFIG, tokens, trainer
from samebits.parity.rl import Loop, RLConfig
from samebits.train.algebra import learning_rate

CPU = torch.device("cpu")


@pytest.mark.parametrize("format", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", sorted(CASES))
def test_operators_forward_and_backward(case: str, format: str) -> None:
    with Watching() as watching:
        CASES[case](Draw(case, "normal", format, CPU))
    assert watching.ours and watching.seen


@pytest.mark.parametrize("format", ["float32", "bfloat16"])
def test_the_trainer(format: str) -> None:
    """Updates with lanes, accumulation, clipping, AdamW and the schedule, rising and falling."""
    with Watching() as watching:
        run = trainer(format, CPU, portable.TEXT)
        records = [run.step() for _ in range(6)]
    assert any(each.norm > run.config.optimizer.max_grad_norm for each in records)
    assert {"adamw_", "grad_norm", "grad_norm_clip_"} <= set(watching.ours)
    assert records[4].rate > records[5].rate


@pytest.mark.parametrize("format", ["float32", "bfloat16"])
def test_the_engine(format: str) -> None:
    """Prefill in chunks, decoding, greedy and sampled tokens, logprobs."""
    with Watching() as watching:
        found = tokens(format, CPU)
    assert len(found) > 10 and {"sample", "selected_logprob"} <= set(watching.ours)


def test_a_batch_of_reinforcement_learning() -> None:
    """Rollout, scoring, advantages, the objective's gradient, clipping and an update."""
    settings = RLConfig(task="addition", seed=3, prompts=2, num_generations=4, num_iterations=2, beta=0.05)
    with Watching() as watching:
        record = Loop(settings, replace(CONFIG, vocab_size=256)).step()
    assert record.first.exact and {"adamw_", "grad_norm", "sample"} <= set(watching.ours)


def _root_of_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    module = importlib.import_module("samebits.ops.grad_norm")
    monkeypatch.setattr(module, "square_root", lambda x, backend=None: x.sqrt())
    return lambda: ops.grad_norm([torch.ones(4)])


def _sum_of_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    module = importlib.import_module("samebits.ops.cross_entropy")
    monkeypatch.setattr(module, "total_and_mean", lambda loss, factor, backend: loss.sum() * factor)
    return lambda: ops.linear_cross_entropy(torch.ones(3, 4), torch.ones(5, 4), torch.arange(3))


def _backward_of_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    kernel = importlib.import_module("samebits.ops.softmax.cpu_kernel")
    monkeypatch.setattr(kernel, "backward", lambda dy, y, *_: y * (dy - (dy * y).sum(-1, keepdim=True)))
    return lambda: ops.softmax(torch.ones(3, 4, requires_grad=True)).backward(torch.ones(3, 4))


def _several_to_one_place(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    return lambda: torch.ones(3, requires_grad=True)[[0, 0, 1]].backward(torch.ones(3))


def _fused_or_not(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    return lambda: torch.ones(3).add(torch.ones(3), alpha=0.3)


@pytest.mark.parametrize(
    ("plant", "named"),
    [
        (_root_of_torch, "aten.sqrt"),
        (_sum_of_torch, "aten.sum"),
        (_backward_of_torch, "aten.sum"),
        (_several_to_one_place, "aten.index_put.* adds several"),
        (_fused_or_not, "aten.add with alpha=0.3"),
    ],
)
def test_what_torch_would_round_is_named(plant: Any, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted faults: an operator with torch's root, one with torch's sum, forward and backward, a fused sum."""
    call = plant(monkeypatch)
    call()
    with pytest.raises(NotOursError, match=named), Watching():
        call()


@pytest.mark.parametrize("name", ["exp", "log", "sin", "tanh", "erf", "sigmoid", "rsqrt", "cumsum", "mean", "prod"])
def test_functions_and_reductions_of_torch_are_refused(name: str) -> None:
    arguments = (0,) if name == "cumsum" else ()
    with pytest.raises(NotOursError, match=name), Watching():
        getattr(torch.ones(3), name)(*arguments)
    with pytest.raises(NotOursError, match="mm"), Watching():
        torch.ones(2, 2) @ torch.ones(2, 2)


def test_sums_of_whole_numbers_are_exact() -> None:
    with Watching() as watching:
        assert int(torch.arange(5).sum()) == 10 and int((torch.ones(3) > 0).sum()) == 3
    assert watching.seen["sum"] == 2


def test_the_schedule_is_a_function_of_its_numbers() -> None:
    """Rates by hand: the float nearest to pi / 2 has a cosine of 6e-17, the one nearest to pi one of -1 + 7e-33."""
    rate = [learning_rate(step, lr=1.0, warmup_steps=1, steps=3, min_lr_ratio=0.0) for step in (1, 2, 3)]
    assert rate == [1.0, 0.5, 0.0]
