"""The standard promises: a line becomes obligations, tests and faults; each generic fault is wrong in one way only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import samebits.ops
from samebits.checker.targets import import_object
from samebits.contracts import standard_faults
from samebits.contracts.loading import contract_of, load_contract
from samebits.contracts.standard import STANDARD
from samebits.contracts.strict_yaml import ContractError
from samebits.native.launch_numbers import launching

SWIGLU = Path(samebits.ops.__file__).parent / "swiglu" / "contract.yaml"
LINE = "SG-S1: {repeat: SG-D2"


def doubled(x: Tensor) -> Tensor:
    return x + x


def test_a_line_becomes_an_obligation_a_test_and_a_fault_for_each_promise() -> None:
    contract = load_contract(SWIGLU)
    promised = {each.name: each for each in contract.obligations.values() if each.name in STANDARD}
    assert list(promised) == list(STANDARD)
    for name, obligation in promised.items():
        assert contract.tests[obligation.tests[0]].examples
        generic = contract.mutants[obligation.mutants[0]]
        assert generic.breaks == name and generic.object.endswith("(samebits.ops.swiglu:swiglu)")
        assert callable(import_object(generic.object))


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("SG-S9: {repeat: SG-D2", "'SG-S9' is not an id of subjects"),
        ("SG-S1: {kindness: SG-D2", "unknown standard promise 'kindness'; known: repeat, batch"),
        ("SG-S1: {repeat: SG-D9", "'SG-D9' is not an id of domains"),
    ],
)
def test_what_names_nothing_is_refused_with_its_line(written: str, words: str) -> None:
    text = SWIGLU.read_text()
    line = text[: text.index(LINE)].count("\n") + 1
    with pytest.raises(ContractError, match=f"contract.yaml:{line}: SG-S[19]: {words}"):
        contract_of(text.replace(LINE, written).encode(), SWIGLU)


def test_a_standard_obligation_is_not_written_twice() -> None:
    text = SWIGLU.read_text().replace("SG-OB1:", "SG-OB102:", 1)
    with pytest.raises(ContractError, match="SG-OB102: is a standard promise's id"):
        contract_of(text.encode(), SWIGLU)


def test_the_faults_change_the_last_bit_where_they_should_and_nowhere_else() -> None:
    few, many = torch.ones(2, 3, requires_grad=True), torch.ones(6, 4)

    def same(fault: str, x: Tensor) -> bool:
        return torch.equal(getattr(standard_faults, fault)(doubled)(x), doubled(x))

    assert same("other_bits_for_few_rows", many) and not same("other_bits_for_few_rows", few)
    assert same("other_bits_for_odd_sizes", many) and not same("other_bits_for_odd_sizes", few)
    assert same("other_bits_beside_padding", many) and not same("other_bits_beside_padding", many * torch.nan)
    assert same("other_bits_for_other_launches", many) and same("other_bits_on_cuda", many)
    with launching(threads=3):
        assert not same("other_bits_for_other_launches", many)
    every_second = standard_faults.other_bits_every_second_call(doubled)
    assert torch.equal(every_second(many), doubled(many)) and not torch.equal(every_second(many), doubled(many))
    y = standard_faults.other_bits_for_few_rows(doubled)(few)
    assert y[0, 0].item() == 2 + 2**-22
    assert torch.autograd.grad(y, few, torch.ones_like(y))[0].eq(2).all()
