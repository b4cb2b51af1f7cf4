"""GRPO in one process: what the engine sampled is what the trainer sees, to the last bit, on every first update."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from samebits import cli
from samebits.infer import Engine, Request
from samebits.model import ModelConfig
from samebits.nn.strategy import Operators
from samebits.parity.rl import Loop, RLConfig, byte_config
from samebits.parity.rollout import Rollout
from samebits.parity.scoring import Comparison, compare, score
from samebits.parity.stock import STOCK

SMALL = ModelConfig(
    vocab_size=256,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    intermediate_size=128,
    max_position_embeddings=64,
)
FEW = RLConfig(prompts=3, num_generations=6, seed=5)


def loop(settings: RLConfig = FEW, config: ModelConfig = SMALL, **changes: Any) -> Loop:
    return Loop(replace(settings, **changes), config)


@pytest.mark.parametrize("task", ["addition", "sorting"])
def test_the_first_update_of_every_batch_is_exactly_on_policy(task: str) -> None:
    """ratio == 1.0, divergence == 0.0 and no bit of any logprob differs; from the second update on they do."""
    records = [each.step() for each in [loop(task=task, num_iterations=2, beta=0.05)] for _ in range(3)]
    for record in records:
        found = record.first
        assert found.exact and found.mismatched == 0 and found.tokens > 18
        assert (found.least_ratio, found.most_ratio, found.divergence) == (1.0, 1.0, 0.0)
        assert not record.last.exact and record.last.mismatched > found.tokens // 2
    assert len({record.loss for record in records}) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_engine_and_trainer_agree_in_every_format(dtype: torch.dtype) -> None:
    each = loop()
    each.policy = each.policy.to(dtype=dtype)
    rollouts = each.sample(1)
    with torch.no_grad():
        scored = score(each.policy, [(rollout.question.prompt, rollout.tokens) for rollout in rollouts])
    assert compare(torch.cat([rollout.logprobs for rollout in rollouts]), scored).exact


def test_cuts_of_the_trainer_and_batches_of_the_engine_change_nothing() -> None:
    """Micro-batches of 1, 7 and all; an engine of 2 and of 64 requests: one set of records, one digest."""
    found = []
    for micro, requests in ((18, 64), (1, 2), (7, 5)):
        each = loop(micro_batch_size=micro, engine_requests=requests, num_iterations=2)
        found.append(([each.step() for _ in range(2)], each.digest()))
    assert found[0] == found[1] == found[2]


def test_on_stock_torch_the_cut_shows() -> None:
    """The negative control of the test above."""
    digests = set()
    for micro in (18, 1):
        each = loop(micro_batch_size=micro, stock=True)
        each.step()
        digests.add(each.digest())
    assert len(digests) == 2


def test_the_seed_decides() -> None:
    """Planted: another seed is another run, so that equal digests mean something."""
    digests = []
    for seed in (5, 5, 6):
        each = loop(seed=seed)
        each.step()
        digests.append(each.digest())
    assert digests[0] == digests[1] != digests[2]


def nudged(rollout: Rollout) -> Rollout:
    logprobs = rollout.logprobs.clone()
    logprobs[-1] = torch.nextafter(logprobs[-1], torch.tensor(0.0))
    return replace(rollout, logprobs=logprobs)


def test_one_ulp_of_the_engine_is_reported() -> None:
    """Planted: the last logprob of one completion is off by one ulp."""
    each = loop()
    rollouts = each.sample(1)
    rollouts[4] = nudged(rollouts[4])
    found = each.update(rollouts).comparison
    assert found.mismatched == 1 and not found.exact and found.first.endswith("(1 ulp)")


def test_a_stale_policy_is_reported() -> None:
    """Planted: the weights move between sampling and scoring."""
    each = loop()
    rollouts = each.sample(1)
    assert each.update(rollouts).comparison.exact
    stale = each.update(rollouts).comparison
    assert not stale.exact and stale.mismatched > stale.tokens // 2
    assert stale.least_ratio < 1.0 < stale.most_ratio and stale.divergence > 0.0


def asked_twice() -> Comparison:
    """One engine, the same long prompt before and after an update; the second answer against the new weights."""
    each, prompt = loop(), tuple(range(40))
    engine = Engine(each.policy, pages=16)
    asked = [Request(prompt=prompt, max_tokens=4, number=0)]
    engine.generate(asked)
    each.step()
    late = engine.generate(asked)[0]
    with torch.no_grad():
        return compare(torch.tensor(late.logprobs), score(each.policy, [(prompt, late.tokens)]))


def test_an_engine_that_outlives_an_update_is_on_policy() -> None:
    assert asked_twice().exact


def test_an_engine_that_keeps_old_keys_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: pages of the old weights answer for a prompt under the new ones."""
    monkeypatch.setattr(Engine, "_notice_new_weights", lambda _: None)
    assert not asked_twice().exact


def test_stock_torch_is_not_on_policy() -> None:
    """The measured negative control, on the shape that the command runs."""
    record = loop(config=byte_config("tiny"), stock=True, prompts=8).step()
    assert record.first.mismatched > 0 and not record.first.exact


def test_one_stock_operator_is_enough() -> None:
    """Planted: the engine's attention is torch's, all else is samebits'."""
    each = loop(config=byte_config("tiny"))
    right = each.policy
    each.policy = replace(right, operators=Operators(attention=STOCK.attention))
    rollouts = each.sample(1)
    each.policy = right
    assert each.update(rollouts).comparison.mismatched > 0


def test_the_reward_rises() -> None:
    """Recorded of this seed: the mean of the last five batches is over four times that of the first five."""
    each = loop(prompts=4, num_generations=16, seed=0, learning_rate=1e-2)
    rewards = [each.step().reward for _ in range(25)]
    assert sum(rewards[-5:]) > 4 * sum(rewards[:5]) > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_generations": 1}, "num_generations is 1; allowed: at least 2"),
        ({"prompts": 0}, "prompts is 0; allowed: a whole number, 1 to 4096"),
        ({"task": "poetry"}, "task is 'poetry'; allowed: sorting, addition"),
        ({"learning_rate": float("nan")}, "learning rate is nan; allowed: finite, above 0"),
        ({"epsilon": 0.0}, "epsilon is 0.0; allowed: above 0, below 1"),
        ({"seed": -1}, "seed is -1; allowed: 0 to"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(FEW, **changes)


def test_a_vocabulary_without_all_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="the vocabulary is 97; allowed: at least 256, one a byte"):
        loop(config=replace(SMALL, vocab_size=97))
    with pytest.raises(ValueError, match="model is 'huge'; allowed: tiny"):
        byte_config("huge")


def test_a_loss_that_is_no_number_stops_the_run_before_the_weights_move() -> None:
    each = loop()
    rollouts, before = each.sample(1), each.digest()
    with pytest.raises(ValueError, match="the loss is nan in batch 0; allowed: finite"):
        each.update([replace(rollout, advantage=float("nan")) for rollout in rollouts])
    with pytest.raises(ValueError, match="the gradient's norm is inf in batch 0; allowed: finite"):
        each.update([replace(rollout, advantage=1e38) for rollout in rollouts])
    assert each.digest() == before


def test_weights_that_are_no_numbers_cannot_be_sampled() -> None:
    each = loop()
    each.policy.weights["model.norm.weight"].fill_(float("nan"))
    with pytest.raises(ValueError, match="batch 1 could not be sampled: engine: logits are not finite"):
        each.sample(1)


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["rl", "--prompts", "2", "--num-generations", "4", *arguments])
    said = capsys.readouterr()
    return int(stopped.value.code or 0), said.out, said.err


def test_the_command_shows_both_and_judges_samebits(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ran(capsys, "--steps", "2", "--json")
    document = json.loads(out)
    assert code == 0 and document["verdict"] == "holds" and document["judged"] == "samebits"
    assert set(document["runs"]) == {"samebits", "stock torch"}
    ours = document["runs"]["samebits"]["batches"]
    assert len(ours) == 2 and all(batch["first"]["exact"] for batch in ours)
    stock = document["runs"]["stock torch"]["batches"]
    assert sum(batch["first"]["mismatched"] for batch in stock) > 0


def test_the_command_says_that_stock_torch_does_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ran(capsys, "--steps", "2", "--stock")
    assert code == 1 and out.rstrip().endswith("on-policy to the last bit, stock torch: does not hold")
    code, out, _ = ran(capsys, "--steps", "1", "--no-stock", "--num-iterations", "2")
    assert code == 0 and "stock torch" not in out and "holds" in out


def test_the_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ran(capsys, "--help")
    assert code == 0 and "--json" in out and "Example" in out and "samebits rl" in out


def test_the_command_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ran(capsys, "--steps", "0")
    assert (code, out, err) == (2, "", "samebits: rl: steps is 0; allowed: 1 to 1000000\n")
