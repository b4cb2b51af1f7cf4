"""Predictions beside published figures: what presets were calibrated on, and how far off everything else is.

A fitted point is no prediction, so that the two errors are never mixed. Nothing here says that a collective equals
NCCL's, or that a preset is exact on any silicon."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from samebits.sim import collective_cost as cost
from samebits.sim import published as seen
from samebits.sim.accelerator import PE_TO_PE, QUEUES, accelerator, machine_of
from samebits.sim.decoder_cost import Decoder
from samebits.sim.gpus import A100_NODE, H100_NODE, Cluster, Fabric, preset
from samebits.sim.layouts import Layout, Training
from samebits.sim.queue_pairs import CREDIT_BYTES
from samebits.sim.schedule_kernel import run_schedule
from samebits.sim.step import Step
from samebits.sim.timing import bus_bandwidth
from samebits.sim.topology import PE
from samebits.sim.trees import hierarchical

# What others claim of their own simulators, to stand beside ours.
PEERS: Final = (
    ("ASTRA-sim, analytical", "20.6 / 12.0 / 9.7 % (geometric mean) at 2 / 4 / 8 H100, NCCL ring all-reduce"),
    ("SimAI", "98.1 % average alignment, LLM training"),
    ("ATLAHS", "under 5 %, traced applications"),
    ("LLMCompass", "10.9 % an operator, 4.1 % end to end, LLM inference"),
)
LEAST_ERROR: Final = 1e-4


@dataclass(frozen=True, slots=True)
class Case:
    """One published figure and ours."""

    name: str
    published: float
    predicted: float
    calibrated: bool

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """Cases of one source."""

    name: str
    cases: tuple[Case, ...]

    def of(self, *, calibrated: bool) -> list[Case]:
        return [case for case in self.cases if case.calibrated is calibrated]


@dataclass(frozen=True, slots=True)
class Errors:
    """How far off some cases are."""

    count: int
    mean: float
    geometric: float
    largest: float

    @classmethod
    def of(cls, cases: Sequence[Case]) -> Errors:
        sizes = [abs(case.error) for case in cases]
        if not sizes:
            return cls(0, math.nan, math.nan, math.nan)
        geometric = math.exp(sum(math.log(max(size, LEAST_ERROR)) for size in sizes) / len(sizes))
        return cls(len(sizes), sum(sizes) / len(sizes), geometric, max(sizes))


def comparisons() -> list[Comparison]:
    """Every source, each with its calibrated and its held-out cases."""
    return [*_collectives(), *_training(), *_seed_system()]


# Collectives

KIB: Final = 1 << 10
_A100_FIT: Final = {KIB, 256 * KIB, seen.MIB, 16 * seen.MIB, 64 * seen.MIB, seen.GIB}
_H100_FIT: Final = {128 * seen.MIB, 2 * seen.GIB}


def _collectives() -> Iterator[Comparison]:
    eight, sixteen = cost.Group(8, 8), cost.Group(16, 8)
    yield _curve("8 x A100, all-reduce", seen.A100_8, A100_NODE, eight, _A100_FIT)
    for name, curve in (("one process", seen.A100_8_ONE_PROCESS), ("another machine", seen.A100_8_OTHER)):
        # Its start is its own: the smallest message says it.
        size, first = curve[0]
        start = A100_NODE.start + first * 1e-6 - cost.all_reduce(A100_NODE, eight, size)
        yield _curve(f"8 x A100, {name}", curve, replace(A100_NODE, start=start), eight, {size})
    yield _curve("8 x H100, in-switch", seen.H100_8, H100_NODE, eight, _H100_FIT)
    yield _curve("2 x 8 H100, InfiniBand", seen.H100_16, H100_NODE, sixteen, set())
    yield _curve("2 x 8 H200, RoCE", seen.H200_16, H100_NODE, sixteen, set())
    pcie = replace(A100_NODE, node_bytes_per_s=seen.PCIE5_BYTES_PER_S)
    yield Comparison(
        "peak bus bandwidth of rings",
        tuple(
            Case(name, told, bus_bandwidth(16 * seen.GIB, cost.ring_all_reduce(fabric, eight, 16 * seen.GIB), 8), False)
            for name, told, fabric in (
                ("8 x H100", seen.H100_RING_PLATEAU, H100_NODE),
                ("8 x H100 PCIe", sum(seen.PCIE_PLATEAU) / 2, pcie),
            )
        ),
    )


def _curve(name: str, curve: seen.Curve, fabric: Fabric, group: cost.Group, fitted: set[int]) -> Comparison:
    return Comparison(
        name,
        tuple(
            Case(_size(nbytes), micros * 1e-6, cost.all_reduce(fabric, group, nbytes), nbytes in fitted)
            for nbytes, micros in curve
        ),
    )


def _size(nbytes: int) -> str:
    for unit, size in (("GiB", seen.GIB), ("MiB", seen.MIB), ("KiB", KIB)):
        if nbytes >= size:
            return f"{nbytes // size} {unit}"
    return f"{nbytes} B"


# Training


def mpt(model: str) -> Decoder:
    hidden, layers, heads = seen.SIZES[model]
    return Decoder(
        vocab_size=seen.VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=4 * hidden,
        gated=False,
    )


def throughput(run: seen.Run, cluster: Cluster) -> float:
    """Tokens a second of each GPU, all weights sharded, as these runs were made."""
    training = Training(
        decoder=mpt(run.model),
        sequences=run.gpus * run.micro_batch * run.accumulation,
        length=run.length,
        micro_batch=run.micro_batch,
    )
    step = Step(
        training,
        Layout(1, run.gpus),
        cluster,
        frozenset(),
        sharding="full",
        recompute=run.recompute,
        gradient_bytes=2 if run.pure else 4,
    )
    step.clock.recording = False
    return training.tokens / step.run().finish / run.gpus


# Three efficiencies of each GPU were chosen on these, by the smallest mean error.
_FITTED: Final = {
    "a100-node": {("125m", 2048), ("1b", 512), ("1b", 2048), ("1b", 8192), ("7b", 2048), ("7b", 32768)},
    "h100-node": {("1b", 512), ("1b", 2048), ("1b", 8192), ("7b", 2048), ("7b", 4096), ("7b", 32768)},
}


def _training() -> Iterator[Comparison]:
    a100, h100 = preset("a100-node"), preset("h100-node")
    small = replace(a100, device=replace(a100.device, memory=40 * 10**9, memory_bytes_per_s=1555e9))
    for name, runs, cluster, fitted in (
        ("training, 8 to 64 x A100 80GB", seen.A100_RUNS, a100, _FITTED["a100-node"]),
        ("training, 8 to 128 x A100 40GB", seen.A100_40_RUNS, small, set()),
        ("training, 8 to 64 x H100", seen.H100_RUNS, h100, _FITTED["h100-node"]),
    ):
        yield Comparison(
            name,
            tuple(
                Case(
                    f"{run.model}, {run.length} long, {run.gpus} GPUs",
                    run.tokens_per_gpu,
                    throughput(run, cluster),
                    run.gpus == 8 and (run.model, run.length) in fitted,
                )
                for run in runs
            ),
        )


def own_run() -> Case:
    """Our own trainer on one H200. Its kernels were slower than those of the runs that the preset was calibrated on, so
    that it stands by itself: predictions are for kernels of their speed."""
    shape = Decoder(
        vocab_size=32768,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=64,
        intermediate_size=4096,
    )
    training = Training(decoder=shape, sequences=128, length=1024, micro_batch=16, lanes=8)
    step = Step(training, Layout(1, 1), preset("h200-node"), frozenset({"data"}))
    return Case("350m, our own trainer, one H200", seen.OWN_350M, training.tokens / step.run().finish, False)


# The seed's accelerator


def _seed_system() -> Iterator[Comparison]:
    wires = machine_of(accelerator()).wires
    left, right = PE(0, 0, 0), PE(0, 0, 1)

    def by_queue(nbytes: int) -> float:
        copied = QUEUES.overhead + nbytes / QUEUES.copy_bytes_per_s
        return wires.unloaded(left, right, nbytes) + copied + wires.unloaded(right, left, CREDIT_BYTES)

    def raw(nbytes: int) -> float:
        return wires.unloaded(left, right, nbytes)

    kinds: tuple[tuple[str, int, Callable[[int], float], set[int]], ...] = (
        ("IPCQ", 1, by_queue, {128}),
        ("DMA", 2, raw, {128, 384}),
    )
    yield Comparison(
        "seed's accelerator, PE to PE",
        tuple(
            Case(f"{kind}, {row[0]} B", row[column], predict(row[0]), row[0] in fitted)
            for kind, column, predict, fitted in kinds
            for row in PE_TO_PE
        ),
    )
    yield Comparison(
        "seed's accelerator, 6 SIPs",
        tuple(
            Case(f"all-reduce, root in the {root}", told, _hierarchy(root), False)
            for root, told in seen.SEED_ALL_REDUCE.items()
        ),
    )


def _hierarchy(root: str) -> float:
    """96 KB of the first PE of every cube, the SIPs on a torus of 3 x 2."""
    schedule = hierarchical(
        96 * KIB // 4, sips=(3, 2), cubes=(4, 4), pes=1, exchange="torus", root=(0, 0) if root == "corner" else None
    )
    launch, _ = run_schedule(
        machine_of(accelerator(6, 3, 2)), schedule, lambda _: np.zeros(schedule.elements, dtype=np.float32)
    )
    return launch.finish - launch.started[PE(0, 0, 0)]
