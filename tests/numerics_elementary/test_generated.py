"""The committed C++ header and Triton module are what the generator prints, and the quoted coefficients are fits."""

import ast
import subprocess
import sys

import pytest

from samebits.numerics.elementary import FUNCTIONS, circular, emit_triton, fit, functions
from samebits.numerics.elementary.fit import FITS
from samebits.numerics.elementary.functions import PROGRAMS
from samebits.numerics.elementary.generate import generated_files


@pytest.mark.parametrize("path", generated_files(), ids=lambda path: path.name)
def test_generated_files_are_up_to_date(path) -> None:  # type: ignore[no-untyped-def]
    assert path.read_text() == generated_files()[path], f"{path}: run `python -m samebits.numerics.elementary.generate`"


def test_a_changed_definition_changes_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: exp printed under the name of log."""
    before = generated_files()
    monkeypatch.setitem(PROGRAMS, "log", PROGRAMS["exp"])
    assert all(before[path] != text for path, text in generated_files().items())


def test_triton_module_defines_every_function() -> None:
    text = emit_triton.emit([*PROGRAMS.values()], [functions.PHILOX])
    defined = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    assert defined == {*FUNCTIONS, "apply", "philox"}


def test_importing_the_spec_loads_no_triton_and_no_torch() -> None:
    code = (
        "import sys, samebits.numerics.elementary; "
        "print([name for name in ('torch', 'triton') if name in sys.modules], "
        "'samebits.numerics.elementary.triton_generated' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "[] False\n"


# Largest error of each polynomial, as printed by fit.py, in the unit of its weight: a few hundredths of an ulp (2^-24).
# POWER's is divided by eight and more, for it is subtracted from 1.
FIT_ERROR = {
    "EXP": 3.2e-9,
    "EXP2": 3.2e-9,
    "LOG": 7.8e-10,
    "SIN": 1.7e-10,
    "COS": 1.1e-10,
    "TANH": 4.8e-9,
    "ERF": 4.5e-9,
    "LOG2_ERFC": 1.0e-9,
    "POWER": 1.2e-7,
}


@pytest.mark.parametrize("name", FITS)
def test_quoted_coefficients_are_as_good_as_the_fit(name: str) -> None:
    quoted = getattr(circular if name in ("SIN", "COS") else functions, name)
    assert len(quoted) == FITS[name].degree + 1
    assert FITS[name].error(quoted) <= FIT_ERROR[name]
    off = (quoted[0] * (1 + 2**-20), *quoted[1:])
    assert FITS[name].error(off) > FIT_ERROR[name], "planted fault: sixteen ulps off the first coefficient"


@pytest.mark.parametrize("name", ["ERF_SPLIT", "ERF_MIDDLE", "ERFC_CENTRE"])
def test_both_files_use_one_centre(name: str) -> None:
    assert getattr(fit, name) == getattr(functions, name)
