"""Kernels launched from ranks: a rank posts a launch on its own SIP and waits; the main context runs it.

Only the main context resumes a kernel, whoever launched it, and none is left half-way: an event of the run's engine
drains the accelerator. In the main context itself a launch runs at once. No lock and no half-written state outlives a
wait: what a launch needs is captured when it is posted, what it gave is there when the wait is over."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final

import torch
from torch import Tensor

from samebits.ops.matmul import matmul_accumulate_
from samebits.sim.accelerator import GEMM_FLOPS, HBM_BYTES_PER_S, accelerator, machine_of
from samebits.sim.engine import Handle
from samebits.sim.kernels import Context, Kernel, Launch, Request
from samebits.sim.machine import Machine
from samebits.sim.placement import DPPolicy, chunk_spans, local_shards
from samebits.sim.rank import current
from samebits.sim.topology import PE

# Speed only: inner indices of one step of a product; the chain goes on where it stopped.
TILE_K: Final = 512
FLOAT32: Final = 4
COLUMNS: Final = DPPolicy(cube="column_wise", pe="column_wise")


class Accelerator:
    """One virtual accelerator that all ranks of a run share, a SIP for each."""

    def __init__(self, machine: Machine | None = None, *, sips: int = 1) -> None:
        self.machine = machine or machine_of(accelerator(sips, sips, 1))
        self.launches = 0

    def launch(
        self, kernel: Kernel, sip: int, arguments: Callable[[PE], tuple[Any, ...]], places: list[PE], name: str
    ) -> Launch:
        """Runs a kernel on PEs of a SIP, and waits for it."""
        rank = current()
        self.launches += 1
        posted = self.machine.launch(kernel, places, arguments, name)
        if rank is None:
            self.machine.run()
            return posted
        begun, handle = self.machine.now, Handle(f"kernel {name} on SIP {sip}")

        def run() -> None:
            try:
                if not posted.done:
                    self.machine.run()
                handle.complete(rank.clock + posted.finish - begun)
            except Exception as error:
                handle.fail(error)

        rank.scheduler.engine.at(rank.clock, run, f"kernel {name} of rank {rank.number}", rank.number)
        # Another rank may be faster, here as at every wait.
        rank.pause(f"launch of {name}")
        rank.wait(handle)
        rank.clock = max(rank.clock, handle.finish)
        return posted

    def gemm(self, a_MK: Tensor, b_KN: Tensor, sip: int, name: str = "gemm") -> Tensor:
        """a b in float32, columns of b shared by the PEs of a SIP; each element one chain, k ascending."""
        if a_MK.shape[1] != b_KN.shape[0]:
            raise ValueError(f"gemm: a is {tuple(a_MK.shape)}, b is {tuple(b_KN.shape)}; allowed: inner sizes alike")
        out_MN = torch.zeros(a_MK.shape[0], b_KN.shape[1], dtype=torch.float32)
        shards = [shard for shard in local_shards(COLUMNS, tuple(b_KN.shape), self.machine.topology) if shard.elements]
        columns = {PE(sip, shard.cube, shard.pe): slice(*shard.columns) for shard in shards}
        if not columns or not a_MK.shape[0]:
            return out_MN
        a, b = a_MK.detach().float().contiguous(), b_KN.detach().float()
        self.launch(
            gemm_kernel,
            sip,
            lambda place: (a, b[:, columns[place]].contiguous(), out_MN[:, columns[place]]),
            list(columns),
            name,
        )
        return out_MN


def gemm_kernel(pe: Context, a_MK: Tensor, b_KN: Tensor, out_MN: Tensor) -> Generator[Request, Any, None]:
    """A PE's columns of a product, tile by tile along k: operands come from HBM while the last tile is computed."""
    rows, columns = out_MN.shape
    sum_MN = torch.zeros(rows, columns, dtype=torch.float32)
    inner = a_MK.shape[1]
    for start, stop in chunk_spans(inner, max(1, -(-inner // TILE_K))):
        width = stop - start
        moved = FLOAT32 * width * (rows + columns)
        yield pe.compute(max(2 * rows * columns * width / GEMM_FLOPS, moved / HBM_BYTES_PER_S), "gemm")
        matmul_accumulate_(sum_MN, a_MK[:, start:stop].contiguous(), b_KN[start:stop].contiguous())
    out_MN.copy_(sum_MN)
