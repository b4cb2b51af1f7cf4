"""Attention's Triton kernels over more keys than a split, run by Triton's interpreter: the bits of the reference."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.checker.tracing import child_environment

# The interpreter takes most of a minute; what a program asks of memory and adds is proved at level 4 in any run.
pytestmark = pytest.mark.long
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


def test_walked_and_shared_splits_have_the_bits_of_the_reference() -> None:
    differences = found()
    assert len(differences) == 9
    assert not any(differences.values()), differences


def test_splits_of_another_length_are_noticed() -> None:
    answers = found("planted")
    assert len(answers) == 2
    assert all("out" in str(answer) for answer in answers.values()), answers
