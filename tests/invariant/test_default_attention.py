"""transformers' default attention in a block: which models go to samebits' own, and that all their forms do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.invariant.conftest import VOCABULARY, ids_of
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    BertConfig,
    BertModel,
    DynamicCache,
    Gemma3TextConfig,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    StaticCache,
    masking_utils,
)
from transformers.models.gemma3.modeling_gemma3 import Gemma3Attention
from transformers.models.llama4.modeling_llama4 import Llama4TextAttention

from samebits.invariant import InvariantError, default_attention, invariant_mode
from samebits.invariant.default_attention import MARK, _can_be_read, _kind
from samebits.numerics.bits import same_bits

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=6)),
}
LENGTH = 21


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(1)
    made = MODELS[request.param]().eval()
    for parameter in made.parameters():
        parameter.data.mul_(6 if parameter.dim() > 1 else 1)
    return made


def alone(model: Any, ids: Tensor) -> Tensor:
    with invariant_mode(), torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits  # type: ignore[no-any-return]


def packed(model: Any, ids: Tensor) -> Tensor:
    other = ids_of(1, 5, seed=9)
    positions = torch.cat((torch.arange(5), torch.arange(LENGTH)))[None]
    return model(input_ids=torch.cat((other, ids), 1), position_ids=positions, use_cache=False).logits[:, 5:]  # type: ignore[no-any-return]


def static(model: Any, ids: Tensor) -> Tensor:
    cache = StaticCache(config=model.config, max_cache_len=40)
    parts = ids.split(8, 1)
    return torch.cat([model(input_ids=part, past_key_values=cache).logits for part in parts], 1)


def token_by_token(model: Any, ids: Tensor) -> Tensor:
    cache = DynamicCache(config=model.config)
    return torch.cat([model(input_ids=part, past_key_values=cache).logits for part in ids.split(1, 1)], 1)


@pytest.mark.parametrize("form", [packed, static, token_by_token])
def test_every_form_has_the_bits_of_the_sequence_alone(model: Any, form: Callable[[Any, Tensor], Tensor]) -> None:
    ids = ids_of(1, LENGTH)
    with invariant_mode() as mode, torch.no_grad():
        found = form(model, ids)
    assert same_bits(found, alone(model, ids))
    assert "aten.scaled_dot_product_attention.default" not in mode.routed


def test_it_is_the_attention_named_samebits(model: Any) -> None:
    ids = ids_of(2, LENGTH)
    default = alone(model, ids)
    model.set_attn_implementation("samebits")
    assert same_bits(default, alone(model, ids))


def test_holes_in_a_mask_do_not_matter() -> None:
    """What is not seen is left out, wherever it stands; gradients too."""
    model, ids = MODELS["llama"]().eval(), ids_of(1, 9)
    kept = torch.tensor([0, 1, 2, 5, 6, 8])
    positions = torch.zeros(2, 9, dtype=torch.int64)
    positions[0, kept], positions[1] = torch.arange(6), torch.arange(9)
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[0] = 0
    mask[0, kept] = 1
    gradients = []
    for given in (
        {"input_ids": ids[:, kept]},
        {"input_ids": ids.repeat(2, 1), "attention_mask": mask, "position_ids": positions},
    ):
        model.zero_grad()
        with invariant_mode():
            logits = model(**given, use_cache=False).logits[0]
            logits = logits if len(logits) == 6 else logits[kept]
            logits.square().sum().backward()
        gradients.append((logits.detach(), model.model.layers[0].self_attn.k_proj.weight.grad.clone()))
    assert all(same_bits(one, other) for one, other in zip(*gradients, strict=True))


def test_a_mask_with_a_hole_is_refused_where_a_window_would_be_counted_over_it() -> None:
    model, mask = MODELS["mistral"]().eval(), torch.ones(2, 9, dtype=torch.int64)
    mask[1, 4] = 0
    with invariant_mode(), pytest.raises(ValueError, match="attention_mask has a hole, and MistralAttention a window"):
        model(input_ids=ids_of(2, 9), attention_mask=mask)


def test_a_mask_of_ones_own_is_refused_with_the_way(model: Any) -> None:
    own = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    with invariant_mode(), pytest.raises(InvariantError, match=r"a 2-D attention_mask, or .*set_attn_implementation"):
        model(input_ids=ids_of(1, LENGTH), attention_mask=own)
    with invariant_mode(strict=False) as mode:
        model(input_ids=ids_of(1, LENGTH), attention_mask=own)
    assert mode.unverified["a mask of another's making"] == 2


def test_a_mask_that_a_model_changes_is_refused(model: Any) -> None:
    """Planted: a layer that hands on a copy of the mask. Without padding there is none, and it would part from that."""
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda _, args, kwargs: (args, {**kwargs, "attention_mask": kwargs["attention_mask"].clone()}),
            with_kwargs=True,
        )
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[0, :4] = 0
    with invariant_mode(), pytest.raises(InvariantError, match="did not make"):
        model(input_ids=ids_of(2, LENGTH), attention_mask=mask)


def test_models_of_other_masks_and_encoders_take_the_way_of_any_mask() -> None:
    bert = BertModel(
        BertConfig(hidden_size=64, intermediate_size=80, num_hidden_layers=1, num_attention_heads=4)
    ).eval()
    with invariant_mode() as mode, torch.no_grad():
        bert(input_ids=ids_of(2, 9))
    assert mode.routed["aten.scaled_dot_product_attention.default"] == 1
    for module, config in ((Gemma3Attention, Gemma3TextConfig), (Llama4TextAttention, Llama4TextConfig)):
        assert not default_attention._makes_causal_masks_alone(module.__module__), config


def test_outside_of_blocks_it_is_transformers_own(model: Any) -> None:
    ids = ids_of(2, LENGTH)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        alone(model, ids)
        mask = masking_utils.create_causal_mask(model.config, torch.zeros(2, 9, 4), None, None)
        assert same_bits(before, model(input_ids=ids).logits)
    assert mask is None or not hasattr(mask, MARK)


class _Renamed:
    """transformers as it may be one day: functions of other names, or without closures that can be read."""

    def __getattr__(self, name: str) -> Any:
        stock = getattr(masking_utils, name)
        return lambda *args: (lambda *places: stock(*args)(*places)) if name != "causal_mask_function" else stock


def test_functions_that_cannot_be_read_switch_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _can_be_read(masking_utils)
    assert not _can_be_read(_Renamed()) and not _can_be_read(nn.Module())
    stock = dict(AttentionInterface._global_mapping)
    monkeypatch.setattr(default_attention, "_can_be_read", lambda _: False)
    default_attention.install()
    assert AttentionInterface._global_mapping == stock


def test_functions_of_masks_are_told_apart() -> None:
    causal, window = masking_utils.causal_mask_function, masking_utils.sliding_window_causal_mask_function(5)
    assert _kind(causal) == (0, None) and _kind(window) == (5, None)
    chunked = masking_utils.chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.int64))
    others = (masking_utils.bidirectional_mask_function, chunked, masking_utils.or_masks(causal, window), None, len)
    assert [_kind(each) for each in others] == [None] * len(others)
