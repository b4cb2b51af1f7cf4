"""The rules of programs are enforced when a definition is traced: each test plants a definition that breaks one."""

import pytest

from samebits.numerics.elementary.program import (
    Kind,
    Program,
    ProgramError,
    Value,
    fma,
    from_bits,
    rounded_product,
    select,
    to_bits,
    trace,
)


def traced(definition: object) -> Program:
    return trace("planted", definition, [Kind.FLOAT], ["x"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "definition",
    [
        lambda x: x * x + 1.0,
        lambda x: x - x * 0.5,
        lambda x: -(x * x) + 1.0,
        lambda x: select(x < 0.0, x * x, x) + 1.0,
        lambda x: from_bits(to_bits(x * x) & 0x7FFFFFFF) + 1.0,
    ],
    ids=["add", "sub", "negated", "selected", "through bits"],
)
def test_a_product_that_feeds_an_addition_is_refused(definition: object) -> None:
    with pytest.raises(ProgramError, match=r"planted: a bare product feeds (add|sub)"):
        traced(definition)


@pytest.mark.parametrize("definition", [lambda x: x * x, lambda x: select(x < 0.0, x, x * x)])
def test_a_product_as_output_is_refused(definition: object) -> None:
    with pytest.raises(ProgramError, match="planted: a bare product is the output"):
        traced(definition)


def test_an_fma_may_take_products() -> None:
    program = traced(lambda x: fma(x * x, x * 0.5, -(x * 0.25)) + rounded_product(x, 3.0))
    assert [value.operation for value in program.statements].count("fma") == 2


def test_constants_are_never_rounded_quietly() -> None:
    with pytest.raises(ProgramError, match=r"constant 0\.1 is no float32 number"):
        traced(lambda x: x + 0.1)
    with pytest.raises(ProgramError, match="constant 4294967296 does not fit uint32"):
        traced(lambda x: from_bits(to_bits(x) + (1 << 32)))


def test_shift_amounts_lie_in_range() -> None:
    def unmasked(x: Value) -> Value:
        return from_bits(to_bits(x) << to_bits(x))

    for definition in (unmasked, lambda x: from_bits(to_bits(x) >> 32)):
        with pytest.raises(ProgramError, match=r"a shift amount must be a constant in 0\.\.31 or masked"):
            traced(definition)


def test_kinds_do_not_mix() -> None:
    with pytest.raises(ProgramError, match="int_add of mixed kinds"):
        traced(lambda x: from_bits(to_bits(x) + x))


def test_equal_operations_are_recorded_once_and_dead_ones_dropped() -> None:
    def definition(x: Value) -> Value:
        fma(x, 5.0, 1.0)
        return fma(x, 2.0, 1.0) + fma(x, 2.0, 1.0)

    assert [value.operation for value in traced(definition).statements] == ["fma", "add"]
