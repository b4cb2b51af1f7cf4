"""A .gguf file gives the bits that transformers reads from it; a header that lies is refused before it costs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.model.gguf_writer import SMALL, WRITABLE, write
from torch import nn

from samebits.checker.model_loading import load_model
from samebits.model import Batch
from samebits.model.gguf import read_gguf, read_words
from samebits.model.gguf_file import File
from samebits.model.loading import load
from samebits.numerics.bits import same_bits
from samebits.ops.rope import RopeScaling
from samebits.records.packages import MissingPackageError

# transformers does not read the size of a head from the file: 128 is what it takes for granted.
QWEN3 = replace(SMALL, use_qk_norm=True, tie_word_embeddings=False, head_dim=128)


def agrees(path: Path, model: Any, theirs: nn.Module) -> bool:
    read = theirs.state_dict()
    return all(same_bits(weight, read[name]) for name, weight in model.weights.items())


@pytest.mark.parametrize(("config", "format"), [(SMALL, "Q4_1"), (SMALL, "F16"), (QWEN3, "Q8_0")])
def test_weights_are_those_that_transformers_reads(config: Any, format: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", config, format)
    model, _ = read_gguf(path)
    theirs = load_model(str(path), stock=True)
    assert replace(model.config, rms_norm_eps=0.0, eos_token_id=()) == replace(config, rms_norm_eps=0.0)
    assert agrees(path, model, theirs)
    ids = torch.arange(20)
    with torch.no_grad():
        found = model.logits(model.hidden(Batch.of([ids])))
        stock = theirs(input_ids=ids[None]).logits[0]
    # Whole models agree as far as float32 goes over some hundred additions; the bound itself is in test_huggingface.
    assert float((found - stock).abs().max()) < 1e-4 * float(stock.abs().max())


def test_queries_left_as_llama_cpp_lays_them_are_noticed(tmp_path: Path) -> None:
    """Planted: the rows of the queries stay with their pairs side by side."""
    path = write(tmp_path / "model.gguf")
    model, _ = read_gguf(path)
    name = "model.layers.0.self_attn.q_proj.weight"
    with File(path) as file:
        raw = file.bytes_of(file.places["blk.0.attn_q.weight"]).view(np.float32).reshape(256, 256)
    assert not same_bits(model.weights[name], torch.from_numpy(raw))
    assert not agrees(
        path, replace(model, weights=model.weights | {name: torch.from_numpy(raw)}), load_model(str(path), stock=True)
    )


# Random bytes are NaN here and there, and numpy says so.
@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("format", [*WRITABLE, "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "TQ1_0"])
def test_every_format_of_the_library_is_read(format: str, tmp_path: Path) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    path = write(tmp_path / "model.gguf", format=format)
    model, _ = read_gguf(path)
    theirs = {each.name: each for each in GGUFReader(path).tensors}
    for name, ours in (("token_embd", "embed_tokens"), ("blk.0.ffn_up", "layers.0.mlp.up_proj")):
        tensor = theirs[f"{name}.weight"]
        assert same_bits(model.weights[f"model.{ours}.weight"], dequantize(tensor.data, tensor.tensor_type))


def test_a_format_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", format="Q8_K")
    with pytest.raises(ValueError, match="is Q8_K; allowed: formats that the gguf library reads"):
        read_gguf(path)


def test_the_words_come_with_it(tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}"
    path = write(tmp_path / "model.gguf", metadata={"tokenizer.chat_template": template})
    loaded = load(str(path))
    assert loaded.tokenizer.encode("hello") == [257, ord("l"), ord("o")]
    assert loaded.tokenizer.encode(b"\xff<|endoftext|>") == [255, 258] and loaded.tokenizer.missing == frozenset()
    assert loaded.tokenizer.chat([{"role": "user", "content": "hel"}]) == "hel<|endoftext|>"
    assert loaded.tokenizer.eos == loaded.model.config.eos_token_id == (258,)
    assert read_words(path) == loaded.tokenizer


@pytest.mark.parametrize(
    ("metadata", "scaling"),
    [
        ({"llama.rope.scaling.type": "none"}, None),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            RopeScaling(kind="linear", factor=4.0),
        ),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 16,
            },
            RopeScaling(kind="yarn", factor=4.0, original_max_position_embeddings=16),
        ),
    ],
)
def test_scaled_rotations_are_read(metadata: dict[str, Any], scaling: RopeScaling | None, tmp_path: Path) -> None:
    assert read_gguf(write(tmp_path / "model.gguf", metadata=metadata))[0].config.rope_scaling == scaling


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.rope.scaling.type": "longrope"}, "rope: scaling kind is 'longrope'; allowed: linear, llama3, yarn"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.odd": 1.0}, r"rope.scaling is \['odd'\]; allowed: "),
        ({"llama.rope.dimension_count": 32}, "rope.dimension_count is 32, a head has 64; allowed: the same"),
        ({"general.alignment": 3}, "aligns to 3; allowed: a power of two, at most 65536"),
        ({"tokenizer.chat_template": 7}, "tokenizer.chat_template is 7; allowed: a str"),
    ],
)
def test_metadata_that_cannot_be_honoured_is_refused(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_gguf(write(tmp_path / "model.gguf", metadata=metadata))


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", leave_out=("blk.0.attn_v.weight", "output_norm.weight"))
    with pytest.raises(ValueError, match=r"lacks model.layers.0.self_attn.v_proj.weight, model.norm.weight, has unexp"):
        read_gguf(path)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samebits.records.packages.find_spec", lambda name: None)
    said = r"needs the package 'gguf', which is not installed; pip install samebits\[transformers\]"
    with pytest.raises(MissingPackageError, match=said):
        read_gguf(tmp_path / "model.gguf")


def text(words: bytes) -> bytes:
    return struct.pack("<Q", len(words)) + words


def header(tensors: int, keys: int, rest: bytes = b"", version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, keys) + rest


def info(name: bytes, sizes: tuple[int, ...], kind: int, offset: int) -> bytes:
    sized = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return text(name) + sized + struct.pack("<IQ", kind, offset)


HUGE = 2**62
CRAFTED: dict[str, bytes] = {
    "begins with b'GGML' and version 3": header(0, 0, magic=b"GGML"),
    "version 1": header(0, 0, version=1),
    "version 50331648": header(0, 0)[:4] + struct.pack(">I", 3) + bytes(16),
    f"says {HUGE} tensors": header(HUGE, 0),
    f"says {HUGE} keys": header(0, HUGE),
    "bytes are wanted": header(0, 20),
    f"has a text of {HUGE} bytes": header(0, 1, struct.pack("<Q", HUGE)),
    "that is no UTF-8": header(0, 1, text(b"\xff") + struct.pack("<IB", 0, 1)),
    "has the key 'a' twice": header(0, 2, 2 * (text(b"a") + struct.pack("<IB", 0, 1))),
    "has a value of kind 99": header(0, 1, text(b"a") + struct.pack("<I", 99)),
    f"says {HUGE} items in an array": header(0, 1, text(b"a") + struct.pack("<IIQ", 9, 4, HUGE)),
    "says 2000000 items in an array": header(0, 1, text(b"a") + struct.pack("<IIQ", 9, 8, 2_000_000)),
    "has a value of kind 9": header(0, 1, text(b"a") + struct.pack("<IIQ", 9, 9, 1) + bytes(64)),
    "has 4294967295 dimensions": header(1, 0, text(b"t") + struct.pack("<I", 2**32 - 1)),
    "has 0 dimensions": header(1, 0, text(b"t") + struct.pack("<I", 0)),
    f"has shape ({HUGE},)": header(1, 0, info(b"t", (HUGE,), 0, 0)),
    "has shape (4294967296, 4294967296)": header(1, 0, info(b"t", (2**32, 2**32), 0, 0)),
    "has shape (0,)": header(1, 0, info(b"t", (0,), 0, 0)),
    "has shape (31,)": header(1, 0, info(b"t", (31,), 8, 0) + bytes(64)),
    "has shape (4,) at 7": header(1, 0, info(b"t", (4,), 0, 7) + bytes(64)),
    "ends at 160 of": header(1, 0, info(b"t", (32,), 0, 32) + bytes(64)),
    "has the format 77": header(1, 0, info(b"t", (4,), 77, 0) + bytes(64)),
    "has the tensor 't' twice": header(2, 0, 2 * info(b"t", (4,), 0, 0) + bytes(64)),
    "tensors 't' and 'u' share bytes": header(2, 0, info(b"t", (4,), 0, 0) + info(b"u", (4,), 0, 0) + bytes(64)),
    "architecture is None": header(0, 0),
}


@pytest.mark.parametrize("message", CRAFTED)
def test_a_crafted_header_is_refused(message: str, tmp_path: Path) -> None:
    path = tmp_path / "crafted.gguf"
    path.write_bytes(CRAFTED[message])
    with pytest.raises(ValueError, match="allowed: ") as refused:
        read_gguf(path)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def refusals(path: Path, change: Callable[[int], bytes], count: int) -> int:
    """How many of the changed files are refused in one line; anything but a refusal or a model is raised."""
    refused = 0
    for number in range(count):
        path.write_bytes(change(number))
        try:
            read_gguf(path)
        except ValueError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
            refused += 1
    return refused


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    whole = write(path).read_bytes()
    lengths = [*range(300), *range(300, 8000, 37), *range(8000, len(whole) - 64, 20011)]
    assert refusals(path, lambda number: whole[: lengths[number]], len(lengths)) == len(lengths)


def test_flipped_bits_in_the_header_never_do_more_than_refuse(tmp_path: Path) -> None:
    """Flips that leave a sound file may load; those that do not are refused; nothing else happens."""
    path, draw = tmp_path / "flipped.gguf", np.random.default_rng(5)
    small = replace(SMALL, hidden_size=32, head_dim=8, intermediate_size=32)
    whole = write(path, small).read_bytes()

    def flipped(_: int) -> bytes:
        data = bytearray(whole)
        for _ in range(int(draw.integers(1, 4))):
            data[int(draw.integers(0, 7000))] ^= 1 << int(draw.integers(0, 8))
        return bytes(data)

    assert refusals(path, flipped, 400) > 200
