"""The one shared C++ library: finding it, choosing the instruction set, calling it, and turning its errors into ours.

Knows no operator. A kernel is a C function `samebits_<name>_<instruction set>`; its last argument is the threads."""

from __future__ import annotations

import ctypes
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

from samebits.native.sources import build_digest as digest_of_build
from samebits.native.sources import source_digest

LIBRARY_NAME = "libsamebits.so"
BUILD_COMMAND = "python -m samebits.native.build"


class NativeError(RuntimeError):
    """The library is missing, stale, or refused a call."""


def _library_path() -> Path:
    candidates = [Path(folder) / LIBRARY_NAME for folder in __path__]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise NativeError(f"{LIBRARY_NAME} is not built: looked in {[str(c) for c in candidates]}; run `{BUILD_COMMAND}`")


@cache
def library() -> ctypes.CDLL:
    """The loaded library. One built from other sources than those lying beside it is refused."""
    path = _library_path()
    loaded = ctypes.CDLL(str(path))
    # First: an older library may lack what is asked of it below.
    loaded.samebits_source_digest.restype = ctypes.c_char_p
    built_from = loaded.samebits_source_digest().decode()
    present = source_digest()
    if present is not None and present != built_from:
        raise NativeError(
            f"{path} is stale: built from {built_from[:12]}, sources are {present[:12]}; rebuild with `{BUILD_COMMAND}`"
        )
    for name in ("last_error", "build_digest", "compiler", "instruction_sets"):
        getattr(loaded, f"samebits_{name}").restype = ctypes.c_char_p
    return loaded


@cache
def instruction_sets() -> tuple[str, ...]:
    """What this CPU can run, widest last."""
    text: bytes = library().samebits_instruction_sets()
    return tuple(text.decode().split())


@cache
def compiler() -> str:
    """The compiler and the flags that decide bits."""
    text: bytes = library().samebits_compiler()
    return text.decode()


def build_digest() -> str:
    """SHA-256 of the flags and the CMakeLists.txt that lie here, or of those that the library was built with."""
    built: bytes = library().samebits_build_digest()
    return digest_of_build() or built.decode()


def library_digests() -> tuple[str, str]:
    """SHA-256 of the sources that the library was built from, and of the library itself, which compilers decide too."""
    sources: bytes = library().samebits_source_digest()
    return sources.decode(), hashlib.sha256(_library_path().read_bytes()).hexdigest()


def default_threads() -> int:
    """As many threads as this process may use cores. Speed only."""
    return len(os.sched_getaffinity(0))


# A letter an argument. Declared once, so that a call passes plain numbers: a third of the time of wrapping each.
TYPES: dict[str, Any] = {
    "i": ctypes.c_int32,
    "u": ctypes.c_uint32,
    "q": ctypes.c_int64,
    "Q": ctypes.c_uint64,
    "f": ctypes.c_float,
    "p": ctypes.c_void_p,
}


@cache
def function(name: str, signature: str, instruction_set: str | None = None) -> Any:
    """The kernel as a function of plain numbers, the last of them the threads; what it returns is for `check`."""
    available = instruction_sets()
    if instruction_set is not None and instruction_set not in available:
        raise ValueError(
            f"{name}: instruction_set={instruction_set!r} cannot run on this CPU; allowed: {', '.join(available)}"
        )
    # A function object of its own: attributes of the library are shared by all who ask for them.
    prototype = ctypes.CFUNCTYPE(ctypes.c_int32, *(TYPES[letter] for letter in signature), ctypes.c_int32)
    return prototype((f"samebits_{name}_{instruction_set or available[-1]}", library()))


def call(
    name: str, signature: str, *arguments: Any, threads: int | None = None, instruction_set: str | None = None
) -> None:
    """Run kernel `name`; pointers go as integers. Threads and instruction set decide speed, never bits."""
    threads = default_threads() if threads is None else threads
    check(name, function(name, signature, instruction_set)(*arguments, threads))


def check(name: str, status: int) -> None:
    """Raise what the library says where a kernel returned anything but 0."""
    if status != 0:
        raise NativeError(f"{name}: {library().samebits_last_error().decode()}")
