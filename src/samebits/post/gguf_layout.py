"""A model as one .gguf file: the metadata that llama.cpp reads, and where each tensor's blocks go.

Version 3 of the format, little-endian, tensors aligned to 32 bytes. The same names and the same order of query and key
rows that `model/gguf.py` reads. Knows no arithmetic."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from torch import Tensor

from samebits.model.config import ModelConfig
from samebits.model.gguf import ADDED, CUTS, NAMES, SIGN, WORD
from samebits.model.tokenizer import Tokenizer
from samebits.model.weights import EMBEDDING, FINAL_NORM, HEAD, prefix
from samebits.post.layout import Layout, Region

FILE: Final = "model.gguf"
ALIGNMENT: Final = 32
# Numbers of kinds of values, and of tensor formats: bytes of a block and numbers in it.
TEXT, ARRAY, UINT32, INT32, FLOAT32 = 8, 9, 4, 5, 6
KINDS: Final = {"f32": (0, 4, 1), "q4_0": (2, 18, 32), "q4_1": (3, 20, 32), "q8_0": (8, 34, 32)}
# Under these names the format has the tokens that end a text.
ENDS: Final = ("eos", "eot")
# The kind of a row of the embedding that no token has: its name is never looked for in a text.
UNUSED: Final = 5
# What general.file_type says of most tensors.
FILE_TYPES: Final = {"q4_0": 2, "q4_1": 3, "q8_0": 7}


def gguf_layout(
    config: ModelConfig,
    tokenizer: Tokenizer,
    shapes: Mapping[str, tuple[int, ...]],
    formats: Mapping[str, str],
    kind: str,
) -> Layout:
    """The layout of one file; `formats` says how each weight is stored."""
    values = _metadata(config, tokenizer, kind)
    head = [b"GGUF", struct.pack("<IQQ", 3, len(shapes), len(values)), *values]
    regions, offset = {}, 0
    sizes = {}
    for name, shape in shapes.items():
        number, block_bytes, block = KINDS[formats[name]]
        count = 1
        for each in shape:
            count *= each
        sizes[name] = count // block * block_bytes
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head.append(_text(gguf_name(name)) + dimensions + struct.pack("<IQ", number, offset))
        regions[name] = offset
        offset += -(-sizes[name] // ALIGNMENT) * ALIGNMENT
    joined = b"".join(head)
    joined += bytes(-len(joined) % ALIGNMENT)
    return Layout(
        heads={FILE: joined},
        regions={
            name: Region(file=FILE, start=len(joined) + start, size=-(-sizes[name] // ALIGNMENT) * ALIGNMENT)
            for name, start in regions.items()
        },
    )


def gguf_name(name: str) -> str:
    """Their name of a weight."""
    fixed = {EMBEDDING: "token_embd.weight", FINAL_NORM: "output_norm.weight", HEAD: "output.weight"}
    if name in fixed:
        return fixed[name]
    number, _, inner = name.removeprefix(prefix(0)[:-2]).partition(".")
    theirs = {ours: name for name, ours in NAMES.items()}
    return f"blk.{number}.{theirs[inner.removesuffix('.weight')]}.weight"


def in_gguf_order(rows: Tensor, name: str, config: ModelConfig) -> Tensor:
    """Queries and keys of llama have the two rows of a rotated pair side by side there, half a head apart here."""
    if config.use_qk_norm or not name.endswith(("q_proj.weight", "k_proj.weight")):
        return rows
    return rows.reshape(-1, 2, config.head_dim // 2).transpose(1, 2).reshape(-1)


def _metadata(config: ModelConfig, words: Tokenizer, kind: str) -> list[bytes]:
    if config.rope_scaling is not None:
        raise ValueError("gguf: the model scales its rotary positions; allowed: models without rope_scaling")
    family = "qwen3" if config.use_qk_norm else "llama"
    numbers = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    found = [_pair("general.architecture", family), _pair("general.file_type", FILE_TYPES[kind])]
    found += [_pair(f"{family}.{name}", value) for name, value in numbers.items()]
    found.append(_pair(f"{family}.attention.layer_norm_rms_epsilon", config.rms_norm_eps))
    found.append(_pair(f"{family}.rope.freq_base", config.rope_theta))
    return found + _words(words, config)


def _words(words: Tokenizer, config: ModelConfig) -> list[bytes]:
    cut = next((name for name, cuts in CUTS.items() if list(words.parts.cuts) == cuts), None)
    if cut is None:
        raise ValueError(f"gguf: the tokenizer cuts text in a way that has no name there; allowed: {', '.join(CUTS)}")
    tokens, kinds = _unused(words, config.vocab_size), [UNUSED] * config.vocab_size
    for token, number in words.parts.words.items():
        tokens[number], kinds[number] = token, WORD
    for token, number in words.parts.added.items():
        tokens[number], kinds[number] = token, SIGN if token in words.parts.special else ADDED
    found = [
        _pair("tokenizer.ggml.model", "gpt2"),
        _pair("tokenizer.ggml.pre", cut),
        _texts("tokenizer.ggml.tokens", tokens),
        _text("tokenizer.ggml.token_type")
        + struct.pack("<IIQ", ARRAY, INT32, len(kinds))
        + struct.pack(f"<{len(kinds)}i", *kinds),
        _texts("tokenizer.ggml.merges", [" ".join(pair) for pair in words.parts.merges]),
    ]
    if len(words.eos) > len(ENDS):
        raise ValueError(f"gguf: {len(words.eos)} tokens end a text; allowed: at most {len(ENDS)}")
    ends = {"bos": words.bos, **dict(zip(ENDS, words.eos, strict=False))}
    found += [_pair(f"tokenizer.ggml.{name}_token_id", token) for name, token in ends.items() if token is not None]
    return found + ([_pair("tokenizer.chat_template", words.template)] if words.template else [])


def _unused(words: Tokenizer, count: int) -> list[str]:
    """A name for every row. The format asks for one where the model has no token, and for names that differ."""
    sign = "unused"
    while any(token.startswith(f"[{sign}") for token in (*words.parts.words, *words.parts.added)):
        sign = f"_{sign}"
    return [f"[{sign}{number}]" for number in range(count)]


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _pair(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return _text(name) + struct.pack("<I", TEXT) + _text(value)
    kind, letter = (FLOAT32, "f") if isinstance(value, float) else (UINT32, "I")
    return _text(name) + struct.pack(f"<I{letter}", kind, value)


def _texts(name: str, values: Sequence[str]) -> bytes:
    return _text(name) + struct.pack("<IIQ", ARRAY, TEXT, len(values)) + b"".join(map(_text, values))
