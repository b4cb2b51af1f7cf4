"""Writes the C++ header and the Triton module of the elementary functions from their one definition.

    python -m samebits.numerics.elementary.generate

Knows where the files lie; a test compares them with what this prints."""

from __future__ import annotations

from pathlib import Path

from samebits.numerics.elementary import emit_cpp, emit_triton
from samebits.numerics.elementary.functions import PHILOX, PROGRAMS

HERE = Path(__file__).parent


def generated_files() -> dict[Path, str]:
    """Each generated file and the text it must have."""
    functions, words = [*PROGRAMS.values()], [PHILOX]
    return {
        HERE / "generated.h": emit_cpp.emit(functions, words),
        HERE / "triton_generated.py": emit_triton.emit(functions, words),
    }


if __name__ == "__main__":
    for path, text in generated_files().items():
        path.write_text(text)
        print(f"{path.name}: {len(text.splitlines())} lines")
