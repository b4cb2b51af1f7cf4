"""Unmodified Qwen3 and Llama models keep their bits: alone, batched, padded, in chunks, with a cache, backward too."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.invariant.conftest import VOCABULARY, Make, ids_of, in_parts, padded
from torch import Tensor, nn
from transformers import StaticCache

from samebits.invariant import invariant_mode
from samebits.invariant.transformers import padding_mask, register
from samebits.numerics.bits import same_bits

KINDS = ("llama", "qwen3")
LENGTHS = [23, 5, 41, 17, 1, 33, 12, 28] * 4


def logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    return torch.log_softmax(logits[:-1], -1).gather(-1, ids[1:, None])[:, 0]


def gradients(model: nn.Module, ids: Tensor, row: int, place: slice, **options: Any) -> dict[str, Tensor]:
    """Logits, logprobs and every gradient of one row's mean logprob; the other rows weigh nothing."""
    rows = model.get_input_embeddings()(ids).detach().requires_grad_()
    logits = model(inputs_embeds=rows, use_cache=False, **options).logits[row, place]
    chosen = logprobs(logits, ids[row, place])
    weights = dict(model.named_parameters())
    found = torch.autograd.grad(chosen.mean(), [rows, *weights.values()], allow_unused=True)
    named = {name: each for name, each in zip(weights, found[1:], strict=True) if each is not None}
    return {"logits": logits, "logprobs": chosen, "input": found[0][row, place], **named}


def different(left: dict[str, Tensor], right: dict[str, Tensor]) -> list[str]:
    assert left.keys() == right.keys()
    return [name for name in left if not same_bits(left[name].detach(), right[name].detach())]


def compare_forms(model: nn.Module, around: Any) -> dict[str, list[str]]:
    """Form to what differs from the sequence alone."""
    sequences = [ids_of(1, length, 100 + row)[0] for row, length in enumerate(LENGTHS)]
    row = 3
    ids = sequences[row]
    found: dict[str, list[str]] = {}
    with around():
        alone = gradients(model, ids[None], 0, slice(None))
        for side in ("left", "right"):
            batch, mask, positions, places = padded(sequences, side)
            options = {"attention_mask": mask, "position_ids": positions}
            found[side] = different(alone, gradients(model, batch, row, places[row], **options))
        with torch.no_grad():
            for name, sizes in {"chunks": (5, 1, 9, 2), "decode": (1,) * len(ids), "prefill": (16, 1)}.items():
                logits = in_parts(model, ids, sizes)
                parts = {"logits": logits, "logprobs": logprobs(logits, ids)}
                found[name] = different({key: alone[key] for key in parts}, parts)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_keeps_its_bits_in_every_form(make: Make, kind: str, dtype: torch.dtype) -> None:
    """Batch of 32 with ragged padding on both sides, chunked prefill, decode; logits, logprobs and all gradients."""
    found = compare_forms(make(kind).to(dtype), invariant_mode)
    assert found == {form: [] for form in ("left", "right", "chunks", "decode", "prefill")}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_stock_transformers_does_not(make: Make, attention: str) -> None:
    """The negative control: the same comparison without samebits."""
    found = compare_forms(make("llama", attention), nullcontext)
    assert "logits" in found["decode"] and found["left"]


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_keep_their_bits(make: Make, kind: str) -> None:
    """Several sequences in one row, told apart by positions that begin again, or by cu_seq_lens."""
    model = make(kind)
    sequences = [ids_of(1, length, 50 + length)[0] for length in (7, 30, 1, 12)]
    bounds = torch.tensor([0, 7, 37, 38, 50])
    row, positions = torch.cat(sequences)[None], torch.cat([torch.arange(len(each)) for each in sequences])[None]
    with invariant_mode(), torch.no_grad():
        alone = torch.cat([model(input_ids=each[None]).logits[0] for each in sequences])
        by_position = model(input_ids=row, position_ids=positions, use_cache=False).logits[0]
        by_bounds = model(
            input_ids=row,
            position_ids=positions,
            use_cache=False,
            cu_seq_lens_q=bounds,
            cu_seq_lens_k=bounds,
            max_length_q=30,
            max_length_k=30,
        ).logits[0]
    assert same_bits(by_position, alone) and same_bits(by_bounds, alone)


def test_generation_does_not_depend_on_the_batch(make: Make) -> None:
    """transformers' own generate, greedy: tokens and scores of a prompt alone and padded on the left beside others."""
    model = make("qwen3")
    prompts = [ids_of(1, length, 60 + length)[0] for length in (4, 11, 19)]
    batch, mask, _, _ = padded(prompts, "left")
    options = {
        "max_new_tokens": 6,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
        "pad_token_id": 0,
        "eos_token_id": None,
    }
    with invariant_mode(), torch.no_grad():
        together = model.generate(batch, attention_mask=mask, **options)
        for row, prompt in enumerate(prompts):
            alone = model.generate(prompt[None], **options)
            assert torch.equal(alone.sequences[0, len(prompt) :], together.sequences[row, batch.shape[1] :])
            for one, all_ in zip(alone.logits, together.logits, strict=True):
                assert same_bits(one[0], all_[row])


def test_weight_gradients_do_not_depend_on_the_cut_into_micro_batches(make: Make) -> None:
    """Untied weights: each micro-batch goes on with the sums that the one before it left in .grad."""
    model, ids = make("llama"), ids_of(6, 11)

    def accumulated(cuts: tuple[int, ...]) -> dict[str, Tensor]:
        model.zero_grad()
        with invariant_mode():
            for part in ids.split(list(cuts)):
                logits = model(input_ids=part).logits[:, :-1].reshape(-1, VOCABULARY)
                loss = nn.functional.cross_entropy(logits, part[:, 1:].reshape(-1), reduction="sum") / ids.numel()
                loss.backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    whole = accumulated((6,))
    for cuts in ((3, 3), (1, 5), (2, 1, 3)):
        assert different(whole, accumulated(cuts)) == []


def test_tied_weights_get_both_gradients_in_micro_batches(make: Make) -> None:
    """Head and embedding share one weight: the sum of two chains is right to rounding, though not resumed."""
    model, ids = make("qwen3"), ids_of(4, 9)
    found = []
    for cuts in ((4,), (2, 2)):
        model.zero_grad()
        with invariant_mode():
            for part in ids.split(list(cuts)):
                (model(input_ids=part, labels=part, num_items_in_batch=32).loss).backward()
        found.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
    assert set(different(*found)) <= {"model.embed_tokens.weight"}
    whole, cut = (each["model.embed_tokens.weight"] for each in found)
    assert (whole - cut).abs().max() <= 1e-5 * whole.abs().max()


def test_a_training_step_through_the_models_own_loss_ignores_padding(make: Make) -> None:
    """labels=-100 on the padding: loss and every gradient are those of the sequence alone."""
    model, ids = make("llama"), ids_of(1, 19)[0]
    found = []
    for length in (19, 19, 40):
        row = torch.cat((ids, ids_of(1, length - 19, 5)[0]))[None]
        labels = torch.where(torch.arange(length) < 19, row, -100)
        mask = (torch.arange(length) < 19).long()[None]
        model.zero_grad()
        with invariant_mode():
            loss = model(input_ids=row, attention_mask=mask, labels=labels).loss
            loss.backward()
        found.append({"loss": loss, **{name: each.grad.clone() for name, each in model.named_parameters()}})
    assert different(found[0], found[1]) == [] and different(found[0], found[2]) == []


def test_a_static_cache_keeps_its_bits(make: Make) -> None:
    """Keys that are not filled yet are not seen, and decide nothing."""
    model, ids = make("llama"), ids_of(1, 21)[0]
    cache, parts = StaticCache(config=model.config, max_cache_len=64), []
    with invariant_mode(), torch.no_grad():
        whole = model(input_ids=ids[None]).logits[0]
        for part in ids.split([9, 1, 1, 10]):
            parts.append(model(input_ids=part[None], past_key_values=cache, use_cache=True).logits[0])
    assert same_bits(torch.cat(parts), whole)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_keeps_the_bits(make: Make, reentrant: bool) -> None:
    """What is computed again in backward is computed alike."""
    model, ids = make("llama").train(), ids_of(2, 9)
    found = []
    for checkpointed in (False, True):
        if checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        model.zero_grad()
        with invariant_mode():
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        found.append({name: each.grad.clone() for name, each in model.named_parameters()})
    assert different(*found) == []


def test_a_training_step_with_clipping_and_adamw_is_vouched_for(make: Make) -> None:
    model, ids = make("qwen3"), ids_of(2, 9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with invariant_mode() as mode:
        model(input_ids=ids, labels=ids).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
    assert mode.routed["aten.linalg_vector_norm.default"] and not mode.unverified


def test_dropout_in_training_is_refused(make: Make) -> None:
    model = make("llama").train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    with invariant_mode(), pytest.raises(ValueError, match=r"dropout is 0\.1; allowed: 0"):
        model(input_ids=ids_of(2, 9))


@pytest.mark.parametrize(
    ("arguments", "width"),
    [
        ({"q_length": 4, "kv_length": 4}, None),  # whole
        ({"q_length": 1, "kv_length": 9, "q_offset": 8}, None),  # decode
        ({"q_length": 1, "kv_length": 64, "q_offset": 8}, 9),  # a cache that is not full yet
        ({"q_length": 1, "kv_length": 4, "q_offset": 8, "kv_offset": 5}, 9),  # a sliding cache that dropped keys
    ],
)
def test_the_mask_covers_all_keys_from_the_first(arguments: dict[str, int], width: int | None) -> None:
    mask = padding_mask(2, **arguments)
    assert mask is None if width is None else mask.shape == (2, width)


def test_a_sliding_window_keeps_its_bits_when_the_cache_drops_keys() -> None:
    """Mistral's window: decode with a cache that forgets old keys equals one prefill."""
    from tests.invariant.conftest import SIZES
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(3)
    config = MistralConfig(**SIZES, num_hidden_layers=2, sliding_window=8, attn_implementation="samebits")
    model, ids = MistralForCausalLM(config).eval(), ids_of(1, 90)[0]
    with invariant_mode(), torch.no_grad():
        whole = model(input_ids=ids[None]).logits[0]
        assert same_bits(in_parts(model, ids, (70, 1, 1, 1, 17)), whole)
        assert same_bits(in_parts(model, ids[:30], (1,) * 30), whole[:30])


def test_values_of_another_head_size_keep_their_bits() -> None:
    """DeepSeek's heads of keys and values differ, and neither is a multiple of 8."""
    from tests.invariant.families import build

    register()
    model, ids = build("deepseek_v3"), ids_of(2, 13)
    model.set_attn_implementation("samebits")
    with invariant_mode(), torch.no_grad():
        whole = model(input_ids=ids).logits[1]
        assert same_bits(model(input_ids=ids[1:]).logits[0], whole) and same_bits(
            in_parts(model, ids[1], (5, 8)), whole
        )
    stock = build("deepseek_v3")
    with torch.no_grad():
        assert (stock(input_ids=ids).logits[1] - whole).abs().max() <= 1e-4 * whole.abs().max()
