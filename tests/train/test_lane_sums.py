"""Sums of weight gradients in one piece of memory: the norm, the clipping and the passes of tensors that lie apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.train.small_run import small

from samebits.model import Batch, Model
from samebits.model.model import TIED_HEAD
from samebits.model.weights import EMBEDDING
from samebits.numerics.bits import same_bits
from samebits.ops.grad_norm import grad_norm
from samebits.ops.grad_norm.reference import PIECE
from samebits.train import triton_sums
from samebits.train.assessment import model_of
from samebits.train.trainer import clipped
from samebits.train.triton_sums import LaneSums, summing

CPU = torch.device("cpu")
ENDS = (1, 255, 256, 257, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE)
SHAPES = {
    "around a piece": {EMBEDDING: (3, 5), **{f"w{size}": (size,) for size in ENDS}},
    "one element": {EMBEDDING: (1, 1)},
    "an empty one between": {EMBEDDING: (7, 9), "none": (0, 4), "last": (130, 700)},
    "empty at the end": {EMBEDDING: (257, 255), "none": (0,)},
}


def filled(shapes: Mapping[str, tuple[int, ...]], tied: bool, seed: int, scale: float = 1.0) -> LaneSums:
    """Sums that are what a backward pass could have left."""
    sums = LaneSums(shapes, tied, CPU)
    drawn = torch.Generator().manual_seed(seed)
    for part in sums.parts.values():
        part.copy_(torch.randn(part.shape, generator=drawn) * scale)
    return sums


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_the_whole_has_the_norm_of_the_list(shapes: str, tied: bool) -> None:
    """The norm, and what clipping by it leaves, bit for bit; against copies that lie apart."""
    for seed, scale in enumerate((1.0, 1e-30, 1e-42, 1e18, 1e20)):
        gradients = (sums := filled(SHAPES[shapes], tied, seed, scale)).gradients()
        whole, apart = sums.whole(gradients), [each.clone() for each in gradients.values()]
        assert whole is not None
        norm = grad_norm(apart)
        assert same_bits(grad_norm([whole]), norm) and (bool(norm.isinf()) or scale < 1e20)
        clipped([whole], norm, 0.5)
        clipped(apart, norm, 0.5)
        assert all(same_bits(*each) for each in zip(gradients.values(), apart, strict=True))
        assert same_bits(grad_norm([whole]), grad_norm(apart))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, -1])
def test_numbers_that_are_not_finite_have_the_same_norm(bad: float, place: int) -> None:
    for name in SHAPES["around a piece"]:
        gradients = (sums := filled(SHAPES["around a piece"], True, 1)).gradients()
        gradients[name].view(-1)[place] = bad
        whole, apart = sums.whole(gradients), [each.clone() for each in gradients.values()]
        assert whole is not None
        norm = grad_norm(apart)
        assert same_bits(grad_norm([whole]), norm) and not norm.isfinite()
        clipped([whole], norm, 0.5)
        clipped(apart, norm, 0.5)
        assert all(same_bits(*each) for each in zip(gradients.values(), apart, strict=True))
        sums.clear()
        # What a norm that is not finite made of the zeros between tensors is gone, too.
        assert same_bits(whole, torch.zeros_like(whole))


def test_tensors_that_begin_within_a_piece_have_another_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: end to end, without zeros between."""
    monkeypatch.setattr(triton_sums, "PIECE", 1)
    gradients = (sums := filled(SHAPES["around a piece"], False, 0)).gradients()
    whole = sums.whole(gradients)
    assert whole is not None and not same_bits(grad_norm([whole]), grad_norm(gradients.values()))


def test_what_else_stands_in_for_a_gradient_is_no_whole() -> None:
    gradients = (sums := filled(SHAPES["around a piece"], True, 0)).gradients()
    assert sums.whole(gradients) is not None
    assert sums.whole({**gradients, "w256": gradients["w256"].clone()}) is None
    assert sums.whole(dict(list(gradients.items())[::-1])) is None
    assert sums.whole(dict(list(gradients.items())[:-1])) is None


def test_a_tied_head_goes_into_the_embedding_and_is_outside_the_norm() -> None:
    sums = filled({EMBEDDING: (300, 300), "w": (5,)}, True, 0)
    parts = {name: part.clone() for name, part in sums.parts.items()}
    assert list(parts) == [EMBEDDING, "w", TIED_HEAD]
    found = sums.gradients()
    assert list(found) == [EMBEDDING, "w"] and same_bits(found[EMBEDDING], parts[EMBEDDING] + parts[TIED_HEAD])
    whole = sums.whole(found)
    assert whole is not None and len(whole) == 3 * PIECE


def backward(model: Model, seed: int) -> torch.Tensor:
    drawn = torch.from_numpy(np.random.default_rng(seed).integers(272, size=33))
    batch = Batch.of([drawn[:12], drawn[12:32]])
    found = model.logprobs(model.hidden(batch), drawn[1:])
    torch.autograd.backward(found, torch.full_like(found, -1 / 32))
    return found.detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("borders", [None, (0, 12, 32)])
def test_a_model_adds_to_them_as_to_sums_of_its_own(
    borders: Sequence[int] | None, tied: bool, dtype: torch.dtype
) -> None:
    """Forward and backward twice, then cleared and once more: losses, gradients of every lane and order of names."""
    model = model_of(small(f"model.overrides.tie_word_embeddings={str(tied).lower()}"))
    model = replace(model, weights={name: each.to(dtype) for name, each in model.weights.items()})
    shapes = {name: tuple(each.shape) for name, each in model.weights.items()}
    lanes = [LaneSums(shapes, tied, CPU) for _ in range(1 if borders is None else 2)]
    ours = summing(model, lanes, borders)
    for seeds in ((1, 2), (3,)):
        theirs = model.with_sums(borders)
        for seed in seeds:
            assert same_bits(backward(ours, seed), backward(theirs, seed))
        for place, lane in enumerate(lanes):
            found, wanted = lane.gradients(), theirs.gradients(place)
            assert list(found) == list(wanted) and all(same_bits(found[name], wanted[name]) for name in wanted)
            assert all(bool(each.any()) for each in found.values())
            lane.clear()
    assert all(weight.grad is None for weight in ours.weights.values())
