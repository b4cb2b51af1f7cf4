"""A merge of models whose equal tensors mean other things says so; spellings of one meaning are not told apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.post.small_models import models

from samebits.cli import main
from samebits.post.merge_configs import config_differences
from samebits.post.merge_recipe import Recipe, recipe_of


@pytest.fixture
def at(tmp_path: Path) -> dict[str, str]:
    return models(tmp_path)


def changed(folder: str, **values: object) -> None:
    file = Path(folder) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def recipe(at: dict[str, str]) -> Recipe:
    inputs = [{"model": at[name], "parameters": {"weight": 1.0}} for name in "ab"]
    return recipe_of({"models": inputs, "merge_method": "linear"}, "recipe")


def test_models_of_one_config_part_in_nothing(at: dict[str, str]) -> None:
    assert config_differences(recipe(at)) == []


def test_spellings_of_one_rotation_are_equal(at: dict[str, str]) -> None:
    """As older versions of transformers write it, and as newer ones do."""
    changed(at["a"], rope_parameters=None, rope_scaling={"type": "linear", "factor": 2.0}, rope_theta=500.0)
    within = {"rope_type": "linear", "type": "linear", "factor": 2.0, "rope_theta": 500.0}
    changed(at["b"], rope_parameters=within, rope_theta=None)
    assert config_differences(recipe(at)) == []


def test_what_follows_from_the_others_need_not_be_written(at: dict[str, str]) -> None:
    changed(at["b"], head_dim=None, layer_types=["full_attention"] * 3, sliding_window=None)
    assert config_differences(recipe(at)) == []


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("num_attention_heads", {"num_attention_heads": 1, "head_dim": 16}),
        ("rope_theta", {"rope_theta": 500.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
        ("rope_scaling", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}),
        ("rms_norm_eps", {"rms_norm_eps": 1e-6}),
    ],
)
def test_another_meaning_is_told(setting: str, values: dict[str, object], at: dict[str, str]) -> None:
    changed(at["b"], **values)
    found = config_differences(recipe(at))
    assert setting in [each["setting"] for each in found]
    assert all(list(each["models"]) == [at["a"], at["b"]] for each in found)


def test_the_command_tells_it(at: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed(at["b"], rms_norm_eps=1e-6)
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe(at).document))
    for more in (["--dry-run"], []):
        with pytest.raises(SystemExit) as ended:
            main(["merge", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "out"), "--json", *more])
        said = capsys.readouterr()
        assert ended.value.code == 0
        assert f"rms_norm_eps is 1e-05 in {at['a']}, 1e-06 in {at['b']}; the result has that of the first" in said.err
        assert [each["setting"] for each in json.loads(said.out)["config_differences"]] == ["rms_norm_eps"]
