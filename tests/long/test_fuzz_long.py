"""A hundred thousand damaged contracts: no crash, no hang, no code run, and memory that stays where it was."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from tests.contracts.fuzzing import SENTINEL, Outcome, run, sentinel

from samebits.contracts.loading import contract_of

FILES, PROCESSES, MEGABYTES = 100_000, 2, 64


def judge(first: int, folder: str) -> tuple[Outcome, int, bool]:
    """(what came of every second number from `first`, megabytes grown by, whether the sentinel was imported)."""
    sys.path.insert(0, folder)
    run(contract_of, range(50))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = run(contract_of, range(first, FILES, PROCESSES))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    return outcome, grown, SENTINEL in sys.modules


def test_a_hundred_thousand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark, start = sentinel(tmp_path), time.monotonic()
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        parts = list(pool.map(judge, range(PROCESSES), [str(tmp_path)] * PROCESSES))
    outcomes, grown, imported = zip(*parts, strict=True)
    loaded, refused = sum(each.loaded for each in outcomes), sum(each.refused for each in outcomes)
    kinds, slowest = set().union(*(each.kinds for each in outcomes)), max(each.slowest for each in outcomes)
    with capsys.disabled():
        print(
            f"\n{FILES} damaged contracts in {time.monotonic() - start:.0f} s with {PROCESSES} processes: "
            f"{refused} refused in {len(kinds)} wordings, {loaded} load; slowest {slowest:.3f} s; "
            f"memory grew by {max(grown)} MB"
        )
    failures = [failure for each in outcomes for failure in each.failures]
    assert not failures, failures[:3]
    assert loaded + refused == FILES
    assert max(grown) <= MEGABYTES
    assert not any(imported) and not mark.exists()
