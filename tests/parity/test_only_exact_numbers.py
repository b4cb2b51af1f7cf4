"""Numbers made in Python decide bits too: no layer that computes takes them from a C library that rounds its own way.

A static look at the source. Allowed are functions that are exact or correctly rounded everywhere; the others stand in
`LISTED`, each with the reason why it decides no bit. Files that judge results, or break them on purpose, make none."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import samebits

PACKAGE = Path(samebits.__file__).parent
LAYERS = ("ops", "model", "train", "infer", "post", "parity", "parallel", "invariant")
JUDGES = {
    "properties.py",
    "check.py",
    "faults.py",
    "shared_faults.py",
    "split_faults.py",
    "proofs.py",
    "arrangement_proofs.py",
    "order_proofs.py",
    "bounds.py",
    "exact.py",
    "trees.py",
    "rounding.py",
    "elements.py",
    "finite.py",
}
# Of `math` and numpy: exact, or rounded once by IEEE 754 (sqrt) or by their own definition (fsum).
_EXACT = """
ceil comb copysign e factorial floor frexp fsum gcd inf isfinite isinf isnan isqrt lcm ldexp nan nextafter perm pi prod
sqrt trunc ulp
"""
_INEXACT_IN_NUMPY = """
arccos arcsin arctan arctan2 arctanh cbrt cos cosh cumsum dot einsum exp exp2 expm1 float_power hypot inner linalg log
log10 log1p log2 logaddexp matmul mean nansum power random sin sinh std sum tan tanh tensordot trapezoid var vdot
"""
_RANDOM = """
bernoulli bernoulli_ exponential_ kaiming_normal_ kaiming_uniform_ manual_seed multinomial normal normal_ rand randint
randn randperm rand_like randn_like trunc_normal_ uniform_ xavier_normal_ xavier_uniform_
"""
EXACT, INEXACT_IN_NUMPY, RANDOM = (frozenset(each.split()) for each in (_EXACT, _INEXACT_IN_NUMPY, _RANDOM))
LISTED = {
    ("infer/server/schema.py", "np.cumsum"): "of whole numbers: brackets within brackets",
    ("ops/rope/scaling.py", "**"): "of decimal numbers, to forty digits",
    ("ops/softmax/lengths.py", "**"): "of fractions, exact: a proof",
    ("ops/contracts/host_launch/cases.py", "manual_seed"): "arguments of calls that are made twice and compared",
    ("ops/contracts/host_launch/cases.py", "randn"): "arguments of calls that are made twice and compared",
    ("parity/scoring.py", "math.expm1"): "a mean that is printed, from logprobs that are compared by their bits",
    ("model/contracts/model_forward/reference.py", "**"): "in float64, judges",
    ("train/contracts/distill_gain/reference.py", "math.gamma"): "in float64, judges",
    ("train/contracts/distill_gain/reference.py", "math.pow"): "in float64, judges",
    ("train/contracts/gradflow_50m/reference.py", "**"): "in float64, judges",
    ("train/contracts/hyperparams/reference.py", "**"): "in float64, judges",
    ("train/contracts/train_stable/reference.py", "**"): "in float64, judges",
    ("train/contracts/train_stable/reference.py", "math.cos"): "in float64, judges",
    ("post/contracts/model_merging/reference.py", "np.arccos"): "in float64, judges",
    ("post/contracts/model_merging/reference.py", "np.sin"): "in float64, judges",
    ("parallel/linear_modules.py", "kaiming_uniform_"): "a module's first weights, as torch.nn.Linear draws them",
    ("parallel/vocabulary_modules.py", "normal_"): "a module's first weights, as torch.nn.Embedding draws them",
}


def _is_power_of_whole_numbers(node: ast.BinOp) -> bool:
    """x ** 2 is a product; 2.0 ** n is exact."""
    whole = isinstance(node.right, ast.Constant) and type(node.right.value) is int and node.right.value >= 0
    return whole or (isinstance(node.left, ast.Constant) and node.left.value == 2)


def rounding(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of whatever may give other bits on another machine."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, name = node.value.id, node.attr
            if owner in ("math", "cmath") and name not in EXACT:
                yield node.lineno, f"math.{name}"
            if owner in ("np", "numpy") and name in INEXACT_IN_NUMPY:
                yield node.lineno, f"np.{name}"
        if isinstance(node, ast.Attribute) and node.attr in RANDOM:
            yield node.lineno, node.attr
        if isinstance(node, ast.ImportFrom) and node.module in ("math", "cmath", "random", "statistics"):
            yield from ((node.lineno, f"{node.module}.{each.name}") for each in node.names if each.name not in EXACT)
        if isinstance(node, ast.Import):
            yield from ((node.lineno, each.name) for each in node.names if each.name in ("random", "statistics"))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and not _is_power_of_whole_numbers(node):
            yield node.lineno, "**"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "pow":
            yield node.lineno, "pow"


def files() -> list[Path]:
    found = [file for layer in LAYERS for file in sorted((PACKAGE / layer).rglob("*.py"))]
    return [file for file in found if file.name not in JUDGES]


def test_no_layer_takes_numbers_from_the_c_library() -> None:
    found = {
        (file.relative_to(PACKAGE).as_posix(), name): line
        for file in files()
        for line, name in rounding(file.read_text())
    }
    assert not {f"{file}:{line}: {name}" for (file, name), line in found.items() if (file, name) not in LISTED}
    assert set(LISTED) == set(found), "the list names what is no longer there"


def test_the_layers_are_there() -> None:
    assert len(files()) > 150 and {file.relative_to(PACKAGE).parts[0] for file in files()} == set(LAYERS)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import math\nrate = peak * (1 + math.cos(math.pi * t)) / 2", "math.cos"),
        ("from math import cos, pi", "math.cos"),
        ("scale = head ** -0.5", "**"),
        ("decay = beta ** step", "**"),
        ("decay = pow(beta, step)", "pow"),
        ("total = np.sum(losses)", "np.sum"),
        ("weight = torch.randn(3, 4)", "randn"),
        ("weight.normal_(0, 0.02)", "normal_"),
        ("import random", "random"),
    ],
)
def test_what_may_differ_is_named(source: str, name: str) -> None:
    """Planted faults: a schedule by math.cos among them."""
    assert name in [found for _, found in rounding(source)]


@pytest.mark.parametrize(
    "source", ["y = math.sqrt(math.pi)", "y = math.fsum(x) / n", "y = x ** 2", "y = 2.0 ** -n", "y = np.sqrt(x)"]
)
def test_what_is_exact_passes(source: str) -> None:
    assert not list(rounding(source))
