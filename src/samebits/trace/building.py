"""Builds recorder.c with Python's own headers when somebody first records, and keeps what was built.

Kept by all that it was built from: sources, Python, command. So a checkout, an install and a wheel are the same,
whatever was built before; it takes a second, once."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from functools import cache
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any, Final

import torch

SOURCES: Final = tuple(sorted(Path(__file__).parent.glob("recorder*.[ch]")))
OPTIONS: Final = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")


@cache
def recorder() -> Any:
    """The module, loaded. It knows what a tensor is."""
    name = "samebits.trace.recorder"
    spec = importlib.util.spec_from_loader(name, ExtensionFileLoader(name, str(built())))
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    found.look_at(torch.Tensor)
    return found


def built() -> Path:
    """The compiled module, from the cache where these very files were compiled before."""
    headers = sysconfig.get_paths()["include"]
    command = [*compiler(), *OPTIONS, f"-isystem{headers}"]
    digest = hashlib.sha256(repr((sysconfig.get_config_var("SOABI"), command)).encode())
    for each in SOURCES:
        digest.update(each.read_bytes())
    made = cache_folder() / f"recorder-{digest.hexdigest()[:16]}.so"
    if made.is_file():
        return made
    if problem := lacks():
        raise RuntimeError(f"trace: what records is compiled when it is first needed, and there is {problem}")
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        half = Path(folder) / made.name
        source = next(each for each in SOURCES if each.suffix == ".c")
        done = subprocess.run([*command, str(source), "-o", str(half)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"trace: {command[0]} cannot compile {source.name}:\n{done.stderr[:4000]}")
        half.replace(made)  # whole or not there, whoever else compiles it now
    return made


def lacks() -> str:
    """What compiling needs and this machine has not, or ""."""
    headers = sysconfig.get_paths()["include"]
    if shutil.which(compiler()[0]) is None:
        return f"no compiler {compiler()[0]!r}; CC names another"
    return "" if (Path(headers) / "Python.h").is_file() else f"no Python.h in {headers}"


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "cc"))


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "samebits" / "trace"
