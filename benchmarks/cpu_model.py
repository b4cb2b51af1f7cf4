"""Speed of whole models on the CPU as ratios to stock torch and transformers: `benchmarks/cpu_model.py [--record]`.

Two threads, both sides in turns in one run. Training: one update of the tiny preset, against the same model on torch's
operators, optimizer and clipping. Decoding: the sides of `samebits bench decode` on SmolLM2-135M's own weights, the
engine's draws and logprobs included, against transformers' forward pass with its own cache and an argmax. Throughput:
sixteen requests at once against one by one."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from provenance import cpu_results, processor, provenance
from torch import Tensor

from samebits import native
from samebits.bench.decoding import EngineDecoding, TransformersDecoding, random_prompts
from samebits.checker.model_loading import load_model
from samebits.infer.engine import Engine
from samebits.infer.request import Request, Sampling
from samebits.model import PRESETS, Batch, Model
from samebits.model.loading import load
from samebits.native.sources import source_digest
from samebits.ops.adamw import AdamW
from samebits.ops.grad_norm import clip_grad_norm_
from samebits.parallel.schedules import Lanes
from samebits.parity.stock import STOCK
from samebits.train.lanes import Cut, backward

RESULTS = cpu_results("cpu_model.json")
TURNS = 9
SEQUENCES, LENGTH = 8, 256
PROMPT, ANSWER = 64, 48
Side = Callable[[], float]


def turns(theirs: Side, ours: Side) -> tuple[float, float, float]:
    """Median seconds of both sides, and the median of their ratios within a turn."""
    pairs = []
    for turn in range(TURNS):
        sides = (theirs, ours)[:: 1 if turn % 2 == 0 else -1]
        times = [side() for side in sides]
        pairs.append(times if turn % 2 == 0 else times[::-1])
    left, right = (statistics.median(each) for each in zip(*pairs, strict=True))
    return left, right, statistics.median(a / b for a, b in pairs)


def _timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def training() -> dict[str, Any]:
    """One update: forward, backward, clip, AdamW."""
    config = PRESETS["tiny"]
    numbers = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    texts = torch.randint(0, config.vocab_size, (SEQUENCES, LENGTH + 1))
    batch, targets = Batch.of(list(texts[:, :-1])), texts[:, 1:].reshape(-1)
    ours, theirs = Model.new(config, 0), Model.new(config, 0)
    stock = replace(theirs, operators=STOCK, weights={n: w.requires_grad_() for n, w in theirs.weights.items()})
    our_optimizer, their_optimizer = (
        AdamW(ours.weights.values(), **numbers),
        torch.optim.AdamW(stock.weights.values(), **numbers),
    )

    examples = [(each[:-1].numpy(), each[1:].numpy()) for each in texts]
    cut = Cut(lanes=Lanes(lanes=1, sequences=SEQUENCES), micro_batch=SEQUENCES)

    def step_of_ours() -> None:
        for name, gradient in backward(ours, examples, cut).gradients.items():
            ours.weights[name].grad = gradient
        clip_grad_norm_(ours.weights.values(), 1.0)
        our_optimizer.step()

    def step_of_theirs() -> None:
        their_optimizer.zero_grad()
        logits = torch.nn.functional.linear(stock.hidden(batch), stock.weights["model.embed_tokens.weight"])
        torch.nn.functional.cross_entropy(logits, targets).backward()
        torch.nn.utils.clip_grad_norm_(stock.weights.values(), 1.0)
        their_optimizer.step()

    for _ in range(2):
        step_of_ours(), step_of_theirs()
    left, right, ratio = turns(lambda: _timed(step_of_theirs), lambda: _timed(step_of_ours))
    tokens = SEQUENCES * LENGTH
    return _row("train tiny", f"{SEQUENCES}x{LENGTH}", tokens / left, tokens / right, ratio, 1.0)


def decoding(requests: int, model: Model, stock: Any) -> dict[str, Any]:
    """Steps after a prompt, of so many requests at once."""
    prompts = random_prompts(model.config, requests, PROMPT)
    ours, theirs = EngineDecoding(model, prompts), TransformersDecoding(stock, torch.tensor(prompts))
    theirs(), ours()
    left, right, ratio = turns(theirs, ours)
    return _row("decode smollm2", f"batch {requests}", requests / left, requests / right, ratio, 1.0)


def throughput(model: Model) -> dict[str, Any]:
    """Sixteen requests one after another and all at once."""
    prompts: Tensor = torch.randint(0, model.config.vocab_size, (16, PROMPT))
    asked = [
        Request(prompt=tuple(each), max_tokens=ANSWER, sampling=Sampling(temperature=0.0)) for each in prompts.tolist()
    ]

    def one_by_one() -> None:
        engine = Engine(model, pages=200, batch_tokens=2048)
        for request in asked:
            engine.generate([request])

    def at_once() -> None:
        Engine(model, pages=200, batch_tokens=2048).generate(asked)

    alone, together = _timed(one_by_one), _timed(at_once)
    tokens = sum(request.max_tokens for request in asked)
    return _row("engine 16 at once", "smollm2", tokens / alone, tokens / together, alone / together, 4.0)


def _row(case: str, shape: str, theirs: float, ours: float, ratio: float, target: float) -> dict[str, Any]:
    row = {
        "case": case,
        "shape": shape,
        "baseline_tokens_per_second": round(theirs, 1),
        "samebits_tokens_per_second": round(ours, 1),
        "ratio": round(ratio, 3),
        "target": target,
        "met": ratio >= target,
    }
    verdict = "met" if row["met"] else "not met"
    print(f"{case:20}{shape:12}{theirs:>10.1f}{ours:>10.1f}{ratio:>8.2f}{target:>8.2f} {verdict}")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name} beside the other results")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    load_before = os.getloadavg()[0]
    print(f"{'case':20}{'shape':12}{'baseline':>10}{'samebits':>10}{'ratio':>8}{'target':>8}   (tokens/s)")
    rows = [training()]
    model, stock = load("smollm2").model.for_inference(), load_model("smollm2", stock=True)
    rows += [decoding(requests, model, stock) for requests in (1, 16)]
    rows.append(throughput(model))
    if arguments.record:
        record = {
            **provenance(__file__, processor()),
            "cores": len(os.sched_getaffinity(0)),
            "load_average": [round(load_before, 2), round(os.getloadavg()[0], 2)],
            "torch": torch.__version__,
            "compiler": native.compiler(),
            "source_digest": source_digest(),
            "rows": rows,
        }
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
