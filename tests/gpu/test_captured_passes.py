"""Passes captured as CUDA graphs: a run has the bits of one whose passes are made operator by operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.train.magnitudes import LARGEST
from tests.train.small_run import small, trainer_of
from tests.train.test_lane_sums import SHAPES, filled

from samebits.model import Batch
from samebits.numerics.bits import same_bits
from samebits.ops._triton.side_by_side import SideBySide
from samebits.ops.grad_norm import grad_norm
from samebits.train import checkpoint, watch
from samebits.train.trainer import Trainer, clipped
from samebits.train.triton_passes import CapturedPasses, _Pass
from samebits.train.triton_sums import LaneSums

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")

UPDATES = 4
ON_GPU = ("training.device=cuda", "model.overrides.vocab_size=512")
JOINED = "data.documents=joined"  # All sequences of one length, so that passes come again.
BFLOAT16 = "training.dtype=bfloat16"
CUTS = {
    "four passes of a lane": (JOINED, BFLOAT16),
    "float32": (JOINED,),
    "two lanes": (JOINED, BFLOAT16, "training.lanes=2"),
    "eight lanes, two in a pass": (JOINED, "training.lanes=8"),
    "a head of its own, four lanes": (
        JOINED,
        BFLOAT16,
        "training.lanes=4",
        "model.overrides.tie_word_embeddings=false",
    ),
    "norms of heads": (JOINED, BFLOAT16, "model.overrides.use_qk_norm=true", "model.overrides.num_hidden_layers=4"),
    "lengths that change": (BFLOAT16,),
}


def made(*settings: str, captured: bool = True) -> Trainer:
    trainer = trainer_of(small(*ON_GPU, *settings))
    assert isinstance(trainer.captured, CapturedPasses)
    if not captured:
        trainer.captured = None
    return trainer


def evaluated(trainer: Trainer) -> torch.Tensor:
    """Logprobs between two updates: memory is asked for and given back beside the graphs."""
    model, ids = trainer.model(), torch.arange(300, device="cuda")
    with torch.no_grad():
        return model.logprobs(model.hidden(Batch.of([ids[:200], ids[:100]], device="cuda")), ids)


def gone_on(trainer: Trainer, updates: int = UPDATES) -> tuple[Any, list[torch.Tensor]]:
    """What every update came to: its numbers, gradients, weights, moments, and the model's answers after it."""
    records, seen = [], []
    trainer.observers.append(lambda _, found: seen.extend(each.clone() for each in found.values()))
    for _ in range(updates):
        records.append(replace(trainer.step(), seconds=0.0))
        tensors = [*trainer.weights.values(), *trainer.moments().values(), evaluated(trainer)]
        seen.extend(each.clone() for each in tensors)
    trainer.observers.clear()
    return records, seen


def equal(one: tuple[Any, Sequence[torch.Tensor]], other: tuple[Any, Sequence[torch.Tensor]]) -> bool:
    return one[0] == other[0] and all(
        same_bits(mine.cpu(), yours.cpu()) for mine, yours in zip(one[1], other[1], strict=True)
    )


def graphs_of(trainer: Trainer) -> int:
    return len(trainer.captured._graphs) if trainer.captured else 0


@pytest.mark.parametrize("cut", CUTS)
def test_a_run_has_the_bits_of_one_without_graphs(cut: str) -> None:
    trainer = made(*CUTS[cut])
    assert equal(gone_on(trainer), gone_on(made(*CUTS[cut], captured=False))) and graphs_of(trainer) > 0


def test_float32_has_the_bits_of_the_cpu() -> None:
    """Losses, norms, weights and moments of four updates, graphs on one side."""
    here = trainer_of(small(JOINED, "model.overrides.vocab_size=512"))
    there = made(JOINED)
    for _ in range(UPDATES):
        assert replace(here.step(), seconds=0.0) == replace(there.step(), seconds=0.0)
    found, wanted = ([*each.weights.values(), *each.moments().values()] for each in (there, here))
    assert all(same_bits(*pair) for pair in zip((each.cpu() for each in found), wanted, strict=True))
    assert graphs_of(there) == 1


def test_tokens_that_are_not_copied_in_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a graph goes on with the sequences of its first replay."""
    wanted, replayed, first = gone_on(made(JOINED, BFLOAT16, captured=False)), _Pass.replayed, {}

    def stale(self: Any, examples: Any, weight: float) -> torch.Tensor:
        return replayed(self, first.setdefault(id(self), examples), weight)

    monkeypatch.setattr(_Pass, "replayed", stale)
    assert not equal(gone_on(made(JOINED, BFLOAT16)), wanted)


def test_sums_that_are_not_cleared_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = gone_on(made(JOINED, BFLOAT16, captured=False), 2)
    monkeypatch.setattr(LaneSums, "clear", lambda self: None)
    assert not equal(gone_on(made(JOINED, BFLOAT16), 2), wanted)


NORMS = CUTS["norms of heads"]


def test_sums_of_narrow_norms_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all norms of a pass, of which each would leave most of the device with nothing to do."""
    flush, beside = SideBySide._flush, list[int]()

    def counted(self: SideBySide) -> None:
        beside.append(len(self._starts))
        flush(self)

    monkeypatch.setattr(SideBySide, "_flush", counted)
    assert equal(gone_on(made(*NORMS)), gone_on(made(*NORMS, captured=False))) and sum(beside) == 17
    assert max(beside) > 8


def test_sums_that_wait_for_ever_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted."""
    wanted = gone_on(made(*NORMS, captured=False))
    monkeypatch.setattr(SideBySide, "_flush", SideBySide._forget)
    assert not equal(gone_on(made(*NORMS)), wanted)


def test_a_checkpoint_is_gone_on_with(tmp_path: Any) -> None:
    """Two updates, a checkpoint, two more: with graphs or without, in a new trainer or in the one that wrote it."""
    first = made(JOINED, BFLOAT16)
    gone_on(first, 2)
    checkpoint.write(tmp_path, 2, **(first.state() or {}))
    wanted = gone_on(first, 2)
    for trainer in (made(JOINED, BFLOAT16), made(JOINED, BFLOAT16, captured=False), first):
        trainer.restore(checkpoint.read(tmp_path))
        assert equal(gone_on(trainer, 2), wanted)


def test_graphs_can_be_turned_off_and_on() -> None:
    trainer, passes = made(JOINED, BFLOAT16), CapturedPasses()
    wanted = gone_on(made(JOINED, BFLOAT16, captured=False), 8)
    found = gone_on(trainer, 3)
    for after in (None, passes):
        trainer.captured = after
        more = gone_on(trainer, 2 if after is None else 3)
        found = (found[0] + more[0], found[1] + more[1])
    assert equal(found, wanted) and len(passes._graphs) == 1


def test_another_stream_is_busy_while_a_pass_is_captured() -> None:
    """Work that runs beside all updates changes none of them."""
    wanted, beside = gone_on(made(JOINED, BFLOAT16, captured=False)), torch.cuda.Stream()
    ones = torch.ones(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(beside):
        for _ in range(200):
            ones = (ones @ ones).clamp(max=1.0)
    assert equal(gone_on(made(JOINED, BFLOAT16)), wanted)
    beside.synchronize()
    assert bool((ones == 1).all())


def test_the_largest_magnitude_is_exact() -> None:
    """Each by itself and all together, as on the CPU."""
    tensors = {name: torch.tensor(numbers, device="cuda") for name, (numbers, _) in LARGEST.items()}
    for name, found in zip(tensors, watch.largest(tensors).cpu(), strict=True):
        assert same_bits(found, torch.tensor(LARGEST[name][1])) or bool(found.isnan() and LARGEST[name][1] != 0), name
        assert same_bits(watch.largest({name: tensors[name]}).cpu(), found[None]), name
    few = dict(list(tensors.items())[:5])
    assert watch.without_gradient(2, few, watch.largest(few)) == ["zeros", "none"]


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied head"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_the_whole_has_the_norm_of_the_list(shapes: str, tied: bool) -> None:
    """On the GPU as on the CPU, and what clipping by it leaves."""
    for seed, scale in enumerate((1.0, 1e-30, 1e-42, 1e18, 1e20)):
        there = LaneSums(SHAPES[shapes], tied, torch.device("cuda"))
        here = filled(SHAPES[shapes], tied, seed, scale)
        for name, part in there.parts.items():
            part.copy_(here.parts[name])
        gradients, apart = there.gradients(), [each.clone() for each in here.gradients().values()]
        whole, norm = there.whole(gradients), grad_norm(apart)
        assert whole is not None and same_bits(grad_norm([whole]).cpu(), norm)
        assert same_bits(grad_norm(gradients.values()).cpu(), norm)
        clipped([whole], norm.cuda(), 0.5)
        clipped(apart, norm, 0.5)
        assert all(same_bits(mine.cpu(), wanted) for mine, wanted in zip(gradients.values(), apart, strict=True))
