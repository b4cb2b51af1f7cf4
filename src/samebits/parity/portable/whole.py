"""Whole runs of tiny models: twenty updates on a text that lies beside the record, and answers of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from samebits.infer.engine import Engine
from samebits.infer.request import Completion, Request, Sampling
from samebits.model import Model
from samebits.model.config import ModelConfig
from samebits.parity.portable.bits import digest, digest_of_digests, digest_of_numbers
from samebits.train.assessment import data_of, model_of
from samebits.train.configuration_file import read_text
from samebits.train.trainer import StepRecord, Trainer

# Clipping is at work in most updates, lanes are folded, micro-batches resume their chains, the rate rises and falls.
TRAINING: Final = """
model:
  preset: tiny
  overrides:
    {vocab_size: 272, hidden_size: 48, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
     head_dim: 16, intermediate_size: 80, use_qk_norm: true}
optimizer:
  {lr: 1e-2, warmup_steps: 4, min_lr_ratio: 0.1, beta1: 0.9, beta2: 0.95, weight_decay: 0.1, max_grad_norm: 0.5}
training:
  {seed: 42, micro_batch_size: 2, gradient_accumulation_steps: 4, lanes: 2, num_train_epochs: 1, max_steps: 20,
   max_repeats: 1, save_steps: 20, waive: [CFG-OB7]}
monitoring: {peak_flops: 1e12}
data: {source: text, max_length: 32, documents: joined}
"""
STEPS, GROUP = 20, 5

CONFIG: Final = ModelConfig(
    vocab_size=199,
    hidden_size=40,
    num_hidden_layers=2,
    num_attention_heads=5,
    num_key_value_heads=1,
    head_dim=16,
    intermediate_size=72,
    max_position_embeddings=160,
)
# Prompts shorter and longer than a page and than a chunk; every way to draw.
REQUESTS: Final[dict[str, Request]] = {
    "greedy": Request(prompt=tuple(range(3, 40)), max_tokens=24, sampling=Sampling(temperature=0.0), top_logprobs=3),
    "greedy short": Request(prompt=(7,), max_tokens=17, sampling=Sampling(temperature=0.0)),
    "sampled": Request(prompt=tuple(range(90, 10, -1)), max_tokens=24, sampling=Sampling(seed=5), score_prompt=True),
    "sampled warm": Request(prompt=(1, 2, 3), max_tokens=24, sampling=Sampling(temperature=1.7, seed=2**63 + 1)),
    "sampled few": Request(
        prompt=(5, 4, 3, 2, 1), max_tokens=24, sampling=Sampling(temperature=0.8, top_k=20, top_p=0.9, seed=5)
    ),
}


def trainer(format: str, device: torch.device, text: Path) -> Trainer:
    """The run before its first step."""
    given = (f"data.paths={[str(text)]}", f"training.dtype={format}", f"training.device={device.type}")
    config = read_text(TRAINING, given)
    return Trainer(config, model_of(config), data_of(config))


def training(format: str, device: torch.device, text: Path) -> dict[str, str]:
    """Losses, norms and rates of five updates each, and the weights and moments after them."""
    run, found, records = trainer(format, device, text), {}, list[StepRecord]()
    for step in range(1, STEPS + 1):
        records.append(run.step())
        if step % GROUP == 0:
            span = f"{step - GROUP + 1:02d} to {step:02d}"
            for name in ("loss", "norm", "rate"):
                found[f"{name} {span}"] = digest_of_numbers([getattr(each, name) for each in records])
            tensors = {**run.weights, **run.moments()}
            found[f"weights {step:02d}"] = digest_of_digests({name: digest(each) for name, each in tensors.items()})
            records.clear()
    return found


def tokens(format: str, device: torch.device) -> dict[str, str]:
    """What the engine answers to all requests at once: tokens, and every logprob that was asked for."""
    model = Model.new(CONFIG, seed=7).to(device=device, dtype=getattr(torch, format))
    engine = Engine(model, pages=64, page_size=16, batch_tokens=48, batch_requests=8)
    answers = engine.generate(list(REQUESTS.values()))
    return {key: value for name, answer in zip(REQUESTS, answers, strict=True) for key, value in _told(name, answer)}


def _told(name: str, answer: Completion) -> list[tuple[str, str]]:
    told = [
        (f"{name}: tokens", digest(torch.tensor(answer.tokens))),
        (f"{name}: logprobs", digest_of_numbers(answer.logprobs)),
    ]
    if answer.prompt_logprobs is not None:
        told.append((f"{name}: prompt logprobs", digest_of_numbers(answer.prompt_logprobs)))
    return told
