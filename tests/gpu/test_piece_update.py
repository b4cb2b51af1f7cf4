"""Updates on a GPU: in two passes over memory as by operators on the CPU; AdamW wherever tensors come to lie.

Runs of a trainer that updates so are in test_captured_passes.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.gpu.test_captured_passes import BFLOAT16, JOINED, equal, gone_on, made
from tests.train.updates import CASES, both
from torch import Tensor

from samebits.numerics.bits import same_bits
from samebits.ops._triton.launch import launch_count
from samebits.ops.adamw import AdamW
from samebits.train import triton_update
from samebits.train.lanes import Backward, backward
from samebits.train.trainer import OURS
from samebits.train.triton_passes import CapturedPasses
from samebits.train.watch import BreachError

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")

SIZES = (3, 4096, 1001, 1 << 20, 65536 + 8)


@pytest.mark.parametrize("bad", [False, True], ids=["finite", "a NaN"])
@pytest.mark.parametrize("case", CASES)
def test_every_number_and_tensor_is_that_of_the_cpu(case: tuple[Any, ...], bad: bool) -> None:
    for device in range(torch.cuda.device_count()):
        differences = both(*case, bad=bad, device=torch.device("cuda", device))
        assert not any(differences.values()), differences


@pytest.mark.parametrize("settings", [(JOINED,), (JOINED, BFLOAT16)], ids=["float32", "bfloat16"])
def test_a_run_updates_so_and_has_the_bits_of_operators(
    settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = launch_count("update_pieces"), launch_count("adamw_step")
    found = gone_on(made(*settings))
    between = launch_count("update_pieces"), launch_count("adamw_step")
    assert between[0] > before[0] and between[1] == before[1]
    monkeypatch.setattr(CapturedPasses, "update", lambda *_: None)
    assert equal(gone_on(made(*settings)), found)
    assert launch_count("update_pieces") == between[0] and launch_count("adamw_step") > between[1]


def test_an_element_that_is_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: every table says one element less, and what is left of the clipped gradient is too short."""
    tables = triton_update.tables

    def shorter(*arguments: Any) -> tuple[Tensor, ...]:
        columns = list(tables(*arguments))
        columns[-3] = columns[-3] - 1
        return tuple(columns)

    monkeypatch.setattr(triton_update, "tables", shorter)
    with pytest.raises(BreachError, match=r"the norm is [\d.]+ before clipping and [\d.]+ after; allowed: 1.0 after"):
        gone_on(made(JOINED, BFLOAT16))


def test_a_breach_comes_before_weights_change() -> None:
    def with_a_nan(*given: Any) -> Backward:
        found = backward(*given)
        found.gradients["model.norm.weight"][3] = torch.nan
        return found

    trainer = made(JOINED, BFLOAT16)
    trainer.step()
    weights = {name: each.clone() for name, each in trainer.weights.items()}
    trainer.parts = replace(OURS, backward=with_a_nan)
    with pytest.raises(BreachError, match=r"the gradient of model.norm.weight has 1 elements that are not finite"):
        trainer.step()
    assert all(same_bits(each.cpu(), weights[name].cpu()) for name, each in trainer.weights.items())


def given(seed: int, device: str) -> list[torch.nn.Parameter]:
    drawn = torch.Generator().manual_seed(seed)
    found = [torch.nn.Parameter(torch.randn(size, generator=drawn).to(device)) for size in SIZES]
    for each in found:
        each.grad = torch.randn(each.shape, generator=drawn).to(device)
    return found


def stepped(seed: int, device: str) -> list[Tensor]:
    parameters = given(seed, device)
    AdamW(parameters, lr=1e-2).step()
    return [each.detach().cpu() for each in parameters]


def test_tensors_may_come_to_lie_where_others_were() -> None:
    """Freed and made again, often at the same addresses; on another stream, too."""
    for seed in range(6):
        with torch.cuda.stream(torch.cuda.Stream() if seed % 2 else torch.cuda.current_stream()):
            found = stepped(seed, "cuda")
        torch.cuda.synchronize()
        assert all(map(same_bits, found, stepped(seed, "cpu")))


def test_an_update_can_be_captured() -> None:
    """Three replays are three updates with the numbers of the first; its tables are the graph's own."""
    parameters, wanted = given(1, "cuda"), given(1, "cpu")
    AdamW(parameters, lr=1e-2).step()  # compiles
    with torch.no_grad():
        for mine, theirs in zip(parameters, wanted, strict=True):
            mine.copy_(theirs)
    moments = [[torch.zeros_like(each) for _ in range(2)] for each in parameters]
    numbers = (1, 1e-2, 0.9, 0.95, 1e-8, 0.1)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        grads = [each.grad * 2 for each in parameters if each.grad is not None]
        first, second = ([pair[place] for pair in moments] for place in range(2))
        torch.ops.samebits.adamw_([*parameters], grads, first, second, [], *numbers, "triton")
    # What is asked for in between may not come to lie in the graph's tables.
    kept = [torch.full((1 << 16,), -1, dtype=torch.int64, device="cuda") for _ in range(64)]
    states = [[torch.zeros_like(each) for _ in range(2)] for each in wanted]
    for _ in range(3):
        graph.replay()
        with torch.no_grad():
            grads = [each.grad * 2 for each in wanted if each.grad is not None]
            first, second = ([pair[place] for pair in states] for place in range(2))
            torch.ops.samebits.adamw_([*wanted], grads, first, second, [], *numbers, "cpu")
    assert all(same_bits(mine.detach().cpu(), theirs.detach()) for mine, theirs in zip(parameters, wanted, strict=True))
    assert all(bool((each == -1).all()) for each in kept)
