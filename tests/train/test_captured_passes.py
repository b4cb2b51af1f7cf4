"""Passes that are captured and launched again have the bits of passes that are made anew; on the CPU, by a stand-in.

What only a GPU can show is in tests/gpu/test_captured_passes.py."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.replayed_operations import Graph, cuda_graphs_on_the_cpu
from tests.train.small_run import small, trainer_of
from torch.nn.modules.module import register_module_forward_hook

from samebits import invariant_mode
from samebits.model import Model
from samebits.numerics.bits import same_bits
from samebits.parallel.schedules import Lanes
from samebits.parity.stock import STOCK
from samebits.train import triton_passes
from samebits.train.assessment import model_of
from samebits.train.checkpoint import Checkpoint
from samebits.train.lanes import Backward, Cut, Example, backward
from samebits.train.trainer import Parts, Trainer
from samebits.train.triton_passes import CapturedPasses
from samebits.train.triton_sums import LaneSums

UPDATES = 4
KINDS = ("weights", "optimizer")
JOINED = "data.documents=joined"  # All sequences of one length, so that passes come again.
CUTS = {
    "four passes of a lane": (JOINED,),
    "two lanes": (JOINED, "training.lanes=2"),
    "eight lanes, two in a pass": (JOINED, "training.lanes=8"),
    "bfloat16": (JOINED, "training.dtype=bfloat16"),
    "bfloat16, four lanes": (JOINED, "training.dtype=bfloat16", "training.lanes=4"),
    "a head of its own": (JOINED, "model.overrides.tie_word_embeddings=false"),
    "lengths that change": (),
    "padded": (JOINED, "training.collation=padded"),
}


def run(*settings: str, captured: bool, parts: Parts | None = None, updates: int = UPDATES) -> tuple[Any, Trainer]:
    """What every update came to: its numbers, its gradients; then weights and moments."""
    trainer = trainer_of(small(*settings), parts)
    trainer.captured = CapturedPasses() if captured else None
    seen: list[torch.Tensor] = []
    trainer.observers.append(lambda _, found: seen.extend(each.clone() for each in found.values()))
    records = [replace(trainer.step(), seconds=0.0) for _ in range(updates)]
    return (records, [*seen, *trainer.weights.values(), *trainer.moments().values()]), trainer


def equal(one: tuple[Any, Sequence[torch.Tensor]], other: tuple[Any, Sequence[torch.Tensor]]) -> bool:
    return one[0] == other[0] and all(same_bits(*each) for each in zip(one[1], other[1], strict=True))


@pytest.mark.parametrize("cut", CUTS)
def test_a_run_has_the_bits_of_one_without_graphs(cut: str) -> None:
    wanted, _ = run(*CUTS[cut], captured=False)
    with cuda_graphs_on_the_cpu() as graphs:
        found, _ = run(*CUTS[cut], captured=True)
    assert equal(found, wanted)
    assert bool(sum(each.replays for each in graphs)) == (cut != "padded")


def differs(*settings: str, updates: int = UPDATES) -> bool:
    """Whether a run with graphs, in which a fault was planted, is another one than the run without."""
    wanted, _ = run(*settings, captured=False, updates=updates)
    with cuda_graphs_on_the_cpu():
        found, _ = run(*settings, captured=True, updates=updates)
    return not equal(found, wanted)


def test_tokens_that_are_not_copied_in_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: each graph goes on with the sequences of its first replay."""
    replayed, first = triton_passes._Pass.replayed, {}

    def stale(self: Any, examples: Sequence[Example], weight: float) -> torch.Tensor:
        return replayed(self, first.setdefault(id(self), examples), weight)

    monkeypatch.setattr(triton_passes._Pass, "replayed", stale)
    assert differs(JOINED)


def test_sums_that_are_not_cleared_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LaneSums, "clear", lambda self: None)
    assert differs(JOINED, updates=2)


def moved(captured: bool) -> tuple[Any, Sequence[torch.Tensor]]:
    """A run in bfloat16 whose roundings lie elsewhere from the fourth update on."""
    trainer = trainer_of(small(JOINED, "training.dtype=bfloat16"))
    trainer.captured = CapturedPasses() if captured else None
    losses = [trainer.step().loss for _ in range(3)]
    if trainer.captured:
        trainer.captured._model = None
    losses.extend(trainer.step().loss for _ in range(2))
    return losses, list(trainer.weights.values())


def test_weights_that_lie_elsewhere_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the graphs of the weights that were there before are kept."""
    wanted = moved(captured=False)
    with cuda_graphs_on_the_cpu():
        assert equal(moved(captured=True), wanted)
    begin = CapturedPasses._begin
    monkeypatch.setattr(CapturedPasses, "_begin", lambda self, *given: self._of is None and begin(self, *given))
    with cuda_graphs_on_the_cpu():
        assert not equal(moved(captured=True), wanted)


CUT = Cut(lanes=Lanes(lanes=1, sequences=2), micro_batch=2)
LENGTHS = [(10, 22), (22, 10), (10, 22), (10, 22), (22, 10), (22, 10)]


def examples_of(seed: int, lengths: Sequence[int]) -> list[Example]:
    drawn = [np.random.default_rng([seed, place]).integers(272, size=n + 1) for place, n in enumerate(lengths)]
    return [(each[:-1].copy(), each[1:].copy()) for each in drawn]


def gone_through(model: Model, cut: Cut, lengths: Sequence[Sequence[int]] = LENGTHS) -> tuple[Any, list[torch.Tensor]]:
    """Losses and gradients of batches of these lengths."""
    losses, gradients = [], []
    for seed, each in enumerate(lengths):
        found: Backward = backward(model, examples_of(seed, each), cut)
        losses.append(found.loss)
        gradients.extend(gradient.clone() for gradient in found.gradients.values())
    return losses, gradients


def test_a_graph_is_for_its_lengths_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a graph for another order of the same lengths is taken."""
    model = model_of(small())
    wanted = gone_through(model, CUT)
    with cuda_graphs_on_the_cpu() as graphs:
        assert equal(gone_through(model, replace(CUT, passes=CapturedPasses())), wanted) and len(graphs) == 2

        def by_tokens(summing: Model, lengths: tuple[int, ...]) -> triton_passes.Signature:
            return signature(summing, (sum(lengths),))

        signature = triton_passes.Signature
        monkeypatch.setattr(triton_passes, "Signature", by_tokens)
        assert not equal(gone_through(model, replace(CUT, passes=CapturedPasses())), wanted)


def test_another_model_on_the_same_weights_is_another_one() -> None:
    """Operators may change and weights stay where they are; no graph is gone on with, and torch's are not captured."""
    model = model_of(small())
    stock = replace(model, operators=STOCK)
    with cuda_graphs_on_the_cpu() as graphs:
        passes = replace(CUT, passes=CapturedPasses())
        assert equal(gone_through(model, passes, LENGTHS[2:4]), gone_through(model, CUT, LENGTHS[2:4]))
        assert equal(gone_through(stock, passes), gone_through(stock, CUT)) and len(graphs) == 1


def test_tokens_outside_the_vocabulary_are_refused_as_ever() -> None:
    model, examples = model_of(small()), examples_of(0, (10, 22))
    with cuda_graphs_on_the_cpu() as graphs:
        cut = replace(CUT, passes=CapturedPasses())
        gone_through(model, cut, [(10, 22)] * 3)
        assert len(graphs) == 1
        for where, words in ((0, "the vocabulary is 272"), (1, "outside the vocabulary of 272")):
            for bad in (-7, 272):
                wrong = [tuple(each.copy() for each in example) for example in examples]
                wrong[1][where][3] = bad
                with pytest.raises(ValueError, match=words):
                    backward(model, wrong, cut)  # type: ignore[arg-type]


@pytest.mark.parametrize("borders", [False, True], ids=["one lane", "lanes in one pass"])
def test_where_memory_is_short_the_run_goes_on_without_graphs(borders: bool) -> None:
    """Both ways of it: a pass without a graph comes while graphs hold memory; a capture itself finds none left."""
    lanes = Lanes(lanes=2, sequences=1) if borders else CUT.lanes
    model, cut, lengths = model_of(small()), replace(CUT, lanes=lanes), [*LENGTHS, (16, 16), (10, 22)]
    wanted = gone_through(model, cut, lengths)
    with cuda_graphs_on_the_cpu(free=-(10**15)) as graphs:
        passes = CapturedPasses()
        assert equal(gone_through(model, replace(cut, passes=passes), lengths), wanted)
        assert len(graphs) == 2 and not passes._graphs and not passes._capturing

    @contextmanager
    def too_large(graph: Graph, **_: object) -> Any:
        with graph:
            yield
        graph.undo()
        raise torch.OutOfMemoryError("planted")

    with cuda_graphs_on_the_cpu(graph=too_large) as graphs:
        passes = CapturedPasses()
        assert equal(gone_through(model, replace(cut, passes=passes), lengths), wanted)
        assert len(graphs) == 1 and graphs[0].replays == 0 and not passes._capturing


def test_no_more_than_some_models_and_graphs_are_kept() -> None:
    """Twenty ways in which two lanes share a pass, twice each: the latest are kept, with every bit as without."""
    cut = replace(CUT, lanes=Lanes(lanes=2, sequences=1))
    model, lengths = model_of(small()), [(4 + n, 30 - n) for n in range(20) for _ in range(2)]
    with cuda_graphs_on_the_cpu() as graphs:
        passes = CapturedPasses()
        assert equal(gone_through(model, replace(cut, passes=passes), lengths), gone_through(model, cut, lengths))
    assert (
        len(graphs) == 20 and len(passes._graphs) == len(passes._summing) == len(passes._adding) == triton_passes.KEPT
    )


def test_who_looks_into_operators_sees_them() -> None:
    """A profiler, a mode, a hook: the pass is made anew, with the same bits."""
    model, called = model_of(small()), []
    with cuda_graphs_on_the_cpu() as graphs:
        cut = replace(CUT, passes=CapturedPasses())
        gone_through(model, cut, LENGTHS[2:4])
        with torch.profiler.profile() as profiled:
            found = [gone_through(model, cut, LENGTHS[2:4])]
        with Graph() as mode:
            found.append(gone_through(model, cut, LENGTHS[2:4]))
        hook = register_module_forward_hook(lambda *_: called.append(1))
        found.append(gone_through(model, cut, LENGTHS[2:4]))
        hook.remove()
    assert len(graphs) == 2 and graphs[0].replays == 1 and len(mode.operations) > 100 and len(called) > 10
    assert any("samebits::rmsnorm" in each.key for each in profiled.key_averages())
    wanted = gone_through(model, CUT, LENGTHS[2:4])
    assert all(equal(each, wanted) for each in found)


def test_passes_are_captured_after_a_block_in_invariant_mode() -> None:
    """Its hooks stay where they are for good, and look into nothing."""
    with invariant_mode():
        pass
    with cuda_graphs_on_the_cpu() as graphs:
        gone_through(model_of(small()), replace(CUT, passes=CapturedPasses()), LENGTHS[2:4])
    assert len(graphs) == 1 and graphs[0].replays == 1


def test_a_checkpoint_is_gone_on_with() -> None:
    """Two updates, a checkpoint, two more: as four without a graph; restored into the run itself, too."""
    settings = (JOINED, "training.dtype=bfloat16")
    (_, wanted), _ = run(*settings, captured=False)
    with cuda_graphs_on_the_cpu() as graphs:
        _, trainer = run(*settings, captured=True, updates=2)
        state = trainer.state()
        assert state is not None
        weights, moments = ({name: each.clone() for name, each in state[kind].items()} for kind in KINDS)
        point = Checkpoint(step=2, weights=weights, optimizer=moments, state=state["state"], digest="", skipped=())
        fresh = trainer_of(small(*settings))
        fresh.captured = CapturedPasses()
        for each in (fresh, trainer, trainer):
            each.restore(point)
            for _ in range(2):
                each.step()
            found = [*each.weights.values(), *each.moments().values()]
            assert all(same_bits(*pair) for pair in zip(found, wanted[-len(found) :], strict=True))
    assert len(graphs) == 2 and all(each.replays for each in graphs)
