"""Whatever is in a contract's file, loading it gives a contract or one line: no crash, no hang, no code run."""

from __future__ import annotations

import importlib
import resource
import sys
from pathlib import Path

import pytest
import yaml
from tests.contracts.fuzzing import SENTINEL, damaged, run, sentinel

from samebits.contracts.loading import contract_of

NUMBERS = range(1000)
MEGABYTES = 64


def test_damaged_contracts_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 of them; some damage harms nothing, so some load."""
    mark = sentinel(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = run(contract_of, NUMBERS)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    assert not outcome.failures, outcome.failures[:3]
    assert outcome.loaded + outcome.refused == len(NUMBERS)
    assert outcome.loaded > 30 and outcome.refused > 300 and len(outcome.kinds) > 20
    assert grown <= MEGABYTES
    assert SENTINEL not in sys.modules and not mark.exists()


def test_the_same_number_is_the_same_file() -> None:
    assert [damaged(number) for number in range(50)] == [damaged(number) for number in range(50)]
    assert len({damaged(number) for number in range(500)}) > 490


def test_a_crash_is_noticed() -> None:
    """Planted fault: a loader that takes what PyYAML gives it."""
    outcome = run(lambda raw, path: yaml.load(raw, yaml.CSafeLoader)["domains"].values(), range(300))
    crashes = {failure.split(": ")[1] for failure in outcome.failures}
    assert {"ScannerError", "ParserError", "ComposerError"} <= crashes


def test_a_hang_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a loader that never ends."""
    monkeypatch.setattr("tests.contracts.fuzzing.SECONDS", 0.05)

    def endless(raw: bytes, path: Path) -> None:
        while True:
            pass

    assert "TimeoutError" in run(endless, range(1)).failures[0]


def test_code_that_runs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a loader that obeys tags."""
    mark = sentinel(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    tagged = [number for number in range(1500) if SENTINEL.encode() in damaged(number)]
    run(lambda raw, path: yaml.load(raw, yaml.CUnsafeLoader), tagged)
    sys.modules.pop(SENTINEL, None)
    assert mark.exists()
