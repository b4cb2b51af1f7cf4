"""Host reads: a closed list, each of which waits for the last writer of its tensor and for nothing else."""

from __future__ import annotations

import io
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from samebits.sim.choices import Uniform
from samebits.sim.cluster import Settings, execute
from samebits.sim.engine import Engine, Handle
from samebits.sim.errors import SpawnException
from samebits.sim.host_reads import HOST_READS, HostReads, Writers
from samebits.sim.rank import current

READS: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda x: x.numpy().tolist(),
    "data": lambda x: x.data.tolist(),
    "__getitem__": lambda x: float(x[0]),
    "__repr__": repr,
    "copy_": lambda x: torch.zeros(3).copy_(x).tolist(),
    "item": lambda x: x[:1].item(),
    "tolist": lambda x: x.tolist(),
    "__array__": lambda x: np.asarray(x).tolist(),
    "__bool__": lambda x: bool(x[:1]),
    "__int__": lambda x: int(x[:1]),
    "__float__": lambda x: float(x[:1]),
    "__iter__": lambda x: [float(y) for y in x],
    "__dlpack__": lambda x: torch.from_dlpack(x.__dlpack__()).tolist(),
    "cpu": lambda x: x.cpu().tolist(),
    "to": lambda x: x.to("cpu").tolist(),
    "untyped_storage": lambda x: bytes(x.untyped_storage().tolist()),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)).tolist(),
    "save": lambda x: _saved(x),
    "==": lambda x: operator.eq(x, 3.0).tolist(),
    "equal": lambda x: torch.equal(x, torch.full((3,), 3.0)),
    "allclose": lambda x: torch.allclose(x, torch.full((3,), 3.0)),
    "format": lambda x: f"{x[0]:.1f}",
}


def _saved(x: Tensor) -> list[float]:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return list(torch.load(file).tolist())


@pytest.mark.parametrize("name", READS)
def test_R21_a_host_read_sees_finished_work_only(name: str) -> None:
    """An asynchronous sum that nobody waits for, read at once: the sum is what every rank sees."""

    def program(rank: int) -> Any:
        dist.init_process_group("sim")
        x = torch.full((3,), 1.0 + rank)
        dist.all_reduce(x, async_op=True)
        return READS[name](x)

    wanted = READS[name](torch.full((3,), 3.0))
    for policy in (None, Uniform(1, 2)):
        assert execute(program, 2, settings=Settings(policy=policy)).results == [wanted, wanted]


def test_R21_without_the_list_a_read_sees_unfinished_work() -> None:
    """Planted fault: host reads that wait for nothing."""

    class Blind(HostReads):
        def before(self, name: str, args: tuple[Any, ...]) -> None:
            return

    def program(rank: int) -> list[float]:
        dist.init_process_group("sim")
        x = torch.full((3,), 1.0 + rank)
        dist.all_reduce(x, async_op=True)
        return list(x.tolist())

    assert execute(program, 2, settings=Settings(host_reads=Blind)).results != [[3.0] * 3] * 2


def host_reading() -> set[str]:
    """Public and special methods of torch.Tensor whose outcome, other than a tensor, depends on values alone."""
    found = set()
    one, other = torch.tensor([1.0]), torch.tensor([0.0])
    for name in dir(Tensor):
        if name.startswith("_") and not name.startswith("__"):
            continue
        outcomes = []
        for x in (one.clone(), other.clone()):
            try:
                got = getattr(x, name)
                got = got() if callable(got) else got
                parts = got if isinstance(got, tuple) else (got,)
                outcomes.append(None if all(isinstance(part, Tensor) for part in parts) else repr(got))
            except Exception as error:
                outcomes.append(type(error).__name__)
        if outcomes[0] != outcomes[1] and "0x" not in str(outcomes[0]):
            found.add(name)
    return found


@pytest.mark.filterwarnings("ignore")
def test_R22_no_public_method_reads_values_without_being_on_the_list() -> None:
    found = host_reading()
    assert {"item", "tolist", "__bool__", "__repr__", "numpy"} <= found
    assert found - HOST_READS - {"__hash__", "__dir__"} == set()
    asked = {
        "numpy",
        "data",
        "__getitem__",
        "__repr__",
        "copy_",
        "item",
        "tolist",
        "__array__",
        "__bool__",
        "__int__",
        "__float__",
        "__iter__",
        "__dlpack__",
        "cpu",
        "to",
        "untyped_storage",
        "__reduce_ex__",
        "__eq__",
        "__lt__",
    }
    assert asked <= HOST_READS


@pytest.mark.filterwarnings("ignore")
def test_R22_a_method_that_is_not_on_the_list_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a method of somebody's own that looks at values."""
    monkeypatch.setattr(Tensor, "peek", lambda self: self.sum().item(), raising=False)
    assert "peek" in host_reading() - HOST_READS


def reads_while_another_group_is_busy(rank: int) -> float:
    """Rank 1 enters the second group's collective only after it has heard from rank 0, who reads the first's result."""
    dist.init_process_group("sim")
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    a, b, word = torch.ones(2), torch.full((2,), 1.0 + rank), torch.zeros(1)
    dist.all_reduce(b, group=first, async_op=True)
    if rank == 0:
        dist.all_reduce(a, group=second, async_op=True)
        read = float(b[0])
        dist.send(word, 1)
    else:
        read = float(b[0])
        dist.recv(word, 0)
        dist.all_reduce(a, group=second)
    return read


class DrainEverything(HostReads):
    """Planted fault: a host read waits for all that is pending, whatever it reads."""

    def before(self, name: str, args: tuple[Any, ...]) -> None:
        for handle in list(self._writers.last.values()):
            self._wait(handle)


def test_R23_a_read_waits_by_data_dependence_and_does_not_deadlock() -> None:
    for seed in range(10):
        assert execute(reads_while_another_group_is_busy, 2, settings=Settings(policy=Uniform(seed, 2))).results == [
            3.0,
            3.0,
        ]


def test_E5_draining_everything_at_a_host_read_is_noticed() -> None:
    with pytest.raises(SpawnException, match="every rank waits"):
        execute(reads_while_another_group_is_busy, 2, settings=Settings(host_reads=DrainEverything))


def test_R23_an_unrelated_kernel_stays_pending_and_a_view_shares_its_bases_writer() -> None:
    """In the main context, where kernels are launched: time moves as far as the read needs."""
    engine, writers = Engine(), Writers()
    near, far, base, other = Handle("near"), Handle("far"), torch.zeros(4), torch.zeros(4)

    def write() -> None:
        base.fill_(7.0)
        writers.written([base], near)
        near.complete(1.0)

    engine.at(1.0, write)
    engine.at(2.0, far.complete)
    writers.note([base], near)
    writers.note([other], far)
    with HostReads(writers, engine.run_until):
        assert base.view(2, 2)[1].tolist() == [7.0, 7.0]
    assert near.done and not far.done and engine.now == 1.0


def test_R23_copy_waits_for_its_source_only() -> None:
    engine, writers, pending, target = Engine(), Writers(), Handle("a writer of the target"), torch.zeros(2)
    writers.note([target], pending)
    with HostReads(writers, engine.run_until):
        target.copy_(torch.ones(2))
    assert not pending.done


def test_R24_a_read_of_a_collectives_result_waits_for_that_collective_alone() -> None:
    """Rank 0 reads while rank 1 still computes; others run meanwhile, and the reader goes on in its own order."""
    order: list[tuple[int, str]] = []

    def program(rank: int) -> float:
        dist.init_process_group("sim")
        x = torch.ones(1)
        dist.all_reduce(x, async_op=True)
        order.append((rank, "posted"))
        read = x.item()
        order.append((rank, "read"))
        own = current()
        assert own is not None and own.clock >= 0.0
        return read

    assert execute(program, 3).results == [3.0] * 3
    assert order[:3] == [(0, "posted"), (1, "posted"), (2, "posted")]
    assert sorted(order[3:]) == [(0, "read"), (1, "read"), (2, "read")]
