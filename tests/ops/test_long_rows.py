"""Softmax by Triton, rows of one program and rows of several: the bits of the CPU, by Triton's interpreter.

On a GPU benchmarks/gpu_long_rows.py compares all launches with the CPU, and times them beside torch."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.ops.interpreting import interpreted
from tests.repository.documents import PROJECT

from samebits.native.launch_numbers import launching
from samebits.ops.softmax import triton_kernel
from samebits.ops.softmax.check import launches
from samebits.ops.softmax.triton_kernel import SharedLaunch

found = partial(interpreted, "interpreted_long_rows.py")


@pytest.mark.long
def test_long_rows_have_the_bits_of_the_cpu_by_one_program_and_by_several() -> None:
    differences = found()
    assert len(differences) == 32
    assert not any(differences.values()), differences


def test_steps_that_are_added_before_the_lane_are_noticed() -> None:
    """Planted. Its logarithm may round another sum to the same number."""
    answers = found("planted")
    assert len(answers) == 4
    assert all(answer for case, answer in answers.items() if case.startswith("softmax")), answers


def test_few_long_rows_are_shared_and_many_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 132 multiprocessors; a checker's launch of many columns shares short rows too, one of few never does."""
    monkeypatch.setattr(triton_kernel, "multiprocessors", lambda _: 132)
    device = torch.device("cuda")

    def shared(rows: int, width: int, **numbers: object) -> bool:
        with launching(**numbers):
            return isinstance(triton_kernel.chosen_launch(rows, width, device), SharedLaunch)

    assert [shared(rows, 128256) for rows in (1, 16, 263, 264)] == [True, True, True, False]
    assert [shared(1, width) for width in (1, 16384, 16385)] == [False, False, True]
    by_columns = {each["launch"].columns: each for each in launches("triton", "float32")}
    assert [shared(5, 255, **by_columns[columns]) for columns in (256, 2048)] == [False, True]


def test_without_a_gpu_nothing_is_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    import gpu_long_rows as script

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_long_rows.py", "--output", str(tmp_path / "record.json")])
    assert script.main() == 3 and not list(tmp_path.iterdir())
    assert "could not be judged" in capsys.readouterr().out
