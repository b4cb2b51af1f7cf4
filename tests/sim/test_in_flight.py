"""Memory that is still under way: who writes to it is told, whoever writes beside it or after a wait is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from samebits.sim.cluster import execute
from samebits.sim.errors import RaceError, SpawnException
from samebits.sim.explore import Program, explore

Writing = Callable[[Tensor], Any]
WRITES: dict[str, Writing] = {
    "add_": lambda x: x.add_(2),
    # Indexing would wait, as a host read does.
    "a part of it": lambda x: x.narrow(0, 1, 1).fill_(9.0),
    "an element": lambda x: x.__setitem__(0, 9.0),
    "copy_": lambda x: x.copy_(torch.full((4,), 9.0)),
    "a view of it": lambda x: x.view(2, 2).t().add_(1),
    "out=": lambda x: torch.add(torch.ones(4), 1, out=x),
}


def numbers(rank: int) -> Tensor:
    return torch.arange(4.0) + rank + 0.1


def reducing(rank: int, write: Writing) -> Tensor:
    dist.init_process_group("gloo")
    x = numbers(rank)
    work = dist.all_reduce(x, async_op=True)
    if rank == 1:
        write(x)
    work.wait()
    return x


def gathering(rank: int, write: Writing) -> list[Tensor]:
    dist.init_process_group("gloo")
    parts = [torch.zeros(4) for _ in range(dist.get_world_size())]
    work = dist.all_gather(parts, numbers(rank), async_op=True)
    if rank == 1:
        write(parts[0])
    work.wait()
    return parts


def sending(rank: int, write: Writing) -> Tensor:
    dist.init_process_group("gloo")
    x = numbers(rank)
    if rank == 1:
        work = dist.isend(x, 0)
        write(x)
        work.wait()
    elif rank == 0:
        dist.recv(x, 1)
    return x


def receiving(rank: int, write: Writing) -> Tensor:
    dist.init_process_group("gloo")
    x = numbers(rank)
    if rank == 0:
        dist.send(x, 1)
    elif rank == 1:
        work = dist.irecv(x, 0)
        write(x)
        work.wait()
    return x


PROGRAMS = {"all-reduce": reducing, "all-gather": gathering, "send": sending, "receive": receiving}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("what", PROGRAMS)
def test_a_write_to_what_is_under_way_is_told(what: str, write: str) -> None:
    with pytest.raises(SpawnException) as failed:
        execute(PROGRAMS[what], 3, (WRITES[write],))
    errors = failed.value.errors
    assert 1 in errors and {type(each) for each in errors.values()} == {RaceError}
    line = str(errors[1])
    assert line.startswith(f"rank 1 writes to the float32[4] of its {what} at ") and "test_in_flight.py:" in line
    assert line.endswith(" before that is complete; allowed: once it has waited for it")


def test_schedules_of_such_a_program_show_nothing() -> None:
    found = explore(Program(reducing, 2, (WRITES["add_"],)), range(3))
    assert "RaceError: rank 1 writes to the float32[4] of its all-reduce" in found.reference.error and found.runs == 0


def test_without_the_watch_all_schedules_agree_on_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: nothing is watched; the write always comes first here, and holds."""
    monkeypatch.setattr("samebits.sim.network.handed_over", lambda tensors: ())
    assert explore(Program(reducing, 2, (WRITES["add_"],)), range(3)).holds


def leaving_alone(rank: int) -> list[Tensor]:
    """Two reductions of one tensor on their way; writes beside what is; the same numbers once more; a wait."""
    dist.init_process_group("gloo")
    x, whole = numbers(rank), torch.zeros(8)
    both = [dist.all_reduce(x, async_op=True), dist.all_reduce(x, async_op=True)]
    for each in both:
        each.wait()
    work = dist.all_reduce(whole[:4], async_op=True)
    whole[4:].fill_(3.0)
    whole[:4].copy_(torch.zeros(4))
    work.wait()
    if rank == 0:
        work = dist.isend(whole[:4], 1)
        whole[4:] += 1
        work.wait()
    elif rank == 1:
        dist.recv(whole[:4], 0)
    x.mul_(2)
    dist.broadcast(x, 0)
    return [x, whole]


def test_writes_beside_it_and_after_a_wait_are_not() -> None:
    found = explore(Program(leaving_alone, 3), range(3))
    assert found.holds and not found.reference.error


def inferring(rank: int) -> list[list[float]]:
    """What an engine does: tensors of inference mode, which nobody may write to outside of it."""
    dist.init_process_group("gloo")
    with torch.inference_mode():
        x, size = torch.full((2,), float(rank)), dist.get_world_size()
        dist.all_reduce(x)
        parts = [torch.empty(2) for _ in range(size)]
        dist.all_gather(parts, x + rank)
        if rank == 0:
            dist.send(parts[2], 1)
        elif rank == 1:
            dist.recv(x, 0)
        dist.broadcast(x, 1)
    weight = torch.ones(2, requires_grad=True)
    y = weight * 3
    gradient = torch.autograd.grad(y.sum(), weight)[0]
    dist.all_reduce(gradient)
    assert not gradient.is_inference()
    gradient.add_(1)
    return [x.tolist(), *(part.tolist() for part in parts), gradient.tolist()]


def test_tensors_of_inference_mode_are_written_as_by_gloo() -> None:
    assert execute(inferring, 3).results == [[[5.0] * 2, [3.0] * 2, [4.0] * 2, [5.0] * 2, [10.0] * 2]] * 3
