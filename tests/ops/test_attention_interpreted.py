"""Attention's Triton kernels run by Triton's interpreter: the bits of the reference over more keys than a split, and
gradients whatever memory held."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.checker.tracing import child_environment

SCRIPT = Path(__file__).with_name("interpreted_attention.py")


def found(*arguments: str) -> dict[str, str | None]:
    finished = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**child_environment(), "TRITON_INTERPRET": "1"},
    )
    assert finished.returncode == 0, finished.stderr[-500:]
    answers: dict[str, str | None] = json.loads(finished.stdout)
    return answers


# Most of a minute; what a program asks of memory and adds is proved at level 4 in any run.
@pytest.mark.long
def test_walked_and_shared_splits_have_the_bits_of_the_reference() -> None:
    differences = found()
    assert len(differences) == 9
    assert not any(differences.values()), differences


@pytest.mark.long
def test_splits_of_another_length_are_noticed() -> None:
    answers = found("planted")
    assert len(answers) == 2
    assert all("out" in str(answer) for answer in answers.values()), answers


def test_gradients_have_the_bits_of_the_cpu_whatever_memory_held() -> None:
    differences = found("gradients")
    assert len(differences) == 6
    assert not any(differences.values()), differences


def test_a_first_pass_that_looks_for_marks_is_noticed() -> None:
    answers = found("gradients", "planted")
    noticed = [case for case, answer in answers.items() if str(answer).startswith("dq")]
    assert noticed == [case for case in answers if case.endswith("memory of 0")], answers
