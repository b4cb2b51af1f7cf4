"""Builds the native library in place, for a source tree that is used without being installed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from samebits.native.sources import PACKAGE


def build(destination: Path = PACKAGE / "native") -> Path:
    """Configure, compile and put the library beside its sources. Raises where CMake, Ninja or a compiler is missing."""
    project = PACKAGE.parent.parent
    with tempfile.TemporaryDirectory(prefix="samebits-build-") as folder:
        subprocess.run(
            ["cmake", "-S", str(project), "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
             f"-DPython_EXECUTABLE={sys.executable}", f"-DSAMEBITS_OUTPUT={folder}/out"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        subprocess.run(["cmake", "--build", folder], check=True)
        built = Path(folder) / "out" / "libsamebits.so"
        # Rename within one folder is atomic: a process that loads the library meanwhile sees the old or the new one.
        fresh = destination / ".libsamebits.so.new"
        fresh.write_bytes(built.read_bytes())
        fresh.replace(destination / built.name)
    return destination / built.name


if __name__ == "__main__":
    print(build())
