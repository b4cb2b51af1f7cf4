"""Builds the native library: where it is loaded from, or anywhere else."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from samebits import native
from samebits.native.sources import PACKAGE


def compiled(folder: Path, *options: str) -> Path:
    """Configure with CMake's `options`, compile in `folder`. Raises where CMake, Ninja or a compiler is missing."""
    project = PACKAGE.parent.parent
    subprocess.run(
        [
            "cmake",
            "-S",
            str(project),
            "-B",
            str(folder),
            "-G",
            "Ninja",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DSAMEBITS_OUTPUT={folder}/out",
            *options,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(["cmake", "--build", str(folder)], check=True)
    return folder / "out" / "libsamebits.so"


def loaded_from() -> Path:
    """The folder of the library that is loaded. An editable install keeps it apart from its sources, and one beside
    those would not be looked at. Where there is none yet: beside the sources."""
    folders = [Path(each) for each in native.__path__ if (Path(each) / native.LIBRARY_NAME).exists()]
    return folders[0] if folders else PACKAGE / "native"


def build(destination: Path | None = None) -> Path:
    """Compile and put the library into a folder; without one, where it is loaded from."""
    destination = destination or loaded_from()
    with tempfile.TemporaryDirectory(prefix="samebits-build-") as folder:
        built = compiled(Path(folder))
        # Rename within one folder is atomic: a process that loads the library meanwhile sees the old or the new one.
        fresh = destination / ".libsamebits.so.new"
        fresh.write_bytes(built.read_bytes())
        fresh.replace(destination / built.name)
    return destination / built.name


if __name__ == "__main__":
    print(build())
