"""GRPO on real ranks: engine and trainer share copies and parts of the weights, with the bits of one process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from tests.parallel.ranks import on_ranks

from samebits.model import ModelConfig
from samebits.parallel.grid import Grid
from samebits.parallel.world import World
from samebits.parity import rollout
from samebits.parity.rl import BatchRecord, Loop, RLConfig
from samebits.parity.rollout import Rollout

SHAPE = ModelConfig(
    vocab_size=300,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    intermediate_size=112,
    max_position_embeddings=64,
    use_qk_norm=True,
)
SETTINGS = RLConfig(prompts=4, num_generations=6, seed=5, lanes=8, num_iterations=2, beta=0.05, micro_batch_size=5)
BATCHES = 2
Outcome = tuple[list[BatchRecord], str]


def outcome(loop: Loop) -> Outcome:
    return [loop.step() for _ in range(BATCHES)], loop.digest()


def on_rank(world: World, tensor: int, settings: RLConfig) -> Outcome:
    return outcome(Loop(settings, SHAPE, Grid(world=world, tensor=tensor)))


@cache
def alone(settings: RLConfig = SETTINGS) -> Outcome:
    return outcome(Loop(settings, SHAPE))


@pytest.mark.parametrize(
    ("tensor", "data"),
    [(2, 2), (3, 1), *(pytest.param(*grid, marks=pytest.mark.long) for grid in [(1, 2), (2, 1), (1, 4)])],
)
def test_any_grid_is_one_process(tensor: int, data: int) -> None:
    """Rewards, losses, norms, every comparison, and the weights in the end; exactly on-policy on each first update."""
    records, digest = alone()
    assert all(record.first.exact and not record.last.exact for record in records)
    found = on_ranks(tensor * data, on_rank, tensor, replace(SETTINGS, micro_batch_size=7))
    assert all(each == records for each, _ in found)
    assert [each for _, each in found] == [digest] + [""] * (tensor * data - 1)


def test_lanes_decide_bits() -> None:
    """So that one digest for all grids means something."""
    assert alone(replace(SETTINGS, lanes=1))[1] != alone()[1] != alone(replace(SETTINGS, lanes=2))[1]


def numbered_by_copy(world: World) -> list[Rollout]:
    """Planted: a copy numbers its requests from its own first one, and so draws what another copy draws."""
    original = rollout.Engine.generate

    def generate(self: Any, requests: Any) -> Any:
        first = SETTINGS.prompts * SETTINGS.num_generations
        return original(self, [replace(each, number=first + place) for place, each in enumerate(requests)])

    rollout.Engine.generate = generate  # type: ignore[method-assign]
    return Loop(SETTINGS, SHAPE, Grid(world=world, tensor=1)).sample(1)


def test_draws_that_know_the_copy_are_noticed() -> None:
    wanted, half = (
        [each.tokens for each in Loop(SETTINGS, SHAPE).sample(1)],
        SETTINGS.prompts * SETTINGS.num_generations // 2,
    )
    for found in on_ranks(2, numbered_by_copy):
        tokens = [each.tokens for each in found]
        assert tokens[:half] == wanted[:half] and tokens[half:] != wanted[half:]


def stale_on_one(world: World) -> BatchRecord:
    """Planted: one copy samples with weights from before the last update."""
    loop = Loop(SETTINGS, SHAPE, Grid(world=world, tensor=1))
    before = {name: weight.clone() for name, weight in loop.policy.weights.items()}
    loop.step()
    if world.rank == 1:
        speaking = replace(loop.policy, weights=before)
        loop._speaking = lambda: speaking  # type: ignore[method-assign]
    return loop.step()


def test_a_stale_engine_on_one_copy_is_reported_by_all() -> None:
    for record in on_ranks(2, stale_on_one):
        assert not record.first.exact and 0 < record.first.mismatched < record.first.tokens


def refused(world: World, changes: dict[str, Any]) -> str:
    with pytest.raises(ValueError) as error:
        Loop(replace(SETTINGS, **changes), SHAPE, Grid(world=world, tensor=1))
    return str(error.value)


def test_what_ranks_cannot_share_is_refused_before_anything_is_sampled() -> None:
    lanes = "lanes: 2 ranks for 1 lanes; allowed: a divisor of the number of lanes"
    assert set(on_ranks(2, refused, {"lanes": 1})) == {lanes}
    stock = "rl: stock torch on 2 ranks; allowed: samebits, or one rank"
    assert set(on_ranks(2, refused, {"stock": True})) == {stock}
    with pytest.raises(ValueError, match=r"lanes is 16; allowed: .* that divides prompts x num_generations, 24"):
        replace(SETTINGS, lanes=16)


def command(*arguments: str) -> dict[str, Any]:
    options = ("rl", "--steps", "1", "--prompts", "2", "--num-generations", "4", "--lanes", "2", "--no-stock", "--json")
    ran = subprocess.run(
        [sys.executable, "-m", "samebits.cli", *arguments, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    document: dict[str, Any] = json.loads(ran.stdout)
    return document


@pytest.mark.long
def test_the_command_on_two_ranks_says_what_one_says() -> None:
    assert command("launch", "--nproc", "2", "--") == command()
