"""Asks a process of its own for a function's results, as digests.

The other side is `fresh_process.py`. Knows no promise."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict

from samebits.checker.cases import Case
from samebits.checker.driving import Results, Setting
from samebits.numerics.bits import format_of, numpy_bits
from samebits.records.report import UnjudgedError

# To start, and for each case; a busy machine gives a tenth of a core.
TIMEOUT_SECONDS = 300
SECONDS_EACH = 0.1


def digest(results: Results) -> str:
    """SHA-256 over names, formats, shapes and bits; every NaN counts as one."""
    total = hashlib.sha256()
    for name in sorted(results):
        value = results[name].detach().cpu()
        if value.is_floating_point():
            # A NaN's payload is nobody's promise.
            nan = value.isnan()
            value = value.masked_fill(nan, float("nan")) if bool(nan.any()) else value
            kind, pattern = format_of(value), numpy_bits(value).tobytes()
        else:
            kind, pattern = str(value.dtype), value.numpy().tobytes()
        total.update(f"{name} {kind} {list(value.shape)}\0".encode() + pattern)
    return total.hexdigest()


def digests(setting: Setting, cases: Sequence[Case]) -> list[str]:
    """The digest of each case, computed by a fresh process with another hash seed."""
    request = {
        "function": setting.importable,
        "spec": setting.spec.name,
        "backend": setting.backend,
        "differentiable": setting.spec.differentiable,
        "cases": [asdict(case) for case in cases],
    }
    seconds = TIMEOUT_SECONDS + SECONDS_EACH * len(cases)
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    try:
        finished = subprocess.run(
            [sys.executable, "-m", "samebits.checker.fresh_process"],
            input=json.dumps(request),
            text=True,
            capture_output=True,
            timeout=seconds,
            check=False,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "20011"},
        )
    except subprocess.TimeoutExpired:
        raise UnjudgedError(f"a fresh process took more than {seconds:.0f} s") from None
    if finished.returncode != 0:
        last = (finished.stderr.strip().splitlines() or ["without a message"])[-1]
        raise UnjudgedError(f"a fresh process failed: {last}")
    answer: list[str] = json.loads(finished.stdout)
    return answer
