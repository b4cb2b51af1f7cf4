"""Shared by all tests: memory that no kernel wrote is poisoned, so that it cannot look right by luck."""

from __future__ import annotations

import pytest
import torch

# Files that take longest, longest first: they are begun first, so that no process is left with one of them at the end.
LONGEST = (
    "tests/train/test_ranks.py",
    "tests/train/test_distill.py",
    "tests/train/test_distill_command.py",
    "tests/invariant/test_smollm2.py",
    "tests/checker/test_promises.py",
    "tests/parity/test_chain.py",
    "tests/train/test_running.py",
    "tests/infer/test_server_process.py",
    "tests/contracts/test_replay.py",
    "tests/train/test_contracts.py",
    "tests/parity/test_distributed.py",
    "tests/parallel/test_revealing.py",
    "tests/parity/test_rl_ranks.py",
    "tests/setup/test_wheel.py",
    "tests/parity/test_stock_ranks.py",
    "tests/infer/test_engine_random.py",
    "tests/checker/test_adversary.py",
    "tests/parity/test_trl.py",
    "tests/invariant/test_operator_samples.py",
    "tests/train/test_watch.py",
    "tests/train/test_checkpoint_kills.py",
    "tests/train/test_checkpoint_power.py",
    "tests/goldens/test_portable.py",
    "tests/checker/test_artifacts.py",
    "tests/ops/test_toy_operator.py",
    "tests/train/test_distill_gain.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/long/"):
            item.add_marker(pytest.mark.long)
    rank = {file: place for place, file in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(rank)))


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.empty and its kin return NaN (or 85 for integers)."""
    for name in ("empty", "empty_like", "empty_strided"):

        def poisoned(*arguments: object, real: object = getattr(torch, name), **options: object) -> torch.Tensor:
            fresh = real(*arguments, **options)  # type: ignore[operator]
            return fresh.fill_(torch.nan) if fresh.is_floating_point() else fresh.fill_(85)

        monkeypatch.setattr(torch, name, poisoned)
