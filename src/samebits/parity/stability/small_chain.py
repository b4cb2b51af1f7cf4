"""The chain of operators at a size that thousands of runs can afford, with all its weights in one tensor end to end.

Knows neither what is asked of its gradients nor how it is trained."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments
from samebits.nn.strategy import Operators
from samebits.numerics.exactly import inverse_root
from samebits.parity.chain import Chain, Sizes, make_text, make_weights
from samebits.parity.stability.specs import numbers

SIZES = Sizes(width=32, heads=2, key_heads=1, head=16, inner=48, vocabulary=50)
# The recipe whose weights are as a training run starts with them.
USUAL = "normal"


@cache
def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Every weight tensor, in the order in which they lie end to end."""
    made = make_weights(replace(SIZES, layers=layers), 0, "float32", "meta")
    return {name: tuple(weight.shape) for name, weight in made.items()}


def _size(layers: int) -> int:
    return sum(math.prod(shape) for shape in shapes(layers).values())


def cut(weights: Tensor) -> dict[str, Tensor]:
    """The tensors of a chain with as many layers as there are numbers for."""
    of_a_layer = _size(2) - _size(1)
    layers, left = divmod(weights.numel() - _size(1), of_a_layer)
    if left or layers < 0:
        raise ValueError(
            f"weights: {weights.numel()} numbers; allowed: {_size(1)} and {of_a_layer} for each more layer"
        )
    named = shapes(layers + 1)
    pieces = torch.split(weights, [math.prod(shape) for shape in named.values()])
    return {name: piece.reshape(shape) for (name, shape), piece in zip(named.items(), pieces, strict=True)}


def joined(tensors: dict[str, Tensor]) -> Tensor:
    """All tensors end to end."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()])


def seed_of(seed: int, tokens: int) -> int:
    """Another for every length, so that a short text is not the beginning of a long one."""
    return 4096 * seed + tokens


def make(tokens: int, layers: int, recipe: str, format: str, seed: int) -> Arguments:
    """Hidden states and targets of one sequence, and weights; the recipe makes the weights' matrices.

    Queries and keys stay usual: scores beyond what an exponent can tell apart are attention's own matter."""
    sizes, seed = replace(SIZES, layers=layers), seed_of(seed, tokens)
    text = make_text([tokens], sizes, seed, format, "cpu")
    weights = make_weights(sizes, seed, format, "cpu")
    if recipe != USUAL:
        for number, (name, weight) in enumerate(weights.items()):
            if weight.dim() == 2 and not name.endswith(("query", "key")):
                drawn = numbers(recipe, weight.shape, 700_000 + 100 * seed + number, format)
                weights[name] = drawn * inverse_root(weight.shape[-1])
    return {
        "hidden": text.hidden[0],
        "targets": text.targets[0],
        "upstream": text.upstream[0],
        "weights": joined(weights),
    }


def logprobs(chain: Chain, hidden: Tensor, targets: Tensor) -> Tensor:
    """The logprob of every target, the tokens being one sequence."""
    tokens = len(targets)
    positions = torch.arange(tokens, device=hidden.device)
    return chain.logprobs(hidden, targets, positions, {"cu_seqlens": torch.tensor([0, tokens], device=hidden.device)})


def weight_gradients(
    chain: Chain, hidden: Tensor, targets: Tensor, upstream: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """(logprobs, the gradient of every weight tensor) where `upstream` flows into the logprobs."""
    chain = chain.fresh()
    with torch.enable_grad():
        found = logprobs(chain, hidden.detach().requires_grad_(), targets)
        torch.autograd.backward(found, upstream)
    return found.detach(), chain.sums


def chain_of(weights: dict[str, Tensor], operators: Operators | None = None) -> Chain:
    """A chain of these weights; `operators` are where faults are planted."""
    layers = (len(weights) - 2) // 9
    return Chain(sizes=replace(SIZES, layers=layers), weights=weights, operators=operators or Operators())
