"""Sampling: `sample` draws one token a row, the same for the same request, position, seed and logits.

A token depends on its own row alone: not on the batch, nor on what was drawn before. Random words are counted, not
drawn from a state: Philox keyed by the seed, at a counter made of the token, the position and the request. A row with
NaN or +inf, and one with nothing above -inf, gives -1. Nothing here is differentiable."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from samebits.ops.argument_types import AnyInt, checked, shown
from samebits.ops.arguments import check_dimensions, check_integer, check_tensors, choose_backend, short
from samebits.ops.backends import kernel_module
from samebits.ops.registering import call, register

# Below this a temperature is a misprint for 0: scores would leave the range of float32.
LEAST_TEMPERATURE = 2.0**-20
LARGEST = torch.finfo(torch.float32).max


@checked
def sample(
    logits: Tensor,
    *,
    seed: AnyInt | Tensor,
    requests: Tensor,
    positions: Tensor,
    temperature: float | Tensor = 1.0,
    top_k: int | Tensor = 0,
    top_p: float | Tensor = 1.0,
    backend: str | None = None,
) -> Tensor:
    """Token numbers (M) int64 for logits (M, V); temperature 0 takes the largest logit, the first of equals.

    requests and positions: int64 (M), who asks and for which place. top_k: keep the k largest, ties too; 0 keeps all.
    top_p: of these keep the most likely until their probabilities reach top_p, ties too. All three and seed: a number,
    or one for each row (M); seeds as a tensor are int64, those from 2^63 on as the negative number of the same bits."""
    backend = choose_backend("sample", logits, backend)
    check_tensors("sample", backend, {"logits": logits})
    if logits.dtype == torch.float64:
        raise ValueError("sample: logits has dtype float64; allowed: float32, bfloat16, float16")
    check_dimensions("sample", "logits", logits, 2)
    if logits.shape[1] == 0:
        raise ValueError(f"sample: logits has shape {tuple(logits.shape)}; allowed: a last axis of at least 1")
    if not isinstance(seed, Tensor):
        seed = check_integer("sample", "seed", seed, 0, 2**64 - 1)
        seed = seed - 2**64 if seed >= 2**63 else seed
    given = (
        _of_rows("requests", requests, logits, torch.int64),
        _of_rows("positions", positions, logits, torch.int64),
        _of_rows("temperature", temperature, logits, torch.float32),
        _of_rows("top_k", top_k, logits, torch.int64),
        _of_rows("top_p", top_p, logits, torch.float32),
        _of_rows("seed", seed, logits, torch.int64),
    )
    tokens: Tensor = call("sample", logits.detach(), *given, backend)
    return tokens


def _of_rows(name: str, value: float | Tensor, logits: Tensor, dtype: torch.dtype) -> Tensor:
    """One number a row, in the dtype that kernels read."""
    rows = logits.shape[0]
    if not isinstance(value, Tensor):
        if dtype == torch.int64:
            value = check_integer("sample", name, value)
        elif LARGEST < abs(value) < math.inf:
            raise ValueError(f"sample: {name} is {shown(value)}; allowed: a number that float32 holds")
        return torch.full((rows,), float(value) if dtype == torch.float32 else value, dtype=dtype, device=logits.device)
    allowed = (torch.int64, torch.int32) if dtype == torch.int64 else (torch.float32,)
    if value.dtype not in allowed:
        raise ValueError(f"sample: {name} has dtype {short(value.dtype)}; allowed: {', '.join(map(short, allowed))}")
    if tuple(value.shape) != (rows,):
        raise ValueError(f"sample: {name} has shape {tuple(value.shape)}; allowed: ({rows},), one for each row")
    if value.device != logits.device:
        raise ValueError(f"sample: {name} is on {value.device}, logits on {logits.device}; they must agree")
    return value.to(dtype)


def _check_values(positions: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> None:
    """One look at all of them. While a graph is captured they cannot be read."""
    if positions.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    hot = (temperature >= LEAST_TEMPERATURE) & (temperature < torch.inf)
    conditions = {
        "positions": (positions, (positions >= 0) & (positions < 2**32), "0 to 2^32 - 1"),
        "temperature": (temperature, hot | (temperature == 0), f"0, or finite and at least {LEAST_TEMPERATURE}"),
        "top_k": (top_k, top_k >= 0, "at least 0"),
        "top_p": (top_p, (top_p > 0) & (top_p <= 1), "above 0, at most 1"),
    }
    right = torch.stack([condition for _, condition, _ in conditions.values()])
    if bool(right.all()):
        return
    for (name, (values, _, allowed)), row_right in zip(conditions.items(), right, strict=True):
        wrong = torch.nonzero(~row_right)
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(f"sample: {name} is {values[row].item():.9g} in row {row}; allowed: {allowed}")


_kernel = partial(kernel_module, __name__, "sample")


def _sample(
    logits: Tensor,
    requests: Tensor,
    positions: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    backend: str,
) -> Tensor:
    if logits.shape[0] == 0:
        return _sample_fake(logits, requests, positions, temperature, top_k, top_p, seeds, backend)
    _check_values(positions, temperature, top_k, top_p)
    options = (each.contiguous() for each in (requests, positions, temperature, top_k, top_p, seeds))
    tokens: Tensor = _kernel(backend, logits.device).forward(logits.contiguous(), *options)
    return tokens


def _sample_fake(
    logits: Tensor,
    requests: Tensor,
    positions: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    backend: str,
) -> Tensor:
    return logits.new_empty(logits.shape[0], dtype=torch.int64)


register(
    "sample(Tensor logits, Tensor requests, Tensor positions, Tensor temperature, Tensor top_k, Tensor top_p,"
    " Tensor seeds, str backend) -> Tensor",
    run=_sample,
    fake=_sample_fake,
)
