"""Runs a script of this folder by Triton's interpreter, in a process of its own: Triton reads the switch once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.repository.documents import PROJECT

from samebits.checker.tracing import child_environment


def interpreted(script: str, *arguments: str) -> dict[str, str | None]:
    """The line of JSON that it prints: by case, the first difference or None."""
    finished = subprocess.run(
        [sys.executable, str(Path(__file__).parent / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**child_environment(), "TRITON_INTERPRET": "1", "PYTHONPATH": f"{PROJECT / 'benchmarks'}:{PROJECT}"},
    )
    assert finished.returncode == 0, finished.stderr[-500:]
    answers: dict[str, str | None] = json.loads(finished.stdout)
    return answers
