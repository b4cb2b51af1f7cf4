"""Cases of operators whose rows have nothing to do with each other, and of the logprobs of chosen tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from samebits import ops
from samebits.bench.cases import Case, Planned, Setting, compiled
from samebits.bench.timing import rotated
from samebits.model.config import ModelConfig

Rows = Callable[..., Tensor]


def row_wise(
    operator: str,
    model: str,
    rows: int,
    widths: tuple[int, ...],
    ours: Rows,
    theirs: Rows,
    *,
    outputs: int = 1,
    shared: tuple[int, ...] = (),
) -> Planned:
    """An operator on matrices of some rows, and vectors that all rows share; outputs are as wide as the first."""

    def make(setting: Setting) -> Case:
        moved = rows * (sum(widths) + outputs * widths[0]) * setting.dtype.itemsize
        vectors = [setting.random(width) for width in shared]
        sets = [[setting.random(rows, width) for width in widths] for _ in range(rotated(setting.device, moved))]
        last = [each[-1:] for each in sets[0]]
        beside = {"torch": theirs, **compiled(theirs, setting)}
        return Case(
            ours=[partial(ours, *each, *vectors) for each in sets],
            theirs={name: [partial(each, *inputs, *vectors) for inputs in sets] for name, each in beside.items()},
            parts=lambda: (ours(*last, *vectors), ours(*sets[0], *vectors)[-1:]),
            work=float(moved),
            unit="GB/s",
        )

    return Planned(operator, model, f"{rows}x{widths[0]}", rows, make)


def planned(model: str, config: ModelConfig, rows: int) -> list[Planned]:
    hidden, inner = config.hidden_size, config.intermediate_size

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (hidden,), weight, config.rms_norm_eps)

    return [
        row_wise("rmsnorm", model, rows, (hidden,), _norm(config), norm, shared=(hidden,)),
        row_wise("swiglu", model, rows, (inner, inner), ops.swiglu, lambda gate, up: functional.silu(gate) * up),
        row_wise("gelu", model, rows, (inner,), ops.gelu, functional.gelu),
        row_wise("softmax", model, rows, (config.vocab_size,), ops.softmax, lambda x: x.softmax(-1)),
        rope(model, config, rows),
        embedding(model, config, rows),
    ]


def _norm(config: ModelConfig) -> Rows:
    return lambda x, weight: ops.rmsnorm(x, weight, config.rms_norm_eps)


def rope(model: str, config: ModelConfig, rows: int) -> Planned:
    heads, head = config.num_attention_heads, config.head_dim

    def make(setting: Setting) -> Case:
        positions = torch.arange(rows, device=setting.device)
        angles = positions[:, None].float() * (
            config.rope_theta ** (-torch.arange(0, head, 2, device=setting.device) / head)
        )
        cos, sin = (torch.cat([f(angles)] * 2, -1).to(setting.dtype)[:, None] for f in (torch.cos, torch.sin))

        def turned(x: Tensor) -> Tensor:
            first, second = x.chunk(2, -1)
            return x * cos + torch.cat([-second, first], -1) * sin

        moved = 2 * rows * heads * head * setting.dtype.itemsize
        sets = [setting.random(rows, heads, head) for _ in range(rotated(setting.device, moved))]
        ours = partial(ops.rope, theta=config.rope_theta)
        beside = {"torch": turned, **compiled(turned, setting)}
        return Case(
            ours=[partial(ours, each, positions) for each in sets],
            theirs={name: [partial(each, x) for x in sets] for name, each in beside.items()},
            parts=lambda: (ours(sets[0][-1:], positions[-1:]), ours(sets[0], positions)[-1:]),
            work=float(moved),
            unit="GB/s",
        )

    return Planned("rope", model, f"{rows}x{heads}x{head}", rows, make)


def embedding(model: str, config: ModelConfig, rows: int) -> Planned:
    def make(setting: Setting) -> Case:
        weight = setting.random(config.vocab_size, config.hidden_size)
        moved = 2 * rows * config.hidden_size * setting.dtype.itemsize
        sets = [setting.ids(rows, config.vocab_size) for _ in range(rotated(setting.device, moved))]
        return Case(
            ours=[partial(ops.embedding, ids, weight) for ids in sets],
            theirs={"torch": [partial(functional.embedding, ids, weight) for ids in sets]},
            parts=lambda: (ops.embedding(sets[0][-1:], weight), ops.embedding(sets[0], weight)[-1:]),
            work=float(moved),
            unit="GB/s",
        )

    return Planned("embedding", model, f"{rows}x{config.hidden_size}", rows, make)


def logprob(model: str, config: ModelConfig, rows: int) -> Planned:
    """Forward and backward: hidden states and the head's weight in, logprobs and both gradients out."""
    vocabulary, width = config.vocab_size, config.hidden_size

    def make(setting: Setting) -> Case:
        hidden = setting.random(rows, width).requires_grad_()
        weight = setting.random(vocabulary, width, scale=0.05).requires_grad_()
        ids, upstream = setting.ids(rows, vocabulary), torch.randn(rows, device=setting.device)

        def stock(hidden: Tensor, weight: Tensor) -> Tensor:
            return functional.linear(hidden, weight).float().log_softmax(-1).gather(1, ids[:, None])[:, 0]

        def step(function: Callable[[Tensor, Tensor], Tensor]) -> Any:
            return torch.autograd.grad(function(hidden, weight), (hidden, weight), upstream)

        def ours(hidden: Tensor, weight: Tensor) -> Tensor:
            return ops.selected_logprob(hidden, weight, ids[: hidden.shape[0]])

        beside = {"torch": stock, **compiled(stock, setting)}
        return Case(
            ours=[partial(step, ours)],
            theirs={name: [partial(step, each)] for name, each in beside.items()},
            parts=lambda: (ours(hidden[:1], weight), ours(hidden, weight)[:1]),
            work=6.0 * rows * vocabulary * width,
            unit="TFLOP/s",
            captured=False,
        )

    return Planned("logprob", model, f"{rows}x{width}x{vocabulary}", rows, make)
