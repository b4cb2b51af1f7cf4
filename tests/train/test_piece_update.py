"""An update in two passes over memory has the bits of operators one after another; without a GPU, by an interpreter.

On a GPU tests/gpu/test_piece_update.py compares them."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.ops.interpreting import interpreted
from tests.repository.documents import PROJECT
from torch.nn.modules.module import register_module_forward_hook

from samebits.ops.adamw import AdamW
from samebits.train.triton_looked_into import looked_into, stepped_around

found = partial(interpreted, "../train/interpreted_update.py")


def test_every_number_and_tensor_is_that_of_the_operators() -> None:
    """Tensors around a piece, empty ones, a NaN; clipped and not; with roundings in three formats and without."""
    differences = found()
    assert len(differences) == 118
    assert not any(differences.values()), differences


def test_other_lanes_no_clipping_and_a_missing_element_are_noticed() -> None:
    """Planted."""
    noticed = found("planted")
    assert len(noticed) == 3 and all(noticed.values()), noticed


@pytest.mark.long
def test_a_run_has_the_bits_of_one_by_operators() -> None:
    """Numbers, weights, moments and the roundings that passes read, of two updates."""
    differences = found("runs")
    assert len(differences) == 4 and not any(differences.values()), differences


def test_who_looks_into_operators_or_steps_sees_them() -> None:
    optimizer = AdamW([torch.nn.Parameter(torch.ones(1))])
    assert not looked_into() and not stepped_around(optimizer)
    with torch.profiler.profile():
        assert looked_into()
    hook = register_module_forward_hook(lambda *_: None)
    assert looked_into()
    hook.remove()
    called = optimizer.register_step_pre_hook(lambda *_: None)
    assert stepped_around(optimizer)
    called.remove()
    assert not looked_into() and not stepped_around(optimizer)


def test_the_benchmark_judges_nothing_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    import gpu_update as script

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_update.py", "--output", str(tmp_path / "record.json")])
    assert script.main() == 3 and not list(tmp_path.iterdir())
    assert "could not be judged" in capsys.readouterr().err
