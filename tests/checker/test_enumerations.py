"""Enumeration: parts of every finite set are proved, counts are as computed, and a fault or a gap is no proof."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from samebits.checker.exhaustive import enumerate_set
from samebits.checker.proofs import carried_out
from samebits.checker.targets import OPERATORS, import_object
from samebits.contracts.finite import FINITE_BFLOAT16, finite_bfloat16, product
from samebits.contracts.ladder import backends_of
from samebits.ops.cross_entropy import finite as cross_entropy

COMPONENTS = OPERATORS.components()
# By contract and proof: some parts of a set that all of would take too long.
PARTS = {
    ("cross_entropy", "CE-PR1"): range(1),
    ("cross_entropy", "CE-PR2"): range(100, 101),
    ("cross_entropy", "CE-PR3"): range(30, 34),
    ("cross_entropy", "CE-PR4"): range(1),
    ("distill_loss", "KD-PR2"): range(19, 22),
}
# The smallest set: test_a_contract_that_names_a_set_is_proved_by_its_kind goes through all of it.
WHOLE = {("distill_loss", "KD-PR3")}
# One part of it takes a minute: tests/long/test_enumerations_long.py.
LONG = {("distill_loss", "KD-PR1")}


@pytest.mark.parametrize(("component", "proof"), PARTS)
def test_a_part_of_every_set_is_proved(component: str, proof: str) -> None:
    """cases == expected, no witness, and every twin refuted."""
    entry = COMPONENTS[component].contract().proofs[proof]
    finite = import_object(entry.object)()
    shown = enumerate_set(COMPONENTS[component], finite, entry.obligations, PARTS[component, proof])
    assert shown.proved, str(shown)


def test_every_set_that_a_contract_names_for_the_cpu_is_tried_here() -> None:
    named = {
        (component.name, name)
        for component in COMPONENTS.values()
        for name, entry in component.contract().proofs.items()
        if entry.backends == ["cpu"] and ".finite:" in entry.object
    }
    assert named == PARTS.keys() | WHOLE | LONG


@pytest.mark.long
def test_a_contract_that_names_a_set_is_proved_by_its_kind() -> None:
    """The entry says which set, which obligations and which backend; the checker does the rest."""
    entry = COMPONENTS["distill_loss"].contract().proofs["KD-PR3"]
    shown = carried_out(COMPONENTS["distill_loss"], entry)
    assert shown.proved and shown.kind == "enumeration" and shown.planted == len(entry.obligations)
    with pytest.raises(ValueError, match="gave 'enumeration'; its contract declares 'order'"):
        carried_out(COMPONENTS["distill_loss"], replace(entry, kind="order"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens where there is no GPU")
@pytest.mark.parametrize("name", ["softmax", "attention", "cross_entropy", "distill_loss", "gelu"])
def test_without_a_gpu_the_proofs_about_triton_that_run_kernels_are_not_judged(name: str) -> None:
    entries = COMPONENTS[name].contract().proofs.values()
    running = [each for each in entries if "triton" in each.backends and each.kind == "enumeration"]
    assert running
    for each in running:
        with pytest.raises(ValueError, match=r"could not be judged: .* visible"):
            carried_out(COMPONENTS[name], each)


@pytest.mark.parametrize("name", ["softmax", "attention", "cross_entropy", "distill_loss", "gelu"])
def test_level_four_has_a_proof_of_every_obligation_on_every_backend(name: str) -> None:
    contract = COMPONENTS[name].contract()
    asked = [(each, backend) for each in contract.obligations for backend in backends_of(contract, each)]
    assert [each for each in asked if not contract.proofs_of(*each)] == []


def test_every_finite_bfloat16_once() -> None:
    """65,280 patterns, all finite, none twice; and a product has every combination."""
    values = finite_bfloat16()
    assert len(values) == FINITE_BFLOAT16 == len(values.view(torch.int16).unique())
    assert bool(values.isfinite().all())
    assert len(product(values[:5], values[:7]).view(torch.int16).unique(dim=0)) == 35


def test_a_member_left_out_is_no_proof() -> None:
    """Planted fault: one row of the part is missing, the computed size is not changed."""
    whole = cross_entropy.mixtures()
    short = replace(
        whole,
        part=lambda number: {
            name: value if name == "weight" else value[1:] for name, value in whole.part(number).items()
        },
    )
    proof = enumerate_set(COMPONENTS["cross_entropy"], short, ["CE-OB1"])
    assert not proof.proved and proof.cases == proof.expected - 1


def test_what_does_not_hold_is_a_witness() -> None:
    """Planted fault: a member whose loss no bound holds, for its logits are not finite."""
    rows = replace(
        cross_entropy.mixtures(),
        part=lambda _: {
            "hidden": torch.full((1, 3), torch.inf),
            "weight": torch.eye(3),
            "targets": torch.zeros(1, dtype=torch.int64),
        },
        rows=lambda _: 1,
    )
    proof = enumerate_set(COMPONENTS["cross_entropy"], rows, ["CE-OB5", "CE-OB106"])
    assert not proof.proved and proof.witness.startswith("part 0: CE-OB106")
