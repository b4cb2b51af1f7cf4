"""A digest of what a file says: comments, docstrings and layout do not matter, all else does, on every Python alike."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest

from samebits.checker.environment import architecture
from samebits.contracts.cpp_text import NEVER_DEFINED, cpp_text
from samebits.contracts.source_text import source_text
from samebits.native.sources import BIT_FLAGS, INSTRUCTION_SETS, PACKAGE

PYTHON = '''"""Words."""
import numpy as np
from .near import thing


class Kernel:
    """More words."""

    width: int = 4
    """And more."""

    def run(self, x: float) -> str:
        # why
        return f"{x:<{self.width}} # kept" + "text"
'''
# Written anew on purpose when the digest's form changes: receipts of every Python version rest on it.
DIGEST = "f6376d17d9004759405eea9bf12703fff9b0384da4022ce24db471ed691b776e"


def digest(folder: Path, text: str, name: str = "a.py") -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return source_text(folder / name).digest


def test_every_python_gives_this_digest(tmp_path: Path) -> None:
    assert digest(tmp_path, PYTHON) == DIGEST
    assert source_text(tmp_path / "a.py").names == ("numpy", ".near:thing")


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("Words.", "Other words.", True),
        ("And more.", "And less.", True),
        ("        # why\n", "", True),
        ("(self, x: float)", "(\n        self,\n        x: float,\n    )", True),
        ("# kept", "# gone", False),
        ("width: int = 4", "width: int = 5", False),
        ("width: int = 4", "width: int = 4.0", False),
        ('+ "text"', '+ "texts"', False),
        ("import numpy as np", "import numpy", False),
    ],
)
def test_what_matters_in_python(tmp_path: Path, old: str, new: str, same: bool) -> None:
    assert old in PYTHON
    assert (digest(tmp_path / "b", PYTHON.replace(old, new)) == DIGEST) is same


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("int a = 1;  // one\nint b;", "int a = 1;\n/* two\n lines */ int b;", True),
        ("#define A 1\nint b;", "#define A 1 int b;", False),
        ("#define A \\\n 1\nint b;", "#define A 1\nint b;", True),
        ('auto s = "// kept";', 'auto s = "// gone";', False),
        ("char q = '\"'; // x", "char q = '\"'; // y", True),
        ("a = b / c;", "a = b * c;", False),
        ('auto r = R"(// a " b)"; // x', 'auto r = R"(// a " c)";', False),
    ],
)
def test_what_matters_in_cpp(one: str, other: str, same: bool) -> None:
    assert (cpp_text(one).split() == cpp_text(other).split() and cpp_text(one) == cpp_text(other)) is same


NEON, AVX, ELSE = "#if defined(SAMEBITS_NEON)", "#elif defined(__AVX2__)", "#else"


@pytest.mark.parametrize(
    ("written", "x86", "aarch64"),
    [
        (f"a\n{NEON}\nb\n#endif\nc", "a c", f"a\n{NEON}\nb\n#endif\nc"),
        (f"{NEON}\nb\n{ELSE}\nc\n#endif", "c", f"{NEON}\nb\n{ELSE}\nc\n#endif"),
        (
            f"{NEON}\nb\n{AVX}\nc\n{ELSE}\nd\n#endif",
            "#if defined(__AVX2__)\nc\n#else\nd\n#endif",
            f"{NEON}\nb\n#else\nd\n#endif",
        ),
        ("#if !defined(__AVX512F__)\na\n#else\nb\n#endif", "#if !defined(__AVX512F__)\na\n#else\nb\n#endif", "a"),
        ("#ifdef __aarch64__\na\n#endif\nb", "b", "#ifdef __aarch64__\na\n#endif\nb"),
        ("#ifndef __x86_64__\na\n#endif\nb", "#ifndef __x86_64__\na\n#endif\nb", "a b"),
        # What is nested in a branch goes with it, whatever its own condition.
        (
            f"{NEON}\n#if defined(X)\na\n#endif\n#define Y\n#endif\nb",
            "b",
            f"{NEON}\n#if defined(X)\na\n#endif\n#define Y\n#endif\nb",
        ),
        (
            f"#if defined(X)\n{NEON}\na\n#endif\n#endif",
            "#if defined(X)\n#endif",
            f"#if defined(X)\n{NEON}\na\n#endif\n#endif",
        ),
        # A condition of more than one name is not looked into.
        (
            "#if defined(SAMEBITS_NEON) || X\na\n#endif",
            "#if defined(SAMEBITS_NEON) || X\na\n#endif",
            "#if defined(SAMEBITS_NEON) || X\na\n#endif",
        ),
    ],
)
def test_what_an_architecture_compiles(written: str, x86: str, aarch64: str) -> None:
    assert cpp_text(written, "x86-64") == cpp_text(x86)
    assert cpp_text(written, "aarch64") == cpp_text(aarch64)
    assert cpp_text(written, "riscv64") == cpp_text(written)


def test_includes_for_another_architecture_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text(f'{NEON}\n#include "neon.h"\n{ELSE}\n#include "plain.h"\n#endif\n')
    assert source_text(tmp_path / "a.h").names == ("neon.h", "plain.h")
    assert source_text(tmp_path / "a.h", "aarch64").names == ("neon.h", "plain.h")
    assert source_text(tmp_path / "a.h", "x86-64").names == ("plain.h",)


@pytest.mark.parametrize("flags", INSTRUCTION_SETS[platform.machine()].values(), ids=" ".join)
def test_the_compiler_here_defines_none_of_them(flags: tuple[str, ...]) -> None:
    """Under the flags of every instruction set; the other architecture's are among them for the other architecture."""
    listed = subprocess.run(
        ["c++", "-dM", "-E", "-x", "c++", "/dev/null", *BIT_FLAGS, *flags], capture_output=True, text=True, check=True
    )
    defined = {line.split()[1] for line in listed.stdout.splitlines()}
    assert len(defined) > 100 and not defined & NEVER_DEFINED[architecture()]


def test_no_source_defines_one_of_them_itself() -> None:
    """Else what it guards would be compiled, and no receipt would notice a change in it."""
    files = [file for suffix in ("*.h", "*.cpp") for file in PACKAGE.rglob(suffix)]
    defined = {name for file in files for name in re.findall(r"#\s*(?:define|undef)\s+(\w+)", file.read_text())}
    assert "SAMEBITS_EXPORT" in defined and not defined & frozenset().union(*NEVER_DEFINED.values())
