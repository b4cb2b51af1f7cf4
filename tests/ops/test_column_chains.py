"""Sums over rows as benchmarks/column_chains has them: the bits of the CPU, by the machine in hopper_on_cpu/, for
Triton's interpreter runs no Gluon.

On a GPU benchmarks/gpu_column_chains.py compares them with the kernel in use, and times both."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.ops.hopper_on_cpu.finding import Finding
from tests.ops.hopper_on_cpu.launching import launches
from tests.ops.hopper_on_cpu.running import Edit
from tests.repository.documents import PROJECT
from torch import Tensor

from samebits.checker.tracing import child_environment
from samebits.numerics.bits import compare
from samebits.ops._triton import launch as launching

SCRIPT = Path(__file__).with_name("compiled_column_chains.py")
# Rows and columns: of one block a part; whole blocks, of which stages are used again; neither a multiple of anything.
SHAPES = ((3, 8), (512, 32), (203, 40))
KINDS = ("without x", "without mean", "all")


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    from column_chains import launches as module

    return module


def given(rows: int, width: int, dtype: torch.dtype, kind: str) -> tuple[Tensor | None, ...]:
    """dy, x, means, reciprocals and accumulators; a column is not finite, in one -0 alone is added to -0, and in one a
    term adds nothing to a sum to which two of them at once add something."""
    made = torch.Generator().manual_seed(rows + width)
    dy, x = (torch.randn(rows, width, generator=made).to(dtype) for _ in range(2))
    mean, rstd = torch.randn(rows, generator=made), torch.rand(rows, generator=made) + 0.5
    start = torch.randn(width, generator=made)
    dy[rows // 2, 1], dy[:, 2], start[2] = torch.nan, -0.0, -0.0
    dy[0, 3], dy[rows - 1, 3] = torch.inf, -torch.inf
    x[:, 2] = x[:, 2].abs() + 4
    dy[:, 4], x[:, 4], start[4] = 2.0**-24, 1, 1
    return (
        dy,
        None if kind == "without x" else x,
        mean if kind == "all" else None,
        None if kind == "without x" else rstd,
        start,
    )


def expected(dy: Tensor, x: Tensor | None, mean: Tensor | None, rstd: Tensor | None, start: Tensor) -> Tensor:
    """Row after row, every operation rounded."""
    terms = dy.float()
    if x is not None:
        assert rstd is not None
        centred = x.float() if mean is None else x.float() - mean[:, None]
        terms = terms * (centred * rstd[:, None])
    sums = start.clone()
    for row in terms:
        sums += row
    return sums


def difference(chains: ModuleType, operands: Any, launch: Any, *, seed: int = 0, edits: tuple[Edit, ...] = ()) -> Any:
    sums = operands[-1].clone()
    with launches(chains, seed=seed, edits=edits):
        chains.add_rows(*operands[:-1], sums, launch)
    return compare(sums, expected(*operands))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_chains_have_the_bits_of_the_cpu(chains: ModuleType, dtype: torch.dtype, kind: str) -> None:
    tried = (
        chains.ChainLaunch(rows=32, columns=16, stages=2),
        chains.ChainLaunch(rows=128, columns=8, stages=3, slots=1),
        chains.ChainLaunch(rows=64, columns=32, stages=1, slots=3),
    )
    for (rows, width), (seed, launch) in itertools.product(SHAPES, enumerate(tried)):
        wrong = difference(chains, given(rows, width, dtype, kind), launch, seed=seed)
        assert wrong is None, f"{rows} x {width} {launch}: {wrong}"


@pytest.mark.parametrize("told", ["dtype", "nothing"])
def test_every_dtype_has_a_compiled_kernel_of_its_own(
    chains: ModuleType, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    """Launches know a compiled kernel again by dtypes of tensors, and a described tensor is none. Planted: nothing else
    says the dtype, so that numbers of one format were read as another's, which an H200 has shown."""
    keys = set()

    def seen(kernel: Any, programs: int, given: tuple[Any, ...], *, warps: int, stages: int, **constants: Any) -> None:
        if told == "nothing":
            del constants["ELEMENT"]
        keys.add(launching._key(kernel.__name__, 0, warps, stages, given, constants))

    with launches(chains):
        monkeypatch.setattr(chains, "run", seen)
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            chains.add_rows(*given(3, 8, dtype, "all"), chains.ChainLaunch(stages=1))
    assert len(keys) == (3 if told == "dtype" else 1)


@pytest.mark.parametrize("odd", ["columns", "start", "rstd"])
def test_what_cannot_be_copied_is_left_to_the_kernel_in_use(
    chains: ModuleType, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(chains.in_use, "add_rows", lambda *given: asked.append(given))
    dy, rstd = torch.zeros(5 * 16 + 1), torch.zeros(6)
    dy = {"columns": dy[:65].reshape(5, 13), "start": dy[1:].reshape(5, 16)}.get(odd, dy[:80].reshape(5, 16))
    chains.add_rows(dy, dy, None, rstd[1:] if odd == "rstd" else rstd[:5], torch.zeros(dy.shape[1]))
    assert len(asked) == 1 and asked[0][0] is dy


def faults(chains: ModuleType) -> dict[str, Edit]:
    from column_chains import kernels

    return {
        "+0 behind the end": Edit(kernels.make_block, "-(2**31)", "0"),
        "steps from the last to the first": Edit(
            kernels.add, "slice(step * STEP", "slice(CONSTANTS.ROWS - STEP - step * STEP"
        ),
        "terms first": Edit(
            kernels.add,
            "sums = gl.dot_fma(ones, rows.load(gl.DotOperandLayout(1, SUMS, 0)), sums)",
            "sums = sums + gl.dot_fma(ones, rows.load(gl.DotOperandLayout(1, SUMS, 0)), sums - sums)",
        ),
        "terms read before they are there": Edit(kernels.add, "mbarrier.wait(made.index(slot)", "(made.index(slot)"),
        "a slot filled before it is free": Edit(
            kernels.make_block, "mbarrier.wait(added.index(slot)", "(added.index(slot)"
        ),
        "a stage freed before it is read": Edit(kernels.load, "mbarrier.wait(free.index(stage)", "(free.index(stage)"),
    }


@pytest.mark.parametrize(
    "fault",
    [
        "+0 behind the end",
        "steps from the last to the first",
        "terms first",
        "terms read before they are there",
        "a slot filled before it is free",
        "a stage freed before it is read",
    ],
)
def test_planted_faults_are_noticed(chains: ModuleType, fault: str) -> None:
    launch, edit = chains.ChainLaunch(rows=128, columns=16, stages=2), faults(chains)[fault]
    operands = given(1000, 16, torch.float32, "without x")
    assert difference(chains, operands, launch) is None
    try:
        noticed = difference(chains, operands, launch, edits=(edit,)) is not None
    except Finding:
        noticed = True
    assert noticed


def test_the_warp_that_adds_does_nothing_else_and_no_register_is_spilled() -> None:
    """As compiled: the chain's loop has an addition a row, a load for four, and a few instructions a block."""
    finished = subprocess.run(
        [sys.executable, str(SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
        env={**child_environment(), "PYTHONPATH": f"{PROJECT / 'benchmarks'}:{PROJECT}"},
    )
    assert finished.returncode == 0, finished.stderr[-500:]
    for made in json.loads(finished.stdout):
        assert "0 bytes spill stores, 0 bytes spill loads" in made["said"], made
        assert made["additions"] == made["rows"] and made["instructions"] < 1.5 * made["rows"], made


def test_without_a_gpu_nothing_is_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    import gpu_column_chains as script

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_column_chains.py", "--output", str(tmp_path / "record.json")])
    assert script.main() == 3 and not list(tmp_path.iterdir())
    assert "could not be judged" in capsys.readouterr().out
