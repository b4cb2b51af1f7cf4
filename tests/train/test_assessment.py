"""What a run comes to before it starts: the worked example is refused, and the changes named mend it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.train.small_run import ROOT, small

from samebits.cli import main
from samebits.model import PRESETS
from samebits.model.weights import count
from samebits.train import assessment, faults
from samebits.train.algebra import parameters
from samebits.train.assessment import architecture_of, assess, data_of, memory_of, shape_of
from samebits.train.configuration import TrainConfig
from samebits.train.configuration_file import read

EXAMPLE = ROOT / "recipes/worked_example.yaml"


def judged(config: TrainConfig) -> assessment.Assessment:
    data = None if config.data.num_sequences is not None else data_of(config)
    return assess(config, shape_of(config), data)


def obligations(config: TrainConfig) -> list[str]:
    return [refusal.obligation for refusal in judged(config).refusals]


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0), capsys.readouterr().out


@pytest.mark.parametrize(
    ("obligation", "said"),
    [
        ("CFG-OB1", "43 steps an epoch, 5,000 asked, 117 epochs needed; epochs is 1, which reaches 43"),
        ("CFG-OB2", "warmup_steps is 2000, the run makes 43 steps; allowed: less than its steps"),
    ],
    ids=["FALSIFY-CFG-001", "FALSIFY-CFG-002"],
)
def test_the_worked_example(obligation: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """22,079 sequences, batch 4, accumulation 128, one epoch: 5,000 steps are out of reach, a warm-up of 2,000 never
    ends, and the rate never comes near its peak."""
    code, out = command(capsys, "plan", str(EXAMPLE))
    assert code == 1 and f"refused {obligation}: {said}" in out and "change: training.num_train_epochs: 117" in out
    code, out = command(capsys, "plan", str(EXAMPLE), "--json")
    found = json.loads(out)
    assert code == 1 and {each["obligation"]: each["message"] for each in found["refusals"]}[obligation] == said
    assert found["run"]["steps"] == 43 and found["highest_lr"] == 3e-4 * 43 / 2000


def test_a_check_that_does_not_compare_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """FALSIFY-CFG-001 and 002, planted: a check that compares neither would let the example run."""
    config = read(EXAMPLE)
    assert {"CFG-OB1", "CFG-OB2"} <= set(obligations(config))
    monkeypatch.setattr(assessment, "check", faults.reach_not_compared)
    assert "CFG-OB1" not in obligations(config)
    monkeypatch.setattr(assessment, "check", faults.warmup_against_max_steps)
    assert "CFG-OB2" not in obligations(read(EXAMPLE, ["optimizer.warmup_steps=500"]))


def test_the_changes_that_are_named_mend_it() -> None:
    """117 epochs reach the steps, a tenth is warm-up enough; tokens and repeats as the lines then say."""
    config = read(EXAMPLE, ["training.num_train_epochs=117", "optimizer.warmup_steps=500"])
    found = judged(config)
    assert [each.obligation for each in found.refusals] == ["CFG-OB7", "CFG-OB7"]
    tokens, repeats = (change.settings[0] for change in found.changes)
    assert (
        repeats == {"training.max_repeats": 117} and str(found.changes[1]) == "training.max_repeats: 117, or more data"
    )
    mended = [f"{key}={value}" for key, value in tokens.items()]
    assert judged(read(EXAMPLE, ["optimizer.warmup_steps=500", *mended])).allowed


@pytest.mark.parametrize(
    ("recipe", "allowed", "waived"),
    [("tiny", True, ["CFG-OB7"]), ("350m", True, []), ("350m_short", True, ["CFG-OB7"]), ("worked_example", False, [])],
)
def test_recipes(recipe: str, allowed: bool, waived: list[str]) -> None:
    found = judged(read(ROOT / f"recipes/{recipe}.yaml"))
    assert found.allowed is allowed and [each.obligation for each in found.waived] == waived


def test_a_waiver_hides_nothing_and_covers_nothing_else() -> None:
    assert [each.obligation for each in judged(small()).waived] == ["CFG-OB7"]
    assert obligations(small("training.waive=[]")) == ["CFG-OB7"]
    assert obligations(small("optimizer.warmup_steps=5")) == ["CFG-OB3"]


@pytest.mark.parametrize(
    ("settings", "obligation"),
    [
        (("model.overrides.vocab_size=200",), "VOCABULARY"),
        (("model.overrides.max_position_embeddings=32",), "POSITIONS"),
        (("training.gradient_accumulation_steps=400000",), "CFG-OB8"),
        (("training.num_train_epochs=0",), "CFG-OB1"),
        (("optimizer.warmup_steps=0",), "CFG-OB2"),
        (
            (
                "training.micro_batch_size=100000",
                "training.gradient_accumulation_steps=1000",
                "model.overrides.num_hidden_layers=4000",
            ),
            "MEMORY",
        ),
    ],
    ids=["words", "positions", "batch", "epochs", "warm-up", "memory"],
)
def test_what_the_machine_or_the_data_cannot_carry_is_refused(settings: tuple[str, ...], obligation: str) -> None:
    found = judged(small(*settings))
    assert obligation in [each.obligation for each in found.refusals] and all(found.changes)


@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_are_counted_as_the_weights_are(preset: str) -> None:
    assert parameters(architecture_of(PRESETS[preset])) == count(PRESETS[preset])


def test_memory_follows_the_sizes() -> None:
    config, shape = small(), PRESETS["tiny"]
    found, weights = memory_of(config, shape), count(PRESETS["tiny"])
    assert (found.weights, found.moments) == (4 * weights, 8 * weights)
    lanes = memory_of(small("training.lanes=4"), shape)
    assert lanes.gradients == 3 * found.gradients
    shared = memory_of(
        small("training.lanes=4", "training.micro_batch_size=8", "training.gradient_accumulation_steps=1"), shape
    )
    assert shared.gradients == 4 * found.gradients and shared.activations == 4 * lanes.activations
    half = memory_of(small("training.dtype=bfloat16"), shape)
    assert 2 * half.activations == found.activations and half.weights == 6 * weights
    untied = memory_of(config, replace(shape, tie_word_embeddings=False))
    assert untied.gradients == 4 * count(replace(shape, tie_word_embeddings=False))


def test_data_of_another_size_than_declared_is_refused() -> None:
    counted = len(data_of(small()))
    assert len(data_of(small(f"data.num_sequences={counted}"))) == counted
    with pytest.raises(ValueError, match=rf"^data: {counted} sequences, data.num_sequences is 5; they must agree$"):
        data_of(small("data.num_sequences=5"))


def test_the_350m_is_that_of_the_worked_numbers() -> None:
    assert count(PRESETS["350m"]) == 398_509_056
