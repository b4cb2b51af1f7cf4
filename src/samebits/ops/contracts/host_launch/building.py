"""Builds host_launch.cpp with torch's own headers when it is first needed, and the stub of a driver for checks.

What was built is kept by all that it was built from: sources, torch, Python, options. The check's build takes CPU
tensors and a table of functions in the driver's place; the real one can do neither."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from samebits.ops.contracts.host_launch import FOLDER

NAME: Final = "samebits_host_launch"
MODULE: Final = "host_launch.cpp"
STUB: Final = "stub_driver.cpp"
STAND_IN: Final = "-DSTAND_IN"


def module(stand_in: bool = False) -> Any:
    """The module, loaded; `stand_in`: the check's build."""
    headers, libraries = (Path(torch.__file__).parent / each for each in ("include", "lib"))
    options = [
        *(f"-isystem{each}" for each in (headers, headers / "torch/csrc/api/include", python_headers())),
        f"-isystem{driver_headers()}",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        *([STAND_IN] if stand_in else []),
        *(f"-L{libraries}", "-ltorch_python", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{libraries}"),
    ]
    return loaded(built(MODULE, options))


def stub_driver() -> Path:
    """The library that records what it is asked for."""
    return built(STUB, [f"-isystem{driver_headers()}"])


def python_headers() -> str:
    return sysconfig.get_paths()["include"]


def driver_headers() -> Path:
    """Triton brings cuda.h along."""
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None:
        raise RuntimeError("host_launch needs the package triton for cuda.h, and it is not installed")
    return Path(found.origin).parent / "backends" / "nvidia" / "include"


def compiler() -> str:
    return os.environ.get("CXX", "g++")


def lacks() -> str:
    """What the real build needs and this machine has not, or ""."""
    if shutil.which(compiler()) is None:
        return f"no compiler {compiler()!r}; CXX names another"
    if not (Path(python_headers()) / "Python.h").is_file():
        return f"no Python.h in {python_headers()}"
    try:
        return "" if (driver_headers() / "cuda.h").is_file() else f"no cuda.h in {driver_headers()}"
    except RuntimeError as error:
        return str(error)


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "samebits" / "host_launch"


def built(source: str, options: Sequence[str]) -> Path:
    """The shared library made of a source here, from the cache where these very files were built before."""
    command = [compiler(), "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall"]
    digest = hashlib.sha256(repr((torch.__version__, sysconfig.get_config_var("SOABI"), command, *options)).encode())
    for each in sorted([FOLDER / source, *(FOLDER.glob("*.hpp") if source == MODULE else ())]):
        digest.update(each.read_bytes())
    made = cache_folder() / f"{Path(source).stem}-{torch.__version__}-{digest.hexdigest()[:16]}.so"
    if made.is_file():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        half = Path(folder) / made.name
        done = subprocess.run(
            [*command, str(FOLDER / source), "-o", str(half), *options], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"host_launch: {command[0]} cannot build {source}:\n{done.stderr[:4000]}")
        half.replace(made)  # whole or not there, whoever else builds it now
    return made


def loaded(library: Path) -> ModuleType:
    loader = ExtensionFileLoader(NAME, str(library))
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    found = importlib.util.module_from_spec(spec)
    loader.exec_module(found)
    return found
