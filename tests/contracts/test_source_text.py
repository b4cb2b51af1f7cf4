"""A digest of what a file says: comments, docstrings and layout do not matter, all else does, on every Python alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from samebits.contracts.source_text import cpp_text, source_text

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
