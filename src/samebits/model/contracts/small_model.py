"""The model at a size that thousands of runs can afford, with all its weights in one tensor end to end.

Knows neither what is asked of its gradients nor how it is trained."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from samebits.contracts.spec import Arguments
from samebits.model import Batch, Model, ModelConfig
from samebits.model.contracts.specs import fractions, numbers
from samebits.model.weights import EMBEDDING, shapes
from samebits.nn.strategy import Operators
from samebits.numerics.exactly import inverse_root

SMALL = ModelConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    intermediate_size=48,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
    rms_norm_eps=1e-6,
)
# The recipe whose weights are as a training run starts with them.
USUAL = "normal"


@cache
def _size(layers: int) -> int:
    return sum(math.prod(shape) for shape in shapes(replace(SMALL, num_hidden_layers=layers)).values())


def config_of(weights: Tensor) -> ModelConfig:
    """The model with as many layers as there are numbers for."""
    of_a_layer = _size(2) - _size(1)
    layers, left = divmod(weights.numel() - _size(1), of_a_layer)
    if left or layers < 0:
        raise ValueError(
            f"weights: {weights.numel()} numbers; allowed: {_size(1)} and {of_a_layer} for each more layer"
        )
    return replace(SMALL, num_hidden_layers=layers + 1)


def cut(weights: Tensor) -> dict[str, Tensor]:
    """The tensors of a model by name."""
    named = shapes(config_of(weights))
    pieces = torch.split(weights, [math.prod(shape) for shape in named.values()])
    return {name: piece.reshape(shape) for (name, shape), piece in zip(named.items(), pieces, strict=True)}


def joined(tensors: dict[str, Tensor]) -> Tensor:
    """All tensors end to end."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors.values()])


def model_of(weights: Tensor, operators: Operators | None = None) -> Model:
    """A model of these weights; `operators` are where faults are planted."""
    return Model(config=config_of(weights), weights=cut(weights), operators=operators or Operators())


def seed_of(seed: int, tokens: int) -> int:
    """Another for every length, so that a short text is not the beginning of a long one."""
    return 4096 * seed + tokens


def make_text(tokens: int, seed: int) -> Tensor:
    """So many tokens, drawn alike."""
    drawn = fractions((tokens,), 3 * seed_of(seed, tokens))
    return torch.from_numpy((drawn * SMALL.vocab_size).astype("int64"))


def make_weights(layers: int, recipe: str, format: str, seed: int) -> Tensor:
    """Norms near one; matrices by the recipe, small enough that scores and logits stay moderate.

    Queries and keys stay usual: scores beyond what an exponent can tell apart are attention's own matter."""
    made = {}
    for number, (name, shape) in enumerate(shapes(replace(SMALL, num_hidden_layers=layers)).items()):
        plain = len(shape) == 1 or name.endswith(("q_proj.weight", "k_proj.weight"))
        drawn = numbers(USUAL if plain else recipe, shape, 500_000 + 100 * seed + number, format)
        usual_scale = 1.0 if name == EMBEDDING else inverse_root(shape[-1])
        made[name] = 1 + drawn * 0.1 if len(shape) == 1 else drawn * usual_scale
    return joined(made)


def weight_gradients(model: Model, ids: Tensor, targets: Tensor, upstream: Tensor) -> dict[str, Tensor]:
    """The gradient of every weight tensor where `upstream` flows into the targets' logprobs of one sequence."""
    model = model.with_sums()
    with torch.enable_grad():
        hidden = model.hidden(Batch.of([ids], device=ids.device))
        torch.autograd.backward(model.logprobs(hidden, targets), upstream)
    found = model.gradients()
    return {name: found[name] for name in shapes(model.config)}


def make(tokens: int, layers: int, recipe: str, format: str, seed: int) -> Arguments:
    """Tokens and targets of one sequence, what flows into their logprobs, and weights of which the recipe makes the
    embedding: a scale that every layer's norm takes away would teach nothing."""
    weights = cut(make_weights(layers, USUAL, format, seed))
    weights[EMBEDDING] = numbers(recipe, weights[EMBEDDING].shape, 700_000 + seed, format)
    text = make_text(tokens + 1, seed)
    upstream = numbers(USUAL, (tokens,), 3 * seed_of(seed, tokens) + 1, "float32")
    return {"ids": text[:-1], "targets": text[1:], "upstream": upstream, "weights": joined(weights)}
