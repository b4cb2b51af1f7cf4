"""The seed's accelerator as a preset: SIP of 4 x 4 cubes of 8 PEs, its links, memory and queues.

Stated by the seed's system: the meshes, HBM rates, 8 ns a UCIe port, 16 bytes a credit. Calibrated on its table of
PE-to-PE times: the two figures of a PE's port (128 and 384 bytes of raw DMA) and a receiver's overhead (128 bytes of
IPCQ). Assumed, nothing being known: bandwidths of UCIe and of links between SIPs, their latency, GEMM rates."""

from __future__ import annotations

from typing import Final

from samebits.sim.ipcq import Queues
from samebits.sim.ipcq_faults import FaultPlan
from samebits.sim.machine import Machine
from samebits.sim.queue_pairs import CREDIT_BYTES, QueueSettings
from samebits.sim.schedule import LinkClass
from samebits.sim.topology import Link, Topology

NANOSECOND: Final = 1e-9
# Stated.
HBM_BYTES_PER_S: Final = 256e9
"""Of a PE; a cube has eight times as much."""
UCIE_PORT: Final = 8 * NANOSECOND
# What was measured on the seed's system between neighbouring PEs: bytes, seconds by IPCQ, seconds by raw DMA.
PE_TO_PE: Final = (
    (128, 31.1 * NANOSECOND, 12.0 * NANOSECOND),
    (256, 32.6 * NANOSECOND, 13.0 * NANOSECOND),
    (384, 34.1 * NANOSECOND, 14.0 * NANOSECOND),
)
# Assumed.
SIP_LINK: Final = Link(150 * NANOSECOND, 128e9)
GEMM_FLOPS: Final = 8e12
"""Of a PE, in float32."""


def _pe_port() -> Link:
    (small, _, fast), _, (large, _, slow) = PE_TO_PE
    bytes_per_s = (large - small) / (slow - fast)
    return Link(fast - small / bytes_per_s, bytes_per_s)


PE_PORT: Final = _pe_port()
# What is left of the first IPCQ time without the DMA, the copy of the slot and the credit.
RECEIVE_OVERHEAD: Final = (
    PE_TO_PE[0][1] - PE_PORT.seconds(PE_TO_PE[0][0]) - PE_TO_PE[0][0] / HBM_BYTES_PER_S - PE_PORT.seconds(CREDIT_BYTES)
)
LINKS: Final = {
    LinkClass.PE: PE_PORT,
    LinkClass.CUBE: Link(2 * UCIE_PORT, PE_PORT.bytes_per_s),
    LinkClass.SIP: SIP_LINK,
}
QUEUES: Final = QueueSettings(overhead=RECEIVE_OVERHEAD, copy_bytes_per_s=HBM_BYTES_PER_S)


def accelerator(
    sips: int = 1,
    width: int | None = None,
    height: int | None = None,
    *,
    cube_mesh: tuple[int, int] = (4, 4),
    pes: int = 8,
    torus: bool = True,
) -> Topology:
    """A machine of the seed's kind."""
    return Topology(sips=sips, width=width, height=height, torus=torus, cube_mesh=cube_mesh, pes=pes, links=dict(LINKS))


def machine_of(
    topology: Topology,
    settings: QueueSettings = QUEUES,
    *,
    faults: FaultPlan | None = None,
    seed: int | None = None,
    queues: type[Queues] = Queues,
) -> Machine:
    """That machine at work, with the seed's queues unless told."""
    return Machine(topology, settings, faults=faults, seed=seed, queues=queues)
