"""The configuration: every key is read by something, everything else is refused in one line that says where."""

from __future__ import annotations

import ast
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest
from tests.train.small_run import ROOT, TEXT, small

from samebits.contracts.strict_yaml import ContractError
from samebits.train.configuration import FREE, Overrides, TrainConfig, deciding
from samebits.train.configuration_file import EARLIER_NAMES, read, read_text

# Those of distillations have a section more, and a reader of their own.
RECIPES = sorted(path for path in (ROOT / "recipes").glob("*.yaml") if not path.stem.startswith("distill"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipes_are_read(recipe: Path) -> None:
    assert read(recipe).training.seed == 42


def test_settings_lie_on_top() -> None:
    config = small(
        "training.seed=7", "optimizer.eps=1e-6", "model.overrides.num_hidden_layers=3", "monitoring.logging_steps=2"
    )
    assert (config.training.seed, config.optimizer.eps, config.model.overrides.num_hidden_layers) == (7, 1e-6, 3)
    assert config.monitoring.logging_steps == 2 and config.training.global_batch_size == 8


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["training.sed=1"], r"--set unknown key 'sed'; allowed: collation, .*"),
        (["training.seed=abc"], r"--set training.seed: must be a whole number, got 'abc'"),
        (["training.seed"], r"--set training.seed: cannot be read; allowed: key.path=value, like training.seed=1"),
        (["training.seed.deep=1"], r"--set training.seed.deep=1: seed is 42, which holds no keys"),
        (["training.seed=-1"], r"--set training.seed: is -1; allowed: 0 to 4294967295"),
        (["training.seed=010"], r"--set training.seed:1: '010' reads differently .*"),
        (["training.lanes=3"], r"--set training.lanes: is 3; allowed: a power of two that divides the 8 sequences .*"),
        (["training.lanes=16"], r"--set training.lanes: is 16; allowed: .*"),
        (["training.waive=[CFG-OB1]"], r"--set training.waive: is 'CFG-OB1'; allowed: CFG-OB6, CFG-OB7"),
        (["training.save_total_limit=1"], r"--set training.save_total_limit: is 1; allowed: at least 2"),
        (["training.device=tpu"], r"--set training.device: is 'tpu'; allowed: cpu, cuda, cuda:N"),
        (["training.dtype=float16"], r"--set training.dtype: is 'float16'; allowed: float32, bfloat16"),
        (["data.max_length=40"], r"--set data.max_length: is 40; allowed: a multiple of 16, where a chain can be cut"),
        (["data.source=text"], r"configuration:6: data.paths: has 0 entries for source text; allowed: .*"),
        (["model.preset=huge"], r"--set model.preset: is 'huge'; allowed: tiny, small, 50m, 135m, 350m"),
        (["model.folder=x"], r"configuration:2: model: holds both preset and folder or neither; allowed: one of them"),
        (["optimizer.lr=0"], r"--set optimizer.lr: is 0.0; allowed: above 0, at most 1e\+06"),
        (
            ["monitoring.sample_steps=-1"],
            "--set monitoring.sample_steps: is -1; allowed: 1 for every step, .* 0 for none",
        ),
        (
            ["monitoring.fingerprint_steps=-3"],
            "--set monitoring.fingerprint_steps: is -3; allowed: 1 for .* 0 for none",
        ),
        (["optimizer.min_lr_ratio=2"], r"--set optimizer.min_lr_ratio: is 2.0; allowed: 0 to 1"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
def test_bad_settings_are_one_line(settings: list[str], said: str) -> None:
    with pytest.raises(ContractError, match=f"^{said}$"):
        small(*settings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TEXT + "logging: {every: 1}\n", r"run.yaml:13: unknown key 'logging'; allowed: data, model, .*"),
        (TEXT.replace("warmup_steps: 1", "warmup: 1"), r"run.yaml:8: optimizer.warmup: is now optimizer.warmup_steps"),
        (TEXT.replace("max_length: 48, ", ""), r"run.yaml:6: data: key 'max_length' is missing"),
        (TEXT.replace("seed: 42", "seed: 4.5"), r"run.yaml:10: training.seed: must be a whole number, got 4.5"),
    ],
    ids=["section", "key", "missing", "type"],
)
def test_files_are_refused_with_their_line(text: str, said: str) -> None:
    with pytest.raises(ContractError, match=f"^{said}$"):
        read_text(text, path=Path("run.yaml"))


def leaves(kind: type) -> list[str]:
    found = []
    for name, hint in get_type_hints(kind).items():
        found += leaves(hint) if is_dataclass(hint) else [name]
    return found


def read_somewhere(names: list[str]) -> set[str]:
    """Names that the trainer's own files read as an attribute; the configuration's checks do not count."""
    files = [file for file in (ROOT / "src/samebits/train").glob("*.py") if not file.name.startswith("configuration")]
    files += [ROOT / f"src/samebits/cli/commands/{name}.py" for name in ("plan", "train")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)} & set(names)


def test_every_key_is_consumed() -> None:
    """The sizes of a model are taken as a whole; every other key is read by name. Planted: a key that nothing reads."""
    sizes = {each.name for each in fields(Overrides)}
    keys = [name for name in leaves(TrainConfig) if name not in sizes]
    assert read_somewhere([*keys, "read_by_nobody"]) == set(keys)


def test_what_decides_bits_is_all_but_the_free() -> None:
    cut = small(
        "training.micro_batch_size=8",
        "training.gradient_accumulation_steps=1",
        "training.collation=padded",
        "monitoring.logging_steps=3",
        "training.save_steps=2",
        "training.save_total_limit=2",
    )
    assert deciding(cut) == deciding(small())
    for setting in ("training.seed=1", "training.micro_batch_size=4", "optimizer.eps=1e-7", "data.max_train_samples=5"):
        assert deciding(small(setting)) != deciding(small())
    assert all(name.count(".") == 1 for name in FREE)


@pytest.mark.parametrize(("earlier", "now"), EARLIER_NAMES.items())
def test_an_earlier_name_is_refused_with_the_present_one(earlier: str, now: str) -> None:
    section = earlier.rpartition(".")[0]
    with pytest.raises(ContractError, match=rf"^--set {earlier}: is now {section}\.{now}$"):
        small(f"{earlier}=1")
    assert now in leaves(TrainConfig)
