"""Folders that lack something which no other model shows: a merge of them is refused, not made without it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.post.small_models import models

from samebits.model.huggingface import INDEX
from samebits.post.merge_recipe import recipe_of
from samebits.post.merging import merge

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return models(tmp_path_factory.mktemp("models"))


def copies(at: Mapping[str, str], out: Path, weights: Change | None = None, config: Change | None = None) -> list[str]:
    """Models a and b, both changed alike."""
    for name in "ab":
        shutil.copytree(at[name], out / name)
        if weights is not None:
            found = load_file(out / name / "model.safetensors")
            weights(found)
            save_file(found, out / name / "model.safetensors")
        if config is not None:
            told = json.loads((out / name / "config.json").read_text())
            config(told)
            (out / name / "config.json").write_text(json.dumps(told))
    return [str(out / name) for name in "ab"]


def merge_all(places: list[str], out: Path, **more: Any) -> dict[str, Any]:
    listed = [{"model": place, "parameters": {"weight": 0.5}} for place in places]
    return merge(recipe_of({"merge_method": "linear", "models": listed, **more}, "recipe"), out)


def without_layer(number: int) -> Change:
    def change(weights: dict[str, Any]) -> None:
        for name in [name for name in weights if f".layers.{number}." in name]:
            del weights[name]

    return change


def layers(count: Any) -> Change:
    return lambda config: config.update(num_hidden_layers=count)


@pytest.mark.parametrize(
    ("weights", "config", "message"),
    [
        (without_layer(1), None, "lacks layer 1 of 3; allowed: every layer"),
        (without_layer(2), None, "has 2 layers, its config gives num_hidden_layers 3; allowed: equally many"),
        (None, layers(4), "has 3 layers, its config gives num_hidden_layers 4; allowed: equally many"),
        (None, layers("3"), "has 3 layers, its config gives num_hidden_layers '3'; allowed: equally many"),
        (None, layers(None), "has 3 layers, its config gives num_hidden_layers None; allowed: equally many"),
    ],
)
def test_a_layer_that_every_model_lacks_is_missed(
    weights: Change | None, config: Change | None, message: str, at: dict[str, str], tmp_path: Path
) -> None:
    """The result had the hole, or a config of fewer layers, without a word."""
    places = copies(at, tmp_path / "models", weights, config)
    with pytest.raises(ValueError) as error:
        merge_all(places, tmp_path / "out")
    assert str(error.value) == f"{places[0]}: {message}"
    assert [each.name for each in tmp_path.iterdir()] == ["models"]


def test_a_shorter_model_whose_config_says_so_is_merged(at: dict[str, str], tmp_path: Path) -> None:
    places = copies(at, tmp_path / "models", without_layer(2), layers(2))
    merge_all(places, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_hidden_layers"] == 2


def test_names_without_layers_are_not_a_model_of_none(at: dict[str, str], tmp_path: Path) -> None:
    """Layers under another name went through as no layers at all, and the config of the result said 0."""

    def renamed(weights: dict[str, Any]) -> None:
        for name in list(weights):
            weights[name.replace(".layers.", ".layer.")] = weights.pop(name)

    with pytest.raises(ValueError, match="has 0 layers, its config gives num_hidden_layers 3"):
        merge_all(copies(at, tmp_path / "models", renamed), tmp_path / "out")


def test_a_weight_that_only_the_index_names_is_missed(at: dict[str, str], tmp_path: Path) -> None:
    places = copies(at, tmp_path / "models")
    for place in map(Path, places):
        names = load_file(place / "model.safetensors")
        index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model.safetensors")}
        (place / INDEX).write_text(json.dumps(index))
    merge_all(places, tmp_path / "whole")
    for place in map(Path, places):
        names = load_file(place / "model.safetensors")
        del names["model.norm.weight"]
        save_file(names, place / "model.safetensors")
    with pytest.raises(ValueError, match=r"/a: lacks model\.norm\.weight; allowed: all weights that model\.safete"):
        merge_all(places, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("added", [[3], "text", [None, {"id": 3}]])
def test_a_tokenizer_of_other_types_is_compared_and_not_fallen_over(
    added: Any, at: dict[str, str], tmp_path: Path
) -> None:
    places = copies(at, tmp_path / "models")
    words = json.loads(Path(places[1], "tokenizer.json").read_text())
    Path(places[1], "tokenizer.json").write_text(json.dumps({**words, "added_tokens": added}))
    with pytest.raises(ValueError, match="numbers its tokens otherwise than"):
        merge_all(places, tmp_path / "out", tokenizer_source=places[0])


def test_a_tokenizer_that_cannot_be_copied_costs_no_time(at: dict[str, str], tmp_path: Path) -> None:
    """It was read after the last tensor."""
    places = copies(at, tmp_path / "models")
    Path(places[0], "tokenizer.json").unlink()
    Path(places[0], "tokenizer.json").mkdir()
    with pytest.raises((ValueError, OSError), match=r"tokenizer\.json"):
        merge_all(places, tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["models"]


def test_the_copies_are_merged_as_they_are(at: dict[str, str], tmp_path: Path) -> None:
    """What all of the above change is a pair of models that can be merged."""
    facts = merge_all(copies(at, tmp_path / "models"), tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert facts["digest"].startswith("sha256:") and all(bool(torch.isfinite(each).all()) for each in found.values())
