"""Predicted training steps: one copy stands for all, bytes are those that ranks send, promises add time."""

from __future__ import annotations

import cProfile
from dataclasses import replace

import numpy as np
import pytest

from samebits.model import PRESETS as MODELS
from samebits.parallel import volumes
from samebits.parallel.collectives import TILE_ROWS as SENT_ROWS
from samebits.parallel.schedules import Lanes
from samebits.sim import collective_cost as cost
from samebits.sim.decoder_cost import Decoder, Kernel, Pass
from samebits.sim.gpus import H100, H100_NODE, Cluster, preset
from samebits.sim.layouts import Layout, Training, layouts_of, memory, refusals
from samebits.sim.predict import SETS, Prediction, Refused, fastest, predict, predict_all
from samebits.sim.step import TILE_ROWS, Step
from samebits.sim.step_clock import Clock

H100S = preset("h100-node")
BOTH = frozenset({"data", "tensor"})
EIGHT_B = Decoder(
    vocab_size=128256,
    hidden_size=4096,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=14336,
    tie_word_embeddings=False,
)


def decoder_of(name: str) -> Decoder:
    shape = MODELS[name]
    return Decoder(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate_size,
    )


SMALL = Training(decoder=decoder_of("350m"), sequences=32, length=1024, micro_batch=2, lanes=16)


@pytest.mark.parametrize("layout", [Layout(1, 8), Layout(2, 4), Layout(4, 4), Layout(8, 2)])
@pytest.mark.parametrize("promises", [frozenset(), BOTH])
def test_one_copy_stands_for_all(layout: Layout, promises: frozenset[str]) -> None:
    """Clocks of all ranks of 8 or 16 equal those of one copy."""
    one = Step(SMALL, layout, H100S, promises).run()
    every = Step(SMALL, layout, H100S, promises, copies=layout.data).run()
    assert every.compute.shape == (layout.data, layout.tensor)
    assert (every.compute == one.compute).all() and every.finish == one.finish


def test_F10_a_straggler_is_waited_for_by_everybody() -> None:
    """One rank of 16 starts late by d: what ends in a collective of all ends late by d."""
    layout, late = Layout(4, 4), 3e-3
    on_time = Step(SMALL, layout, H100S, BOTH, copies=4).run().finish
    step = Step(SMALL, layout, H100S, BOTH, copies=4)
    step.clock.compute[2, 1] = late
    assert on_time < step.run().finish <= on_time + late * (1 + 1e-9)


@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_between_tensor_ranks_are_those_that_ranks_send(ranks: int) -> None:
    """What `parallel` counts for all ranks of a copy, kind by kind, to the byte."""
    decoder = decoder_of("350m")
    training = Training(decoder=decoder, sequences=2, length=1024, micro_batch=2, dtype="bfloat16")
    step = Step(training, Layout(ranks, 1), H100S, BOTH)
    step.run()
    told = volumes.training_passes_of_all(MODELS["350m"], ranks, training.tokens, 2)
    for what in (
        "row-parallel output",
        "column-parallel input gradient",
        "vocabulary hidden gradient",
        "embedding rows",
        "vocabulary statistics",
    ):
        assert (ranks - 1) * step.sent[what] == told[what], what
    assert TILE_ROWS == SENT_ROWS


def test_bytes_between_copies_are_those_that_ranks_send() -> None:
    """Without tensor ranks: gradients as a reduce-scatter, weights as an all-gather."""
    decoder, copies = decoder_of("350m"), 8
    step = Step(replace(SMALL, sequences=16), Layout(1, copies), H100S, frozenset({"data"}))
    step.run()
    others = (copies - 1) / copies
    assert copies * others * step.sent["gradients"] == volumes.gradients_of_all(copies, 0, decoder.weights, 0)
    assert copies * others * step.sent["weights"] == volumes.weights_of_all(copies, copies, 0, decoder.weights, 0, 2)


def test_a_travelling_sum_equals_a_loop_over_its_tiles() -> None:
    tiles, tile, there, back = 5, 3e-6, (2e-6, 1e-6), (2e-6, 5e-7)
    clock = Clock.of(1, 4)
    clock.compute[0] = [0.0, 1e-5, 0.0, 2e-6]
    begin = clock.compute[0].copy()
    clock.chain("sum", tiles, tile, there, back)
    arrives, ends = [0.0] * tiles, []
    for place in range(4):
        free, link, finished, leaves = begin[place], 0.0, [], []
        for number in range(tiles):
            free = max(free, arrives[number]) + tile
            link = max(free, link) + there[1]
            finished.append(free)
            leaves.append(link + there[0])
        arrives = leaves
    ends.append(finished[-1])
    for _ in range(3):
        link, returned = 0.0, []
        for at in finished:
            link = max(at, link) + back[1]
            returned.append(link + back[0])
        finished = returned
        ends.append(finished[-1])
    assert clock.compute[0].tolist() == pytest.approx(ends[::-1], rel=1e-13)


def test_a_share_of_a_travelling_sum_is_what_the_page_says() -> None:
    """With n tiles a product takes n + T - 1 turns where messages cost nothing."""
    for tiles in (1, 8, 32):
        for ranks in (2, 4, 8):
            clock = Clock.of(1, ranks)
            clock.chain("sum", tiles, 1.0, (0.0, 0.0), (0.0, 0.0))
            assert clock.finish == tiles + ranks - 1


def test_promises_add_time_and_never_take_it_away() -> None:
    for layout in (Layout(2, 32), Layout(4, 16), Layout(8, 8)):
        training = Training(decoder=EIGHT_B, sequences=64, length=4096, micro_batch=1, lanes=64)
        native, data, tensor, both = (predict(training, layout, H100S, each).seconds for each in SETS)
        assert native < data < both and native < tensor < both


def test_1024_gpus_are_no_more_work_than_one_copy() -> None:
    """All layouts and promises: what is counted is calls, and they do not grow with the number of GPUs."""
    training = Training(
        decoder=replace(EIGHT_B, num_hidden_layers=4), sequences=2048, length=4096, micro_batch=1, lanes=2048
    )

    def calls(gpus: int) -> int:
        profile = cProfile.Profile()
        found = profile.runcall(predict_all, training, [gpus], H100S)
        assert len(found) == 4 and all(isinstance(each, Prediction) for each in found)
        return sum(entry.callcount for entry in profile.getstats())

    assert calls(16384) <= calls(1024) < 400_000


def test_what_is_refused_says_why() -> None:
    training = Training(decoder=EIGHT_B, sequences=64, length=4096, micro_batch=1, lanes=8)
    told = refusals(training, Layout(2, 16), H100S, frozenset({"data"}))
    assert told == ["16 copies for 8 lanes; allowed: a divisor of the number of lanes"]
    assert refusals(training, Layout(1, 128), H100S, frozenset())[0].startswith("128 copies for 64 sequences")
    assert (
        "allowed: a divisor, so that a copy is within one" in refusals(training, Layout(16, 4), H100S, frozenset())[0]
    )
    big = replace(training, micro_batch=16)
    assert "GB a GPU; a H100 80GB has 80" in refusals(big, Layout(1, 4), H100S, frozenset())[0]
    found = fastest(training, 16384, H100S, ())
    assert isinstance(found, Refused) and "16,384 GPUs as dp2048xtp8: 2048 copies for 64 sequences" in str(found)
    with pytest.raises(ValueError, match="layout dp2xtp2 is not for 8 GPUs"):
        predict_all(training, [8], H100S, [Layout(2, 2)])


def test_layouts_are_read_and_found() -> None:
    assert Layout.parse("dp8xtp4") == Layout.parse("tp4xdp8") == Layout(4, 8) and str(Layout(4, 8)) == "dp8xtp4"
    assert Layout.parse("tp2") == Layout(2, 1)
    for text in ("8x4", "dp0xtp2", "dp2xdp2", "", "dp2xtp2xpp2"):
        with pytest.raises(ValueError, match="allowed: dpNxtpM"):
            Layout.parse(text)
    assert [str(layout) for layout in layouts_of(64, H100S)] == ["dp64xtp1", "dp32xtp2", "dp16xtp4", "dp8xtp8"]


def test_memory_grows_with_lanes_and_shrinks_with_ranks() -> None:
    training = Training(decoder=EIGHT_B, sequences=64, length=4096, micro_batch=1, lanes=64)
    assert memory(training, Layout(2, 8), BOTH) > memory(training, Layout(2, 8), frozenset())
    assert memory(training, Layout(4, 8), BOTH) < memory(training, Layout(2, 8), BOTH)


def gradient_sets(training: Training, layout: Layout) -> float:
    """How many times its weights a rank has gradients, beyond the one set of a step without promises."""
    more = memory(training, layout, BOTH) - memory(training, layout, frozenset())
    return 1 + more / (4 * training.decoder.weights / layout.tensor)


@pytest.mark.parametrize(("micro_batch", "sets"), [(1, 4), (2, 4), (4, 4), (6, 4), (8, 5), (16, 8), (64, 8)])
def test_lanes_that_share_a_pass_have_gradients_of_their_own(micro_batch: int, sets: int) -> None:
    """P + log2(L / (D P)), as `docs/parallel_layout.md` says and the trainer has it."""
    training = Training(decoder=EIGHT_B, sequences=32, length=128, micro_batch=micro_batch, lanes=16)
    layout = Layout(2, 2)
    lanes, own = Lanes(lanes=16, sequences=2), 8
    together = lanes.together(own, micro_batch)
    assert gradient_sets(training, layout) == pytest.approx(sets)
    assert sets == together + (own // together).bit_length() - 1
    step = Step(training, layout, H100S, BOTH)
    assert step._lanes_of_pass() == together and Step(training, layout, H100S, frozenset())._lanes_of_pass() == 1


def test_a_layout_whose_lanes_do_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight sets of gradients; four would fit, as planted: every lane has a pass of its own."""
    training = Training(decoder=EIGHT_B, sequences=64, length=128, micro_batch=8, lanes=64)
    layout = Layout(8, 8)
    assert "GB a GPU; a H100 80GB has 32" in " ".join(refusals(training, layout, small_memory(), BOTH))
    monkeypatch.setattr(Training, "lanes_together", lambda self, layout: (8, 1))
    assert refusals(training, layout, small_memory(), BOTH) == []


def small_memory() -> Cluster:
    """A H100 of which others have taken most."""
    return replace(H100S, device=replace(H100S.device, memory=32 * 10**9))


def test_a_kernel_is_bound_by_the_slower_slope_of_the_roofline() -> None:
    compute, stream = Kernel("a", 1e15, 1.0), Kernel("b", 1.0, 1e12)
    assert compute.seconds(H100, "bfloat16") == pytest.approx(1e15 / (989.4e12 * H100.gemm_efficiency) + H100.launch)
    assert stream.seconds(H100, "bfloat16") == pytest.approx(1e12 / (3350e9 * H100.memory_efficiency) + H100.launch)


def test_products_of_a_pass_are_those_of_the_weights() -> None:
    """2 FLOPs for each weight and token, whoever shares them."""
    for share in (1, 4):
        one = Pass(decoder=EIGHT_B, rows=4096, length=4096, share=share, dtype="bfloat16")
        products = (one.reading_attention(), one.writing_attention(), one.reading_mlp(), one.writing_mlp())
        dense = EIGHT_B.layer_weights - 2 * EIGHT_B.hidden_size
        assert share * sum(kernel.flops for kernel in products) == 2 * 4096 * dense
    assert EIGHT_B.weights == 8_030_261_248, "Llama 3.1 8B"


def test_collectives_grow_with_bytes_ranks_and_distance() -> None:
    node, many = cost.Group(8, 8), cost.Group(64, 8)
    sizes = np.geomspace(1e3, 1e10, 30)
    for call in (cost.half, cost.all_reduce, cost.exchange):
        times = [call(H100_NODE, node, size) for size in sizes]
        assert times == sorted(times)
        assert call(H100_NODE, many, 1e9) > call(H100_NODE, node, 1e9) and call(H100_NODE, cost.Group(1, 1), 1e9) == 0
    assert [H100_NODE.levels(nodes) for nodes in (1, 32, 33, 1024, 1025, 2048)] == [0, 0, 1, 1, 2, 2]
    tapered = replace(H100_NODE, oversubscription=2.0)
    far = cost.Group(1024, 8)
    assert cost.half(tapered, far, 1e9) > 1.5 * cost.half(H100_NODE, far, 1e9)
    with pytest.raises(ValueError, match="3 of 8 ranks a node"):
        cost.Group(8, 3)
