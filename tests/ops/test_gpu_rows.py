"""benchmarks/gpu_rows.py without a GPU: its comparisons on the CPU, its kernels compiled, its record read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.repository.documents import PROJECT

from samebits.checker.tracing import child_environment

BENCHMARKS = PROJECT / "benchmarks"


@pytest.fixture
def bits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The CPU in the GPU's place."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_rows_bits as module

    monkeypatch.setattr(module, "DEVICE", "cpu")
    monkeypatch.setattr(module, "LARGE", ())
    monkeypatch.setattr(module, "NORMS", ((5, 255), (3, 300)))
    return module


def test_operators_are_compared_forward_and_backward(bits: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    found = bits.of_elements() | bits.of_rows() | bits.of_norms()
    assert len(found) == 3 * 3 * 6 * 3 + 2 * 6 + 2 * 3 * 2 * 4
    assert not any(found.values()), found
    # Planted: a GPU whose last gradient is an ulp nearer to 0.
    honest: Callable[..., list[torch.Tensor]] = bits.results
    calls = iter(range(10**6))

    def off(*given: Any) -> list[torch.Tensor]:
        made = honest(*given)
        return [*made[:-1], torch.nextafter(made[-1], torch.tensor(0.0).to(made[-1]))] if next(calls) % 2 else made

    monkeypatch.setattr(bits, "results", off)
    planted = bits.of_rows()
    assert all(wrong for name, wrong in planted.items() if " normal " in name), planted


@pytest.mark.long
def test_every_kernel_is_compiled_and_its_instructions_are_fewer_than_they_were() -> None:
    """SwiGLU of bfloat16 had 50 instructions an element forward and 57 backward, GELU 39 and 68, LayerNorm over 100."""
    finished = subprocess.run(
        [sys.executable, str(BENCHMARKS / "rows_limits.py"), "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**child_environment(), "PYTHONPATH": str(BENCHMARKS)},
    )
    assert finished.returncode == 0, finished.stderr[-500:]
    found = {case: told[0] for case, told in json.loads(finished.stdout).items()}
    assert len(found) == 2 * 17
    most = {"swiglu": 39, "swiglu backward": 46, "gelu": 22, "gelu by tanh": 22, "gelu backward": 62}
    assert all(found[f"{name} 8192x14336"] < count for name, count in most.items()), found
    kept = {"rmsnorm": 12, "rmsnorm backward": 15, "layernorm": 18, "layernorm backward": 20}
    assert all(found[f"{name} 8192x4096"] < count for name, count in kept.items()), found


def test_without_a_gpu_nothing_is_judged(
    bits: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import gpu_rows as script

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_rows.py", "--output", str(tmp_path / "record.json")])
    assert script.main() == 3 and not list(tmp_path.iterdir())
    assert "could not be judged" in capsys.readouterr().out


def test_the_report_reads_its_record(
    bits: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """On made times, which no machine has measured: one case reaches its target, and one does not."""
    import gpu_rows as script
    from report_gpu import rows_on_gpu

    made = iter(([[0.1], [0.05]], [[0.2], [0.2]]))
    monkeypatch.setattr(script, "kernel_times", lambda *_: next(made))
    monkeypatch.setattr(script, "copy_bandwidth", lambda: 4e12)
    cases = [
        script.Case(name=name, make=lambda: None, rows=8192, width=4096, tensors=5.9, launches=(1,))
        for name in ("quick", "slow")
    ]
    rows = [script.measured(case, 1) for case in cases]
    assert [row["quickest"] for row in rows] == ["1", "in use"]
    (words, lines) = rows_on_gpu({"rows": rows, "copy_bandwidth": 4e12, "verdict": "does not hold"})
    assert "4.00 TB/s" in str(words)
    assert [(line.case, line.missed) for line in lines.lines] == [("quick 8192x4096", None), ("slow 8192x4096", 0.9)]
