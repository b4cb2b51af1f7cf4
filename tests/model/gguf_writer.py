"""Small .gguf files for the tests, by the gguf library's writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from samebits.model import ModelConfig
from samebits.model.gguf import NAMES
from samebits.model.tokenizer_file import LETTER_OF
from samebits.model.weights import EMBEDDING, FINAL_NORM, HEAD, prefix, shapes
from samebits.numerics.recipes import make

TOKENS = [*(LETTER_OF[byte] for byte in range(256)), "he", "hel", "<|endoftext|>"]
MERGES = ["h e", "he l"]
KINDS = [1] * 258 + [3]
SMALL = ModelConfig(
    vocab_size=259,
    hidden_size=256,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    intermediate_size=256,
    max_position_embeddings=64,
)
# Formats that the library can write; the others get random bytes, which are as good to read.
WRITABLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


def write(
    path: Path,
    config: ModelConfig = SMALL,
    format: str = "F32",
    metadata: dict[str, Any] | None = None,
    leave_out: tuple[str, ...] = (),
) -> Path:
    """A file of random weights in one format; norms are float32 as llama.cpp keeps them."""
    family = "qwen3" if config.use_qk_norm else "llama"
    writer = GGUFWriter(path, family)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types(KINDS)
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(258)
    for name, value in (metadata or {}).items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32, bool: writer.add_bool}
        add[type(value)](name, value)
    theirs = {
        f"{prefix(layer)}{ours}.weight": f"blk.{layer}.{name}.weight"
        for layer in range(config.num_hidden_layers)
        for name, ours in NAMES.items()
    }
    theirs |= {EMBEDDING: "token_embd.weight", FINAL_NORM: "output_norm.weight", HEAD: "output.weight"}
    for seed, (name, shape) in enumerate(shapes(config).items()):
        if theirs[name] not in leave_out:
            _add(writer, theirs[name], shape, "F32" if len(shape) == 1 else format, seed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, name: str, shape: tuple[int, ...], format: str, seed: int) -> None:
    kind = GGMLQuantizationType[format]
    if format in WRITABLE:
        values = quantize(make("normal", shape, seed), kind)
    else:
        block, size = GGML_QUANT_SIZES[kind]
        values = np.random.default_rng(seed).integers(0, 256, (*shape[:-1], shape[-1] // block * size), np.uint8)
    writer.add_tensor(name, values, raw_dtype=kind)
