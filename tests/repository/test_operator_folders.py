"""An operator is declared in its own folder: no table elsewhere lists operators, no contract names code above ops."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from samebits.contracts.loading import load_contract
from samebits.contracts.trust import named_objects
from samebits.contracts.validating import contract_files

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "samebits"
OPERATORS = {file.parent.name for file in PACKAGE.glob("ops/*/contract.yaml")}
# What may name several operators side by side, and why. A new operator need not be added to any of them.
EXCEPTIONS = {
    "ops/__init__.py": "the public names that users type; an operator works without one, by its own package",
    "bench/planning.py": "what may be measured: each beside the alternative of another library; a new one has none",
    "parity/portable/operators.py": "the calls whose bits goldens/portable.json keeps; a new operator has none",
    "contracts/loading.py": "names of derived bounds, two of which are called as operators are",
    "model/contracts/operator_dtypes/public.py": "arguments of functions that no contract has as a subject",
    "model/contracts/operator_dtypes/reference.py": "results of another dtype than the arguments have",
}
BELOW = ("ops", "contracts", "records", "numerics", "native")


def tables(source: str) -> Iterator[tuple[int, set[str]]]:
    """Lines at which one literal, or names of one form, speak of two operators or more."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        entries = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        words = {each.value for each in entries if isinstance(each, ast.Constant) and isinstance(each.value, str)}
        if len(words & OPERATORS) > 1:
            yield node.lineno, words & OPERATORS
    forms: dict[str, set[str]] = {}
    for node in tree.body:
        for target in node.targets if isinstance(node, ast.Assign) else []:
            for name in OPERATORS:
                if isinstance(target, ast.Name) and target.id.startswith(f"{name}_"):
                    forms.setdefault(target.id.removeprefix(name), set()).add(name)
    yield from ((1, names) for names in forms.values() if len(names) > 1)


OUTSIDE = [
    file
    for file in sorted(PACKAGE.rglob("*.py"))
    if not (file.is_relative_to(PACKAGE / "ops") and file.parent.name in OPERATORS)
]


def test_no_file_outside_its_folder_lists_operators() -> None:
    found = {str(file.relative_to(PACKAGE)): list(tables(file.read_text())) for file in OUTSIDE}
    assert {name: lines for name, lines in found.items() if lines and name not in EXCEPTIONS} == {}
    assert {name for name, lines in found.items() if lines} >= EXCEPTIONS.keys(), "an exception that is none any more"


@pytest.mark.parametrize(
    "planted",
    [
        'CASES = {"swiglu": 1, "gelu": 2}',
        'NAMES = ("rope", "softmax")',
        "def late():\n    return ['matmul', 'rmsnorm']",
        'gelu_rows = partial(rows, "gelu")\nrope_rows = partial(rows, "rope")',
    ],
)
def test_a_table_of_operators_is_noticed(planted: str) -> None:
    assert list(tables(planted))


def above(target: str) -> bool:
    """Whether a name leads to a layer above the operators, or below what they may use."""
    layer = re.match(r"samebits\.(\w+)", target)
    return layer is not None and layer[1] not in BELOW


@pytest.mark.parametrize("file", contract_files([PACKAGE / "ops"]), ids=lambda file: file.parent.name)
def test_a_contract_names_nothing_above_the_operators(file: Path) -> None:
    named = [target for _, _, target in named_objects(load_contract(file))]
    assert named and not [target for target in named if above(target)]


def test_a_name_of_a_higher_layer_is_noticed() -> None:
    assert above("samebits.checker.tracing.proofs:swiglu_rows") and not above("samebits.ops.swiglu.proofs:every_gate")
