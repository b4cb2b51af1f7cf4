"""The whole path of a call, Python's and that in C++, on a machine without a GPU: a stub in the driver's place.

CPU tensors stand for a GPU's. Triton compiles its kernels for Hopper, and its own launcher in C is built against the
stub, so what it hands to the driver is what it would hand to the real one. Nothing is launched: results hold whatever
their memory held."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.runtime.build import compile_module_from_src

from samebits.ops import arguments, backends
from samebits.ops._triton import device, launch
from samebits.ops.contracts.host_launch import building
from samebits.ops.contracts.host_launch.attaching import attach, calls_of
from samebits.ops.matmul import triton_again

DEVICE: Final = -1
"""What a CPU tensor says its device's number is."""
BYTES: Final = {"i32": 4, "i64": 8, "fp32": 4, "nvTmaDesc": 128}
ENCODED: Final = ("address", "type", "rank", "columns", "rows", "stride", "box_columns", "box_rows", "element_columns")
MORE_ENCODED: Final = ("element_rows", "interleave", "swizzle", "promotion", "fill")


class Launch(ctypes.Structure):
    """As stub_driver.cpp records it."""

    _fields_ = (
        ("grid", ctypes.c_uint64 * 3),
        ("block", ctypes.c_uint64 * 3),
        ("shared", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("function", ctypes.c_uint64),
        ("attributes", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("parameters", (ctypes.c_ubyte * 128) * 32),
    )


@dataclass
class Stub:
    """The module in C++, attached; the stub's library; and the stream that is current."""

    module: Any
    library: Any
    stream: int = 77

    def calls_of(self, function: Callable[..., Any]) -> Any:
        return calls_of(self.module, function)

    def launches(self) -> int:
        return int(self.library.stub_launches())

    def recorded(self, names: Mapping[int, str]) -> dict[str, Any]:
        """The last launch in words, with names for addresses; new memory that no result is has no name."""
        last = Launch.from_address(self.library.stub_last())
        heads = {name: getattr(last, name) for name, _ in Launch._fields_ if name not in ("parameters", "count")}
        kinds = parameter_kinds(compiled_as(last.function))[: last.count]
        values = [
            in_words(bytes(each)[:size], names, of_memory)
            for each, (size, of_memory) in zip(last.parameters, kinds, strict=False)
        ]
        return {name: list(each) if name in ("grid", "block") else each for name, each in heads.items()} | {
            "parameters": values
        }

    def expect_last(self) -> None:
        """Tell the stub what a driver knows of the kernel launched last: how many bytes each parameter has."""
        function = Launch.from_address(self.library.stub_last()).function
        sizes = [size for size, _ in parameter_kinds(compiled_as(function))]
        count = ctypes.c_uint64(len(sizes))
        self.library.stub_sizes(ctypes.c_uint64(function), count, (ctypes.c_uint64 * len(sizes))(*sizes))


def compiled_as(function: int) -> dict[str, str]:
    """The signature of the kernel that has this handle."""
    kernels = (each._compiled for each in launch._compiled.values())
    return next(each.src.signature for each in kernels if each.function == function)


def parameter_kinds(signature: dict[str, str]) -> list[tuple[int, bool]]:
    """Bytes of each parameter as Triton's generated launcher declares them, scratch memory's two addresses last, and
    whether it is an address."""
    kinds: list[tuple[int, bool]] = []
    for kind in signature.values():
        if kind.startswith("tensordesc"):
            kinds += [(each, False) for each in (128, 4, 4, 8, 8)]
        elif kind != "constexpr":
            kinds.append((8, True) if kind.startswith("*") else (BYTES[kind], False))
    return [*kinds, (8, False), (8, False)]


def in_words(value: bytes, names: Mapping[int, str], of_memory: bool) -> Any:
    if len(value) < 128:
        number = int.from_bytes(value, "little")
        return names.get(number, "memory without a name") if of_memory and number else number
    facts = [int.from_bytes(value[place : place + 8], "little") for place in range(0, 8 * 14, 8)]
    found = dict(zip((*ENCODED, *MORE_ENCODED), facts, strict=True))
    return found | {"address": names.get(found["address"], "memory without a name")}


@contextmanager
def standing_in() -> Iterator[Stub]:
    """Within, CPU tensors are a GPU's to Python's path, and to the module in C++; everything is put back after."""
    path = building.stub_driver()
    library = ctypes.CDLL(str(path))
    library.stub_last.restype = ctypes.c_void_p
    stub = Stub(building.module(stand_in=True), library)
    stub.module.use_driver(*addresses(library))

    def stream(_: int) -> int:
        return stub.stream

    with (
        patch.object(nvidia, "PyCUtensorMap", None),
        patch.object(launch, "_compiled", {}),
        patch.object(launch, "_kernels", {}),
    ):
        active = triton.runtime.driver._active
        triton.runtime.driver.set_active(driver(path, stream))
        try:
            with pretending(path, stream):
                attach(stub.module, stream)
                yield stub
        finally:
            triton.runtime.driver._active = active
            for kernel in launch._kernels.values():
                kernel.device_caches.pop(DEVICE, None)
            backends.kernel_module.cache_clear()
            device.multiprocessors.cache_clear()
            stub.module.plant()


@contextmanager
def pretending(path: Path, stream: Any) -> Iterator[None]:
    """What Python's path asks about a GPU."""
    backends.kernel_module.cache_clear()
    with (
        patch.dict(arguments.BACKEND_OF_DEVICE, {"cpu": "triton"}),
        patch.object(device, "missing", lambda device: None),
        patch.object(torch.cuda, "get_device_properties", lambda device: Properties()),
        patch.object(torch.cuda, "device", lambda device: nullcontext()),
        patch.object(triton_again, "_known", {}),
        patch.object(launch, "_launches", Counter()),
        patch.object(torch.cuda, "current_device", lambda: DEVICE),
        patch.object(torch.cuda, "is_current_stream_capturing", lambda: False),
        patch.object(torch._C, "_cuda_getCurrentRawStream", stream, create=True),
        patch.object(
            nvidia, "compile_module_from_src", lambda **options: against(path, options["src"], options["name"])
        ),
        patch.object(nvidia, "library_dirs", list),
    ):
        yield


def addresses(library: Any) -> list[int]:
    functions = ("cuTensorMapEncodeTiled", "cuLaunchKernelEx", "cuCtxGetCurrent", "cuGetErrorString")
    return [int(ctypes.cast(getattr(library, each), ctypes.c_void_p).value or 0) for each in functions]


def against(path: Path, source: str, name: str) -> Any:
    """Triton's C code, with the stub where it would open the driver."""
    return compile_module_from_src(
        src=source.replace('"libcuda.so.1"', f'"{path}"'),
        name=name,
        library_dirs=[str(path.parent)],
        include_dirs=nvidia.include_dirs,
        libraries=[path.name],
        ccflags=[f"-Wl,-rpath,{path.parent}"],
    )


@dataclass(frozen=True, slots=True)
class Properties:
    """Of the GPU that is pretended."""

    multi_processor_count: int = 132


class StubDriver:
    """What Triton asks of its driver, for one Hopper GPU."""

    def __init__(self, utilities: Any, stream: Any) -> None:
        self.utils, self.get_current_stream, self.launcher_cls = utilities, stream, nvidia.CudaLauncher

    def get_current_device(self) -> int:
        return DEVICE

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def driver(path: Path, stream: Any) -> StubDriver:
    utilities = against(path, Path(nvidia.dirname, "driver.c").read_text(), "cuda_utils")
    nvidia.PyCUtensorMap = utilities.PyCUtensorMap
    return StubDriver(utilities, stream)
