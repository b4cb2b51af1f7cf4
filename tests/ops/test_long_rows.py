"""Softmax of long rows as benchmarks/long_rows has it: the bits of the CPU, by Triton's interpreter.

On a GPU benchmarks/gpu_long_rows.py compares them with the kernel in use, and times both."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
from tests.ops.interpreting import interpreted
from tests.repository.documents import PROJECT

found = partial(interpreted, "interpreted_long_rows.py")


@pytest.mark.long
def test_long_rows_have_the_bits_of_the_cpu_by_one_program_and_by_several() -> None:
    differences = found()
    assert len(differences) == 18
    assert not any(differences.values()), differences


def test_steps_that_are_added_before_the_lane_are_noticed() -> None:
    """Planted. Its logarithm may round another sum to the same number."""
    answers = found("planted")
    assert len(answers) == 6
    assert all(answer for case, answer in answers.items() if case.startswith("softmax")), answers


@pytest.mark.long
def test_the_shorter_exponential_has_the_bits_of_the_generated_one() -> None:
    """Of a two-thousandth of its inputs, and of those around its borders. Planted: subnormal results become 0."""
    assert found("exponentials") == {"exponentials": None}
    assert found("exponentials", "planted")["exponentials"] is not None


def test_without_a_gpu_nothing_is_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    import gpu_long_rows as script

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_long_rows.py", "--output", str(tmp_path / "record.json")])
    assert script.main() == 3 and not list(tmp_path.iterdir())
    assert "could not be judged" in capsys.readouterr().out
