"""The attacks of benchmarks/server_attacks.py at full size: 400 prompts of a megabyte, 100 templates without end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
HEALTH_SECONDS = 1.0


def test_health_bits_and_memory_under_attack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import server_attacks

    found = server_attacks.measure(prompts=400, templates=100, others=400)
    with capsys.disabled():
        print(f"\n{json.dumps(found)}", file=sys.stderr)
    assert found["health_failures"] == [] and found["health_worst"] < found["health_base_worst"] + HEALTH_SECONDS
    # Chats may be turned away while templates without end fill their lane; whoever is answered gets the right bits.
    assert found["honest_right"] == found["honest_answered"] >= found["honest_asked"] / 2 and found["bits_after"]
    before, peak, after = found["memory_mib"]
    assert max(peak, after) - before < 512
    assert all(set(each) <= {"400", "421", "429"} for each in found["attackers"].values()) and found["exit"] == 0
