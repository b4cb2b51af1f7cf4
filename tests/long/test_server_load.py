"""64 clients at one server for two minutes: no error, a probe's bits unmoved, the time to a first token reported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
CLIENTS, SECONDS = 64, 120.0


def test_sixty_four_clients_for_two_minutes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import server_load

    found = server_load.measure("tiny@0", CLIENTS, SECONDS)
    with capsys.disabled():
        print(
            f"\n{found['requests']} requests, {found['tokens_per_second']} tokens/s, first token after"
            f" {found['first_token_p50']:.3f} s (p50), {found['first_token_p99']:.3f} s (p99)",
            file=sys.stderr,
        )
    assert found["errors"] == [] and found["mismatched_logprobs"] == 0
    assert found["seconds"] >= SECONDS and found["requests"] >= CLIENTS and found["probes"] >= 1


def test_another_answer_to_the_probe_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the probe asks for something else each time, so that its bits cannot agree."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import server_load

    monkeypatch.setattr(server_load, "PROBE", 1)
    monkeypatch.setattr(
        server_load,
        "asked",
        lambda client, turn: {"prompt": f"Part {turn} of {client}.", "max_tokens": 8, "seed": turn, "logprobs": 0},
    )
    found = server_load.measure("tiny@0", 4, 2.0)
    assert found["mismatched_logprobs"] > 0 and found["errors"] == []
