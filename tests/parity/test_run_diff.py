"""Two runs beside each other: equal ones are equal, one flipped bit is named by step, block, operation and element."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.small_run import small
from typer.testing import CliRunner

from samebits.cli import app
from samebits.parity.run_diff import compare
from samebits.train import lanes
from samebits.train.running import run
from samebits.train.trainer import OURS, Parts

KEPT = ("monitoring.fingerprint_steps=1",)


def flipping(weight: str, element: tuple[int, ...], step: int) -> Parts:
    """Planted: at one step one bit of one element of one gradient is another."""
    calls = [0]

    def backward(*given: Any) -> lanes.Backward:
        calls[0] += 1
        found = lanes.backward(*given)
        if calls[0] == step:
            found.gradients[weight].view(torch.int32)[element] ^= 1 << 3
        return found

    return replace(OURS, backward=backward)


def made(folder: Path, *settings: str, parts: Parts = OURS) -> Path:
    run(small(*KEPT, *settings), folder, parts=parts)
    return folder


def test_one_bit_of_one_gradient_at_step_seven_is_named(tmp_path: Path) -> None:
    weight, element = "model.layers.1.mlp.gate_proj.weight", (17, 30)
    one, other = made(tmp_path / "a"), made(tmp_path / "b", parts=flipping(weight, element, 7))
    found = compare(one, other)
    assert found.difference is not None and found.difference.place is not None
    place = found.difference.place
    assert (found.difference.step, found.promise, found.fingerprints) == (7, "repeat", 10)
    assert (place.weight, place.block, place.operation) == (weight, "layers.1.mlp", "gradient of gate_proj")
    assert (place.element, place.elements, place.flipped_bits, place.weights_differing) == (element, 1, "0x8", 1)
    told = CliRunner().invoke(app, ["diff", str(one), str(other)])
    assert told.exit_code == 1
    assert "they part at step 7" in told.output and f"{weight}[17, 30], bits 0x8 flipped" in told.output
    document = json.loads(CliRunner().invoke(app, ["diff", str(one), str(other), "--json"]).stdout)
    assert (document["schema"], document["difference"]["step"]) == ("samebits.diff/1", 7)


def test_runs_cut_otherwise_are_the_same(tmp_path: Path) -> None:
    one = made(tmp_path / "a")
    other = made(tmp_path / "b", "training.micro_batch_size=4", "training.gradient_accumulation_steps=2")
    found = compare(one, other)
    assert found.difference is None and found.environment == {"micro_batch_size": (2, 4)} and not found.settings
    told = CliRunner().invoke(app, ["diff", str(one), str(other)])
    assert told.exit_code == 0 and "the same bits: 10 steps; gradients compared at 10 of them" in told.output


def test_a_setting_that_decides_bits_breaks_no_promise(tmp_path: Path) -> None:
    found = compare(made(tmp_path / "a"), made(tmp_path / "b", "training.seed=43"))
    assert found.difference is not None and found.difference.step == 1
    assert found.settings["training.seed"] == (42, 43) and found.promise == ""


def test_without_fingerprints_the_step_is_named(tmp_path: Path) -> None:
    run(small(), tmp_path / "a")
    run(small(), tmp_path / "b", parts=flipping("model.norm.weight", (3,), 4))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.difference is not None and found.difference.place is None and found.difference.step >= 4


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no events\.jsonl; allowed: the folder of a training run"):
        compare(tmp_path, tmp_path)
