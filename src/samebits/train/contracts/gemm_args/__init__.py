"""Products and attention on the CPU with every buffer between sentinels: the result, and how many sentinels are gone.

Knows no kernel's inside; what is called are the operators themselves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from samebits.ops.attention import attention
from samebits.ops.matmul import linear, matmul_accumulate_
from samebits.train.contracts.gemm_args.guards import Guards

# Which part of attention's head axis belongs to one head.
HEAD = 16


def linear_in_guards(x: Tensor, weight: Tensor, *, kernel: Callable[[Tensor, Tensor], Tensor] = linear) -> Tensor:
    """(rows, columns + 1): x times weight transposed; the last column counts damaged sentinels."""
    guards = Guards()
    x, weight = guards.place(x), guards.place(weight)
    with guards.allocating():
        y = kernel(x, weight)
    return _with_count(y, guards)


def accumulate_in_guards(
    x: Tensor, dy: Tensor, *, kernel: Callable[[Tensor, Tensor, Tensor], Tensor] = matmul_accumulate_
) -> Tensor:
    """(columns of dy, columns of x + 1): a weight's gradient, written into memory of the caller; the count beside."""
    guards = Guards()
    x, dy = guards.place(x), guards.place(dy)
    sums = guards.place(torch.zeros(dy.shape[1], x.shape[1]))
    with guards.allocating():
        kernel(sums, dy.T, x)
    return _with_count(sums, guards)


def _attended(q_THD: Tensor, k_THD: Tensor, v_THD: Tensor) -> Tensor:
    out = attention(q_THD, k_THD, v_THD, cu_seqlens=[0, len(q_THD)])
    assert isinstance(out, Tensor)
    return out


def attention_in_guards(
    q: Tensor, k: Tensor, v: Tensor, *, kernel: Callable[[Tensor, Tensor, Tensor], Tensor] = _attended
) -> Tensor:
    """(tokens, 4 width + 1): attention of one sequence, the gradients of q, k and v, and the count.

    What flows back is the output itself."""
    guards = Guards()
    q, k, v = (guards.place(each).view(len(each), -1, HEAD) for each in (q, k, v))
    with torch.enable_grad(), guards.allocating():
        given = [each.detach().requires_grad_() for each in (q, k, v)]
        out = kernel(*given)
        gradients = torch.autograd.grad(out, given, out.detach())
    return _with_count(torch.cat([each.reshape(len(q), -1) for each in (out.detach(), *gradients)], -1), guards)


def _with_count(result: Tensor, guards: Guards) -> Tensor:
    return torch.cat([result, torch.full((len(result), 1), float(guards.damaged()))], -1)
