"""TRL's GRPO trainer, unmodified: by its own figures sampler and trainer agree exactly under invariant mode."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from samebits.invariant import invariant_mode
from samebits.invariant.transformers import register

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "trl_grpo.py"
# What TRL runs without a guarantee. None of it makes a logprob: seeds and shuffles of the data, and the sum of one
# reward function's rewards.
NOT_VOUCHED_FOR = {"aten.random_.default", "aten.randperm.generator", "aten.randperm.default", "aten.nansum.default"}


@pytest.fixture(scope="module")
def example() -> Any:
    specification = importlib.util.spec_from_file_location("trl_grpo", EXAMPLE)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    register()
    return module


def test_under_the_mode_sampler_and_trainer_agree_exactly(example: Any) -> None:
    mode = invariant_mode(strict=False)
    logged = example.train(2, mode, "samebits")
    assert len(logged) == 2
    for each in logged:
        assert (each[example.DIFFERENCE], each[example.LEAST], each[example.MOST]) == (0.0, 1.0, 1.0)
    assert logged[0]["kl"] == 0.0 and logged[1]["kl"] > 0.0
    assert set(mode.unverified) <= NOT_VOUCHED_FOR and mode.routed["aten.mm.default"] > 0


def test_without_the_mode_they_differ(example: Any) -> None:
    """The negative control: the same weights, the same tokens to the last digit shown, other bits."""
    logged = example.train(2, nullcontext(), "sdpa")
    assert all(each[example.DIFFERENCE] > 0.0 for each in logged)
    assert any(each[example.LEAST] < 1.0 < each[example.MOST] for each in logged)


def test_a_sampler_that_is_off_is_noticed(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: under the mode, but one number of what the sampler's head sees is off by 2^-12."""
    right = example.CachedSampler._logprobs

    def off(self: Any, hidden: Any, tokens: Any) -> Any:
        hidden = hidden.clone()
        hidden[:, 0] *= 1.0 + 2.0**-12
        return right(self, hidden, tokens)

    monkeypatch.setattr(example.CachedSampler, "_logprobs", off)
    logged = example.train(1, invariant_mode(strict=False), "samebits")
    assert logged[0][example.DIFFERENCE] > 0.0


def test_the_program_prints_what_both_logged(
    example: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the page on it runs it; the training itself is that of the tests above."""
    asked = []

    def trained(steps: int, mode: Any, attention: str) -> list[dict[str, float]]:
        asked.append((steps, attention))
        return [{"reward": 0.5, example.DIFFERENCE: 0.0, example.LEAST: 1.0, example.MOST: 1.0, "kl": 0.0}] * steps

    monkeypatch.setattr(example, "train", trained)
    monkeypatch.setattr("sys.argv", ["trl_grpo.py", "--steps", "2"])
    example.main()
    printed = capsys.readouterr().out
    assert asked == [(2, "sdpa"), (2, "samebits")]
    assert printed.count("0.5000") == 4 and printed.index("stock") < printed.index("invariant mode")
