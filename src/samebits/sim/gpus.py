"""GPUs and the nodes they stand in, as presets: peak rates from data sheets, efficiencies calibrated on published runs.

A collective's protocol is a row of a latency and a bandwidth, and the best row for a size is taken. What was calibrated
on what, and how far off the rest is, `validate` says. Assumed where nothing is published: network latencies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MICROSECOND: Final = 1e-6
GB: Final = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One GPU: a roofline with an efficiency for each of its slopes."""

    name: str
    flops: Mapping[str, float]
    """Dense peak by dtype of the passes."""
    memory: int
    memory_bytes_per_s: float
    gemm_efficiency: float
    attention_efficiency: float
    memory_efficiency: float
    launch: float = 3 * MICROSECOND
    """Seconds that a kernel takes at least."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a ring moves a buffer: seconds a step, and which part of a link's rate it reaches."""

    name: str
    alpha: float
    efficiency: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """How GPUs are joined: within a node, and node to node by a fat tree in which every GPU has its own port."""

    per_node: int
    node_bytes_per_s: float
    """Of one GPU, one way."""
    protocols: tuple[Protocol, ...]
    start: float
    """Seconds before the first byte of any collective moves."""
    in_switch: Protocol | None = None
    """All-reduce summed by the switch: seconds as a whole, and the part of the link's rate at which a buffer passes."""
    network_bytes_per_s: float
    network_efficiency: float
    network_alpha: float
    """Seconds of a step between two nodes of one leaf switch."""
    switch_alpha: float = 0.6 * MICROSECOND
    """Seconds for each further level of switches, up and down."""
    leaf_nodes: int = 32
    spine: int = 32
    """How many times more nodes each further level joins."""
    oversubscription: float = 1.0
    """Of all levels above the leaves."""

    def levels(self, nodes: int) -> int:
        """Levels of switches above the leaves between the farthest of so many nodes."""
        reach, found = self.leaf_nodes, 0
        while nodes > reach:
            reach, found = reach * self.spine, found + 1
        return found

    def step_alpha(self, nodes: int) -> float:
        return self.network_alpha + self.levels(nodes) * self.switch_alpha

    def port_bytes_per_s(self, nodes: int) -> float:
        """What one GPU gets into the network."""
        rate = self.network_bytes_per_s * self.network_efficiency
        return rate / self.oversubscription if self.levels(nodes) else rate


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """GPUs of one kind in nodes of one kind."""

    device: Device
    fabric: Fabric


# Lines through two measured sizes each, of all-reduces over 8 A100: 1 and 256 KiB, 1 and 16 MiB, 64 MiB and 1 GiB.
# A step of LL takes the 1 us that is published; the rest of its 24.417 us is the start, over which all rows share.
START: Final = (24.417 - 14) * MICROSECOND
NVLINK3: Final = (
    Protocol("LL", 1.0 * MICROSECOND, 0.4730),
    Protocol("LL128", 1.1270 * MICROSECOND, 0.5231),
    Protocol("Simple", 6.9069 * MICROSECOND, 0.7697),
)
A100: Final = Device(
    name="A100 80GB",
    flops={"bfloat16": 312e12, "float32": 19.5e12},
    memory=80 * 10**9,
    memory_bytes_per_s=2039 * GB,
    gemm_efficiency=0.75,
    attention_efficiency=0.35,
    memory_efficiency=0.5,
)
H100: Final = Device(
    name="H100 80GB",
    flops={"bfloat16": 989.4e12, "float32": 66.9e12},
    memory=80 * 10**9,
    memory_bytes_per_s=3350 * GB,
    gemm_efficiency=0.6,
    attention_efficiency=0.2,
    memory_efficiency=0.6,
)
H200: Final = Device(
    name="H200 141GB",
    flops=H100.flops,
    memory=141 * 10**9,
    memory_bytes_per_s=4800 * GB,
    gemm_efficiency=H100.gemm_efficiency,
    attention_efficiency=H100.attention_efficiency,
    memory_efficiency=H100.memory_efficiency,
)
A100_NODE: Final = Fabric(
    per_node=8,
    node_bytes_per_s=300 * GB,
    protocols=NVLINK3,
    start=START,
    network_bytes_per_s=25 * GB,
    network_efficiency=0.92,
    network_alpha=5 * MICROSECOND,
)
# The line through 128 MiB and 2 GiB of an all-reduce over 8 H100: rate against 450 GB/s.
H100_NODE: Final = Fabric(
    per_node=8,
    node_bytes_per_s=450 * GB,
    protocols=NVLINK3,
    start=START,
    in_switch=Protocol("NVLS", 119.5 * MICROSECOND - START, 0.6040),
    network_bytes_per_s=50 * GB,
    network_efficiency=0.92,
    network_alpha=5 * MICROSECOND,
)
PRESETS: Final = {
    "a100-node": Cluster(device=A100, fabric=A100_NODE),
    "h100-node": Cluster(device=H100, fabric=H100_NODE),
    "h200-node": Cluster(device=H200, fabric=H100_NODE),
}
"""Nodes of eight, with a network port of each GPU's own; as many as are asked for, joined by a fat tree."""


def preset(name: str) -> Cluster:
    if name not in PRESETS:
        raise ValueError(f"preset is {name!r}; allowed: {', '.join(PRESETS)}")
    return PRESETS[name]
