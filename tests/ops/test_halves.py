"""Functions of numbers that 16 bits hold, and the kernels made of them: every such number, by Triton's interpreter.

On a GPU benchmarks/gpu_rows.py compares them again, and times the kernels."""

from __future__ import annotations

from tests.ops.interpreting import interpreted


def test_every_16_bit_number_has_the_bits_of_the_definition() -> None:
    """Both formats, forward and backward; GELU also with powers of two as far off as a GPU's may be, and farther."""
    differences = interpreted("interpreted_halves.py")
    assert len(differences) == 26
    assert not any(differences.values()), differences


def test_a_coarser_inverse_and_a_coarser_power_are_noticed() -> None:
    """Planted: what comes before the step that cubes its error; powers of two that are off by 2^-17."""
    differences = interpreted("interpreted_halves.py", "planted")
    found = {name for name, difference in differences.items() if difference}
    noticed = {name for name in differences if name.startswith(("sigmoid", "swiglu")) or "powers off" in name}
    assert found == noticed, differences
