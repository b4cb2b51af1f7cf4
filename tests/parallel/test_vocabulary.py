"""A vocabulary over real ranks: every result and gradient == one device, bit for bit; planted faults are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from tests.parallel.comparing import chain_bytes, differing, drawn, own, wanted
from tests.parallel.faulty_chains import finished_everywhere, native_chain
from tests.parallel.ranks import on_ranks
from torch import Tensor

from samebits import ops
from samebits.numerics.recipes import make
from samebits.ops.accumulation import embedding_into, selected_logprob_into
from samebits.parallel import collectives, vocabulary, vocabulary_rows
from samebits.parallel.vocabulary_rows import Statistics, blocks_of
from samebits.parallel.world import Group, World

SIZES = (1, 2, 3, 4, 8)
DTYPES = (torch.float32, torch.bfloat16)
VOCABULARIES = (272, 1000, 2048)
# More rows than a tile that travels has, in leading axes.
ROWS, WIDTH = (3, 50), 24


def ways(words: int, size: int) -> dict[str, list[int]]:
    """Cuts in blocks: even; the first rank with nothing; all but one block on the last that has any."""
    late = [0, *vocabulary.vocabulary_cuts(words, size - 1)] if size > 1 else [0, words]
    uneven = [0, *[256] * (size - 1), words] if size > 1 else [0, words]
    return {"even": vocabulary.vocabulary_cuts(words, size), "first empty": late, "uneven": uneven}


def tokens(words: int, seed: int) -> Tensor:
    return torch.randint(0, words, ROWS, generator=torch.Generator().manual_seed(seed))


def embedding_differences(world: World, words: int, dtype: torch.dtype, cuts: list[int], *, resumed: bool) -> list[str]:
    group, found = world.group, []
    weight = wanted(drawn((words, WIDTH), 1, dtype))
    with torch.no_grad():
        weight[::3, 0] = -0.0
    part = own(weight, cuts, group)
    sums, part_sums = (torch.zeros(len(each), WIDTH) for each in (weight, part))
    for micro in range(2 if resumed else 1):
        ids, dy = tokens(words, micro), drawn((*ROWS, WIDTH), 10 + micro, dtype)
        first = cuts[group.place]
        world.sent.clear()
        if resumed:
            y = embedding_into(ids, weight, sums)
            own_y = vocabulary.embedding(ids, part, first, group, sums=part_sums)
            asked = 8 * (group.size - 1)
        else:
            y = ops.embedding(ids, weight)
            own_y = vocabulary.embedding(ids, part, first, group, cuts=cuts)
            asked = 0
        y.backward(dy)
        own_y.backward(dy)
        found += differing({"embedding": (y, own_y)})
        here = int(((ids >= first) & (ids < cuts[group.place + 1])).sum())
        if world.sent.total() != (group.size - 1) * here * WIDTH * dtype.itemsize + asked:
            found.append(f"embedding {dict(world.sent)}")
    pair = (own(sums, cuts, group), part_sums) if resumed else (own(weight.grad, cuts, group), part.grad)
    return found + differing({"embedding dweight": pair})


def logprob_differences(world: World, words: int, dtype: torch.dtype, cuts: list[int], *, resumed: bool) -> list[str]:
    group, found = world.group, []
    hidden, weight = wanted(drawn((*ROWS, WIDTH), 2, dtype)), wanted(drawn((words, WIDTH), 3, dtype))
    own_hidden, part = wanted(hidden), own(weight, cuts, group)
    sums, part_sums = (torch.zeros(len(each), WIDTH) for each in (weight, part))
    rows, blocks = hidden[..., 0].numel(), blocks_of(cuts[group.place + 1] - cuts[group.place])
    for micro in range(2 if resumed else 1):
        ids, g = tokens(words, 20 + micro), drawn(ROWS, 30 + micro, torch.float32)
        ids[0, :7] = -100
        # Counted from the second rank's first word these would be -100 and -1, were they not checked before.
        ids[1, :2] = torch.tensor([156, 255])
        world.sent.clear()
        if resumed:
            y = selected_logprob_into(hidden, weight, ids, sums)
            own_y = vocabulary.selected_logprob(own_hidden, part, ids, cuts, group, sums=part_sums)
        else:
            y = ops.selected_logprob(hidden, weight, ids)
            own_y = vocabulary.selected_logprob(own_hidden, part, ids, cuts, group)
        y.backward(g)
        own_y.backward(g)
        found += differing({"logprob": (y, own_y)})
        if world.sent["vocabulary statistics"] != (group.size - 1) * 4 * rows * (2 * blocks + 1):
            found.append(f"logprob {dict(world.sent)}")
        if world.sent["vocabulary hidden gradient"] != chain_bytes(group, rows, WIDTH, dtype):
            found.append(f"logprob gradient {dict(world.sent)}")
    pair = (own(sums, cuts, group), part_sums) if resumed else (own(weight.grad, cuts, group), part.grad)
    return found + differing({"dhidden": (hidden.grad, own_hidden.grad), "dweight": pair})


def head_and_loss_differences(world: World, words: int, dtype: torch.dtype, cuts: list[int]) -> list[str]:
    group = world.group
    hidden, weight, targets = drawn((*ROWS, WIDTH), 4, dtype), drawn((words, WIDTH), 5, dtype), tokens(words, 40)
    targets[2, 10:20] = -100
    world.sent.clear()
    pairs = {"logits": (ops.lm_head(hidden, weight), vocabulary.lm_head(hidden, own(weight, cuts, group), cuts, group))}
    width = cuts[group.place + 1] - cuts[group.place]
    found = []
    if world.sent.total() != (group.size - 1) * 4 * targets.numel() * width:
        found.append(f"logits {dict(world.sent)}")
    for reduction, denominator in (("mean", None), ("mean", 7.0), ("sum", None), ("none", None)):
        hidden, whole = wanted(hidden), wanted(weight)
        own_hidden, part = wanted(hidden), own(whole, cuts, group)
        options = {"reduction": reduction, "denominator": denominator}
        loss = ops.linear_cross_entropy(hidden, whole, targets, **options)
        own_loss = vocabulary.linear_cross_entropy(own_hidden, part, targets, cuts, group, **options)
        g = drawn(tuple(loss.shape), 50, torch.float32)
        loss.backward(g)
        own_loss.backward(g)
        found += differing(
            {
                "loss": (loss, own_loss),
                "dhidden": (hidden.grad, own_hidden.grad),
                "dweight": (own(whole.grad, cuts, group), part.grad),
            }
        )
    return found + differing(pairs)


def all_differences(world: World) -> list[str]:
    found = []
    for words, dtype in product(VOCABULARIES, DTYPES):
        for way, cuts in ways(words, world.size).items():
            here = head_and_loss_differences(world, words, dtype, cuts) if words == 1000 else []
            for resumed in (False, True):
                here += embedding_differences(world, words, dtype, cuts, resumed=resumed)
                here += logprob_differences(world, words, dtype, cuts, resumed=resumed)
            found += [f"{words} {dtype} {way}: {each}" for each in here]
    return found


@pytest.mark.parametrize("size", [pytest.param(size, marks=pytest.mark.long if size >= 4 else ()) for size in SIZES])
def test_results_and_gradients_are_those_of_one_device(size: int) -> None:
    assert on_ranks(size, all_differences) == [[]] * size


def in_small_panels(world: World) -> list[str]:
    """Scratch memory for one block of logits, and for one tile of rows."""
    vocabulary_rows.SCRATCH_BYTES = 1  # type: ignore[misc]
    cuts = vocabulary.vocabulary_cuts(1000, world.size)
    return [
        each
        for dtype in DTYPES
        for resumed in (False, True)
        for each in logprob_differences(world, 1000, dtype, cuts, resumed=resumed)
    ]


@pytest.mark.parametrize("size", [1, 2])
def test_scratch_memory_decides_no_bits(size: int) -> None:
    assert on_ranks(size, in_small_panels) == [[]] * size


def odd_rows(world: World) -> list[str]:
    """No row, one row, rows with infinities and NaN, rows that are all ignored."""
    group, cuts, found = world.group, vocabulary.vocabulary_cuts(600, world.size), []
    special = torch.from_numpy(make("infinite", (9, WIDTH), 6))
    for name, values in {"none": special[:0], "one": special[:1], "infinite": special}.items():
        for ignored in (False, True):
            ids = torch.full((len(values),), -100) if ignored else tokens(600, 7).reshape(-1)[: len(values)]
            hidden, weight = wanted(values), wanted(drawn((600, WIDTH), 8, torch.float32))
            own_hidden, part = wanted(hidden), own(weight, cuts, group)
            y = ops.selected_logprob(hidden, weight, ids)
            own_y = vocabulary.selected_logprob(own_hidden, part, ids, cuts, group)
            g = drawn(tuple(y.shape), 9, torch.float32)
            y.backward(g)
            own_y.backward(g)
            assert weight.grad is not None
            pairs = {
                "logprob": (y, own_y),
                "dhidden": (hidden.grad, own_hidden.grad),
                "dweight": (own(weight.grad, cuts, group), part.grad),
            }
            found += [f"{name} {'ignored ' * ignored}{each}" for each in differing(pairs)]
    return found


def test_odd_rows_are_those_of_one_device() -> None:
    assert on_ranks(3, odd_rows) == [[]] * 3


def blocks_descending(whole: Statistics, ignored_M: Tensor, backend: str) -> tuple[Tensor, Tensor]:
    """Planted: blocks merged from the last to the first."""
    turned = replace(whole, maxima=whole.maxima.flip(0), sums=whole.sums.flip(0))
    return vocabulary_rows.merged(turned, ignored_M, backend)


def rows_added(ids: Tensor, weight: Tensor, first: int, group: Group, **_: Any) -> Tensor:
    """Planted: the embedding as a sum of one row and zeros, which turns -0 into +0."""
    here = (ids >= first) & (ids < first + len(weight))
    y = torch.where(here[..., None], weight[(ids - first).clamp(0, len(weight) - 1)], 0.0).detach()
    return collectives.native_all_reduce(group, y).requires_grad_()


def nothing_checked(operator: str, cuts: list[int]) -> None:
    """Planted: cuts anywhere."""


FAULTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "blocks descending": (vocabulary, "merged", blocks_descending),
    "native sum": (vocabulary_rows, "chain", native_chain),
    "rounded before the travel": (vocabulary_rows, "chain", finished_everywhere),
    "rows added": (vocabulary, "embedding", rows_added),
    "cut within a block": (vocabulary, "check_blocks", nothing_checked),
    "none": (vocabulary, "check_blocks", vocabulary.check_blocks),
}


def with_fault(world: World, fault: str) -> set[str]:
    module, name, planted = FAULTS[fault]
    setattr(module, name, planted)
    cuts = [0, 300, 600, 1000] if fault == "cut within a block" else vocabulary.vocabulary_cuts(1000, world.size)
    dtype = torch.bfloat16 if fault == "rounded before the travel" else torch.float32
    found = logprob_differences(world, 1000, dtype, cuts, resumed=False)
    if fault == "rows added":
        return {each for each in embedding_differences(world, 1000, dtype, cuts, resumed=False) if each == "embedding"}
    return {each for each in found if "{" not in each}


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("blocks descending", {"logprob"}),
        ("native sum", {"dhidden"}),
        ("rounded before the travel", {"dhidden"}),
        ("rows added", {"embedding"}),
        ("cut within a block", {"logprob"}),
        ("none", set()),
    ],
)
def test_a_fault_is_seen(fault: str, seen: set[str]) -> None:
    for found in on_ranks(3, with_fault, fault):
        assert found >= seen and bool(found) == bool(seen)


def test_cuts_are_even_in_blocks() -> None:
    assert vocabulary.vocabulary_cuts(272, 4) == [0, 256, 272, 272, 272]
    assert vocabulary.vocabulary_cuts(1000, 2) == [0, 512, 1000]
    assert vocabulary.vocabulary_cuts(2048, 3) == [0, 768, 1536, 2048]


def test_bad_arguments_are_refused_as_on_one_device() -> None:
    group, hidden, weight = World().group, torch.zeros(3, 4), torch.zeros(300, 4)
    for bad in (torch.tensor([0, 300, 1]), torch.tensor([0, -1, 1])):
        for one, ours in (
            (
                lambda ids: ops.selected_logprob(hidden, weight, ids),
                lambda ids: vocabulary.selected_logprob(hidden, weight, ids, [0, 300], group),
            ),
            (
                lambda ids: ops.linear_cross_entropy(hidden, weight, ids),
                lambda ids: vocabulary.linear_cross_entropy(hidden, weight, ids, [0, 300], group),
            ),
            (lambda ids: ops.embedding(ids, weight), lambda ids: vocabulary.embedding(ids, weight, 0, group)),
        ):
            with pytest.raises(ValueError) as expected:
                one(bad)
            with pytest.raises(ValueError) as found:
                ours(bad)
            assert str(found.value) == str(expected.value)
    with pytest.raises(ValueError, match=r"the cuts are \[0, 100, 300\]; allowed: multiples of 256, but for the end$"):
        vocabulary.check_blocks("cross_entropy", [0, 100, 300])
    with pytest.raises(ValueError, match=r"the cuts are \[0, 256, 300\]; allowed: 2 ascending places from 0$"):
        vocabulary.lm_head(hidden, weight, [0, 256, 300], group)
    with pytest.raises(ValueError, match=r"denominator is 2.0 with reduction='sum'; allowed: finite and above 0, with"):
        vocabulary.linear_cross_entropy(
            hidden, weight, torch.zeros(3).long(), [0, 300], group, reduction="sum", denominator=2.0
        )
