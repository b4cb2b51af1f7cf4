"""Twenty-odd transformers families of tiny random weights, default attention, and the forms a sequence is run in.

`judge` gives for each form what differs from the sequence alone, or the reason why the model is refused."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from tests.invariant.conftest import VOCABULARY, ids_of, padded
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, DynamicCache

from samebits.invariant import InvariantError, invariant_mode
from samebits.invariant.refused import reason_of_model
from samebits.numerics.bits import same_bits

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MOE: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
_LOCAL_EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_GPT2: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
_T5: dict[str, Any] = {
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 80,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_BART: dict[str, Any] = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 80,
    "decoder_start_token_id": 2,
}
_NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CAUSAL: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {**_MOE, "head_dim": 16, "norm_topk_prob": True},
    "qwen2_moe": {**_MOE, "shared_expert_intermediate_size": 40},
    "mixtral": _LOCAL_EXPERTS,
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 12,
        "v_head_dim": 10,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
    },
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 6},
    "gemma3_text": {"head_dim": 16, "sliding_window": 6},
    "phi": {},
    "phi3": {},
    "gpt2": _GPT2,
    "gpt_neox": {},
    "gptj": {**_GPT2, "rotary_dim": 8},
    "opt": {"ffn_dim": 80, "word_embed_proj_dim": 64},
    "bloom": {"n_layer": 2, "n_head": 4},
    "falcon": {"new_decoder_architecture": False, "multi_query": True},
    "olmo2": {},
    "granite": {},
    "cohere": {},
    "starcoder2": {},
    "stablelm": {},
    "smollm3": {},
    "glm4": {"head_dim": 16},
    "nemotron": {},
    "gpt_oss": {**_LOCAL_EXPERTS, "head_dim": 16, "sliding_window": 6},
    "llama4_text": {"num_local_experts": 4, "num_experts_per_tok": 1, "head_dim": 16, "intermediate_size_mlp": 80},
    "deepseek_v2": {
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 12,
        "v_head_dim": 10,
        "head_dim": 8,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
    },
    "phimoe": _LOCAL_EXPERTS,
    "granitemoe": _LOCAL_EXPERTS,
    "jetmoe": {**_LOCAL_EXPERTS, "kv_channels": 16},
    "glm4_moe": {
        "head_dim": 16,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
    },
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 40},
    "flex_olmo": {"num_experts": 4, "num_experts_per_tok": 2},
    "apertus": {},
    "doge": {},
    "olmo": {},
    "olmo3": {"sliding_window": 6},
    "exaone4": {"sliding_window": 6},
    "cohere2": {"sliding_window": 6},
    "vaultgemma": {"head_dim": 16, "sliding_window": 6},
    "ernie4_5": {"head_dim": 16},
    "hunyuan_v1_dense": {"head_dim": 16},
    "helium": {"head_dim": 16},
    "seed_oss": {"head_dim": 16},
    "glm": {"head_dim": 16},
    "arcee": {},
    "lfm2": {"block_multiple_of": 16},
    "diffllama": {},
    "bitnet": {},
    "persimmon": {},
    "biogpt": {},
    "xglm": {"d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 80},
    "gpt_bigcode": _GPT2,
    "codegen": {**_GPT2, "rotary_dim": 8},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 6},
}
MASKED: dict[str, dict[str, Any]] = {
    "bert": _NO_DROPOUT,
    "roberta": {**_NO_DROPOUT, "pad_token_id": 0},
    "electra": {**_NO_DROPOUT, "embedding_size": 64},
    "distilbert": {"dim": 64, "hidden_dim": 80, "n_layers": 2, "n_heads": 4},
    "modernbert": {"local_attention": 6},
    "albert": {**_NO_DROPOUT, "embedding_size": 32},
    "camembert": {**_NO_DROPOUT, "pad_token_id": 0},
    "mpnet": _NO_DROPOUT,
    "rembert": {**_NO_DROPOUT, "input_embedding_size": 32, "output_embedding_size": 32},
    "big_bird": {**_NO_DROPOUT, "attention_type": "original_full"},
    "esm": {**_NO_DROPOUT, "mask_token_id": 5},
}
SEQUENCE_TO_SEQUENCE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5"), _T5),
    "switch_transformers": {**_T5, "num_experts": 4},
    **dict.fromkeys(("bart", "mbart", "pegasus", "blenderbot", "marian"), _BART),
    "bigbird_pegasus": {**_BART, "attention_type": "original_full"},
}
COUNTS_FROM_THE_PADDING = ("bart", "mbart", "pegasus", "blenderbot", "marian", "bigbird_pegasus", "biogpt", "xglm")
"""They take no position_ids: padding on the left moves a sequence to other positions, which is another input."""
_REFUSED_CAUSAL = {
    **dict.fromkeys(("mamba", "falcon_h1", "recurrent_gemma"), "no convolution"),
    "mpt": "padding and a cache change its own numbers",
    "minimax": "chunks of a prompt and a cache change its own numbers",
    **({"doge": "looks at later tokens"} if reason_of_model("DogeModel") else {}),
}
_REFUSED_MASKED = {
    "deberta-v2": "TorchScript fuses operations",
    "fnet": "of complex numbers only",
    "yoso": "the power 9 is not offered",
}
REFUSED = {**_REFUSED_CAUSAL, **_REFUSED_MASKED}
"""Families that are not kept, each with a part of what its users are told."""
FAMILIES: dict[str, dict[str, Any]] = {
    name: sizes for name, sizes in {**CAUSAL, **MASKED, **SEQUENCE_TO_SEQUENCE}.items() if name not in REFUSED
}
LENGTHS = (13, 5, 24, 9)
ROW = 0
KEPT = "kept"


def build(name: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> nn.Module:
    """The family's model as a user makes it: no word about attention."""
    config = AutoConfig.for_model(name, **{**_SIZES, **FAMILIES.get(name, {})})
    masked = name in MASKED or name in _REFUSED_MASKED
    kind = (
        AutoModelForSeq2SeqLM
        if name in SEQUENCE_TO_SEQUENCE
        else AutoModelForMaskedLM
        if masked
        else AutoModelForCausalLM
    )
    torch.manual_seed(1)
    model: nn.Module = kind.from_config(config).eval()
    for parameter in model.parameters():  # spread wide, so that sums must round
        parameter.data.mul_(4) if parameter.dim() > 1 else parameter.data.add_(torch.randn(parameter.shape) / 4)
    return model.to(device, dtype)


def _options(model: nn.Module, mask: Tensor, positions: Tensor) -> dict[str, Tensor]:
    takes = inspect.signature(model.forward).parameters
    return {"attention_mask": mask} | ({"position_ids": positions} if "position_ids" in takes else {})


def _gradients(name: str, model: nn.Module, ids: Tensor, row: int, place: slice, **options: Any) -> dict[str, Tensor]:
    """Logits and every gradient of one row's logprobs; the other rows weigh nothing."""
    rows = model.get_input_embeddings()(ids).detach().requires_grad_()
    if name in SEQUENCE_TO_SEQUENCE:
        options["decoder_input_ids"] = ids_of(1, 7, 5).to(ids.device).expand(len(ids), 7)
        logits = model(inputs_embeds=rows, use_cache=False, **options).logits[row]
        targets = ids_of(1, 7, 6)[0].to(ids.device)
    else:
        cached = {"use_cache": False} if name in CAUSAL else {}
        logits = model(inputs_embeds=rows, **cached, **options).logits[row, place]
        targets = ids[row, place]
    chosen = torch.log_softmax(logits.float(), -1).gather(-1, targets[:, None])
    weights = {key: each for key, each in model.named_parameters() if each.requires_grad}
    found = torch.autograd.grad(chosen.mean(), [rows, *weights.values()], allow_unused=True)
    named = {key: each for key, each in zip(weights, found[1:], strict=True) if each is not None}
    return {"logits": logits.detach(), "input": found[0][row, place], **named}


def in_parts(model: nn.Module, ids: Tensor, sizes: Sequence[int]) -> Tensor:
    cache, parts, start = DynamicCache(config=model.config), [], 0
    for size in sizes:
        output = model(input_ids=ids[None, start : start + size], past_key_values=cache, use_cache=True)
        parts.append(output.logits[0])
        start += size
    return torch.cat(parts)


def _different(left: dict[str, Tensor], right: dict[str, Tensor]) -> list[str]:
    """A weight without any gradient in one of the two (an expert nobody chose) must have a zero one in the other."""
    names = left.keys() | right.keys()
    return sorted(
        key
        for key in names
        if not (
            same_bits(left[key], right[key])
            if key in left and key in right
            else not (left.get(key, right.get(key))).any()  # type: ignore[union-attr]
        )
    )


def judge(name: str, dtype: torch.dtype = torch.float32, device: str = "cpu", around: Any = invariant_mode) -> Any:
    """{form: what differs from the sequence alone}, or "refused: ..."."""
    model = build(name, dtype, device)
    sequences = [ids_of(1, length, 100 + row)[0].clamp(min=3) for row, length in enumerate(LENGTHS)]
    ids = sequences[ROW].to(device)
    found: dict[str, list[str]] = {}
    try:
        with around():
            ones = torch.ones(1, len(ids), dtype=torch.int64, device=device)
            options = _options(model, ones, torch.arange(len(ids), device=device)[None])
            alone = _gradients(name, model, ids[None], 0, slice(None), **options)
            batch = torch.stack([ids] + [ids_of(1, len(ids), 7)[0].clamp(min=3).to(device)] * 2)
            options = {key: value.expand(3, -1) for key, value in options.items()}
            found["batch"] = _different(alone, _gradients(name, model, batch, 0, slice(None), **options))
            for side in ("right",) if name in COUNTS_FROM_THE_PADDING else ("left", "right"):
                batch, mask, positions, places = padded(sequences, side)
                options = _options(model, mask.to(device), positions.to(device))
                forms = _gradients(name, model, batch.to(device), ROW, places[ROW], **options)
                found[side] = _different(alone, forms)
            if name in CAUSAL:
                with torch.no_grad():
                    for form, sizes in {"chunks": (4, 1, 6, 2), "decode": (1,) * len(ids)}.items():
                        logits = in_parts(model, ids, sizes)
                        found[form] = [] if same_bits(logits, alone["logits"]) else ["logits"]
    except InvariantError as refused:
        return f"refused: {refused}"
    return found


def verdict(found: Any) -> str:
    if isinstance(found, str):
        return found
    wrong = {form: names for form, names in found.items() if names}
    return KEPT if not wrong else f"WRONG: {wrong}"
