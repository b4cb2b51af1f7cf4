"""A contract that says something the checker would not execute does not load, and the error names the line."""

from __future__ import annotations

from pathlib import Path

import pytest

import samebits.ops
from samebits.contracts.loading import load_contract
from samebits.contracts.orders import ORDERS, declared_order, sum_error
from samebits.contracts.strict_yaml import ContractError, load
from samebits.numerics.order import height

ROOMS = sorted(Path(samebits.ops.__path__[0]).glob("*/contract.yaml"))
GOOD = next(path for path in ROOMS if path.parent.name == "matmul").read_text()


def test_the_rooms_load() -> None:
    assert {"attention", "cross_entropy", "matmul", "rmsnorm"} <= {path.parent.name for path in ROOMS}
    for path in ROOMS:
        contract = load_contract(path)
        assert contract.contract == path.parent.name
        assert all(obligation.mutants for obligation in contract.obligations.values())


FAULTS = {
    "unknown key": ("depends_on: []", "depends_on: []\nstatus: proved", "unknown key 'status'"),
    "misspelt inner key": ("promise: repeat,", "promises: repeat,", "unknown key 'promises'"),
    "repeated key": ("prefix: MM", "prefix: MM\nprefix: MM", "key 'prefix' stands twice"),
    "missing key": ("version: 1.0.0\n", "", "key 'version' is missing"),
    "version": ("version: 1.0.0", "version: newest", "version must look like 1.0.0"),
    "dangling dependency": ("depends_on: []", "depends_on: [nowhere]", "depends_on names 'nowhere'"),
    "unknown promise": ("promise: repeat", "promise: fast", "unknown promise 'fast'"),
    "unknown order": ("cpu: {float32: chain-1", "cpu: {float32: chain-9", "unknown order 'chain-9'"),
    "unknown format": ("formats: [float32, bfloat16]", "formats: [float8]", "unknown format 'float8'"),
    "dangling id": (
        "domain: MM-D2, mutants: [MM-MU1]",
        "domain: MM-D2, mutants: [MM-MU99]",
        "'MM-MU99' is no id of mutants",
    ),
    "unused id": ("mutants: [MM-MU1]", "mutants: [MM-MU2]", "MM-MU1 is never used"),
    "no mutant": ("mutants: [MM-MU1]", "mutants: []", "must be a non-empty list"),
    "alias": ("seeds: [3]", "seeds: &x [3]", "anchors and aliases are not allowed"),
    "octal": ("seeds: [3]", "seeds: [010]", "reads differently to different readers"),
    "base sixty": ("seeds: [3]", "seeds: [1:30]", "reads differently to different readers"),
    "tag": ("prefix: MM", "prefix: !!binary MM", "is not allowed"),
    "not yaml": ("prefix: MM", "prefix: [MM", "not YAML"),
    "wrong id": ("MM-OB1:", "OB1:", "must look like"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_contract_is_refused(fault: str, tmp_path: Path) -> None:
    """Planted faults, one each."""
    old, new, message = FAULTS[fault]
    assert old in GOOD
    path = tmp_path / "contract.yaml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ContractError, match=r"contract\.yaml:\d+: ") as caught:
        load_contract(path)
    assert message in str(caught.value)


def test_scalars_are_what_they_look_like(tmp_path: Path) -> None:
    path = tmp_path / "scalars.yaml"
    path.write_text("a: 1e-5\nb: 1E5\nc: .5\nd: no\ne: true\nf: 12\ng: -3.0\nh: 'text'\ni: null\n")
    expected = {"a": 1e-5, "b": 1e5, "c": 0.5, "d": "no", "e": True, "f": 12, "g": -3.0, "h": "text", "i": None}
    loaded = load(path)
    assert dict(loaded) == expected
    assert all(type(loaded[key]) is type(value) for key, value in expected.items())


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    for depth in (50, 5000):
        path.write_text("a: " + "[" * depth + "]" * depth)
        with pytest.raises(ContractError):
            load(path)


@pytest.mark.parametrize("name", ORDERS)
def test_the_bound_follows_the_height(name: str) -> None:
    """sum_error grows with the height of the declared order and is never smaller than height * unit roundoff."""
    for terms in (1, 16, 17, 256, 1000):
        assert sum_error(name, terms) >= height(declared_order(name, terms)) * 2.0**-24
    assert sum_error(name, 4096) > sum_error(name, 64)


def test_an_undeclared_order_is_refused() -> None:
    for function in (declared_order, sum_error):
        with pytest.raises(ValueError, match="order 'kahan' is not declared; known: chain-1"):
            function("kahan", 8)
    with pytest.raises(ValueError, match="no bound for"):
        sum_error("chain-1", 2**24)
