"""A folder keeps every bit, transformers reads it and computes the same values, and a folder that lies is refused."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.invariant.test_values import LENGTH, Errors
from torch import Tensor, nn

from samebits.model import Batch, Model, ModelConfig
from samebits.model.huggingface import load_folder, save_folder
from samebits.model.tokenizer import Tokenizer
from samebits.numerics.bits import same_bits
from samebits.ops.rope import RopeScaling

LLAMA = ModelConfig(
    vocab_size=97,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=80,
    max_position_embeddings=128,
)
SHORT = 16  # the context that scaling stretches, shorter than the texts here
CONFIGS = {
    "llama": replace(LLAMA, bos_token_id=1, eos_token_id=(2, 3)),
    "llama untied, llama3": replace(
        LLAMA,
        tie_word_embeddings=False,
        rope_theta=500.0,
        eos_token_id=(5,),
        rope_scaling=RopeScaling(kind="llama3", factor=8.0, original_max_position_embeddings=SHORT),
    ),
    "llama, linear": replace(LLAMA, rope_scaling=RopeScaling(kind="linear", factor=4.0)),
    "qwen3": replace(LLAMA, use_qk_norm=True, rms_norm_eps=1e-6, head_dim=24),
    "qwen3 untied, yarn": replace(
        LLAMA,
        use_qk_norm=True,
        tie_word_embeddings=False,
        rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_max_position_embeddings=SHORT),
    ),
}
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def stock(folder: Path, **options: Any) -> nn.Module:
    from transformers import AutoModelForCausalLM

    model: nn.Module = AutoModelForCausalLM.from_pretrained(str(folder), **options)
    return model


def bounds(
    exact: nn.Module, ids: Tensor, places: list[tuple[int, int]], independent: bool = False
) -> dict[tuple[int, int], tuple[float, float]]:
    """The float64 model's logits at some places, each with the derived bound around it.

    The bound adds up what every rounding can do at worst, which over dozens of layers is more than a logit.
    `independent`: errors of either sign, one by one (Higham and Mary, 2019), so by Hoeffding's inequality their sum
    goes beyond 6 times the root of the sum of their squared bounds once in 30 million."""
    from transformers import AttentionInterface

    errors = Errors(exact)
    AttentionInterface.register("watched", errors.attention)
    exact.set_attn_implementation("watched")
    reference = exact(input_ids=ids[None], use_cache=False).logits[0]
    found = {}
    for token, word in places:
        slopes = torch.autograd.grad(
            reference[token, word], [value for value, _ in errors.places], retain_graph=True, allow_unused=True
        )
        parts = [
            slope.abs() * error.detach()
            for slope, (_, error) in zip(slopes, errors.places, strict=True)
            if slope is not None
        ]
        worst, spread = (math.fsum(float((part**power).sum()) for part in parts) for power in (1, 2))
        bound = 2 * (6 * math.sqrt(spread) if independent else worst)
        assert 0 < bound < 0.05 * float(reference.detach().abs().max())  # it says something
        found[token, word] = float(reference[token, word].detach()), bound
    return found


def within(logits: Tensor, bound: dict[tuple[int, int], tuple[float, float]]) -> bool:
    return all(abs(float(logits[place]) - value) <= most for place, (value, most) in bound.items())


def sharp(config: ModelConfig) -> Model:
    """Weights large enough that attention looks at some tokens more than at others."""
    first = Model.new(config, 3)
    return replace(first, weights={name: each * 8 if each.dim() > 1 else each for name, each in first.weights.items()})


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_comes_back_and_transformers_computes_the_same(name: str, tmp_path: Path) -> None:
    model = sharp(CONFIGS[name])
    save_folder(model, tmp_path / "model")
    back = load_folder(tmp_path / "model")
    assert back.config == model.config and list(back.weights) == list(model.weights)
    assert all(same_bits(back.weights[each], weight) for each, weight in model.weights.items())

    theirs, told = stock(tmp_path / "model", output_loading_info=True)
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert all(same_bits(theirs.state_dict()[each], weight) for each, weight in model.weights.items())
    ids, places = torch.arange(LENGTH) * 7 % 97, [(0, 3), (20, 70), (LENGTH - 1, 5)]
    with torch.no_grad():
        batch = Batch.of([ids])
        found = model.logits(model.hidden(batch))
        turned = replace(model, config=replace(model.config, rope_theta=model.config.rope_theta * 1.5))
        wrong = turned.logits(turned.hidden(batch))
    bound = bounds(theirs.double(), ids, places)
    assert within(found, bound)
    # Planted: another base of the rotation.
    assert not within(wrong, bound)


def test_weights_in_half_the_bits_keep_them(tmp_path: Path) -> None:
    model = Model.new(LLAMA, 3).to(dtype=torch.bfloat16).for_inference()
    save_folder(model, tmp_path / "model")
    back, wide = load_folder(tmp_path / "model", torch.bfloat16), load_folder(tmp_path / "model")
    assert all(same_bits(back.weights[each], weight) for each, weight in model.weights.items())
    assert all(same_bits(wide.weights[each], weight.float()) for each, weight in model.weights.items())
    assert stock(tmp_path / "model").dtype == torch.bfloat16


def test_the_tokenizer_lies_beside(tmp_path: Path) -> None:
    words = Tokenizer.train(["some words and some more words"], 300)
    save_folder(Model.new(replace(LLAMA, vocab_size=300), 1), tmp_path / "model", words)
    assert Tokenizer.load(tmp_path / "model") == words
    assert json.loads((tmp_path / "model" / "generation_config.json").read_text())["eos_token_id"] == [0]


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    model = Model.new(LLAMA, 1)
    (tmp_path / "empty").mkdir()
    save_folder(model, tmp_path / "empty")
    before = {path.name: path.read_bytes() for path in (tmp_path / "empty").iterdir()}
    with pytest.raises(ValueError, match="is there already; allowed: a new folder, or an empty one"):
        save_folder(model, tmp_path / "empty")
    assert {path.name: path.read_bytes() for path in (tmp_path / "empty").iterdir()} == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is there already"):
        save_folder(model, tmp_path / "file")


class Breaking:
    """Planted: writes half of itself, then the disk is full."""

    def save(self, path: str | Path) -> None:
        (Path(path) / "half.json").write_text("{")
        raise OSError(28, "No space left on device")


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        save_folder(Model.new(LLAMA, 1), tmp_path / "model", Breaking())
    assert list(tmp_path.iterdir()) == []


def saved(folder: Path, **changes: Tensor | None) -> dict[str, Tensor]:
    """A folder of LLAMA with some weights changed, or left out where None."""
    save_folder(Model.new(LLAMA, 1), folder)
    weights = load_file(folder / "model.safetensors")
    weights = {name: each for name, each in {**weights, **changes}.items() if each is not None}
    save_file(weights, folder / "model.safetensors")
    return weights


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.norm.weight": None}, "lacks model.norm.weight, has unexpected none; allowed: the 20 weights"),
        ({"evil": torch.ones(3)}, "lacks none, has unexpected evil;"),
        ({"model.norm.weight": torch.ones(49)}, r"model.norm.weight is F32 \(49,\), config.json gives \(48,\);"),
        ({"model.norm.weight": torch.ones(48, dtype=torch.int32)}, "model.norm.weight is I32"),
        ({HEAD: torch.ones(97, 48)}, "lm_head.weight and model.embed_tokens.weight differ, the config ties them"),
        ({HEAD: torch.ones(96, 48)}, r"lm_head.weight is F32 \(96, 48\), config.json gives \(97, 48\)"),
    ],
)
def test_weights_that_are_not_the_configs_are_refused(
    changes: dict[str, Tensor | None], message: str, tmp_path: Path
) -> None:
    saved(tmp_path / "model", **changes)
    with pytest.raises(ValueError, match=message) as refused:
        load_folder(tmp_path / "model")
    assert "\n" not in str(refused.value)


def test_a_tied_head_with_equal_bits_is_taken(tmp_path: Path) -> None:
    embedding = Model.new(LLAMA, 1).weights[EMBEDDING]
    saved(tmp_path / "model", **{HEAD: embedding.clone()})
    assert HEAD not in load_folder(tmp_path / "model").weights
    embedding[0, 0] = -embedding[0, 0]
    saved(tmp_path / "other", **{HEAD: embedding})
    with pytest.raises(ValueError, match="differ"):
        load_folder(tmp_path / "other")


def shard(folder: Path, second: str = "b.safetensors") -> None:
    """The same weights in two files and an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    halves = {"a.safetensors": names[:7], "b.safetensors": names[7:]}
    for file, half in halves.items():
        save_file({name: weights[name] for name in half}, folder / file)
    listed = {name: "a.safetensors" if name in names[:7] else second for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": listed}))


def test_files_in_parts_are_the_whole(tmp_path: Path) -> None:
    weights = saved(tmp_path / "model")
    shard(tmp_path / "model")
    back = load_folder(tmp_path / "model")
    assert all(same_bits(back.weights[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("second", ["../b.safetensors", "/etc/b.safetensors", "sub/b.safetensors", "b.bin", "..", ""])
def test_an_index_stays_in_its_folder(second: str, tmp_path: Path) -> None:
    saved(tmp_path / "model")
    shard(tmp_path / "model", second)
    with pytest.raises(ValueError, match=r"a file of weights is named .*; allowed: NAME.safetensors in the folder"):
        load_folder(tmp_path / "model")


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    weights = saved(tmp_path / "hub" / "snapshots" / "model")
    folder = tmp_path / "hub" / "snapshots" / "model"
    os.rename(folder / "model.safetensors", tmp_path / "elsewhere")
    (folder / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"links to .*; allowed: a file in the folder"):
        load_folder(folder)
    # As the cache of the hub lays it out.
    (tmp_path / "hub" / "blobs").mkdir()
    os.rename(tmp_path / "elsewhere", tmp_path / "hub" / "blobs" / "f00d")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("../../blobs/f00d")
    assert same_bits(load_folder(folder).weights[EMBEDDING], weights[EMBEDDING])


def test_a_cut_file_is_refused_at_every_length(tmp_path: Path) -> None:
    saved(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    whole = file.read_bytes()
    for length in (*range(64), *range(64, len(whole), 1013), len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"model.safetensors: .*; allowed: ") as refused:
            load_folder(tmp_path / "model")
        assert "\n" not in str(refused.value)
