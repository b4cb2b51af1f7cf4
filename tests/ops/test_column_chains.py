"""Sums over rows by the kernel for Hopper: the bits of the CPU, by the machine in hopper_on_cpu/, for Triton's
interpreter runs no Gluon; and which launches are chosen.

On a GPU tests/gpu/test_column_chains.py compares them with the kernel by Triton."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ops.hopper_on_cpu.finding import Finding
from tests.ops.hopper_on_cpu.launching import launches
from tests.ops.hopper_on_cpu.running import Edit
from tests.repository.documents import PROJECT
from torch import Tensor

from samebits.checker.tracing import child_environment
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.ops._triton import columns, hopper_columns
from samebits.ops._triton import launch as launches_by_triton
from samebits.ops._triton.hopper_columns import ChainLaunch
from samebits.ops._triton.rows import RowLaunch

SCRIPT = Path(__file__).with_name("compiled_column_chains.py")
# Rows and columns: of one block a part; whole blocks, of which stages are used again; neither a multiple of anything.
SHAPES = ((3, 8), (512, 32), (203, 40))
KINDS = ("without x", "without mean", "all")


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


def difference(operands: Any, launch: Any, *, seed: int = 0, edits: tuple[Edit, ...] = ()) -> Any:
    sums = operands[-1].clone()
    with launches(hopper_columns, seed=seed, edits=edits):
        hopper_columns.add_rows(*operands[:-1], sums, launch)
    return compare(sums, expected(*operands))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_chains_have_the_bits_of_the_cpu(dtype: torch.dtype, kind: str) -> None:
    tried = (
        ChainLaunch(rows=32, columns=16, stages=2),
        ChainLaunch(rows=128, columns=8, stages=3, slots=1),
        ChainLaunch(rows=64, columns=32, stages=1, slots=3),
    )
    for (rows, width), (seed, launch) in itertools.product(SHAPES, enumerate(tried)):
        wrong = difference(given(rows, width, dtype, kind), launch, seed=seed)
        assert wrong is None, f"{rows} x {width} {launch}: {wrong}"


@pytest.mark.parametrize("told", ["dtype", "nothing"])
def test_every_dtype_has_a_compiled_kernel_of_its_own(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    """Launches know a compiled kernel again by dtypes of tensors, and a described tensor is none. Planted: nothing else
    says the dtype, so that numbers of one format were read as another's, which an H200 has shown."""
    keys = set()

    def seen(kernel: Any, programs: int, given: tuple[Any, ...], *, warps: int, stages: int, **constants: Any) -> None:
        if told == "nothing":
            del constants["ELEMENT"]
        keys.add(launches_by_triton._key(kernel.__name__, 0, warps, stages, given, constants))

    with launches(hopper_columns):
        monkeypatch.setattr(hopper_columns, "run", seen)
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            hopper_columns.add_rows(*given(3, 8, dtype, "all"), ChainLaunch(stages=1))
    assert len(keys) == (3 if told == "dtype" else 1)


@pytest.fixture
def on_hopper(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Tensors in main memory are taken for those of an H200; launches are listed and not made."""
    launched: list[tuple[str, dict[str, Any]]] = []

    def seen(kernel: Any, programs: int, given: tuple[Any, ...], *, warps: int, stages: int, **constants: Any) -> None:
        launched.append((kernel.__name__, constants))

    for module in (columns, hopper_columns):
        monkeypatch.setattr(module, "run", seen)
        monkeypatch.setattr(module, "on_device", lambda _: nullcontext())
    monkeypatch.setattr(hopper_columns, "missing", lambda _: None)
    monkeypatch.setattr(hopper_columns, "multiprocessors", lambda _: 132)
    monkeypatch.setattr(Tensor, "is_cuda", True)
    return launched


def zeros(rows: int, width: int, *, behind: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A matrix that begins so many elements behind an aligned place."""
    return torch.zeros(behind + rows * width, dtype=dtype)[behind:].view(rows, width)


@pytest.mark.parametrize("odd", ["columns", "start of dy", "start of x", "rstd", "mean", "other GPU", "no GPU"])
def test_what_cannot_be_copied_is_left_to_the_kernel_by_triton(
    on_hopper: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    """Whatever launch is forced."""
    if odd == "other GPU":
        monkeypatch.setattr(hopper_columns, "missing", lambda _: "compute capability 9.0 and this GPU has 10.0")
    if odd == "no GPU":
        monkeypatch.setattr(Tensor, "is_cuda", False)
    width = 13 if odd == "columns" else 16
    dy, x = zeros(80, width, behind=odd == "start of dy"), zeros(80, width, behind=odd == "start of x")
    mean, rstd = (torch.zeros(80 + (odd == name))[int(odd == name) :] for name in ("mean", "rstd"))
    for forced in (None, ChainLaunch()):
        with nullcontext() if forced is None else launching(launch=forced):
            columns.add_rows(dy, x, mean, rstd, torch.zeros(width))
    assert [name for name, _ in on_hopper] == ["column_chains"] * 2


@pytest.mark.parametrize(
    ("rows", "width", "dtype", "wanted"),
    [
        # Few rows; whole hidden states; norms of heads; as many columns as are summed at once, and more.
        (32, 4096, torch.bfloat16, None),
        (65, 576, torch.float32, (64, 8)),
        (256, 1024, torch.bfloat16, (64, 8)),
        (16384, 1024, torch.bfloat16, (256, 8)),
        (16384, 1024, torch.float32, (128, 8)),
        (131072, 128, torch.float16, (256, 8)),
        (8192, 2048, torch.bfloat16, (256, 16)),
        (8192, 4096, torch.bfloat16, (256, 32)),
        (8192, 4232, torch.bfloat16, None),
    ],
)
def test_sizes_choose_the_kernel(
    on_hopper: list[tuple[str, dict[str, Any]]], rows: int, width: int, dtype: torch.dtype, wanted: Any
) -> None:
    dy = torch.zeros((), dtype=dtype).expand(rows, width)
    columns.add_rows(dy, dy, None, torch.zeros(rows), torch.zeros(width))
    ((name, constants),) = on_hopper
    assert name == ("column_chains" if wanted is None else "specialised_column_chains")
    assert wanted is None or (constants["ROWS"], constants["COLUMNS"]) == wanted


def test_multiprocessors_choose_the_columns_of_a_program() -> None:
    """As many programs as there are multiprocessors, on whatever GPU of the kind."""
    for count, wanted in ((132, 8), (114, 16), (64, 16), (33, 32), (31, None)):
        found = hopper_columns.chosen_launch(4096, 1024, 2, count)
        assert (found and found.columns) == wanted


def test_a_forced_launch_chooses_the_kernel(on_hopper: list[tuple[str, dict[str, Any]]]) -> None:
    dy = zeros(3, 8192)
    for forced in (RowLaunch(rows=16, columns=64), ChainLaunch(rows=32, columns=16, stages=2)):
        with launching(launch=forced):
            columns.add_rows(dy, None, None, None, torch.zeros(8192))
    by_triton, by_gluon = on_hopper
    assert by_triton[0] == "column_chains" and by_triton[1]["COLUMNS"] == 64
    assert by_gluon[0] == "specialised_column_chains" and (by_gluon[1]["ROWS"], by_gluon[1]["STAGES"]) == (32, 2)


def test_a_launch_without_room_is_refused(on_hopper: list[tuple[str, dict[str, Any]]]) -> None:
    with pytest.raises(ValueError, match="no room for one block of operands; allowed: 230000 bytes in all"):
        hopper_columns.add_rows(zeros(3, 32), None, None, None, torch.zeros(32), ChainLaunch(columns=32, slots=7))
    assert not on_hopper


def faults() -> dict[str, Edit]:
    from samebits.ops._triton import hopper_columns_kernel as kernels

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
def test_planted_faults_are_noticed(fault: str) -> None:
    launch, edit = ChainLaunch(rows=128, columns=16, stages=2), faults()[fault]
    operands = given(1000, 16, torch.float32, "without x")
    assert difference(operands, launch) is None
    try:
        noticed = difference(operands, launch, edits=(edit,)) is not None
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
