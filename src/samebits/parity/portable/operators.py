"""Every operator, forward and backward, in one format on drawn inputs: results by name.

Sizes cross the borders of blocks, pieces and vectors, and are multiples of none of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from samebits import ops
from samebits.ops.grad_norm import grad_square_sum
from samebits.ops.lm_head import tied_weight_gradient_
from samebits.ops.logprob import selected_logprob_weight_gradient_
from samebits.ops.rmsnorm import rmsnorm_statistic, rmsnorm_weight_gradient_
from samebits.parity.portable.bits import digest
from samebits.parity.portable.drawing import RECIPES, Draw

Results = dict[str, Tensor]
Case = Callable[[Draw], Results]

ROWS, DEPTH, COLUMNS, VOCABULARY = 19, 72, 41, 331
BATCH, TOKENS, HEADS, KEY_HEADS, HEAD = 2, 71, 4, 2, 24


def with_gradients(draw: Draw, function: Callable[..., Any], **inputs: Tensor) -> Results:
    """The function's result y, and the gradient of each input for a drawn gradient of y."""
    given = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
    y: Tensor = function(*given.values())
    found = torch.autograd.grad(y, tuple(given.values()), draw.like(y))
    return {"y": y, **{f"d{name}": gradient for name, gradient in zip(given, found, strict=True)}}


def _linear(draw: Draw) -> Results:
    x, weight, bias = draw.tensor(3, ROWS, DEPTH), draw.tensor(COLUMNS, DEPTH), draw.tensor(COLUMNS)
    return with_gradients(draw, ops.linear, x=x, weight=weight, bias=bias)


def _matmul(draw: Draw) -> Results:
    a, b = draw.tensor(ROWS, DEPTH), draw.tensor(DEPTH, COLUMNS)
    found = with_gradients(draw, ops.matmul, a=a, b=b)
    total = draw.wide(ROWS, COLUMNS)
    return found | {"sum": ops.matmul_accumulate_(total, a.detach(), b.detach())}


def _rmsnorm(draw: Draw) -> Results:
    x, weight, residual = draw.tensor(ROWS, 300), draw.tensor(300), draw.tensor(ROWS, 300)
    found = with_gradients(draw, ops.rmsnorm, x=x, weight=weight)
    y, hidden = ops.add_rmsnorm(x.detach(), residual, weight.detach())
    statistic = rmsnorm_statistic(x, weight)
    total = rmsnorm_weight_gradient_(draw.wide(300), residual, x.detach(), statistic)
    return found | {"y with residual": y, "hidden": hidden, "statistic": statistic, "sum": total}


def _rope(draw: Draw) -> Results:
    positions = draw.numbers(5000, TOKENS)
    yarn = ops.RopeScaling(kind="yarn", factor=4.0, original_max_position_embeddings=2048)
    ways: dict[str, dict[str, Any]] = {"half": {}, "interleaved": {"layout": "interleaved"}, "yarn": {"scaling": yarn}}
    found: Results = {}
    for name, options in ways.items():
        turned = partial(ops.rope, positions=positions, **options)
        each = with_gradients(draw, turned, x=draw.tensor(TOKENS, HEADS, HEAD))
        found |= {f"{key} {name}": value for key, value in each.items()}
    return found


def _attention(draw: Draw, *, key_heads: int = KEY_HEADS, **options: Any) -> Results:
    q, k, v = (draw.tensor(BATCH, TOKENS, heads, HEAD) for heads in (HEADS, key_heads, key_heads))
    return with_gradients(draw, partial(ops.attention, **options), q=q, k=k, v=v)


def _packed_attention(draw: Draw) -> Results:
    total, edges = 150, [0, 70, 71, 150]
    q, k, v = (draw.tensor(total, heads, HEAD) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    out = with_gradients(draw, partial(ops.attention, cu_seqlens=edges), q=q, k=k, v=v)
    with torch.no_grad():
        _, lse = ops.attention_with_lse(q, k, v, cu_seqlens=edges)
    return out | {"lse": lse}


@torch.no_grad()
def _cached_attention(draw: Draw) -> Results:
    """A prompt in two chunks and one token, against a dense and a paged cache."""
    sizes: dict[str, Any] = {"dtype": draw.dtype, "device": draw.device}
    dense = ops.DenseCache.empty(1, 96, KEY_HEADS, HEAD, **sizes)
    paged = ops.PagedCache.empty([[3, 0, 5, 1, 2, 4]], KEY_HEADS, HEAD, pages=6, page_size=16, **sizes)
    found: Results = {}
    for count in (40, 33, 1):
        q, k, v = (draw.tensor(1, count, heads, HEAD) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
        for name, cache in (("dense", dense), ("paged", paged)):
            found[f"y {name} {count}"] = ops.attention(q, k, v, cache=cache)
    return found


def _layernorm(draw: Draw) -> Results:
    x, weight, bias = draw.tensor(ROWS, DEPTH), draw.tensor(DEPTH), draw.tensor(DEPTH)
    found = with_gradients(draw, ops.layernorm, x=x, weight=weight, bias=bias)
    return found | {"y alone": ops.layernorm(x.detach())}


def _grouped_matmul(draw: Draw) -> Results:
    """Five experts, one of them without rows."""
    x, weight, expert = draw.tensor(ROWS, DEPTH), draw.tensor(5, DEPTH, COLUMNS), draw.numbers(4, ROWS)
    found = with_gradients(draw, lambda x, weight: ops.grouped_matmul(x, weight, expert), x=x, weight=weight)
    total = ops.grouped_matmul_accumulate_(draw.wide(5, DEPTH, COLUMNS), x.detach(), draw.tensor(ROWS, COLUMNS), expert)
    return found | {"sum": total}


def _embedding(draw: Draw) -> Results:
    ids, weight = draw.numbers(VOCABULARY, 3, ROWS), draw.tensor(VOCABULARY, DEPTH)
    found = with_gradients(draw, partial(ops.embedding, ids), weight=weight)
    return found | {"sum": ops.embedding_gradient_(draw.wide(VOCABULARY, DEPTH), ids, draw.tensor(3, ROWS, DEPTH))}


def _head(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden rows, the head's weight, and targets of which two are ignored."""
    targets = draw.numbers(VOCABULARY, ROWS)
    targets[3] = targets[11] = -100
    return draw.tensor(ROWS, DEPTH), draw.tensor(VOCABULARY, DEPTH), targets


def _lm_head(draw: Draw) -> Results:
    hidden, weight, _ = _head(draw)
    found = with_gradients(draw, ops.lm_head, hidden=hidden, weight=weight)
    ids, dlogits = draw.numbers(VOCABULARY, ROWS), draw.wide(ROWS, VOCABULARY)
    total = draw.wide(VOCABULARY, DEPTH)
    tied_weight_gradient_(total, hidden.detach(), dlogits, ids, draw.tensor(ROWS, DEPTH))
    return found | {"sum": total}


def _selected_logprob(draw: Draw) -> Results:
    hidden, weight, ids = _head(draw)
    found = with_gradients(draw, lambda h, w: ops.selected_logprob(h, w, ids), hidden=hidden, weight=weight)
    total = draw.wide(VOCABULARY, DEPTH)
    selected_logprob_weight_gradient_(total, draw.wide(ROWS), hidden.detach(), weight.detach(), ids)
    return found | {"sum": total}


def _cross_entropy(draw: Draw) -> Results:
    found: Results = {}
    for reduction in ("mean", "sum", "none"):
        hidden, weight, targets = _head(draw)
        loss = partial(ops.linear_cross_entropy, targets=targets, reduction=reduction)
        each = with_gradients(draw, loss, hidden=hidden, weight=weight)
        found |= {f"{name} {reduction}": value for name, value in each.items()}
    return found


def _distill_loss(draw: Draw) -> Results:
    teacher, targets = draw.tensor(ROWS, VOCABULARY), draw.numbers(VOCABULARY, ROWS)
    targets[5] = -100
    student = draw.tensor(ROWS, VOCABULARY)
    found: Results = {}
    mixed = partial(ops.distill_loss, teacher_logits=teacher, targets=targets, temperature=2.5, alpha=0.3)
    # A mean may hide that a row's last bit is another.
    for reduction in ("mean", "none"):
        loss = partial(mixed, reduction=reduction)
        each = with_gradients(draw, loss, student_logits=student)
        found |= {f"{name} {reduction}": value for name, value in each.items()}
    return found


def _grad_norm(draw: Draw) -> Results:
    gradients = [draw.tensor(70001), draw.tensor(ROWS, DEPTH), draw.tensor(3)]
    weights = [torch.zeros_like(each).requires_grad_() for each in gradients]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient.clone()
    norm = ops.clip_grad_norm_(weights, 0.5)
    clipped = torch.cat([weight.grad.reshape(-1) for weight in weights if weight.grad is not None])
    return {"norm": ops.grad_norm(gradients), "sum": grad_square_sum(gradients), "clip": norm, "clipped": clipped}


def _adamw(draw: Draw) -> Results:
    found: Results = {}
    for step in (1, 2, 37):
        param, grad = draw.tensor(ROWS, 300), draw.tensor(ROWS, 300)
        first, second = draw.wide(ROWS, 300), draw.wide(ROWS, 300)
        second = second * second
        ops.adamw_(param, grad, first, second, step=step, lr=3e-3, beta1=0.9, beta2=0.95, weight_decay=0.1)
        found |= {f"param {step}": param, f"exp_avg {step}": first, f"exp_avg_sq {step}": second}
    return found


def _sample(draw: Draw) -> Results:
    logits, rows = draw.tensor(ROWS, VOCABULARY), torch.arange(ROWS, device=draw.device)
    ways: dict[str, dict[str, Any]] = {
        "greedy": {"temperature": 0.0},
        "plain": {},
        "cold": {"temperature": 0.7},
        "top_k": {"top_k": 7},
        "top_p": {"top_p": 0.8},
        "all": {"temperature": 1.3, "top_k": 50, "top_p": 0.9},
    }
    keys: dict[str, Any] = {"seed": 2**63 + 11, "requests": rows * 3 - 5, "positions": rows + 100}
    return {name: ops.sample(logits, **keys, **options) for name, options in ways.items()}


def _elements(function: Callable[..., Tensor], *names: str) -> Case:
    """An operator of tensors of one shape."""
    return lambda draw: with_gradients(draw, function, **{name: draw.tensor(ROWS, 300) for name in names})


CASES: Final[dict[str, Case]] = {
    "adamw_": _adamw,
    "attention": _attention,
    "attention cached": _cached_attention,
    "attention full": partial(_attention, causal=False, key_heads=HEADS),
    "attention packed": _packed_attention,
    "attention padded": partial(_attention, lengths=[50, 71], padding="left"),
    "attention softcap": partial(_attention, softcap=5.0),
    "attention window": partial(_attention, window=9),
    "cross_entropy": _cross_entropy,
    "distill_loss": _distill_loss,
    "embedding": _embedding,
    "gelu": _elements(ops.gelu, "x"),
    "gelu tanh": _elements(partial(ops.gelu, approximate="tanh"), "x"),
    "grad_norm": _grad_norm,
    "grouped_matmul": _grouped_matmul,
    "layernorm": _layernorm,
    "linear": _linear,
    "lm_head": _lm_head,
    "log_softmax": _elements(ops.log_softmax, "x"),
    "matmul": _matmul,
    "rmsnorm": _rmsnorm,
    "rope": _rope,
    "sample": _sample,
    "selected_logprob": _selected_logprob,
    "softmax": _elements(ops.softmax, "x"),
    "swiglu": _elements(ops.swiglu, "gate", "up"),
}


def operators(format: str, device: torch.device) -> dict[str, str]:
    """The digest of every result of every case, each recipe on its own."""
    found: dict[str, str] = {}
    for name, case in CASES.items():
        for recipe in RECIPES:
            results = case(Draw(name, recipe, format, device))
            found |= {f"{name}: {result}, {recipe}": digest(value) for result, value in results.items()}
    return found
