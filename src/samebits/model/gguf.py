"""A model and its words from a .gguf file of the llama or qwen3 architecture, dequantised.

The names and the layout of llama.cpp are put back into those of Hugging Face. Knows no byte of the container."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from samebits.model.config import ModelConfig
from samebits.model.gguf_file import File, Place
from samebits.model.huggingface import check_component
from samebits.model.model import Model
from samebits.model.tokenizer import Tokenizer
from samebits.model.tokenizer_file import byte_level, check, split
from samebits.model.weights import EMBEDDING, FINAL_NORM, HEAD, prefix, shapes
from samebits.ops.rope import RopeScaling
from samebits.records.packages import require

ARCHITECTURES: Final = ("llama", "qwen3")
# Theirs to ours, within a layer.
NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# How text is cut, by the name that llama.cpp gave it.
CUTS: Final[dict[str, list[dict[str, Any]]]] = {
    "gpt-2": [byte_level(use_regex=True)],
    "smollm": [{"type": "Digits", "individual_digits": True}, byte_level(use_regex=True)],
    "llama-bpe": [split("llama3"), byte_level(use_regex=False)],
    "qwen2": [split("qwen2"), byte_level(use_regex=False)],
}
# Kinds of tokens: words, signs (never part of a text), and what users added as text.
WORD, SIGN, ADDED = 1, 3, 4


def read_gguf(path: str | Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Model, Tokenizer]:
    """The model and the tokenizer; what the file says is held against its own config before a number is read."""
    with _opened(path) as file:
        config = _config(file)
        places = _places(file, config)
        check_component(config, dtype, str(path))
        words = _tokenizer(file, config)
        weights = {name: _read(file, name, places[name], config, dtype, device) for name in shapes(config)}
    return Model(config=config, weights=weights), words


def read_words(path: str | Path) -> Tokenizer:
    """The tokenizer alone."""
    with _opened(path) as file:
        return _tokenizer(file, _config(file))


def _opened(path: str | Path) -> File:
    require(str(path), "gguf")
    return File(Path(path))


def _get(file: File, name: str, kind: type, default: Any = None) -> Any:
    found = file.values.get(name, default)
    if type(found) is not kind and found is not default:
        raise ValueError(f"{file.path}: {name} is {found!r:.60}; allowed: a {kind.__name__}")
    if found is None:
        raise ValueError(f"{file.path}: lacks {name}; allowed: with it")
    return found


def _config(file: File) -> ModelConfig:
    family = file.values.get("general.architecture")
    if family not in ARCHITECTURES:
        raise ValueError(f"{file.path}: architecture is {family!r:.60}; allowed: {', '.join(ARCHITECTURES)}")

    def number(name: str, default: int | None = None) -> int:
        found: int = _get(file, f"{family}.{name}", int, default)
        return found

    heads, hidden = number("attention.head_count"), number("embedding_length")
    size = number("attention.key_length", number("rope.dimension_count", hidden // max(heads, 1)))
    for name in ("rope.dimension_count", "attention.value_length"):
        if number(name, size) != size:
            raise ValueError(f"{file.path}: {name} is {number(name)}, a head has {size}; allowed: the same")
    tokens = file.values.get("tokenizer.ggml.tokens")
    ends = [file.values.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return ModelConfig(
        vocab_size=number("vocab_size", len(tokens) if isinstance(tokens, list) else None),
        hidden_size=hidden,
        num_hidden_layers=number("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=number("attention.head_count_kv", heads),
        head_dim=size,
        intermediate_size=number("feed_forward_length"),
        max_position_embeddings=number("context_length"),
        tie_word_embeddings="output.weight" not in file.places,
        use_qk_norm=family == "qwen3",
        rms_norm_eps=_get(file, f"{family}.attention.layer_norm_rms_epsilon", float),
        rope_theta=_get(file, f"{family}.rope.freq_base", float, 10000.0),
        rope_scaling=_scaling(file, family),
        bos_token_id=file.values.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=tuple(dict.fromkeys(each for each in ends if each is not None)),
    )


def _scaling(file: File, family: str) -> RopeScaling | None:
    """linear and yarn, which the metadata can say; llama3's are a tensor there, which is refused by its name."""
    at = f"{family}.rope.scaling."
    said = {name.removeprefix(at): value for name, value in file.values.items() if name.startswith(at)}
    kind = said.pop("type", "none")
    if kind == "none":
        return None
    renamed = {
        "factor": "factor",
        "original_context_length": "original_max_position_embeddings",
        "attn_factor": "attention_factor",
        "yarn_beta_fast": "beta_fast",
        "yarn_beta_slow": "beta_slow",
    }
    unknown = sorted(said.keys() - renamed.keys() - {"finetuned"})
    if unknown or not all(isinstance(value, int | float) for value in said.values()):
        raise ValueError(f"{file.path}: rope.scaling is {unknown or said!r:.80}; allowed: {', '.join(renamed)}")
    return RopeScaling.from_config(
        {"rope_type": kind, **{renamed[name]: value for name, value in said.items() if name in renamed}}
    )


def _places(file: File, config: ModelConfig) -> dict[str, Place]:
    """Where each weight lies, by our names."""
    ours = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": HEAD}
    for layer in range(config.num_hidden_layers):
        ours |= {f"blk.{layer}.{theirs}.weight": f"{prefix(layer)}{name}.weight" for theirs, name in NAMES.items()}
    wanted = shapes(config)
    strangers = sorted(name for name in file.places if ours.get(name) not in wanted)
    found = {ours[name]: place for name, place in file.places.items() if name in ours}
    missing = sorted(wanted.keys() - found.keys())
    if strangers or missing:
        raise ValueError(
            f"{file.path}: lacks {', '.join(missing[:3]) or 'nothing'}, has unexpected"
            f" {', '.join(strangers[:3]) or 'nothing'}; allowed: {len(wanted)} weights"
        )
    for name, shape in wanted.items():
        if found[name].shape != shape:
            raise ValueError(
                f"{file.path}: {name} has shape {found[name].shape}, config.json gives {shape}; allowed: that"
            )
    return found


def _read(file: File, name: str, place: Place, config: ModelConfig, dtype: torch.dtype, device: str) -> Tensor:
    """One weight as numbers; queries and keys of llama lie with their pairs side by side, and are put apart."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(place.kind)
    raw = file.bytes_of(place).reshape(*place.shape[:-1], -1)
    try:
        numbers = np.ascontiguousarray(dequantize(raw, kind), np.float32).reshape(place.shape)
    except NotImplementedError:
        raise ValueError(f"{file.path}: {name} is {kind.name}; allowed: formats that the gguf library reads") from None
    weight = torch.from_numpy(numbers)
    if not config.use_qk_norm and name.endswith(("q_proj.weight", "k_proj.weight")):
        pairs = weight.reshape(-1, config.head_dim // 2, 2, config.hidden_size)
        weight = pairs.transpose(1, 2).reshape(place.shape)
    return weight.to(device=device, dtype=dtype).contiguous()


def _tokenizer(file: File, config: ModelConfig) -> Tokenizer:
    """Byte-level BPE from the metadata, by the same checks as a tokenizer.json."""
    kind, cut = (file.values.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    if kind != "gpt2" or cut not in CUTS:
        raise ValueError(f"{file.path}: its tokenizer is {kind!r:.40}, {cut!r:.40}; allowed: 'gpt2', {', '.join(CUTS)}")
    tokens, merges = (_get(file, f"tokenizer.ggml.{name}", list) for name in ("tokens", "merges"))
    kinds = _get(file, "tokenizer.ggml.token_type", np.ndarray).tolist()
    if len(kinds) != len(tokens) or len({*tokens}) != len(tokens) or len(tokens) > config.vocab_size:
        raise ValueError(
            f"{file.path}: has {len(tokens)} tokens, {len({*tokens})} of them different, {len(kinds)}"
            f" kinds, {config.vocab_size} rows; allowed: as many, each once"
        )
    numbered = [(token, number, kind) for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))]
    parts = check(
        {
            "model": {"vocab": {token: number for token, number, kind in numbered if kind == WORD}, "merges": merges},
            "added_tokens": [
                {"content": token, "id": number, "special": kind == SIGN}
                for token, number, kind in numbered
                if kind in (SIGN, ADDED)
            ],
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": CUTS[cut]},
        },
        str(file.path),
    )
    template = _get(file, "tokenizer.chat_template", str, "") or None
    return Tokenizer(parts=parts, bos=config.bos_token_id, eos=config.eos_token_id, template=template)
