"""AdamW of many tensors in one launch, as benchmarks/adamw_many has it, which no GPU has run: the bits of the CPU.

On a GPU benchmarks/gpu_adamw_many.py compares them with the kernel in use, and times both."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.ops.interpreting import interpreted
from tests.repository.documents import PROJECT

found = partial(interpreted, "interpreted_adamw_many.py")


def test_a_launch_of_many_tensors_has_the_bits_of_the_cpu() -> None:
    differences = found()
    assert len(differences) == 40
    assert not any(differences.values()), differences


def test_an_element_that_is_left_out_is_noticed() -> None:
    """Planted."""
    answers = found("planted")
    written = [answer for case, answer in answers.items() if not case.startswith(("grad", "master"))]
    assert len(written) == 24 and all(written), answers


def test_a_table_that_is_kept_is_that_of_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    from adamw_many.launches import tables

    rows = ((16, 32, 48, 64, 0, 1000), (16, 32, 48, 64, 0, 24))
    table, owners = tables(rows, 128, torch.device("cpu"))
    assert table.tolist() == [[*rows[0], 0], [*rows[1], 8]] and owners.tolist() == [0] * 8 + [1]
    assert tables(rows, 128, torch.device("cpu"))[0] is table
    moved = (rows[0], (16, 32, 48, 80, 0, 24))
    assert tables(moved, 128, torch.device("cpu"))[0].tolist()[1] == [16, 32, 48, 80, 0, 24, 8]


def test_without_a_gpu_nothing_is_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    import gpu_adamw_many as script

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_adamw_many.py", "--output", str(tmp_path / "record.json")])
    assert script.main() == 3 and not list(tmp_path.iterdir())
    assert "could not be judged" in capsys.readouterr().out
