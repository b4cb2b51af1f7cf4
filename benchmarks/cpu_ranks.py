"""Speed of ranks on one machine, a thread each: `benchmarks/cpu_ranks.py [--decode] [--record]`. Launches two ranks.

A training step of the tiny preset (16 sequences of 128 bytes): lanes, balanced tree, sharded AdamW and all that is
watched, against the same model on torch's operators under DistributedDataParallel with torch's own clipping and AdamW;
in turns in one run, on loopback. We take a rank's batch in one pass, stock in one or in as many as it has lanes; its
faster one counts. Then two ranks against one, which has no target: two cores share a processor's memory and clock."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from provenance import processor, provenance
from stock_trainer import StockTrainer
from torch import Tensor

from samebits import native
from samebits.infer import Engine, Request, Sampling
from samebits.model import Model
from samebits.model.loading import load
from samebits.model.split import Split
from samebits.native.sources import source_digest
from samebits.parallel.grid import Grid
from samebits.parallel.launching import launch, ranks
from samebits.parallel.world import World
from samebits.train.assessment import data_of, model_of
from samebits.train.configuration import TrainConfig
from samebits.train.configuration_file import read
from samebits.train.lanes import Backward
from samebits.train.ranks import ALONE, Gridded, Ranks
from samebits.train.trainer import OURS, Parts, Trainer

RESULTS = Path(__file__).parent / "results" / "cpu_ranks.json"
RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "tiny.yaml"
RANKS, BATCH, TARGET = 2, 16, 1.25
WARM, TURNS, STEPS = 3, 21, 15
LANES = (2, 8)
PROMPT, DECODED = 64, 12
Side = Callable[[], Any]


def configuration(lanes: int) -> TrainConfig:
    """A rank's whole batch in one pass."""
    micro_batch = BATCH // RANKS
    return read(
        RECIPE,
        [
            f"training.lanes={lanes}",
            f"training.micro_batch_size={micro_batch}",
            f"training.gradient_accumulation_steps={BATCH // micro_batch}",
        ],
    )


def timed(run: Side) -> float:
    """Seconds from the moment when all ranks begin to the moment when all have ended."""
    dist.barrier()
    start = time.perf_counter()
    run()
    dist.barrier()
    return time.perf_counter() - start


def turns(sides: dict[str, Side], count: int) -> dict[str, list[float]]:
    """The seconds of every side in each turn; which side begins goes round."""
    names = list(sides)
    for _ in range(WARM):
        for side in sides.values():
            timed(side)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(count):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(timed(sides[name]))
    return found


def trainer_of(config: TrainConfig, of_ranks: Ranks, parts: Parts = OURS) -> Trainer:
    return Trainer(config, model_of(config), data_of(config), parts, of_ranks)


def gridded(world: World, config: TrainConfig, tensor: int = 1) -> Gridded:
    return Gridded(Grid(world=world, tensor=tensor), model_of(config))


def against_stock(world: World, lanes: int) -> dict[str, Any]:
    config = configuration(lanes)
    ours = trainer_of(config, gridded(world, config))
    model, data = model_of(config), data_of(config)
    sides: dict[str, Side] = {"ours": ours.step}
    for passes in sorted({1, lanes // RANKS}):
        sides["stock, 1 pass" if passes == 1 else f"stock, {passes} passes"] = StockTrainer(
            config, model, data, world, passes
        ).step
    found = turns(sides, TURNS)
    mine = found.pop("ours")
    name, theirs = min(found.items(), key=lambda item: statistics.median(item[1]))
    ratio = statistics.median(own / other for own, other in zip(mine, theirs, strict=True))
    return {
        "case": f"step, lanes {lanes}",
        "baseline": name,
        "baseline_ms": _ms(statistics.median(theirs)),
        "samebits_ms": _ms(statistics.median(mine)),
        "ratio": round(ratio, 3),
        "target": TARGET,
        "met": ratio <= TARGET,
        "ratio_of_fastest": round(min(mine) / min(theirs), 3),
        "all_baselines_ms": {name: _ms(statistics.median(each)) for name, each in found.items()},
    }


class Clock:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] += seconds


class Clocked(Gridded):
    """A rank whose exchanges are timed, waiting for others included."""

    def __init__(self, world: World, config: TrainConfig, clock: Clock) -> None:
        super().__init__(Grid(world=world), model_of(config))
        self.clock = clock

    def model(self, base: Model, weights: dict[str, Tensor], dtype: torch.dtype) -> Model:
        with self.clock("weights to all ranks"):
            return super().model(base, weights, dtype)

    def reduced(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        with self.clock("tree of gradients"):
            return super().reduced(gradients)

    def norms(self, gradients: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
        with self.clock("norms"):
            return super().norms(gradients, name)


def breakdown(world: World, lanes: int) -> dict[str, Any]:
    """Milliseconds of a step by what they went into, on rank 0, means over some steps."""
    config, clock = configuration(lanes), Clock()

    def backward(*arguments: Any) -> Backward:
        with clock("backward"):
            return OURS.backward(*arguments)

    def clip(*arguments: Any) -> None:
        with clock("clip"):
            OURS.clip(*arguments)

    parts = Parts(backward=backward, clip=clip)
    trainer = trainer_of(config, Clocked(world, config, clock), parts)
    began: list[float] = []
    trainer.optimizer.register_step_pre_hook(lambda *_: began.append(time.perf_counter()))
    trainer.optimizer.register_step_post_hook(lambda *_: clock.add("AdamW", time.perf_counter() - began.pop()))
    for _ in range(WARM):
        trainer.step()
    clock.seconds.clear()
    whole = sum(timed(trainer.step) for _ in range(STEPS))
    found = dict(clock.seconds)
    # The tree is part of the backward pass's call.
    found["backward"] -= found["tree of gradients"]
    found["watching and the rest"] = whole - sum(found.values())
    return {"case": f"breakdown, lanes {lanes}"} | {name: _ms(each / STEPS) for name, each in found.items()}


def against_one(world: World) -> list[dict[str, Any]]:
    """Two ranks, by data and by tensor, against one while the other waits."""
    config = configuration(LANES[0])
    alone = trainer_of(config, ALONE)
    sides: dict[str, Side] = {"1 rank": lambda: alone.step() if world.rank == 0 else None}
    for name, tensor in (("data 2", 1), ("tensor 2", RANKS)):
        sides[name] = trainer_of(config, gridded(world, config, tensor)).step
    found = turns(sides, STEPS)
    return [_against("step", name, found["1 rank"], found[name]) for name in sides if name != "1 rank"]


def decoding(world: World) -> dict[str, Any]:
    """Steps of one answer by SmolLM2-135M."""
    whole = load("smollm2").model
    vocabulary = whole.config.vocab_size
    prompt = tuple(torch.randint(0, vocabulary, (PROMPT,), generator=torch.Generator().manual_seed(1)).tolist())
    asked = Request(prompt=prompt, max_tokens=DECODED * (WARM + STEPS + 1), sampling=Sampling(temperature=0.0))
    part = whole.parted(Split(config=whole.config, group=world.group, gathers=True))
    alone, shared = (Engine(model.for_inference(), pages=32, batch_tokens=256) for model in (whole, part))
    for engine in (alone, shared):
        engine.submit(asked)

    def steps(engine: Engine) -> None:
        for _ in range(DECODED):
            engine.step()

    sides: dict[str, Side] = {
        "1 rank": lambda: steps(alone) if world.rank == 0 else None,
        "tensor 2": lambda: steps(shared),
    }
    found = {name: [each / DECODED for each in seconds] for name, seconds in turns(sides, STEPS).items()}
    return _against("decode smollm2", "tensor 2", found["1 rank"], found["tensor 2"])


def _against(case: str, name: str, one: list[float], two: list[float]) -> dict[str, Any]:
    ratio = statistics.median(left / right for left, right in zip(one, two, strict=True))
    return {
        "case": f"{case}, {name}",
        "baseline": "1 rank",
        "baseline_ms": _ms(statistics.median(one)),
        "samebits_ms": _ms(statistics.median(two)),
        "speedup": round(ratio, 3),
    }


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _show(row: dict[str, Any]) -> dict[str, Any]:
    if dist.get_rank() == 0:
        if "ratio" in row:
            verdict = f"{row['ratio']:>8.2f}{row['target']:>8.2f} {'met' if row['met'] else 'not met'}"
        elif "speedup" in row:
            verdict = f"{row['speedup']:>8.2f} times as fast as 1 rank"
        else:
            parts = ", ".join(f"{name} {each:.1f}" for name, each in row.items() if name != "case")
            print(f"{row['case']:26}{parts} ms", flush=True)
            return row
        times = f"{row['baseline_ms']:>10.1f}{row['samebits_ms']:>10.1f}"
        others = {name: each for name, each in row.get("all_baselines_ms", {}).items() if name != row["baseline"]}
        beside = "".join(f"; {name} {each:.1f} ms" for name, each in others.items())
        print(f"{row['case']:26}{row['baseline']:18}{times}{verdict}{beside}", flush=True)
    return row


def as_rank(decode: bool, record: bool) -> None:
    torch.set_num_threads(1)
    load_before = os.getloadavg()[0]
    with ranks() as world:
        if world.rank == 0:
            print(f"{'case':26}{'baseline':18}{'baseline':>10}{'samebits':>10}{'ratio':>8}{'target':>8}   (ms)")
        rows = [_show(against_stock(world, lanes)) for lanes in LANES]
        rows += [_show(breakdown(world, lanes)) for lanes in LANES]
        rows += [_show(row) for row in against_one(world)]
        rows += [_show(decoding(world))] if decode else []
        if record and world.rank == 0:
            found = {
                **provenance(__file__, processor()),
                "cores": len(os.sched_getaffinity(0)),
                "load_average": [round(load_before, 2), round(os.getloadavg()[0], 2)],
                "torch": torch.__version__,
                "compiler": native.compiler(),
                "source_digest": source_digest(),
                "ranks": RANKS,
                "threads_a_rank": 1,
                "batch": BATCH,
                "rows": rows,
            }
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decode", action="store_true", help="time SmolLM2-135M on two ranks as well")
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name} beside the other results")
    arguments = parser.parse_args()
    if "WORLD_SIZE" in os.environ:
        as_rank(arguments.decode, arguments.record)
    else:
        outcome = launch([sys.executable, *sys.argv], RANKS)
        if outcome.message:
            print(outcome.message, file=sys.stderr)
        sys.exit(outcome.code)


if __name__ == "__main__":
    main()
