"""Compiles a tile's kernel by nvcc, loads it and launches it through the CUDA driver.

Knows no sizes but those it is given; the caller compares bits."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from cuda_products.source import source
from cuda_products.tiles import MULTIPROCESSORS, Tile

NVCC: Final = ("nvcc", "-O3", "-std=c++17", "-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v")
# Of the driver's interface.
_BFLOAT16, _FLOAT16, _SWIZZLE_128, _PROMOTE_128 = 9, 6, 3, 2
_SHARED_BYTES, _CLUSTER = 8, 4


def compiled(tile: Tile, dtype: str, folder: Path) -> tuple[Path, str]:
    """The kernel's machine code, and what the assembler said of registers and spills."""
    name = f"{tile} {dtype}".replace(" ", "_")
    text, machine_code, said = (folder / f"{name}.{kind}" for kind in ("cu", "cubin", "txt"))
    if not machine_code.exists():
        text.write_text(source(tile, dtype))
        done = subprocess.run([*NVCC, "-o", machine_code, text], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{tile}: nvcc: {done.stderr.strip()[-400:]}")
        said.write_text(done.stderr)
    return machine_code, said.read_text()


def compile_all(tiles: Iterable[Tile], dtype: str, folder: Path) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda tile: compiled(tile, dtype, folder), tiles))


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint),
        ("unused", ctypes.c_char * 4),
        *((axis, ctypes.c_uint) for axis in "xyz"),
        ("rest", ctypes.c_char * 52),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        *((f"{what}_{axis}", ctypes.c_uint) for what in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class Products:
    """Kernels of the current device."""

    def __init__(self, folder: Path) -> None:
        torch.cuda.init()
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._folder = folder
        self._functions: dict[tuple[Tile, str], ctypes.c_void_p] = {}

    def launch(self, tile: Tile, a: Tensor, b: Tensor, out: Tensor) -> Callable[[], None]:
        """What computes out = a b on the current stream: a and out in rows, b in rows or in columns."""
        dtype = str(out.dtype).removeprefix("torch.")
        function = self._function(tile, dtype)
        left, right = (b.T, a.T) if tile.transposed else (a, b)
        (lines, k), columns = left.shape, right.shape[1]
        maps = (
            self._map(left, lines, k, by_lines=tile.left_by_lines, box=tile.height),
            self._map(right.T, columns, k, by_lines=tile.right_by_columns, box=tile.width // (2 if tile.pair else 1)),
        )
        numbers = [ctypes.c_void_p(out.data_ptr()), *map(ctypes.c_int, (lines, columns, k, out.stride(0)))]
        addresses = [address for _, address in maps] + [ctypes.addressof(each) for each in numbers]
        arguments = (ctypes.c_void_p * len(addresses))(*addresses)
        together = 2 if tile.pair else 1
        tiles = -(-lines // (tile.height * together)) * -(-columns // tile.width)
        cluster = _Attribute(_CLUSTER, b"", together, 1, 1, b"")
        grid = min(tiles, MULTIPROCESSORS // together) * together
        block = 128 * (tile.groups + 1)
        made = _Launch(grid, 1, 1, block, 1, 1, tile.shared_bytes, None, ctypes.addressof(cluster), int(tile.pair))
        # What the driver is told of is addresses: it is kept for as long as the launch can be made.
        return partial(self._run, made, function, arguments, tile, (maps, numbers, cluster, a, b, out))

    def _run(self, made: _Launch, function: ctypes.c_void_p, arguments: Any, tile: Tile, kept: tuple[Any, ...]) -> None:
        made.stream = torch.cuda.current_stream().cuda_stream
        self._done(self._driver.cuLaunchKernelEx(ctypes.byref(made), function, arguments, None), f"launch {tile}")

    def _function(self, tile: Tile, dtype: str) -> ctypes.c_void_p:
        if (tile, dtype) not in self._functions:
            path, _ = compiled(tile, dtype, self._folder)
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            self._done(self._driver.cuModuleLoadData(ctypes.byref(module), path.read_bytes()), f"load {tile}")
            self._done(self._driver.cuModuleGetFunction(ctypes.byref(function), module, b"product"), f"find {tile}")
            self._done(self._driver.cuFuncSetAttribute(function, _SHARED_BYTES, tile.shared_bytes), f"memory of {tile}")
            self._functions[tile, dtype] = function
        return self._functions[tile, dtype]

    def _map(self, x: Tensor, lines: int, k: int, *, by_lines: bool, box: int) -> tuple[Any, int]:
        """How x, lines by k, is cut for the tensor memory accelerator: 64 deep, by 64 lines or by `box` of them."""
        sizes = (lines, k) if by_lines else (k, lines)
        if x.stride(0 if by_lines else 1) != 1:
            raise ValueError(
                f"products: an operand of strides {x.stride()}; allowed: 1 along its {'lines' * by_lines or 'k'}"
            )
        memory = (ctypes.c_char * 192)()
        address = (ctypes.addressof(memory) + 63) & ~63
        wanted = self._driver.cuTensorMapEncodeTiled(
            ctypes.c_void_p(address),
            _BFLOAT16 if x.dtype == torch.bfloat16 else _FLOAT16,
            2,
            ctypes.c_void_p(x.data_ptr()),
            (ctypes.c_uint64 * 2)(*sizes),
            (ctypes.c_uint64 * 1)(x.stride(1 if by_lines else 0) * x.itemsize),
            (ctypes.c_uint32 * 2)(64, 64 if by_lines else box),
            (ctypes.c_uint32 * 2)(1, 1),
            0,
            _SWIZZLE_128,
            _PROMOTE_128,
            0,
        )
        self._done(wanted, f"map of {tuple(x.shape)}")
        return memory, address

    def _done(self, code: int, what: str) -> None:
        if code:
            raise RuntimeError(f"products: {what}: the driver's error {code}")
