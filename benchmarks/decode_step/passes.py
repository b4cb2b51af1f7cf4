"""Time of a layer and of a whole decode step on a GPU, idea by idea, beside the engine's own, in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from decode_step.comparing import PAGE, inputs
from decode_step.products import Form
from decode_step.step import ENGINE, Ideas, JoinedStep
from samebits.bench import memory
from samebits.bench.cases import Setting
from samebits.bench.cuda_timing import copy_bandwidth, kernel_times, medians, milliseconds
from samebits.bench.decoding import ANSWER, bytes_needed, bytes_read
from samebits.bench.shapes import PUBLISHED
from samebits.bench.stock_model import random_weights
from samebits.infer.decode_step import DecodeStep, capturing
from samebits.infer.pages import LayerCache
from samebits.model import Model

PROMPT: Final = 128
ROUNDS: Final = 7
REPLAYS: Final = 10
_ROTATION: Final = Ideas(rotation=True, unfilled=True, most_keys=2048)
_PRODUCTS: Final = replace(_ROTATION, form=Form())
ORDERED: Final = {
    "rotation and writes as one": Ideas(rotation=True),
    "no fills, no splits that nobody has": _ROTATION,
    "our products": _PRODUCTS,
    "all of it programmatic": replace(_PRODUCTS, programmatic=True),
    "programmatic, their products": replace(_ROTATION, programmatic=True),
    "programmatic, late": replace(_PRODUCTS, programmatic=True, form=Form(early=False)),
    "programmatic, 32 features": replace(_PRODUCTS, programmatic=True, form=Form(features=32)),
    "programmatic, ahead 8 MB": replace(_PRODUCTS, programmatic=True, form=Form(ahead=8)),
    "programmatic, ahead 24 MB": replace(_PRODUCTS, programmatic=True, form=Form(ahead=24)),
    "programmatic, 32 features, ahead 24 MB": replace(_PRODUCTS, programmatic=True, form=Form(features=32, ahead=24)),
}
"""Each line has what the line before has, up to all of it programmatic; then others beside that one."""


def timed(batches: Sequence[int]) -> list[dict[str, Any]]:
    config, setting = PUBLISHED["llama-3-8b"], Setting(torch.device("cuda"), torch.bfloat16)
    most = max(batches)
    memory.require(config, PROMPT + ANSWER, bytes_needed(config, setting.dtype, most, PROMPT), setting.device)
    model = Model(config=config, weights=random_weights(config, setting)).for_inference()
    least = bytes_read(config, setting.dtype) / copy_bandwidth() * 1e3
    print(f"weights at the speed of a copy ({copy_bandwidth() / 1e12:.2f} TB/s): {least:.2f} ms", flush=True)
    return [measured(model, batch, least) for batch in batches]


def measured(model: Model, batch: int, least: float) -> dict[str, Any]:
    """Of a batch: milliseconds of a pass and microseconds of a layer, by idea."""
    config = model.config
    each = -(-(PROMPT + ANSWER) // PAGE)
    sizes = (batch * each, PAGE, model.key_heads, config.head_dim)
    caches = [LayerCache(*sizes, dtype=model.dtype, device=model.device) for _ in range(config.num_hidden_layers)]
    for cache in caches:
        cache.k.normal_(), cache.v.normal_()
    # The room of a table is what the engine gives it: all pages there are, or all positions.
    room = -(-min(config.max_position_embeddings, batch * each * PAGE) // PAGE)
    how = (model, caches, batch, room, capturing(model.device))
    ids, _, tables, choices = inputs(batch, PROMPT + ANSWER, each)
    given = (ids, [PROMPT + ANSWER // 2] * batch, tables, choices)
    steps: dict[str, DecodeStep] = {"engine": DecodeStep(*how)}
    steps |= {name: JoinedStep(*how, ideas) for name, ideas in ORDERED.items()}
    for step in steps.values():
        step.run(*given)
    passes = dict(zip(steps, whole_passes(list(steps.values())), strict=True))
    layers = layer_times({"engine": JoinedStep(*how, ENGINE), **{name: steps[name] for name in ORDERED}}, given)
    print(f"batch {batch}: ms a pass, of the bandwidth limit, us a layer", flush=True)
    for name, time in passes.items():
        print(f"  {time:7.3f} {least / time:5.2f} {layers[name]:8.2f}  {name}", flush=True)
    return {"batch": batch, "pass_ms": passes, "layer_us": layers, "least_ms": least}


def whole_passes(steps: Sequence[Any]) -> list[float]:
    """Milliseconds of a replay, some of them one after the other; sides in turns."""

    def replays(step: Any) -> None:
        for _ in range(REPLAYS):
            step._captured.replay()

    times: list[list[float]] = [[] for _ in steps]
    for _ in range(ROUNDS):
        for side, step in enumerate(steps):
            times[side].append(milliseconds(partial(replays, step)) / REPLAYS)
    return medians(times)


def layer_times(steps: dict[str, Any], given: Any) -> dict[str, float]:
    """Microseconds of a layer, all layers in turn, so that no weight is in the cache."""
    calls = []
    for step in steps.values():
        step.run(*given)
        rows, width = len(given[0]), step._model.config.hidden_size
        x, normed = (torch.randn(rows, width, device="cuda").bfloat16() for _ in range(2))
        calls.append([partial(step.layer, number, x, normed) for number in range(8)])
    with torch.no_grad():
        times = medians(kernel_times(calls, 10.0, ROUNDS))
    return {name: 1e3 * time for name, time in zip(steps, times, strict=True)}
