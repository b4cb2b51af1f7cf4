"""Every planted fault is caught by the default check, and no sound kernel is accused by it; seconds for each."""

from __future__ import annotations

import pytest
from tests.checker.kernels import faulty, name, sound

import samebits as sb
from samebits.records.report import Verdict


@pytest.mark.parametrize(("target", "like"), faulty(), ids=lambda each: name(each) if ":" in each else "")
def test_a_planted_fault_is_caught(target: str, like: str) -> None:
    assert sb.check(target, like).verdict is Verdict.DOES_NOT_HOLD


@pytest.mark.parametrize("target", sound(), ids=name)
def test_a_sound_kernel_is_not_accused(target: str) -> None:
    report = sb.check(target)
    assert report.verdict is Verdict.HOLDS, report.findings
