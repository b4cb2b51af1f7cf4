"""Proofs on all 16-bit numbers: they see every number, hold for the real operator, and say what a faulty one does."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch

from samebits.contracts.standard import FAULTS
from samebits.ops.elements import FINITE, _count, every_number, finite_numbers

gelu, swiglu = (importlib.import_module(f"samebits.ops.{component}.proofs") for component in ("gelu", "swiglu"))


@pytest.mark.parametrize("format", FINITE)
def test_every_finite_number_is_there_once(format: str) -> None:
    numbers = finite_numbers(format)
    assert numbers.isfinite().all()
    assert len(torch.unique(numbers.view(torch.int16))) == FINITE[format] == len(numbers)


@pytest.mark.parametrize("proof", [gelu.by_tanh, gelu.accuracy_by_tanh, swiglu.every_gate])
def test_proofs_hold_and_their_twins_do_not(proof: object) -> None:
    shown = proof()  # type: ignore[operator]
    assert shown.proved, str(shown)
    assert shown.planted >= 2


def test_a_limit_is_counted_apart_from_the_numbers() -> None:
    numbers = finite_numbers("bfloat16")
    assert _count("bfloat16", 2.0**64) == 2 * 191 * 128 == int((numbers.abs() < 2.0**64).sum())
    assert _count("float16", 2.0**64) == FINITE["float16"]


@pytest.mark.parametrize(
    ("identifier", "fault"),
    [
        ("GE-OB2", "samebits.ops.gelu.faults:share_is_a_half"),
        ("GE-OB106", "samebits.ops.gelu.faults:slope_is_a_half"),
        ("GE-OB101", f"{FAULTS}:other_bits_every_second_call(samebits.ops.gelu:gelu)"),
        ("GE-OB102", f"{FAULTS}:other_bits_for_few_rows(samebits.ops.gelu:gelu)"),
        ("GE-OB103", f"{FAULTS}:other_bits_beside_padding(samebits.ops.gelu:gelu)"),
        ("GE-OB105", f"{FAULTS}:other_bits_for_other_launches(samebits.ops.gelu:gelu)"),
    ],
)
def test_a_faulty_subject_is_refuted(identifier: str, fault: str) -> None:
    subjects = gelu.CONTRACT.subjects
    faulty = replace(subjects["GE-S1"], object=fault)
    contract = replace(gelu.CONTRACT, subjects={**subjects, "GE-S1": faulty})
    shown = every_number(contract, gelu.SPECS["gelu"], [identifier], gelu._alone)
    assert not shown.proved
    assert shown.witness.startswith(identifier)
