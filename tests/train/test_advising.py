"""Advice: whatever setting a refusal names, set as it is said, satisfies the rule that refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.train.small_run import small

from samebits.contracts.strict_yaml import ContractError
from samebits.model import Model
from samebits.model.huggingface import save_folder
from samebits.model.tokenizer import Tokenizer
from samebits.train import plan_rules as rules
from samebits.train.advising import Change
from samebits.train.assessment import Assessment, assess, shape_of
from samebits.train.configuration import TrainConfig
from samebits.train.configuration_file import read_text
from samebits.train.plan_rules import Refusal, longest_warmup


def judged(config: TrainConfig) -> Assessment:
    return assess(config, shape_of(config), None)


def drawn(chance: random.Random) -> list[str]:
    """A plan near the places where answers change; the data is only counted."""
    micro, accumulation = chance.randint(1, 9), chance.choice([1, 2, 3, 8, 40])
    lanes = chance.choice([each for each in (1, 2, 4, 8) if micro * accumulation % each == 0])
    settings = {
        "data.num_sequences": chance.choice([1, 5, 50, 600, 100_000]),
        "data.max_length": chance.choice([16, 48, 512]),
        "training.micro_batch_size": micro,
        "training.gradient_accumulation_steps": accumulation,
        "training.lanes": lanes,
        "training.num_train_epochs": chance.choice([0, 1, 2, 30]),
        "training.max_repeats": chance.choice([0, 1, 4]),
        "optimizer.warmup_steps": chance.choice([-1, 0, 1, 2, 10, 5000]),
        "training.waive": "[]",
        "optimizer.min_lr_ratio": chance.choice([0, 0.1, 1]),
        "model": f"{{preset: {chance.choice(['tiny', '350m'])}}}",
        "model.overrides.max_position_embeddings": chance.choice([8, 16, 4096]),
    }
    if chance.random() < 0.7:
        settings["training.max_steps"] = chance.choice([0, 1, 2, 9, 12, 5000])
    return [f"{key}={value}" for key, value in settings.items()]


def kind(refusal: Refusal) -> tuple[str, str]:
    """The rule: of those under one name, the count that is too small, or how often the data is seen."""
    small = refusal.message.endswith("allowed: at least 1")
    return refusal.obligation, refusal.message.split()[0] if small else "max_repeats" * ("seen" in refusal.message)


def put(settings: list[str], change: dict[str, Any]) -> list[str]:
    return [*settings, *(f"{key}={value}" for key, value in change.items())]


def test_what_is_advised_is_allowed() -> None:
    chance, tried = random.Random(18), dict[tuple[str, str], int]()
    for _ in range(1500):
        settings = drawn(chance)
        found = judged(small(*settings))
        for refusal, change in zip(found.refusals, found.changes, strict=True):
            assert str(change)
            for each in change.settings:
                after = judged(small(*put(settings, dict(each))))
                assert kind(refusal) not in [kind(one) for one in after.refusals], f"{settings}: {refusal}: {each}"
                tried[kind(refusal)] = tried.get(kind(refusal), 0) + 1
    rules_tried = {obligation for obligation, _ in tried}
    assert rules_tried >= {"CFG-OB1", "CFG-OB2", "CFG-OB3", "CFG-OB4", "CFG-OB6", "CFG-OB7", "CFG-OB8", "POSITIONS"}
    assert ("CFG-OB7", "max_repeats") in tried and min(tried.values()) >= 5, tried


def test_advice_that_its_rule_refuses_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the rule as it was, a tenth even of fewer than ten steps, where the advice is one."""
    settings = ("training.max_steps=5", "optimizer.warmup_steps=2", "data.num_sequences=400")
    (change,) = [each for each in judged(small(*settings)).changes if "warmup" in str(each)]
    assert (
        change.settings == ({"optimizer.warmup_steps": 1},)
        and judged(small(*settings, "optimizer.warmup_steps=1")).allowed
    )
    monkeypatch.setattr(rules, "longest_warmup", lambda steps: steps // 10)
    assert not judged(small(*settings, "optimizer.warmup_steps=1")).allowed


def test_the_longest_warm_up() -> None:
    assert [longest_warmup(steps) for steps in (1, 9, 10, 19, 20, 5000)] == [1, 1, 1, 1, 2, 500]


def test_a_change_in_words() -> None:
    both = Change(settings=({"a.b": 1, "a.c": 2}, {"d": 3}), words="more data")
    assert str(both) == "a.b: 1 and a.c: 2, or d: 3, or more data"


def test_trained_weights_need_no_more_tokens_than_their_task_has(tmp_path: Path) -> None:
    """CFG-OB6 and CFG-OB7 are about new weights; how often data is seen is about any."""
    shape = shape_of(small())
    save_folder(Model.new(shape, 0), tmp_path / "model", Tokenizer.of_bytes())
    given = ("training.waive=[]", "data.num_sequences=80", "data.max_length=48")
    assert "CFG-OB7" in [each.obligation for each in judged(small(*given)).refusals]
    folder = f"model={{folder: {tmp_path / 'model'}}}"
    assert judged(small(*given, folder)).allowed
    seen = judged(small(*given, folder, "training.num_train_epochs=30", "training.max_steps=300"))
    assert [each.obligation for each in seen.refusals] == ["CFG-OB7"] and "max_repeats" in seen.refusals[0].message


def test_a_short_recipe_is_a_run() -> None:
    config = read_text("model: {preset: tiny}\ndata: {max_length: 32}\n")
    numbers = config.optimizer
    assert (numbers.lr, numbers.beta1, numbers.beta2, numbers.eps) == (5e-5, 0.9, 0.999, 1e-8)
    assert (numbers.weight_decay, numbers.max_grad_norm, numbers.warmup_steps, config.training.seed) == (
        0.0,
        1.0,
        1,
        42,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("training: {seed: 1}\n", "run.yaml:1: keys 'model', 'data' are missing"),
        ("data: {source: stdlib}\n", "run.yaml:1: keys 'model', 'data.max_length' are missing"),
        ("model: {preset: tiny}\ndata: {source: stdlib}\n", "run.yaml:2: data: key 'max_length' is missing"),
    ],
)
def test_missing_keys_are_told_at_once(text: str, said: str) -> None:
    with pytest.raises(ContractError) as refused:
        read_text(text, path=Path("run.yaml"))
    assert str(refused.value) == said
