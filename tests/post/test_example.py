"""The example runs: two models merged, pruned, quantised, and asked for tokens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "merge_and_quantize.py"


@pytest.mark.long
def test_the_example_runs(tmp_path: Path) -> None:
    words = [sys.executable, str(EXAMPLE), str(tmp_path / "new")]
    lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [line.split(":")[0].rsplit("/", 1)[-1] for line in lines[:3]] == ["merged", "sparse", "small"]
    assert "tensors by slerp, sha256:" in lines[0] and "weights are zero" in lines[1] and "q4_1 by rtn" in lines[2]
    assert len(lines) == 3 + 4
