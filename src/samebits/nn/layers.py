"""Layers with one weight: torch's own modules, constructors and state-dict names included, on operators that keep bits.

Each computes through `compute`, a set of operators (strategy.py), and adds its weight's gradient to `sums` where there
are some; as made, it runs our operators and autograd has the gradient."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from samebits import ops
from samebits.nn.strategy import OURS, Operators
from samebits.ops.accumulation import Sums


class Linear(nn.Linear):
    """`torch.nn.Linear` whose rows do not depend on the rows beside them.

    Args:
        in_features, out_features, bias, device, dtype: as in torch.

    Shape:
        Input (..., in_features), output (..., out_features).

    Example:
        >>> layer = Linear(16, 8)
        >>> x = torch.randn(5, 16)
        >>> bool((layer(x)[2] == layer(x[2:3])[0]).all())
        True
    """

    compute: Operators = OURS
    sums: Sums | None = None

    def forward(self, input: Tensor) -> Tensor:
        """The input times the weight transposed, plus the bias.

        Returns:
            A tensor of the input's dtype."""
        if self.bias is None:
            return self.compute.linear(input, self.weight, self.sums)
        return ops.linear(input, self.weight, self.bias)


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` over the last axis, with a weight.

    Args:
        normalized_shape: the width of the last axis.
        eps: added to the mean square; None: the smallest step of the dtype, as in torch.

    Shape:
        Input and output (..., normalized_shape).

    Example:
        >>> RMSNorm(16, eps=1e-5)(torch.ones(2, 16)).shape
        torch.Size([2, 16])
    """

    compute: Operators = OURS
    sums: Sums | None = None

    def __init__(self, normalized_shape: int, eps: float | None = None, elementwise_affine: bool = True, **where: Any):
        super().__init__(normalized_shape, eps, elementwise_affine, **where)
        if len(self.normalized_shape) != 1 or not elementwise_affine:
            found = f"normalized_shape is {normalized_shape}, elementwise_affine {elementwise_affine}"
            raise ValueError(f"RMSNorm: {found}; allowed: one axis, with a weight")

    def forward(self, x: Tensor) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight.

        Returns:
            A tensor of x's shape and dtype."""
        return self.compute.rmsnorm(x, self.weight, self.sums, self.epsilon(x.dtype))

    def epsilon(self, dtype: torch.dtype) -> float:
        return torch.finfo(dtype).eps if self.eps is None else self.eps


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` whose rows do not depend on the rows beside them.

    Args:
        normalized_shape, eps, elementwise_affine, bias, device, dtype: as in torch. Several axes are one row.

    Shape:
        Input and output (..., *normalized_shape).

    Example:
        >>> LayerNorm(16)(torch.ones(2, 16)).shape
        torch.Size([2, 16])
    """

    def forward(self, input: Tensor) -> Tensor:
        """(input - mean) / sqrt(variance + eps) * weight + bias.

        Returns:
            A tensor of the input's shape and dtype."""
        axes, width = len(self.normalized_shape), math.prod(self.normalized_shape)
        if input.shape[input.dim() - axes :] != self.normalized_shape:
            found = f"the input has shape {tuple(input.shape)}, normalized_shape is {tuple(self.normalized_shape)}"
            raise ValueError(f"LayerNorm: {found}; allowed: an input that ends in normalized_shape")
        weight, bias = (None if each is None else each.reshape(width) for each in (self.weight, self.bias))
        rows = input.reshape(*input.shape[: input.dim() - axes], width)
        return ops.layernorm(rows, weight, bias, self.eps).reshape(input.shape)


class Embedding(nn.Embedding):
    """`torch.nn.Embedding` whose gradient is summed in the order of positions.

    Args:
        num_embeddings, embedding_dim, padding_idx, device, dtype: as in torch. What changes weights or gradients on the
            way (max_norm, scale_grad_by_freq, sparse) is refused.

    Shape:
        Input (...), int32 or int64; output (..., embedding_dim).

    Example:
        >>> Embedding(100, 16)(torch.tensor([3, 7])).shape
        torch.Size([2, 16])
    """

    compute: Operators = OURS
    sums: Sums | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Row input[...] of the weight.

        Returns:
            A tensor of the weight's dtype."""
        if self.max_norm is not None or self.scale_grad_by_freq or self.sparse:
            raise ValueError("Embedding: max_norm, scale_grad_by_freq or sparse is set; allowed: none of them")
        if self.padding_idx is not None:
            return ops.embedding(input, self.weight, self.padding_idx)
        return self.compute.embed(input, self.weight, self.sums)


class LMHead(Linear):
    """The output head of a language model: float32 logits, and logprobs without all of them in memory.

    Args:
        in_features: the width of hidden states.
        out_features: the vocabulary.

    Shape:
        Input (T, in_features), output float32 (T, out_features).

    Example:
        >>> head = LMHead(16, 100)
        >>> hidden, ids = torch.randn(3, 16), torch.tensor([1, 2, 3])
        >>> head(hidden).shape, head.logprobs(hidden, ids).shape
        (torch.Size([3, 100]), torch.Size([3]))
    """

    def __init__(self, in_features: int, out_features: int, **where: Any) -> None:
        super().__init__(in_features, out_features, bias=False, **where)

    def forward(self, input: Tensor) -> Tensor:
        """The logits of every token.

        Returns:
            float32 (T, out_features)."""
        return self.compute.logits(input, self.weight, self.sums)

    def logprobs(self, hidden: Tensor, ids: Tensor) -> Tensor:
        """The logprob of token ids[t] after hidden[t]; 0 where an id is -100.

        Returns:
            float32 (T)."""
        return self.compute.logprobs(hidden, self.weight, ids, self.sums)
