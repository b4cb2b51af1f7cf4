"""Bytes that real ranks sent == the formulas, by what they were for and without a rest; planted faults are seen."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.parallel.ranks import on_ranks
from tests.parallel.unjoined import grid_of, holding_of
from tests.train.small_run import small

from samebits.infer import Engine, Request, Sampling
from samebits.model import Model
from samebits.model.config import ModelConfig
from samebits.model.split import Split
from samebits.model.weights import shapes
from samebits.parallel import volumes
from samebits.parallel.grid import Grid
from samebits.parallel.vocabulary import vocabulary_cuts
from samebits.parallel.volumes import Volume, Work
from samebits.parallel.world import World
from samebits.train.assessment import data_of, model_of
from samebits.train.configuration import TrainConfig
from samebits.train.data_order import sequences_of
from samebits.train.ranks import Gridded
from samebits.train.running import run
from samebits.train.trainer import Trainer

STEPS = 3
# (tensor, data), and what is different from the small run: sequences of several lengths, two a micro-batch.
GRIDS: dict[tuple[int, int], tuple[str, ...]] = {
    (1, 2): ("training.collation=padded",),
    (2, 1): ("training.dtype=bfloat16",),
    (2, 2): ("model.overrides.use_qk_norm=true", "training.dtype=bfloat16", "monitoring.compare_steps=2"),
    (1, 4): (
        "model.overrides.intermediate_size=1440",
        "training.micro_batch_size=1",
        "training.gradient_accumulation_steps=8",
    ),
    # One rank without heads, one without words; and a weight of two pieces of the norm.
    (3, 1): ("model.overrides.intermediate_size=1440",),
}


class Seen(NamedTuple):
    """What a rank sent, and the work that it sent it for: a Work and a number of logprobs for each step."""

    sent: dict[str, int]
    works: list[tuple[Work, int]]


def configuration(grid: tuple[int, int]) -> TrainConfig:
    return small("training.lanes=4", "monitoring.compare_steps=100", *GRIDS[grid])


def works_of(trainer: Trainer, steps: int) -> list[tuple[Work, int]]:
    """From the data alone: which words each rank of a copy holds, how many rows a step has."""
    config, data, found = trainer.config, trainer.data, []
    training, model, each = config.training, trainer.model(), trainer.cut.lanes.sequences
    own, ranks = trainer.ranks.lanes(trainer.cut.lanes), model.split.group.size if model.split else 1
    for number in range(1, steps + 1):
        places = sequences_of(
            number, seed=training.seed, sequences=len(data), batch=training.global_batch_size
        ).tolist()
        rows = [torch.from_numpy(data.sequence(place)[0]) for place in places[own.start * each : own.stop * each]]
        ids = torch.cat(rows)
        words = words_of(ids, model.config.vocab_size, ranks)
        work = Work(tokens=len(ids), words=words, element=model.dtype.itemsize)
        found.append((work, len(rows) * config.data.max_length if training.collation == "padded" else len(ids)))
    return found


def words_of(ids: torch.Tensor, vocabulary: int, ranks: int) -> list[int]:
    cuts = vocabulary_cuts(vocabulary, ranks)
    return [int(((ids >= cuts[place]) & (ids < cuts[place + 1])).sum()) for place in range(ranks)]


def trained(world: World, grids: list[tuple[int, int]]) -> list[Seen]:
    """Some steps on each of some grids of one world."""
    found = []
    for shape in grids:
        config, grid = configuration(shape), Grid(world=world, tensor=shape[0])
        model = model_of(config)
        trainer = Trainer(config, model, data_of(config), ranks=Gridded(grid, model))
        world.sent.clear()
        for _ in range(STEPS):
            trainer.step()
        found.append(Seen(dict(world.sent), works_of(trainer, STEPS)))
    return found


@cache
def all_measured(ranks: int) -> dict[tuple[int, int], list[Seen]]:
    grids = [(tensor, data) for tensor, data in GRIDS if tensor * data == ranks]
    return dict(zip(grids, map(list, zip(*on_ranks(ranks, trained, grids), strict=True)), strict=True))


def measured(shape: tuple[int, int]) -> list[Seen]:
    return all_measured(shape[0] * shape[1])[shape]


def predicted(rank: int, shape: tuple[int, int], works: list[tuple[Work, int]]) -> Volume:
    config, grid = configuration(shape), grid_of(rank, shape)
    decoder = model_of(config).config
    every, found = config.monitoring.compare_steps, Volume()
    for number, (work, logprobs) in enumerate(works, 1):
        found += volumes.step(
            decoder,
            grid,
            shapes(decoder),
            holding_of(decoder, grid),
            work,
            logprobs=logprobs,
            compared=number % every == 0,
        )
    return found


def differences(shape: tuple[int, int]) -> dict[tuple[int, str], tuple[int, int]]:
    """(sent, predicted) for every rank and kind that are not the same."""
    found = {}
    for rank, seen in enumerate(measured(shape)):
        wanted = predicted(rank, shape, seen.works)
        for kind in {*seen.sent, *wanted}:
            if seen.sent.get(kind, 0) != wanted[kind]:
                found[rank, kind] = (seen.sent.get(kind, 0), wanted[kind])
    return found


@pytest.mark.parametrize("shape", GRIDS, ids=str)
def test_a_step_sends_what_the_formulas_say(shape: tuple[int, int]) -> None:
    assert differences(shape) == {}
    assert all(sum(seen.sent.values()) > 0 for seen in measured(shape))


def test_every_kind_of_exchange_was_seen() -> None:
    """An exchange of which no run here has any bytes would be asserted by nobody."""
    seen = {kind for shape in GRIDS for each in measured(shape) for kind, sent in each.sent.items() if sent}
    assert seen == {
        "weights to all ranks",
        "tree of gradients",
        "sums of squares",
        "counts",
        "logprobs",
        "embedding rows",
        "row-parallel output",
        "column-parallel input gradient",
        "vocabulary statistics",
        "vocabulary hidden gradient",
        "gather heads",
    }


def all_ranks_gather(ranks: int, numbers: int, element: int) -> int:
    """Planted fault: to every rank, itself included."""
    return ranks * numbers * element


def all_ranks_hop(place: int, ranks: int, rows: int, width: int, element: int, back: int | None = None) -> int:
    """Planted fault: as many hops as ranks."""
    return rows * (4 * width * (place < ranks) + element * (width if back is None else back) * (place > 0))


@pytest.mark.parametrize(
    ("name", "fault", "kinds"),
    [
        ("gather_bytes", all_ranks_gather, {"counts", "sums of squares", "vocabulary statistics"}),
        ("chain_bytes", all_ranks_hop, {"row-parallel output", "column-parallel input gradient"}),
    ],
)
def test_ranks_instead_of_one_less_is_noticed(
    name: str, fault: Any, kinds: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volumes, name, fault)
    assert kinds <= {kind for _, kind in differences((2, 2))}


def test_a_weight_at_home_that_is_sent_all_the_same_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes, "met", lambda *_: [])
    assert {kind for _, kind in differences((2, 2))} == {"tree of gradients", "weights to all ranks"}


# A whole run, with its checkpoints.


def ran(world: World, folder: str, shape: tuple[int, int]) -> Seen:
    config = configuration(shape)
    grid = Grid(world=world, tensor=shape[0])
    run(config, Path(folder), grid=grid)
    sent, model = dict(world.sent), model_of(config)
    trainer = Trainer(config, model, data_of(config), ranks=Gridded(grid, model))
    return Seen(sent, works_of(trainer, trainer.run.steps))


def test_a_run_sends_its_steps_its_checkpoints_and_an_agreement(tmp_path: Path) -> None:
    shape = (2, 2)
    config = configuration(shape)
    names = shapes(model_of(config).config)
    for rank, seen in enumerate(on_ranks(4, ran, str(tmp_path / "run"), shape)):
        grid = grid_of(rank, shape)
        wanted = predicted(rank, shape, seen.works)
        for _ in range(len(seen.works) // config.training.save_steps):
            wanted += volumes.checkpoint(grid, names)
        wanted += volumes.agreement(grid)
        if len(seen.works) % config.monitoring.compare_steps == 0:
            # The weights that were compared after the last step are those of a step that does not come.
            wanted["weights to all ranks"] += volumes.exchanged_weights(
                grid, names, holding_of(model_of(config).config, grid), element=2
            )["weights to all ranks"]
        assert Volume(seen.sent) == wanted


# Generation.

DECODER = ModelConfig(
    vocab_size=700,
    hidden_size=50,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=72,
    max_position_embeddings=256,
)
# None begins like another: what is computed once is not sent twice.
PROMPTS = [[(7 * place + length) % 700 for place in range(length)] for length in (3, 40, 17)]


def generated(world: World, dtype: torch.dtype) -> tuple[dict[str, int], dict[str, int], list[tuple[int, ...]]]:
    model = Model.new(DECODER, 5).to(dtype=dtype)
    model = model.parted(Split(config=DECODER, group=world.group, gathers=True))
    engine = Engine(model.for_inference(), pages=32, batch_tokens=24, batch_requests=4)
    requests = [
        Request(prompt=tuple(prompt), max_tokens=5, sampling=Sampling(seed=seed), score_prompt=seed == 1)
        for seed, prompt in enumerate(PROMPTS)
    ]
    answers = engine.generate(requests)
    return dict(world.sent), engine.statistics(), [answer.tokens for answer in answers]


@cache
def answered(ranks: int, dtype: torch.dtype) -> list[tuple[dict[str, int], dict[str, int], list[tuple[int, ...]]]]:
    return on_ranks(ranks, generated, dtype)


def places_as_predicted(ranks: int, dtype: torch.dtype) -> list[bool]:
    found = []
    for place, (sent, statistics, answers) in enumerate(answered(ranks, dtype)):
        # Of an answer, the last token is not computed with.
        ids = [token for prompt in PROMPTS for token in prompt] + [token for each in answers for token in each[:-1]]
        assert statistics["computed_tokens"] == len(ids)
        words = words_of(torch.tensor(ids), DECODER.vocab_size, ranks)
        work = Work(tokens=len(ids), words=words, element=dtype.itemsize)
        scored = len(PROMPTS[1]) - 1
        wanted = volumes.generation(DECODER, place, ranks, work, drawn=statistics["tokens"], scored=scored)
        found.append(Volume(sent) == wanted)
    return found


@pytest.mark.parametrize(("ranks", "dtype"), [(2, torch.float32), (3, torch.bfloat16)])
def test_generation_sends_what_the_formulas_say(
    ranks: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert places_as_predicted(ranks, dtype) == [True] * ranks
    monkeypatch.setattr(volumes, "gather_bytes", all_ranks_gather)
    assert places_as_predicted(ranks, dtype) == [False] * ranks
