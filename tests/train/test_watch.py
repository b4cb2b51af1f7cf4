"""The stability contracts by their ids: on a real run of 100 steps of the tiny preset, each with a planted fault."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.magnitudes import LARGEST
from tests.train.small_run import TINY, average, rises, small, steps_of, trainer_of
from torch import Tensor

from samebits.model import Model
from samebits.model.weights import EMBEDDING
from samebits.nn.strategy import Operators
from samebits.numerics.bits import same_bits
from samebits.ops.accumulation import Sums, linear_into
from samebits.ops.adamw import AdamW
from samebits.ops.grad_norm import grad_norm
from samebits.ops.matmul import linear
from samebits.train import checkpoint, watch
from samebits.train.assessment import model_of
from samebits.train.configuration import OptimizerSection
from samebits.train.lanes import Backward, backward
from samebits.train.running import run
from samebits.train.trainer import Parts, StepRecord, clipped, made
from samebits.train.watch import BreachError

STEPS = 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 steps of the tiny preset, once for all that look at its log."""
    path = tmp_path_factory.mktemp("tiny")
    run(small(*TINY), path)
    return path


def breach_of(parts: Parts, *settings: str, steps: int = 3, model: Model | None = None) -> BreachError:
    """The one line that stops a run made of these parts."""
    config = small(*settings)
    with pytest.raises(BreachError) as stopped:
        trainer = trainer_of(config, parts, model)
        for _ in range(steps):
            trainer.step()
    assert "\n" not in str(stopped.value)
    return stopped.value


def stays_finite(folder: Path, tmp_path: Path) -> None:
    """Loss, clipped gradients and weights are finite at each of 100 steps from a random start."""
    steps = steps_of(folder)
    assert [event["step"] for event in steps] == list(range(1, STEPS + 1))
    assert all(type(event[name]) is float for event in steps for name in ("loss", "norm", "norm_after", "rate"))
    assert all(bool(each.isfinite().all()) for each in checkpoint.read(folder).weights.values())


def poisoned(step: int, place: Callable[[Backward], Tensor], value: float) -> Parts:
    """A backward pass that leaves one bad number at a step."""
    counted = []

    def faulty(*given: Any) -> Backward:
        counted.append(1)
        found = backward(*given)
        if len(counted) == step:
            place(found).view(-1)[0] = value
        return found

    return Parts(backward=faulty)


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=["FALSIFY-STABLE-001 nan", "FALSIFY-STABLE-001 inf"])
def test_a_gradient_that_is_no_number_stops_the_run(value: float) -> None:
    stopped = breach_of(poisoned(2, lambda found: found.gradients["model.norm.weight"], value))
    assert (stopped.contract, stopped.step) == (watch.STABLE, 2) and "gradient of" in str(stopped)


def test_a_weight_that_is_no_number_stops_the_run() -> None:
    """A NaN in a weight is seen in the next loss; one made by the update in the weight itself, by name."""
    trainer = trainer_of(small())
    trainer.step()
    trainer.weights["model.norm.weight"][0] = torch.nan
    with pytest.raises(BreachError, match=r"^C-TRAINSTABLE-001: step 2: the loss is nan; allowed: finite$"):
        trainer.step()

    class Faulty(AdamW):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            self.param_groups[0]["params"][2][0, 0] = torch.inf

    def faulty(weights: dict[str, Tensor], section: OptimizerSection) -> AdamW:
        return Faulty(made(weights, section).param_groups)

    stopped = breach_of(Parts(optimizer=faulty))
    assert "step 1: weight model.layers.0.self_attn.k_proj.weight has 1 elements" in str(stopped)


def test_a_loss_that_is_no_number_cannot_be_hidden() -> None:
    """A NaN is logged as what it is; a loss that was replaced by 0.0 would still leave NaN in the gradients."""

    def hidden(*given: Any) -> Backward:
        return replace(backward(*given), loss=0.0)

    model = model_of(small())
    model.weights["model.layers.1.mlp.up_proj.weight"][3, 3] = torch.nan
    assert "the loss is nan" in str(breach_of(Parts(), model=model))
    assert breach_of(Parts(backward=hidden), model=model).contract == watch.STABLE


def deep(*more: str) -> tuple[str, ...]:
    return (
        "model.overrides.num_hidden_layers=24",
        "training.gradient_accumulation_steps=1",
        "optimizer.max_grad_norm=0.01",
        *more,
    )


def embedding_is_clipped(folder: Path, tmp_path: Path) -> None:
    """24 layers, 5 steps: no NaN in the embedding, its gradient clipped in each of them."""
    trainer = trainer_of(small(*deep()))
    norms = []
    watched = Parts().clip

    def clip(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
        watched(gradients, norm, max_norm)
        norms.append(float(grad_norm([trainer.weights[EMBEDDING].grad])))

    trainer.parts = Parts(clip=clip)
    for _ in range(5):
        trainer.step()
        assert not bool(trainer.weights[EMBEDDING].isnan().any())
    assert len(norms) == 5 and all(0 < norm <= 0.01 * (1 + 1e-4) for norm in norms)


def embedding_left_out(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    clipped(gradients[1:], norm, max_norm)


def by_fourth_power(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    for each in gradients:
        each.mul_(min(1.0, max_norm / float(norm) ** 4))


def one_by_one(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    for each in gradients:
        clipped([each], grad_norm([each]), max_norm)


def not_at_all(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    """Nothing is clipped."""


@pytest.mark.parametrize(
    ("clip", "contract", "settings"),
    [
        (embedding_left_out, watch.EMBEDDING_GRADIENT, deep()),
        (not_at_all, watch.EMBEDDING_GRADIENT, deep()),
        (by_fourth_power, watch.STABLE, ("optimizer.max_grad_norm=1.0",)),
        (one_by_one, watch.STABLE, ("optimizer.max_grad_norm=0.01",)),
    ],
    ids=[
        "FALSIFY-EMBEDGRAD-001 left out",
        "FALSIFY-EMBEDGRAD-001 off",
        "FALSIFY-ALBOR-002 fourth power",
        "FALSIFY-ALBOR-002 one by one",
    ],
)
def test_faulty_clipping_stops_the_run(clip: Any, contract: str, settings: tuple[str, ...]) -> None:
    """Planted: weights only (ALB-044), norm to the fourth power (ALB-124), each tensor by itself."""
    assert breach_of(Parts(clip=clip), *settings).contract == contract


def numbers_arrive(folder: Path, tmp_path: Path) -> None:
    """Beta2 0.95 and decay 0.1 reach the optimizer, not the defaults 0.999 and 0.01."""
    trainer = trainer_of(small("optimizer.norm_weight_decay=0.02", "optimizer.eps=1e-7"))
    matrices, norms = trainer.optimizer.param_groups
    assert matrices["betas"] == norms["betas"] == (0.9, 0.95) and matrices["eps"] == 1e-7
    assert (matrices["weight_decay"], norms["weight_decay"]) == (0.1, 0.02)
    record = trainer.step()
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {record.rate} == {trainer.rate(1)}
    assert len(matrices["params"]) + len(norms["params"]) == len(trainer.weights)


def by_default(weights: dict[str, Tensor], section: OptimizerSection) -> AdamW:
    """Planted (ALB-044): the constructor's own numbers."""
    groups = made(weights, section).param_groups
    return AdamW([{"params": group["params"]} for group in groups], lr=section.lr)


def without_eps(weights: dict[str, Tensor], section: OptimizerSection) -> AdamW:
    """Planted: one key ignored."""
    return made(weights, replace(section, eps=1e-8))


@pytest.mark.parametrize(
    ("fault", "name"),
    [(by_default, "betas"), (without_eps, "eps")],
    ids=["FALSIFY-HYPERPARAMS-001 defaults", "FALSIFY-HYPERPARAMS-001 key ignored"],
)
def test_a_number_that_does_not_arrive_stops_the_run(fault: Any, name: str) -> None:
    stopped = breach_of(Parts(optimizer=fault), "optimizer.eps=1e-6")
    assert (stopped.contract, stopped.step) == (watch.HYPERPARAMETERS, 0) and name in str(stopped)


def test_a_number_that_changes_on_the_way_stops_the_run() -> None:
    """Planted, FALSIFY-HYPERPARAMS-001: something sets beta2 after the second step."""
    trainer = trainer_of(small())
    trainer.step()
    trainer.step()
    trainer.optimizer.param_groups[1]["betas"] = (0.9, 0.999)
    with pytest.raises(BreachError, match=r"^C-HYPERPARAMS-001: step 3: betas of group 1 is \(0.9, 0.999\)"):
        trainer.step()


def moments_begin_at_zero(folder: Path, tmp_path: Path) -> None:
    """Both moments of every weight are +0 before the first step, in memory that was NaN."""
    trainer = trainer_of(small())
    assert len(trainer.moments()) == 2 * len(trainer.weights)
    assert not any(bool(each.view(torch.int32).any()) for each in trainer.moments().values())


@pytest.mark.parametrize(
    "fault",
    [
        lambda weight: torch.empty(weight.shape),
        lambda weight: torch.full(weight.shape, 1e-30),
        lambda weight: -torch.zeros(weight.shape),
    ],
    ids=["FALSIFY-GPUINIT-001 empty", "FALSIFY-GPUINIT-001 small", "FALSIFY-GPUINIT-001 minus zero"],
)
def test_moments_that_are_not_zero_stop_the_run(fault: Any) -> None:
    """Planted (ALB-059): memory as it was found, which the tests fill with NaN."""
    stopped = breach_of(Parts(moment=fault))
    assert stopped.contract == watch.ZEROS and "exp_avg.model.embed_tokens.weight" in str(stopped)


def gradients_reach_every_weight(folder: Path, tmp_path: Path) -> None:
    """A gradient reaches all 110 tensors of 12 layers, and all of tiny at each step."""
    trainer = trainer_of(small("model.overrides.num_hidden_layers=12"))
    assert len(trainer.weights) == 110 and trainer.step().without_gradient == 0
    assert {event["without_gradient"] for event in steps_of(folder)} == {0}


def test_a_weight_without_gradient_stops_the_run() -> None:
    """Planted (ALB-038): one matrix whose product does not know the way back to it."""
    model = model_of(small())
    products, seen = 7 * model.config.num_hidden_layers, [0]

    def detached(x: Tensor, weight: Tensor, sums: Sums) -> Tensor:
        seen[0] += 1
        # Of a layer's seven products, in order, the sixth is that of up_proj.
        return linear(x, weight.detach()) if seen[0] % products == 7 + 6 else linear_into(x, weight, sums)

    stopped = breach_of(Parts(), model=replace(model, operators=Operators(linear=detached)))
    assert (stopped.contract, stopped.step) == (watch.FLOW, 1)
    assert "model.layers.1.mlp.up_proj.weight has no gradient, 1 weights in all" in str(stopped)


def loss_falls(folder: Path, tmp_path: Path) -> None:
    """The smoothed loss does not rise after warm-up; and it fell."""
    losses = [event["loss"] for event in steps_of(folder)]
    assert not rises(losses, after=10)
    assert average(losses, 10)[-1] < 0.8 * losses[0]


def test_a_rate_too_high_is_seen_in_the_loss() -> None:
    """A rate a hundred times too high, said in the configuration as a mistake would be."""
    trainer = trainer_of(small("optimizer.lr=1.0", "optimizer.max_grad_norm=100.0", "training.max_steps=60"))
    losses = [trainer.step().loss for _ in range(60)]
    assert rises(losses)


def norms_are_bounded(folder: Path, tmp_path: Path) -> None:
    """The norm after clipping, in the log of every step, is at most the largest allowed."""
    steps, config = steps_of(folder), small(*TINY)
    error = watch.norm_error(tuple(each.shape) for each in trainer_of(config).weights.values())
    assert error < 1e-4
    assert all(0 < event["norm_after"] <= config.optimizer.max_grad_norm * (1 + error) for event in steps)
    assert any(event["norm"] > config.optimizer.max_grad_norm for event in steps)


def checkpoints_repeat(folder: Path, tmp_path: Path) -> None:
    """Seed 42 twice, the second time cut otherwise: equal hashes of every checkpoint and equal
    losses at every step; another seed, other ones."""
    run(small(*TINY, "training.micro_batch_size=1", "training.gradient_accumulation_steps=4"), tmp_path / "again")
    digests = [
        {step: checkpoint.read(each, step).digest for step in checkpoint.committed(each)}
        for each in (folder, tmp_path / "again")
    ]
    assert digests[0] == digests[1] and set(digests[0]) == {50, 100}
    assert [event["loss"] for event in steps_of(folder)] == [event["loss"] for event in steps_of(tmp_path / "again")]
    other: StepRecord = trainer_of(small(*TINY, "training.seed=43")).step()
    assert other.loss != steps_of(folder)[0]["loss"]


def test_updates_that_are_not_made_are_counted() -> None:
    """C-TRAINCFG-001, planted: an optimizer that skips a step."""

    class Skipping(AdamW):
        skipped = False

        def step(self, closure: Any = None) -> Any:
            if self.skipped:
                return super().step(closure)
            self.skipped = True
            return None

    def skipping(weights: dict[str, Tensor], section: OptimizerSection) -> AdamW:
        return Skipping(made(weights, section).param_groups)

    trainer = trainer_of(small(), Parts(optimizer=skipping))
    for _ in range(3):
        trainer.step()
    with pytest.raises(BreachError, match=r"^C-TRAINCFG-001: step 3: .* had 2 updates; allowed: 3$"):
        watch.updates_are_counted(trainer.done, trainer.counted())


def test_the_largest_magnitude_is_exact() -> None:
    """Each by itself and all together."""
    tensors = {name: torch.tensor(numbers) for name, (numbers, _) in LARGEST.items()}
    for name, found in zip(tensors, watch.largest(tensors), strict=True):
        assert same_bits(found, torch.tensor(LARGEST[name][1])), name
        assert same_bits(watch.largest({name: tensors[name]}), found[None]), name
    few = {name: tensors[name] for name in list(tensors)[:5]}
    assert watch.without_gradient(2, few, watch.largest(few)) == ["zeros", "none"]
    for name in ("infinite", "nan"):
        bad = {name: tensors[name], "zeros": tensors["zeros"]}
        with pytest.raises(BreachError, match=f"weight {name} has {1 + (name == 'nan')} elements"):
            watch.are_finite(2, "weight", bad, watch.largest(bad))


CLAIMS = {
    "FALSIFY-STABLE-001": stays_finite,
    "FALSIFY-EMBEDGRAD-001": embedding_is_clipped,
    "FALSIFY-HYPERPARAMS-001": numbers_arrive,
    "FALSIFY-GPUINIT-001": moments_begin_at_zero,
    "FALSIFY-GRADFLOW-001": gradients_reach_every_weight,
    "FALSIFY-ALBOR-001": loss_falls,
    "FALSIFY-ALBOR-002": norms_are_bounded,
    "FALSIFY-ALBOR-003": checkpoints_repeat,
}


# The second run of ALBOR-003 takes longer than all others.
@pytest.mark.parametrize(
    "claim", [pytest.param(claim, marks=pytest.mark.long if claim == "FALSIFY-ALBOR-003" else ()) for claim in CLAIMS]
)
def test_on_a_real_run(claim: str, folder: Path, tmp_path: Path) -> None:
    """Each predicts what a correct trainer does; the faults planted above show that it can be wrong."""
    CLAIMS[claim](folder, tmp_path)
