"""The tracer accepts what is one expression for every row, refuses each planted kernel, and proves an operator."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from samebits.checker import tracing
from samebits.checker.targets import OPERATORS
from samebits.checker.tracing import TracingError, asked, rows_proof
from samebits.checker.tracing.nodes import Nodes, RefusedError

KERNELS = Path(__file__).parent / "planted" / "traced_kernels.py"


PLANTED = {
    "lanes_by_batch": "another expression",
    "double_store": "stored a second time",
    "data_branch": "a branch depends on data",
    "compiler_order": "left to the compiler's order",
    "neighbour_row": "reads other rows too",
    "atomic_sum": "cannot be traced",
    "beyond_the_end": "beyond",
}


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    """One process for all kernels: most of its time is its start."""
    names = ("honest", *PLANTED)
    return dict(zip(names, asked(*(f"{KERNELS}:{name}" for name in names)), strict=True))


def test_an_honest_kernel_is_accepted(found: dict[str, dict[str, Any]]) -> None:
    """1 + 2 + 5 rows, each stored once, one expression; three planted faults of the launch are refused."""
    facts = found["honest"]
    assert not facts["witness"]
    assert (facts["cases"], facts["expected"], facts["planted"], facts["caught"]) == (8, 8, 3, 3)


@pytest.mark.parametrize("kernel", PLANTED)
def test_a_planted_kernel_is_refused(kernel: str, found: dict[str, dict[str, Any]]) -> None:
    """Each for the reason it was planted for."""
    assert PLANTED[kernel] in found[kernel]["witness"]


ADAMW = OPERATORS.components()["adamw"]


def test_an_operator_is_proved() -> None:
    """AdamW: every element of every tensor is one expression, whatever the block."""
    proof = rows_proof(ADAMW)
    assert proof.proved, str(proof)
    assert proof.kind == "dag"


@pytest.mark.parametrize("package", ["nobody", "samebits.ops.sample"])
def test_an_operator_that_lists_no_calls_is_one_line(package: str) -> None:
    with pytest.raises(TracingError, match=rf"{package} has no triton_cases\.py; expected one that lists its calls"):
        asked(package)


def test_another_triton_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "version", lambda _: "3.9.0")
    with pytest.raises(TracingError, match=r"triton is 3\.9\.0; allowed: 3\.6"):
        rows_proof(ADAMW)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes(finite=True)


def test_equal_expressions_have_one_number(nodes: Nodes) -> None:
    """Products and sums commute; nothing else is moved."""
    x, y, z = (nodes.leaf("x", place, "fp32") for place in range(3))
    assert nodes.make("fma", "fp32", (x, y, z)) == nodes.make("fma", "fp32", (y, x, z))
    sums = [
        nodes.make("add", "fp32", (nodes.make("add", "fp32", pair), last)) for pair, last in (((x, y), z), ((y, z), x))
    ]
    assert sums[0] != sums[1]
    assert nodes.digest(sums[0]) != nodes.digest(sums[1])


def test_zero_is_dropped_only_where_it_changes_nothing(nodes: Nodes) -> None:
    """+0 to what may be -0 is kept; to a sum of exponentials it is not; -0 never matters."""
    x = nodes.leaf("x", 0, "fp32")
    plus, minus = nodes.number("fp32", 0.0), nodes.number("fp32", -0.0)
    exponential = nodes.make("exp", "fp32", (x,))
    assert nodes.make("add", "fp32", (x, plus)) != x
    assert nodes.make("add", "fp32", (x, minus)) == x
    assert nodes.make("add", "fp32", (exponential, plus)) == exponential


def test_the_sign_of_a_zero_is_not_hidden_where_it_shows(nodes: Nodes) -> None:
    """A maximum leaves the sign of a zero open: 0 - m does not show it, 1 / m would."""
    x, y = (nodes.leaf("x", place, "fp32") for place in range(2))
    largest = nodes.make("max", "fp32", (x, y))
    assert largest == nodes.make("max", "fp32", (y, x)) != nodes.bare(largest)
    hidden = nodes.make("sub", "fp32", (nodes.number("fp32", 0.0), largest))
    assert hidden == nodes.bare(hidden)
    with pytest.raises(RefusedError, match="sign of a zero"):
        nodes.make("div", "fp32", (nodes.number("fp32", 1.0), largest))


def test_missing_keys_weigh_nothing(nodes: Nodes) -> None:
    """exp2(c * -inf - level) is +0 only where the level is known to be a number above -inf."""
    x = nodes.leaf("x", 0, "fp32")
    c, lowest, zero = (nodes.number("fp32", value) for value in (0.25, -math.inf, 0.0))
    raised = nodes.make("max", "fp32", (x, lowest))
    safe = nodes.make("select", "fp32", (nodes.make("eq", "int1", (raised, lowest)), zero, raised))
    weights = []
    for level in (safe, raised):
        minus = nodes.make("sub", "fp32", (zero, nodes.make("mul", "fp32", (level, c))))
        weights.append(nodes.make("exp2", "fp32", (nodes.make("fma", "fp32", (lowest, c, minus)),)))
    assert weights[0] == zero != weights[1]


def test_groups_of_the_matrix_unit_have_no_order_inside_and_one_outside(nodes: Nodes) -> None:
    pairs = [(nodes.leaf("a", k, "bf16"), nodes.leaf("b", k, "bf16")) for k in range(32)]
    zero = nodes.number("fp32", 0.0)
    first, second = nodes.fused(zero, pairs[:16]), nodes.fused(zero, pairs[16:])
    assert first == nodes.fused(zero, pairs[:16][::-1])
    assert nodes.fused(first, pairs[16:]) != nodes.fused(second, pairs[:16])
