"""Products by CUDA C++, as benchmarks/cuda_products has them: tiles that fit, the one that is chosen, their source.

On a GPU benchmarks/gpu_cuda_products.py compares bits with the kernel in use, and times both."""

from __future__ import annotations

import ctypes
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.repository.documents import PROJECT

SIZES = ((1, 64, 16), (333, 6144, 4096), (5000, 2048, 2048), (100, 576, 49152), (16384, 14336, 4096))


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))


def misfit(tile: object) -> str | None:
    """What a multiprocessor or an instruction would not take of a tile."""
    from cuda_products.tiles import BOX_BYTES, FEWEST_STAGES, Tile

    assert isinstance(tile, Tile)
    if tile.shared_bytes + 256 > 227 * 1024 or tile.stages < FEWEST_STAGES:
        return "shared memory"
    # Operands are swizzled in blocks of 8 lines; a stage begins at one, and so does what the second program copies.
    half = tile.width // 2 if tile.pair and not tile.right_by_columns else tile.width
    if tile.step_bytes % 1024 or (half * 128) % 1024 or (tile.right_by_columns and tile.step_bytes % BOX_BYTES):
        return "alignment"
    if tile.pair and tile.right_by_columns and tile.width <= 64:
        return "one box for two programs"
    if not 8 <= tile.width <= 256 or tile.width % 8 or tile.height > 256:
        return "an instruction"
    # Sums of 64 lines by `width` columns are width / 2 registers a thread; others take some thirty.
    most = {1: 255, 2: 232, 3: 160}[tile.groups]
    return "registers" if tile.lines // 64 * tile.width // 2 + 30 > most else None


def test_every_tile_fits() -> None:
    from cuda_products.tiles import tiles

    every = [*tiles(by_columns=False), *tiles(by_columns=True)]
    assert len(set(every)) == len(every) > 300
    assert [f"{tile}: {misfit(tile)}" for tile in every if misfit(tile)] == []


def test_tiles_that_do_not_fit_are_noticed() -> None:
    """Planted."""
    from cuda_products.tiles import Tile

    fits = Tile(groups=2, lines=64, width=128, left_by_lines=False, right_by_columns=False, transposed=False)
    assert misfit(fits) is None
    assert misfit(replace(fits, width=24, pair=True)) == "alignment"
    assert misfit(replace(fits, width=64, pair=True, right_by_columns=True)) == "one box for two programs"
    assert misfit(replace(fits, width=20)) == "alignment"
    assert misfit(replace(fits, lines=128, width=256)) == "shared memory"
    assert misfit(replace(fits, groups=3, width=264)) in ("an instruction", "registers", "shared memory")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("by_columns", [False, True])
def test_the_chosen_tile_is_the_quickest_by_the_model(size: tuple[int, int, int], by_columns: bool) -> None:
    from cuda_products.tiles import chosen, cycles, tiles

    found = chosen(*size, by_columns=by_columns, count=3)
    assert cycles(found[0], *size) == min(cycles(tile, *size) for tile in tiles(by_columns=by_columns))
    assert len(found) == 3 and found == chosen(*size, by_columns=by_columns, count=3)
    assert all((tile.left_by_lines or tile.right_by_columns) == by_columns for tile in found)


def test_rounds_of_tiles_decide() -> None:
    """Of 5,000 rows by 2,048 columns: tiles of 128 x 256 take three rounds of 132 multiprocessors, and others two."""
    from cuda_products.tiles import MULTIPROCESSORS, chosen

    (tile,) = chosen(5000, 2048, 2048, by_columns=False)
    height, width = (tile.width, tile.height) if tile.transposed else (tile.height, tile.width)
    count = -(-5000 // height) * -(-2048 // width)
    assert count <= 2 * MULTIPROCESSORS and count * height * width < 1.3 * 5000 * 2048


def test_the_source_names_every_number_that_it_uses() -> None:
    from cuda_products.source import BODY, source
    from cuda_products.tiles import chosen

    (tile,) = chosen(333, 6144, 4096, by_columns=True)
    text = source(tile, "float16")
    used = set(re.findall(r"\b[A-Z][A-Z_]{3,}\b", re.sub(r"//.*", "", BODY))) - {"AGAIN", "DONE"}
    made_there = set(re.findall(r"constexpr int ([A-Z_]+)", BODY))
    defined = set(re.findall(r"#define ([A-Z_0-9]+)", text))
    assert used - made_there - defined == set() and len(defined) == 12
    assert f"m64n{tile.width}k16.f32.f16.f16" in text and "bf16" not in text.partition("// A product")[0]


@pytest.mark.parametrize("by_columns", [False, True])
def test_a_launch_is_what_its_tile_says(monkeypatch: pytest.MonkeyPatch, by_columns: bool) -> None:
    """On a driver that writes down what it is given: boxes of both operands, programs, threads, memory."""
    from cuda_products.launching import Products
    from cuda_products.tiles import MULTIPROCESSORS, tiles

    boxes, launches = list[tuple[int, ...]](), list[tuple[int, ...]]()

    def described(*given: Any) -> int:
        boxes.append((*given[4], *given[6]))
        return 0

    def launched(launch: Any, *_: object) -> int:
        made = launch._obj
        launches.append((made.grid_x, made.block_x, made.shared_bytes, made.attribute_count))
        return 0

    products = object.__new__(Products)
    products._driver = SimpleNamespace(cuTensorMapEncodeTiled=described, cuLaunchKernelEx=launched)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    m, n, k = 100, 640, 192
    a, out = torch.zeros(m, k, dtype=torch.bfloat16), torch.zeros(m, n, dtype=torch.bfloat16)
    b = torch.zeros(k, n, dtype=torch.bfloat16) if by_columns else torch.zeros(n, k, dtype=torch.bfloat16).T
    for tile in tiles(by_columns=by_columns):
        products._functions = {(tile, "bfloat16"): ctypes.c_void_p(1)}
        products.launch(tile, a, b, out)()
        together = 2 if tile.pair else 1
        lines, columns = (n, m) if tile.transposed else (m, n)
        left = (lines, k, 64, 64) if tile.left_by_lines else (k, lines, 64, tile.height)
        right = (columns, k, 64, 64) if tile.right_by_columns else (k, columns, 64, tile.width // together)
        assert boxes[-2:] == [left, right], tile
        count = -(-lines // (tile.height * together)) * -(-columns // tile.width)
        programs = min(count, MULTIPROCESSORS // together) * together
        assert launches[-1] == (programs, 128 * (tile.groups + 1), tile.shared_bytes, int(tile.pair)), tile
    with pytest.raises(ValueError, match="allowed: 1 along its"):
        products.launch(tile, a.T.contiguous().T, b, out)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc, CUDA's compiler, and none is found")
@pytest.mark.parametrize("size", SIZES)
def test_kernels_compile_and_spill_next_to_nothing(size: tuple[int, int, int], tmp_path: Path) -> None:
    """A few registers that only tiles' borders need may lie in memory; no product waits for the one before."""
    from cuda_products.launching import compiled
    from cuda_products.tiles import chosen

    for by_columns in (False, True):
        _, said = compiled(chosen(*size, by_columns=by_columns)[0], "bfloat16", tmp_path)
        assert "erializ" not in said
        assert int(re.findall(r"(\d+) bytes spill loads", said)[0]) <= 96


def test_without_a_gpu_nothing_is_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import gpu_cuda_products as script

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_cuda_products.py", "--output", str(tmp_path / "record.json")])
    assert script.main() == 3 and not list(tmp_path.iterdir())
    assert "could not be judged" in capsys.readouterr().out
