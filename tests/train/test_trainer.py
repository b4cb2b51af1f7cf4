"""One global batch, one result: any micro-batch cut, packed or padded, in any number of lanes each with all cuts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.train.small_run import digest_after, small, trainer_of

from samebits.numerics.bits import same_bits
from samebits.ops.adamw import adamw_
from samebits.parallel.schedules import tree
from samebits.parity.demo import autograd_backward
from samebits.train import checkpoint
from samebits.train.lanes import fold
from samebits.train.trainer import Parts

STEPS = 3
CUTS = [(1, "packed"), (2, "packed"), (4, "packed"), (8, "packed"), (1, "padded"), (4, "padded"), (8, "padded")]


def cut(micro_batch: int, collation: str, *more: str) -> tuple[str, ...]:
    return (
        f"training.micro_batch_size={micro_batch}",
        f"training.gradient_accumulation_steps={8 // micro_batch}",
        f"training.collation={collation}",
        *more,
    )


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_any_cut_gives_one_checkpoint(lanes: int, tmp_path: Path) -> None:
    digests = {
        digest_after(small(*cut(*each, f"training.lanes={lanes}")), STEPS, tmp_path / f"{place}")
        for place, each in enumerate(CUTS)
    }
    assert len(digests) == 1


def test_cuts_that_divide_nothing_give_the_same(tmp_path: Path) -> None:
    """3, 5, 6 and 7 sequences at a time, of a batch of 8 in lanes of 4."""
    config, digests = small("training.lanes=2"), set()
    for micro_batch in range(1, 9):
        trainer = trainer_of(config)
        trainer.cut = replace(trainer.cut, micro_batch=micro_batch)
        trainer.step()
        digests.add(checkpoint.digest(checkpoint.write(tmp_path / str(micro_batch), 1, **trainer.state())))
    assert len(digests) == 1


def test_bfloat16_copies_keep_float32_weights(tmp_path: Path) -> None:
    config = small("training.dtype=bfloat16")
    assert {each.dtype for each in trainer_of(config).weights.values()} == {torch.float32}
    assert trainer_of(config).model().dtype == torch.bfloat16
    digests = {
        digest_after(small("training.dtype=bfloat16", *cut(*each)), STEPS, tmp_path / f"{place}")
        for place, each in enumerate(CUTS[:4])
    }
    assert len(digests) == 1 and digests != {digest_after(small(), STEPS, tmp_path / "float32")}


def test_lanes_and_seed_decide_bits(tmp_path: Path) -> None:
    settings = [(), ("training.lanes=2",), ("training.seed=43",), ("optimizer.beta2=0.96",)]
    found = {digest_after(small(*each), STEPS, tmp_path / f"{place}") for place, each in enumerate(settings)}
    assert len(found) == len(settings)


def after_a_step(micro_batch: int, parts: Parts) -> tuple[dict[str, torch.Tensor], float]:
    """The weights, and the loss before."""
    trainer = trainer_of(small(*cut(micro_batch, "packed")), parts)
    loss = trainer.step().loss
    return trainer.weights, loss


def test_stock_accumulation_depends_on_the_cut() -> None:
    """Negative control: the same loop, but autograd adds gradients that were rounded apart."""
    ours, stock = (
        [after_a_step(m, Parts(backward=each) if each else Parts()) for m in (1, 8)]
        for each in (None, autograd_backward)
    )
    assert all(same_bits(ours[0][0][name], ours[1][0][name]) for name in ours[0][0])
    assert any(not same_bits(stock[0][0][name], stock[1][0][name]) for name in stock[0][0])
    # They differ in how gradients are added, not in what they are gradients of: the forward pass is one.
    assert len({loss for _, loss in (*ours, *stock)}) == 1


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_lanes_fold_by_the_tree_of_the_schedules(lanes: int) -> None:
    made = [torch.randn(33, generator=torch.Generator().manual_seed(seed)) for seed in range(lanes)]
    folded = fold(lanes, lambda lane: {"w": made[lane].clone()})["w"]
    sums = [each.clone() for each in made]
    for level in tree(lanes):
        for stays, added in level:
            sums[stays] = sums[stays] + sums[added]
    assert same_bits(folded, sums[0])
    chain = made[0].clone()
    for each in made[1:]:
        chain = chain + each
    # Planted: a chain over lanes is another order from four lanes on.
    assert same_bits(folded, chain) == (lanes <= 2)


def test_one_update_is_adamw_with_the_numbers_of_the_configuration() -> None:
    """What the optimizer did, against `adamw_` with every number said here."""
    config = small("optimizer.max_grad_norm=1000.0")
    trainer = trainer_of(config)
    before = {name: each.clone() for name, each in trainer.weights.items()}
    seen = {}

    def backward(*given: object) -> object:
        found = Parts().backward(*given)  # type: ignore[arg-type]
        seen.update({name: each.clone() for name, each in found.gradients.items()})
        return found

    trainer.parts = Parts(backward=backward)  # type: ignore[arg-type]
    record = trainer.step()
    for name, weight in before.items():
        decay = 0.1 if weight.dim() > 1 else 0.0
        numbers = {"lr": record.rate, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": decay}
        adamw_(weight, seen[name], torch.zeros_like(weight), torch.zeros_like(weight), step=1, **numbers)
        assert same_bits(weight, trainer.weights[name]), name


def test_the_loss_is_the_mean_over_targets() -> None:
    """Against a float64 sum of the logprobs of every sequence, scored alone by the first weights."""
    from samebits.model import Batch
    from samebits.train.data_order import sequences_of

    trainer = trainer_of(small())
    places = sequences_of(1, seed=42, sequences=len(trainer.data), batch=8)
    model, scores = trainer.model(), []
    with torch.no_grad():
        for place in places.tolist():
            inputs, targets = (torch.from_numpy(each) for each in trainer.data.sequence(place))
            scores.append(model.logprobs(model.hidden(Batch.of([inputs])), targets)[targets >= 0].double())
    found = torch.cat(scores)
    record = trainer.step()
    assert record.tokens == len(found)
    # Sums of doubles: one rounding a term.
    assert abs(record.loss + float(found.mean())) <= len(found) * 2.0**-53 * abs(record.loss)
