"""Fingerprints: equal for equal bits, and they name the element that differs, whatever it is."""

from __future__ import annotations

import pytest
import torch

from samebits.trace.fingerprint import Fingerprint, fingerprint, parting

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (64, 33), (2, 3, 4)])
def test_one_flipped_bit_is_named(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.randn(shape).to(dtype)
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flat = tensor.reshape(shape[0], -1) if len(shape) > 1 else tensor
    for bit in (0, 5, 8 * tensor.element_size() - 2):
        changed = flat.clone()
        place = tuple(size // 2 for size in flat.shape)
        changed.view(whole)[place] ^= 1 << bit
        found = parting(fingerprint(tensor), fingerprint(changed.reshape(shape)))
        assert found is not None and found.element(tuple(flat.shape)) == place
        assert found.rows_differing == 1 and len(found.columns) == 1 and found.xor == 1 << bit
        assert found.exact and found.alone


@pytest.mark.parametrize(
    ("places", "named", "exact", "alone"),
    [
        # Before, the first row was named with the column of another one: an element that is equal.
        ([(3, 20), (7, 10)], (3, 20), True, True),
        ([(3, 20), (7, 10), (9, 20)], (3, 10), False, False),
        ([(3, 20), (3, 10)], (3, 10), True, False),
        ([(3, 20), (3, 10), (7, 5)], (3, 5), False, False),
        ([(3, 20), (7, 20)], (3, 20), True, True),
    ],
)
def test_of_several_elements_the_first_is_named_or_said_to_be_uncertain(
    places: list[tuple[int, int]], named: tuple[int, int], exact: bool, alone: bool
) -> None:
    tensor = torch.randn(12, 30)
    changed = tensor.clone()
    for number, place in enumerate(places):
        changed.view(torch.int32)[place] ^= 1 << number
    found = parting(fingerprint(tensor), fingerprint(changed))
    assert found is not None and (found.element((12, 30)), found.exact, found.alone) == (named, exact, alone)
    assert not exact or named in places
    assert not alone or found.xor == 1 << places.index(named)


def test_zeros_of_other_sign_differ_and_equal_bits_do_not() -> None:
    zeros = torch.zeros(3, 4)
    minus = zeros.clone()
    minus[1, 2] = -0.0
    assert parting(fingerprint(zeros), fingerprint(zeros.clone().T.contiguous().T)) is None
    found = parting(fingerprint(zeros), fingerprint(minus))
    assert found is not None and (found.element((3, 4)), hex(found.xor)) == ((1, 2), "0x80000000")


def test_two_elements_that_trade_places_are_noticed() -> None:
    """Planted: what a plain sum of patterns would miss, in a row, in a column and on a diagonal."""
    tensor = torch.arange(12.0).reshape(3, 4)
    for one, other in (((0, 1), (0, 2)), ((0, 1), (2, 1)), ((0, 0), (1, 1))):
        changed = tensor.clone()
        changed[one], changed[other] = tensor[other], tensor[one]
        assert parting(fingerprint(tensor), fingerprint(changed)) is not None


def test_a_document_reads_back_and_other_kinds_are_refused() -> None:
    found = fingerprint(torch.randn(5, 6))
    assert Fingerprint.of_document(found.document()) == found
    with pytest.raises(ValueError, match=r"float32 \(5, 6\) against bfloat16 \(5, 6\); allowed: of the same kind"):
        parting(found, fingerprint(torch.randn(5, 6).bfloat16()))


def test_an_empty_tensor_has_one() -> None:
    assert parting(fingerprint(torch.zeros(0, 3)), fingerprint(torch.zeros(0, 3))) is None


def test_a_damaged_fingerprint_is_refused_and_not_taken_for_equal() -> None:
    """Planted: a document without its columns compared as equal; rows that differ beside equal columns had no place."""
    found = fingerprint(torch.randn(5, 6))
    for name, count in (("rows", 5), ("columns", 6), ("xors", 5)):
        with pytest.raises(ValueError, match=rf"of \(5, 6\) has {count - 1} {name}; allowed: {count}"):
            Fingerprint.of_document(found.document() | {name: found.document()[name][1:]})
    for name, said in (("rows", "1 rows differ and 0 columns"), ("columns", "0 rows differ and 1 columns")):
        changed = found.document()
        changed[name][2] = "5"
        with pytest.raises(ValueError, match=said):
            parting(found, Fingerprint.of_document(changed))


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (2, 0, 4), (1,), (2, 3, 4)])
def test_documents_of_every_shape_read_back(shape: tuple[int, ...]) -> None:
    found = fingerprint(torch.ones(shape))
    assert Fingerprint.of_document(found.document()) == found and parting(found, found) is None
