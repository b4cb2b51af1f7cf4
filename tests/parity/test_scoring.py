"""Engine against trainer, token by token: equal is exactly 1 and 0, one ulp is seen; and the arithmetic of GRPO."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from samebits.model import Batch, Model, ModelConfig
from samebits.numerics.bits import same_bits
from samebits.parity.grpo import Objective, advantages, terms, token_weights
from samebits.parity.scoring import compare, score
from samebits.parity.tasks import STOP, TASKS, questions, reward

SMALL = ModelConfig(
    vocab_size=256,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=80,
    max_position_embeddings=128,
)
LOGPROBS = torch.tensor([-5.25, -0.001, -3.5, -1e-6, -17.0, -0.75])
SPOKEN = [((3, 4, 5), (7, 8)), ((9,), (1, 2, 3, 4)), ((6, 6, 6, 6, 6, 6, 6), (5,))]


def test_equal_logprobs_are_exactly_on_policy() -> None:
    found = compare(LOGPROBS, LOGPROBS.clone())
    assert found.exact and (found.mismatched, found.tokens) == (0, 6)
    assert (found.least_ratio, found.most_ratio, found.divergence, found.largest_difference) == (1.0, 1.0, 0.0, 0.0)
    assert str(found) == "0 of 6 tokens differ; ratio 1 and divergence 0, exactly"


@pytest.mark.parametrize("place", range(len(LOGPROBS)))
def test_one_ulp_in_one_token_is_noticed(place: int) -> None:
    """Planted, also where it is too small to move a ratio of float32."""
    other = LOGPROBS.clone()
    other[place] = torch.nextafter(other[place], torch.tensor(0.0))
    found = compare(LOGPROBS, other)
    assert not found.exact and found.mismatched == 1 and found.first.startswith(f"[{place}]: ")
    assert found.first.endswith("(1 ulp)") and found.largest_difference > 0


def test_a_zero_of_the_other_sign_is_noticed() -> None:
    """Planted: +0 is not -0, though every ratio is 1."""
    found = compare(torch.tensor([-1.0, 0.0]), torch.tensor([-1.0, -0.0]))
    assert found.mismatched == 1 and found.least_ratio == found.most_ratio == 1.0 and not found.exact


def test_ratios_and_divergence_are_those_of_the_definition() -> None:
    trainer = LOGPROBS + torch.tensor([0.5, 0.0, -0.25, 0.0, 1.0, 0.0])
    found = compare(LOGPROBS, trainer)
    assert found.mismatched == 3 and found.largest_difference == 1.0
    assert found.least_ratio == pytest.approx(math.exp(-0.25), rel=2**-23)
    assert found.most_ratio == pytest.approx(math.e, rel=2**-23)
    expected = math.fsum(math.exp(each) - 1 - each for each in (0.5, -0.25, 1.0)) / 6
    assert found.divergence == pytest.approx(expected, rel=2**-40)


def test_logprobs_that_are_no_numbers_are_refused() -> None:
    broken = LOGPROBS.clone()
    broken[2] = math.nan
    with pytest.raises(ValueError, match=r"the trainer's logprob of token 2 is nan; allowed: finite"):
        compare(LOGPROBS, broken)
    with pytest.raises(ValueError, match=r"the engine has logprobs \[6\], the trainer \[5\]; allowed: one a token"):
        compare(LOGPROBS, LOGPROBS[:5])


def test_scores_are_of_the_sampled_tokens_in_order() -> None:
    """score(all) == score(each) end to end, and one of them by hand."""
    model = Model.new(SMALL, 1)
    with torch.no_grad():
        together, apart = score(model, SPOKEN), torch.cat([score(model, [each]) for each in SPOKEN])
        assert same_bits(together, apart) and len(together) == 7
        hidden = model.hidden(Batch.of([[9, 1, 2, 3]]))
        assert same_bits(together[2:6], model.logprobs(hidden, torch.tensor([1, 2, 3, 4])))


def test_advantages_are_normalised_within_a_group() -> None:
    found = advantages([0.0, 0.25, 0.25, 1.0])
    deviation = math.sqrt(math.fsum((each - 0.375) ** 2 for each in (0.0, 0.25, 0.25, 1.0)) / 4)
    assert found == tuple((each - 0.375) / (deviation + 1e-4) for each in (0.0, 0.25, 0.25, 1.0))
    assert advantages([0.1] * 3) == (0.0, 0.0, 0.0)
    # Rounded once: no order of the group's members can reach a bit.
    rewards = [0.1, 0.7, 1 / 3, 0.9, 0.2]
    assert sorted(advantages(rewards)) == sorted(advantages(rewards[::-1]))


def torch_loss(objective: Objective, new: Tensor, old: Tensor, advantage: Tensor, share: Tensor, ref: Tensor) -> Tensor:
    """The definition, in float64, to be differentiated by torch."""
    ratio = torch.exp(new - old)
    clipped = ratio.clamp(1 - objective.epsilon, 1 + objective.epsilon)
    divergence = torch.exp(ref - new) - (ref - new) - 1
    each = -torch.minimum(ratio * advantage, clipped * advantage) + objective.beta * divergence
    return (each * share).sum()


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_gradients_are_those_of_the_objective(weight: float) -> None:
    """Against torch's autograd of the definition: only the exponential is float32, so 2 ulps of it at most."""
    random, objective = np.random.default_rng(0), Objective(epsilon=0.2, beta=weight)
    lengths = [3, 1, 5, 7, 4, 2, 6, 4]
    old, new, reference = (random.normal(-3, 0.3, sum(lengths)).astype(np.float32) for _ in range(3))
    advantage, share = token_weights(random.normal(size=len(lengths)).tolist(), lengths)
    found = terms(objective, new, old, advantage, share, reference)
    leaf = torch.from_numpy(new).double().requires_grad_()
    others = [torch.from_numpy(each).double() for each in (old, advantage, share, reference)]
    loss = torch_loss(objective, leaf, *others)
    loss.backward()
    assert leaf.grad is not None and 0 < found.clipped.sum() < len(new)
    scale = float(np.abs(advantage * share).max() + weight * share.max()) * float(np.exp(np.abs(new - old)).max())
    assert np.abs(found.gradients - leaf.grad.numpy()).max() <= 2**-22 * scale
    assert abs(math.fsum(found.losses) - loss.item()) <= len(new) * 2**-22 * scale
    assert math.fsum(share) == pytest.approx(1.0, rel=2**-50)


def test_on_policy_the_gradient_is_the_advantage() -> None:
    advantage, share = token_weights([1.5, -0.5], [2, 4])
    same = np.full(6, -2.5, np.float32)
    found = terms(Objective(beta=0.1), same, same, advantage, share, same)
    assert found.gradients.tolist() == [-1.5 / 4] * 2 + [0.5 / 8] * 4 and not found.clipped.any()


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"epsilon is 1.0; allowed: above 0, below 1"):
        Objective(epsilon=1.0)
    with pytest.raises(ValueError, match=r"beta is -0.1; allowed: finite, at least 0"):
        Objective(beta=-0.1)
    one = np.zeros(1, np.float32)
    with pytest.raises(ValueError, match=r"beta is 0.5 and there is no reference; allowed: both or none"):
        terms(Objective(beta=0.5), one, one, one, one, None)


@pytest.mark.parametrize("task", TASKS)
def test_questions_are_a_function_of_seed_and_batch(task: str) -> None:
    asked = questions(task, 1, 2, 32)
    assert asked == questions(task, 1, 2, 32) and asked[:5] == questions(task, 1, 2, 5)
    assert asked != questions(task, 2, 2, 32) and asked != questions(task, 1, 3, 32)
    for question in asked:
        assert question.answer[-1] == STOP and reward(question, question.answer) == 1.0
        assert 0.0 < reward(question, question.answer[:-1]) < 1.0
        assert reward(question, (*question.answer, 65)) < 1.0
        assert reward(question, (65, 66)) == 0.0


def test_answers_are_right() -> None:
    for question in questions("addition", 0, 1, 16):
        left, right = bytes(question.prompt).decode().rstrip("=").split("+")
        assert int(bytes(question.answer)) == int(left) + int(right)
    for question in questions("sorting", 0, 1, 16):
        given = bytes(question.prompt).decode().removeprefix("sort ").rstrip("=")
        assert bytes(question.answer).decode().strip() == "".join(sorted(given))
    with pytest.raises(ValueError, match=r"task is 'poetry'; allowed: sorting, addition"):
        questions("poetry", 0, 0, 1)
