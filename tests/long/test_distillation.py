"""FALSIFY-ALBOR-005 with SmolLM2: the distilled student beats the same student without a teacher, over five seeds.

About an hour on two cores; `benchmarks/distillation.py` is the same with its numbers recorded."""

from __future__ import annotations

from pathlib import Path

from tests.train.distill_gain import experiment


def test_smollm2_helps_a_student(tmp_path: Path) -> None:
    found = experiment(tmp_path)
    assert found["p"] < 0.05 and found["largest_error"] <= 1e-4, found
