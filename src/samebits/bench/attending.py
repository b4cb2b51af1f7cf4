"""Cases of attention: causal over whole sequences, forward and backward, and one query over a cache of keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from samebits.bench.cases import Case, Planned, Setting, gradients
from samebits.bench.timing import rotated
from samebits.model.config import ModelConfig
from samebits.ops import attention


def alternatives(setting: Setting, causal: bool) -> dict[str, Callable[..., Tensor]]:
    """torch's own attention on (batch, heads, tokens, head), on a GPU by each of the kernels that it may choose."""

    def by(kinds: tuple[SDPBackend, ...], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(list(kinds)):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    if setting.device.type != "cuda":
        return {"torch": partial(functional.scaled_dot_product_attention, is_causal=causal, enable_gqa=True)}
    kinds = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    return {name: partial(by, (kind,)) for name, kind in kinds.items()}


def _inputs(setting: Setting, config: ModelConfig, batch: int, queries: int, keys: int) -> tuple[Tensor, ...]:
    q = setting.random(batch, queries, config.num_attention_heads, config.head_dim)
    k, v = (setting.random(batch, keys, config.num_key_value_heads, config.head_dim) for _ in range(2))
    return q, k, v


def _turned(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """As torch's attention has them in memory."""
    return tuple(each.transpose(1, 2).contiguous() for each in inputs)


def forward(model: str, config: ModelConfig, batch: int, tokens: int) -> Planned:
    def make(setting: Setting) -> Case:
        inputs = _inputs(setting, config, batch, tokens, tokens)
        turned = _turned(inputs)
        first = tuple(each[:1] for each in inputs)
        return Case(
            ours=[partial(attention, *inputs)],
            theirs={name: [partial(each, *turned)] for name, each in alternatives(setting, True).items()},
            parts=lambda: (attention(*first), attention(*inputs)[:1]),
            work=2.0 * batch * config.num_attention_heads * tokens**2 * config.head_dim,
            unit="TFLOP/s",
        )

    return Planned("attention", model, _words(config, batch, tokens), tokens, make)


def backward(model: str, config: ModelConfig, batch: int, tokens: int) -> Planned:
    def make(setting: Setting) -> Case:
        inputs = _inputs(setting, config, batch, tokens, tokens)
        turned = _turned(inputs)
        upstream = setting.random(*inputs[0].shape)
        ours = gradients(attention, inputs, upstream)
        alone = gradients(attention, tuple(each[:1] for each in inputs), upstream[:1])
        above = upstream.transpose(1, 2).contiguous()
        theirs: dict[str, Any] = {
            name: [_late(each, turned, above)] for name, each in alternatives(setting, True).items()
        }
        return Case(
            ours=[ours],
            theirs=theirs,
            parts=lambda: (_joined(alone()), _joined(tuple(each[:1] for each in ours()))),
            work=5.0 * batch * config.num_attention_heads * tokens**2 * config.head_dim,
            unit="TFLOP/s",
            captured=False,
        )

    return Planned("attention-backward", model, _words(config, batch, tokens), tokens, make)


def decode(model: str, config: ModelConfig, batch: int, keys: int) -> Planned:
    """One query a sequence over all keys of a cache."""

    def make(setting: Setting) -> Case:
        size = 2 * batch * keys * config.num_key_value_heads * config.head_dim * setting.dtype.itemsize
        sets = [_inputs(setting, config, batch, 1, keys) for _ in range(rotated(setting.device, size))]
        turned = [_turned(each) for each in sets]
        ours = partial(attention, causal=False)
        first = tuple(each[:1] for each in sets[0])
        return Case(
            ours=[partial(ours, *each) for each in sets],
            theirs={
                name: [partial(each, *inputs) for inputs in turned]
                for name, each in alternatives(setting, False).items()
            },
            parts=lambda: (ours(*first), ours(*sets[0])[:1]),
            work=float(size),
            unit="GB/s",
        )

    return Planned("decode-attention", model, _words(config, batch, keys), keys, make)


def _late(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], upstream: Tensor) -> Callable[[], Any]:
    """The backward pass, its forward pass run when it is first asked for: an alternative may refuse these sizes."""
    kept: list[Callable[[], Any]] = []

    def run() -> Any:
        if not kept:
            kept.append(gradients(function, inputs, upstream))
        return kept[0]()

    return run


def _joined(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([each.reshape(-1) for each in tensors])


def _words(config: ModelConfig, batch: int, tokens: int) -> str:
    heads = f"{config.num_attention_heads} heads over {config.num_key_value_heads}, head {config.head_dim}"
    return f"{batch} x {tokens} tokens, {heads}"
