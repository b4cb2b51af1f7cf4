"""What is not bound yet is written down strictly, and clashes with nothing that is bound."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import samebits.model.contracts
import samebits.ops
import samebits.post.contracts
import samebits.train.contracts
from samebits.contracts.planned import FOLDER, planned
from samebits.contracts.registry import Component, components
from samebits.contracts.strict_yaml import ContractError

PLANNED = planned()
GOOD = (FOLDER / "gpu_init.yaml").read_text()


def bound() -> dict[str, Component]:
    folders = (samebits.ops, samebits.model.contracts, samebits.train.contracts, samebits.post.contracts)
    return {
        name: component
        for home in folders
        for name, component in components(Path(next(iter(home.__path__))), home.__name__).items()
    }


def test_the_files_load() -> None:
    """Every section of the registry that nothing binds is there, with its obligations."""
    counts = {name: len(each.obligations) for name, each in PLANNED.items() if each.obligations}
    wanted = {"quantization": 1, "observability": 1, "buf_size": 2, "gemm_args": 1}
    assert wanted.items() <= counts.items()


def test_no_id_is_bound_and_planned() -> None:
    """An obligation or a test that a contract binds is deleted from the plan."""
    contracts = [component.contract() for component in bound().values()]
    taken = {name for each in contracts for name in (*each.obligations, *each.tests)}
    for each in PLANNED.values():
        for identifier, obligation in each.obligations.items():
            assert not taken & {identifier, *obligation.tests}, identifier


def test_no_id_is_bound_twice() -> None:
    """Obligations and tests are named once in all contracts, wherever their components lie."""
    names = [
        name
        for component in bound().values()
        for name in (*component.contract().obligations, *component.contract().tests)
    ]
    assert not [name for name, count in Counter(names).items() if count > 1]


def test_the_rest_of_a_bound_contract_has_its_prefix() -> None:
    found = bound()
    for name, each in PLANNED.items():
        if name in found and each.obligations:
            assert each.prefix == found[name].contract().prefix, name


def test_every_dependency_is_a_contract() -> None:
    known = {*PLANNED, *bound()}
    for name, each in PLANNED.items():
        assert set(each.depends_on) <= known, name


FAULTS = {
    "unknown key": ("depends_on: []", "depends_on: []\nstatus: bound", r"\.yaml:5: unknown key 'status'"),
    "unknown inner key": ("    tolerance:", "    tolerances: exact\n    tolerance:", "unknown key 'tolerances'"),
    "missing key": ("waits_for:", "# waits_for:", "key 'waits_for' is missing"),
    "wrong file": ("contract: gpu_init", "contract: gpu", "is in gpu_init.yaml"),
    "wrong id": ("GPUINIT-OB2:", "GPU-OB2:", "an id must look like GPUINIT-OB1"),
    "a sentence for a word": ("predicate: value_at", "predicate: value at", "must be one word"),
    "wrong test": ("FALSIFY-GPUINIT-002", "GPUINIT-002", "a test must look like"),
    "no prefix": ("prefix: GPUINIT\n", "", "prefix and obligations belong together"),
    "no mutant": (GOOD[GOOD.index("    mutants:") :], "    mutants: []\n", "must be a non-empty list"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_plan_is_refused(fault: str, tmp_path: Path) -> None:
    """Planted faults, one each."""
    old, new, message = FAULTS[fault]
    assert old in GOOD
    (tmp_path / "gpu_init.yaml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ContractError, match=message):
        planned(tmp_path)


def test_an_id_in_two_files_is_refused(tmp_path: Path) -> None:
    """Planted fault."""
    (tmp_path / "gpu_init.yaml").write_text(GOOD)
    (tmp_path / "gpu_start.yaml").write_text(GOOD.replace("contract: gpu_init", "contract: gpu_start"))
    with pytest.raises(ContractError, match="GPUINIT-OB2 is already in gpu_init"):
        planned(tmp_path)


def test_an_empty_folder_is_no_plan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no contract"):
        planned(tmp_path)
