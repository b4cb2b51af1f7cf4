"""samebits.nn against torch and transformers: names, values, bits in a batch, gradients, an ordinary training loop."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Callable

import pytest
import torch
import transformers
from torch import Tensor, nn

import samebits.nn as sb
from samebits.model import Batch, Model, ModelConfig, model
from samebits.nn import blocks, layers
from samebits.numerics.bits import same_bits
from samebits.ops import AdamW

CONFIG = ModelConfig(
    vocab_size=97,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=80,
    max_position_embeddings=128,
    tie_word_embeddings=False,
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


PAIRS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], Tensor]] = {
    "Linear": (lambda: sb.Linear(32, 24), lambda: nn.Linear(32, 24), drawn(7, 32)),
    "Linear without bias": (lambda: sb.Linear(32, 24, False), lambda: nn.Linear(32, 24, False), drawn(7, 32)),
    "RMSNorm": (lambda: sb.RMSNorm(32), lambda: nn.RMSNorm(32), drawn(7, 32)),
    "RMSNorm with eps": (lambda: sb.RMSNorm(32, eps=0.1), lambda: nn.RMSNorm(32, eps=0.1), drawn(7, 32)),
    "LayerNorm": (lambda: sb.LayerNorm(32), lambda: nn.LayerNorm(32), drawn(7, 32)),
    "LayerNorm with eps": (lambda: sb.LayerNorm((32,), 0.1), lambda: nn.LayerNorm((32,), 0.1), drawn(7, 5, 32)),
    "LayerNorm without bias": (
        lambda: sb.LayerNorm(32, bias=False),
        lambda: nn.LayerNorm(32, bias=False),
        drawn(7, 32),
    ),
    "LayerNorm over two axes": (lambda: sb.LayerNorm([4, 8]), lambda: nn.LayerNorm([4, 8]), drawn(7, 4, 8)),
    "Embedding": (lambda: sb.Embedding(24, 32), lambda: nn.Embedding(24, 32), torch.arange(7)),
    "Embedding with padding": (
        lambda: sb.Embedding(24, 32, padding_idx=3),
        lambda: nn.Embedding(24, 32, padding_idx=3),
        torch.arange(7),
    ),
    "LMHead": (lambda: sb.LMHead(32, 24), lambda: nn.Linear(32, 24, bias=False), drawn(7, 32)),
    "SwiGLU": (lambda: sb.SwiGLU(32, 48), lambda: hugging_face("mlp"), drawn(7, 32)),
}


def hugging_face(part: str) -> nn.Module:
    """A part of transformers' Llama of the same shape."""
    config = transformers.LlamaConfig(
        vocab_size=24,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        attn_implementation="eager",
    )
    found: nn.Module = transformers.LlamaForCausalLM(config).model.layers[0].get_submodule(part)
    return found


@pytest.mark.parametrize("name", PAIRS)
def test_a_module_takes_the_place_of_its_original(name: str) -> None:
    """Its state dict goes both ways, values and gradients are near, and a row is the same alone."""
    ours, theirs, x = PAIRS[name][0](), PAIRS[name][1](), PAIRS[name][2]
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    y, expected = ours(x), theirs(x)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert same_bits(y[3:4].detach(), ours(x[3:4]).detach())
    upstream = drawn(*y.shape, seed=1)
    y.backward(upstream)
    expected.backward(upstream)
    for (at, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-4, msg=at)


def test_a_layer_norm_without_weights_and_one_with_a_wrong_input() -> None:
    ours, x = sb.LayerNorm([4, 8], elementwise_affine=False), drawn(3, 4, 8)
    assert not ours.state_dict()
    torch.testing.assert_close(ours(x), nn.LayerNorm([4, 8], elementwise_affine=False)(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"the input has shape \(3, 8, 4\), normalized_shape is \(4, 8\); allowed"):
        ours(x.transpose(1, 2))


def test_attention_is_near_transformers_and_a_row_is_the_same_alone() -> None:
    ours, theirs = sb.Attention(32, 4, 2, 8), hugging_face("self_attn")
    theirs.load_state_dict(ours.state_dict())
    x = drawn(3, 11, 32)
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(theirs.config)
    mask = torch.full((11, 11), float("-inf")).triu(1)[None, None]
    expected = theirs(x, rotary(x, torch.arange(11)[None]), mask)[0]
    found = ours(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert same_bits(found[1:2].detach(), ours(x[1:2]).detach())
    assert same_bits(found[1, :5].detach(), ours(x[1:2, :5])[0].detach())


def hugging_face_model(config: ModelConfig) -> nn.Module:
    values = config.to_huggingface()
    kind = {"llama": ("LlamaConfig", "LlamaForCausalLM"), "qwen3": ("Qwen3Config", "Qwen3ForCausalLM")}
    made, family = kind[values.pop("model_type")]
    found: nn.Module = getattr(transformers, family)(getattr(transformers, made)(**values)).eval()
    return found


SHAPES = {
    "llama": CONFIG,
    "llama tied": ModelConfig(
        **{name: getattr(CONFIG, name) for name in CONFIG.__slots__} | {"tie_word_embeddings": True}
    ),
    "qwen3": ModelConfig(**{name: getattr(CONFIG, name) for name in CONFIG.__slots__} | {"use_qk_norm": True}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_state_dict_is_transformers_own(shape: str) -> None:
    ours, theirs = Model.new(SHAPES[shape], 3), hugging_face_model(SHAPES[shape])
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    theirs.load_state_dict(ours.state_dict())
    ids = torch.randint(0, 97, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)
    back = Model.new(SHAPES[shape], 4)
    back.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        assert same_bits(back(ids), ours(ids)) and same_bits(ours(ids[1:]), ours(ids)[1:])


def test_a_folder_there_and_back(tmp_path: object) -> None:
    first = Model.new(CONFIG, 3)
    first.save_pretrained(f"{tmp_path}/model")
    again = Model.from_pretrained(f"{tmp_path}/model")
    assert all(same_bits(each, again.weights[name].detach()) for name, each in first.weights.items())
    assert all(each.requires_grad for each in again.parameters())
    read = transformers.LlamaForCausalLM.from_pretrained(f"{tmp_path}/model")
    assert read.state_dict().keys() == again.state_dict().keys()


def losses(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], batches: int = 1) -> list[float]:
    """An ordinary loop over one text, in so many micro-batches."""
    trained = Model.new(SHAPES["llama tied"], 5).requires_grad_()
    optimizer = make(list(trained.parameters()))
    texts = torch.randint(0, 97, (4, 17), generator=torch.Generator().manual_seed(1))
    found = []
    for _ in range(4):
        optimizer.zero_grad()
        total = 0.0
        for rows in texts.chunk(batches):
            hidden = trained.hidden(Batch.of(list(rows[:, :-1])))
            loss = -trained.logprobs(hidden, rows[:, 1:].reshape(-1)).sum() / 64
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        found.append(total)
    return found


@pytest.mark.parametrize("make", [AdamW, torch.optim.AdamW, torch.optim.SGD], ids=lambda each: each.__module__)
def test_an_ordinary_training_loop(make: type[torch.optim.Optimizer]) -> None:
    found = losses(lambda parameters: make(parameters, lr=0.01))
    assert found[-1] < found[0] and len(set(found)) == 4


def test_gradients_are_those_of_the_trainers_sums() -> None:
    """In float32 one batch's sums are what autograd returns; the tied head's is added to the embedding's."""
    plain = Model.new(CONFIG, 5).requires_grad_()
    batch, targets = Batch.of([list(range(9))]), torch.arange(1, 10)
    summing = Model.new(CONFIG, 5).with_sums()
    for each in (plain, summing):
        (-each.logprobs(each.hidden(batch), targets)).sum().backward()
    for name, gradient in summing.gradients().items():
        assert same_bits(gradient, plain.get_parameter(name).grad), name


def test_a_weight_that_is_put_in_is_used() -> None:
    made = Model.new(SHAPES["llama tied"], 3)
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        before = made(ids)
        made.weights["model.embed_tokens.weight"] = made.weights["model.embed_tokens.weight"] * 2
        assert not same_bits(made(ids), before)
        assert made.lm_head.weight is made.model.embed_tokens.weight


def test_a_move_changes_the_model_in_place() -> None:
    made = Model.new(CONFIG, 3).for_inference()
    assert made.to(dtype=torch.bfloat16) is made and made.dtype == torch.bfloat16 and not made.joined
    with torch.no_grad():
        hidden = made.hidden(Batch.of([[1]]))
        assert same_bits(hidden, Model.new(CONFIG, 3).to(torch.bfloat16).hidden(Batch.of([[1]])))


def test_what_a_module_does_not_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"RMSNorm: normalized_shape is .*; allowed: one axis, with a weight"):
        sb.RMSNorm((4, 8))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"RMSNorm: .*elementwise_affine False; allowed"):
        sb.RMSNorm(8, elementwise_affine=False)
    with pytest.raises(ValueError, match=r"Embedding: max_norm, .*; allowed: none of them"):
        sb.Embedding(8, 4, max_norm=1.0)(torch.tensor([1]))


@pytest.mark.parametrize("module", [layers, blocks, model], ids=lambda each: each.__name__)
def test_examples_run(module: object) -> None:
    found = doctest.testmod(importlib.import_module(module.__name__), extraglobs={"torch": torch})  # type: ignore[attr-defined]
    assert found.attempted and not found.failed
