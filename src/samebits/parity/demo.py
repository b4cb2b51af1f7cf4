"""Measures what whole models show: an answer alone and in a crowd, a training cut in several ways, engine and trainer.

Stock torch and samebits get the same weights and the same inputs. Knows nothing of how the result is shown."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from samebits.infer import Completion, Engine, Request, Sampling
from samebits.model.batch import IGNORED, Batch
from samebits.model.loading import load
from samebits.model.model import Model
from samebits.model.tokenizer import Tokenizer
from samebits.numerics.bits import compare as compare_bits
from samebits.numerics.bits import ulp_distance
from samebits.parity.demo_results import Answer, Crowd, Cuts, Models, Policy, Scores, Token, TrainingRun
from samebits.parity.scoring import compare, score
from samebits.parity.stock import STOCK
from samebits.records.packages import MissingPackageError
from samebits.train import checkpoint, events
from samebits.train.assessment import shape_of
from samebits.train.configuration import TrainConfig
from samebits.train.configuration_file import read_text
from samebits.train.lanes import Backward, Cut, Example, mean_loss, minus_logprobs
from samebits.train.running import run
from samebits.train.trainer import Parts

REAL_MODEL: Final = "smollm2"
# The first is watched; the others are its crowd.
QUESTIONS: Final = (
    "Why is the sky blue?",
    "What is a prime number?",
    "Name three rivers in Europe.",
    "How do bees make honey?",
    "What is the capital of Japan?",
    "Write a sentence about rain.",
    "What is two plus two?",
    "Who wrote Hamlet?",
)
ANSWER_TOKENS: Final = 16
PAGE_SIZE: Final = 16
# What the tiny model, which learned from Python's sources, is asked to go on with, and how far.
OPENINGS: Final = ("def ", "class ", "import ", "    return ", "for ", "if not ", "# ", "    self.")
SAMPLED_TOKENS: Final = 24
TRAINED: Final = "tiny"
# (sequences of one backward pass, how they are laid out): each is the same global batch.
CUTS: Final = ((8, "packed"), (1, "packed"), (2, "padded"))
STOCK_CUTS: Final = CUTS[:2]
# Documents apart, so that sequences differ in length. The peak is named only so that nobody waits for its measurement.
RECIPE: Final = """
model: {preset: tiny, overrides: {vocab_size: 272}}
data: {source: stdlib, max_length: 64, max_train_samples: 30, documents: apart}
optimizer:
  {lr: 3e-3, warmup_steps: 1, min_lr_ratio: 0.1, beta1: 0.9, beta2: 0.95, weight_decay: 0.1, max_grad_norm: 1.0}
training:
  {seed: 42, micro_batch_size: 8, gradient_accumulation_steps: 1, num_train_epochs: 1, max_steps: 12,
   max_repeats: 1, save_steps: 12, waive: [CFG-OB7]}
monitoring: {peak_flops: 1e12}
"""


def measure(tell: Callable[[str], None] = lambda _: None, source: str | None = REAL_MODEL) -> Models:
    """Everything. `source` is the model that answers; None leaves it out."""
    config = read_text(RECIPE)
    with tempfile.TemporaryDirectory() as folder:
        stock = cuts(config, Path(folder) / "stock", STOCK_CUTS, Parts(backward=stock_backward), tell)
        ours = cuts(config, Path(folder) / "samebits", CUTS, Parts(), tell)
        weights = checkpoint.read(Path(folder) / "samebits" / "0").weights
    tell("the trained model goes on with some lines; its trainer scores them")
    policies = [sampled(Model(config=shape_of(config), weights=dict(weights)), TRAINED)]
    crowd, missing = None, ""
    if source is not None:
        tell(f"loading {source}")
        try:
            loaded = load(source)
        except (ValueError, MissingPackageError) as error:
            missing = str(error)
        else:
            crowd, policy = crowded(loaded.model, loaded.tokenizer, source, tell=tell)
            policies.append(policy)
    return Models(stock_cuts=stock, our_cuts=ours, policies=tuple(policies), crowd=crowd, missing=missing)


def crowded(
    model: Model,
    words: Tokenizer,
    name: str,
    questions: Sequence[str] = QUESTIONS,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[Crowd, Policy]:
    """The first question alone, then in the midst of the others; and the trainer's word on all that they were told."""
    question, *others = questions
    place = len(others) // 2
    asked = [*others[:place], question, *others[place:]]
    prompts = [tuple(words.conversation([{"role": "user", "content": each}])) for each in asked]
    greedy = Sampling(temperature=0.0)
    requests = [
        Request(prompt=each, max_tokens=ANSWER_TOKENS, sampling=greedy, stop=frozenset(words.eos)) for each in prompts
    ]
    answers, scores = [], []
    for side, engine, trainer in _sides(model):
        tell(f"{name} answers alone and in a crowd of {len(asked)}, {side}")
        (alone,) = _generated(engine, [requests[place]])
        together = _generated(engine, requests)
        answers.append(_answer(alone, together[place], words))
        tell(f"{name}: the trainer's forward on what the engine drew, {side}")
        scores.append(scored(trainer, requests, together))
    policy = Policy(model=name, stock=scores[0], ours=scores[1])
    crowd = Crowd(model=name, question=question, others=tuple(others), stock=answers[0], ours=answers[1])
    return crowd, policy


def sampled(model: Model, name: str) -> Policy:
    """Engine against trainer on what a model of bytes draws after some openings."""
    words = Tokenizer.of_bytes()
    requests = [Request(prompt=tuple(words.encode(each)), max_tokens=SAMPLED_TOKENS) for each in OPENINGS]
    stock, ours = (scored(trainer, requests, _generated(engine, requests)) for _, engine, trainer in _sides(model))
    return Policy(model=name, stock=stock, ours=ours)


def _sides(model: Model) -> tuple[tuple[str, Model, Model], ...]:
    """(name, for the engine, for the trainer) of stock torch and of the model as it is."""
    engine, plain = model.for_inference(), replace(model, operators=STOCK)
    return ("stock torch", replace(engine, operators=STOCK), plain), ("samebits", engine, model.with_sums())


def _generated(model: Model, requests: Sequence[Request]) -> list[Completion]:
    pages = sum(-(-(len(each.prompt) + each.max_tokens) // PAGE_SIZE) for each in requests)
    return Engine(model, pages=pages, page_size=PAGE_SIZE).generate(requests)


def scored(trainer: Model, requests: Sequence[Request], answers: Sequence[Completion]) -> Scores:
    """The engine's logprobs against those of one packed forward pass of the trainer."""
    engine = torch.tensor([logprob for each in answers for logprob in each.logprobs], dtype=torch.float32)
    with torch.no_grad():
        found = score(trainer, [(asked.prompt, each.tokens) for asked, each in zip(requests, answers, strict=True)])
    return Scores(comparison=compare(engine, found), ulps=tuple(ulp_distance(engine, found).tolist()))


def _answer(alone: Completion, crowded: Completion, words: Tokenizer) -> Answer:
    agree = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(alone.tokens, crowded.tokens, strict=False)))
    # The first other token is compared as well: the text before it is the same.
    count = min(agree + 1, len(alone.tokens), len(crowded.tokens))
    left, right = (torch.tensor(each.logprobs[:count], dtype=torch.float32) for each in (alone, crowded))
    tokens = [
        Token(
            text=words.text([alone.tokens[place]]),
            crowded_text=words.text([crowded.tokens[place]]),
            alone=float(left[place]),
            crowded=float(right[place]),
            ulps=int(ulps),
            same=place < agree and compare_bits(left[place], right[place]) is None,
        )
        for place, ulps in enumerate(ulp_distance(left, right))
    ]
    return Answer(alone=words.text(alone.tokens), crowded=words.text(crowded.tokens), tokens=tuple(tokens))


def cuts(
    config: TrainConfig,
    folder: Path,
    ways: Sequence[tuple[int, str]],
    parts: Parts,
    tell: Callable[[str], None] = lambda _: None,
) -> Cuts:
    """The same run for each way to cut its global batch, into folders of their own."""
    runs, weights = [], []
    for place, (micro_batch, collation) in enumerate(ways):
        tell(
            f"{folder.name}: training with {micro_batch} of {config.training.global_batch_size} sequences at a time,"
            f" {collation}"
        )
        accumulation = config.training.global_batch_size // micro_batch
        training = replace(
            config.training, micro_batch_size=micro_batch, gradient_accumulation_steps=accumulation, collation=collation
        )
        summary = run(replace(config, training=training), folder / str(place), parts=parts)
        losses = tuple(event["loss"] for event in events.read(folder / str(place)) if event["event"] == "step")
        runs.append(
            TrainingRun(
                micro_batch=micro_batch,
                accumulation=accumulation,
                collation=collation,
                digest=summary.digest,
                losses=losses,
            )
        )
        weights.append(checkpoint.read(folder / str(place)).weights)
    differing = max(_differing(weights[0], other) for other in weights[1:])
    count = sum(each.numel() for each in weights[0].values())
    return Cuts(runs=tuple(runs), weights=count, differing=differing)


def _differing(left: dict[str, Tensor], right: dict[str, Tensor]) -> int:
    found = (compare_bits(weight, right[name]) for name, weight in left.items())
    return sum(each.count for each in found if each is not None)


def stock_backward(model: Model, examples: list[Example], cut: Cut) -> Backward:
    """As everybody does it: torch's functions, and autograd's accumulation."""
    return autograd_backward(replace(model, operators=STOCK), examples, cut)


def autograd_backward(model: Model, examples: list[Example], cut: Cut) -> Backward:
    """Every micro-batch has a gradient of its own, which autograd adds to the last; the model's operators are kept."""
    weights = {name: weight.detach().requires_grad_() for name, weight in model.weights.items()}
    stock = replace(model, weights=weights)
    count, seen = sum(int((targets != IGNORED).sum()) for _, targets in examples), []
    for start in range(0, len(examples), cut.micro_batch):
        some = examples[start : start + cut.micro_batch]
        batch = Batch.of([torch.from_numpy(inputs) for inputs, _ in some], device=model.device)
        targets = torch.cat([torch.from_numpy(each) for _, each in some]).to(model.device)
        losses = minus_logprobs(stock, batch, targets)
        torch.autograd.backward(losses, torch.full_like(losses, 1.0 / count))
        seen.append(losses.detach())
    gradients = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
    return Backward(gradients=gradients, loss=mean_loss(seen, count), targets=count)
