"""The backend `sim` of torch.distributed: a process group whose collectives meet on the virtual cluster's network.

torch 2.11 and 2.12 call some collectives by other names than 2.13 and later: both sets are here, as aliases. Calls
return at once with a work whose wait gives the baton away; who asks it for a future waits there and then, because
torch's C++ would wait for that future where no other rank can run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Work

from samebits.sim.calls import Call
from samebits.sim.engine import Handle
from samebits.sim.isolation import BACKEND
from samebits.sim.network import Members
from samebits.sim.numerics import operator_name
from samebits.sim.rank import Rank, current

FOREVER: Final = 1e18
# Releases name and type their methods differently: the stubs of one would refuse those of another.
_Work: Final[Any] = Work
_ProcessGroup: Final[Any] = dist.ProcessGroup


class SimWork(_Work):  # type: ignore[misc]
    """Some collectives or messages under way, of one call."""

    def __init__(self, rank: Rank, handles: Sequence[Handle], result: list[Tensor]) -> None:
        super().__init__()
        self._rank, self._handles, self._result = rank, handles, result
        self._noticed = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._settle()
        self._rank.clock = max(self._rank.clock, *(handle.finish for handle in self._handles), self._rank.owed)
        return True

    def _settle(self) -> None:
        """Until the data are there; whether the rank's clock stands still meanwhile is the caller's matter."""
        for handle in self._handles:
            self._rank.wait(handle)
        if self._handles and not self._noticed and self._rank.cluster.pauses:
            self._noticed = True
            self._rank.pause(self._handles[-1].what)

    def get_future(self) -> Any:
        self._settle()
        self._rank.owed = max(self._rank.owed, *(handle.finish for handle in self._handles))
        future: Any = torch.futures.Future()
        future.set_result(self._result)
        return future

    def is_completed(self) -> bool:
        """Asked again and again by programs that poll, which would otherwise keep the baton for ever."""
        done = all(handle.ready() for handle in self._handles)
        if not done:
            self._rank.pause(f"{self._handles[-1].what} is complete", polls=True)
        return done

    def is_success(self) -> bool:
        return all(handle.done and handle.error is None for handle in self._handles)

    def exception(self) -> BaseException | None:
        return next((handle.error for handle in self._handles if handle.error is not None), None)

    def _source_rank(self) -> int:
        """Who sent it, as a place in the group."""
        return self._handles[-1].source

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[Tensor]:
        self.wait()
        return self._result


class SimGroup(_ProcessGroup):  # type: ignore[misc]
    """One rank's view of a group. `members` are ranks of the whole cluster, in the order of their places."""

    def __init__(self, place: int, members: Members) -> None:
        super().__init__(place, len(members.ranks))
        rank = current()
        if rank is None:
            raise RuntimeError(
                f"backend '{BACKEND}' exists inside a rank of the virtual cluster only; start it with"
                " samebits.sim.spawn, or with `samebits sim run`"
            )
        self._rank, self._members, self._name = rank, members, members.name
        self._posted = 0
        self._held: list[tuple[Call, Handle]] = []

    def getBackendName(self) -> str:
        return BACKEND

    def name(self) -> str:
        return BACKEND

    def size(self) -> int:
        return len(self._members.ranks)

    def getSize(self) -> int:
        return len(self._members.ranks)

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    _set_group_name = setGroupName

    @property
    def supports_splitting(self) -> bool:
        return False

    @property
    def supports_coalescing(self) -> bool:
        return False

    def _get_backend(self, device: torch.device) -> SimGroup:
        return self

    def _set_sequence_number_for_group(self) -> None:
        """The network counts."""

    def _get_sequence_number_for_group(self) -> int:
        return self._posted

    def __repr__(self) -> str:
        return f"sim {self._members.label}, rank {self._rank.number}"

    # One way in for collectives.

    def run(self, calls: Sequence[Call], result: Sequence[Tensor]) -> SimWork:
        """Enters collectives, one after another."""
        if self._rank.cluster.pauses:
            self._rank.pause(f"coming to {calls[0].operation} of {self._members.label}")
        return SimWork(self._rank, [handle for call in calls for handle in self._enter(call)], list(result))

    def _enter(self, call: Call) -> list[Handle]:
        """As the program says, unless a fault plan leaves one out or lets the next one pass it."""
        network, faults = self._rank.cluster.network, self._rank.cluster.faults
        self._posted += 1
        if faults.plan and faults.skips(self._rank, self._posted):
            return []
        if faults.plan and faults.swaps(self._rank, self._posted):
            held = Handle(f"{call}, held back by an injected fault")
            self._held.append((call, held))
            return [held]
        handle = network.enter(self._members, self._rank, call)
        while self._held:
            late, stand_in = self._held.pop()
            entered = network.enter(self._members, self._rank, late)
            stand_in.becomes(entered)
        return [handle]

    def _one(
        self,
        operation: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        op: str = "",
        root: int = -1,
        splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
    ) -> SimWork:
        return self.run([Call(operation, tuple(inputs), tuple(outputs), op, root, splits)], outputs)

    def allreduce(self, tensors: Any, opts: Any = None) -> SimWork:
        each = [tensors] if isinstance(tensors, Tensor) else tensors
        return self._one("all-reduce", each, each, _op(opts))

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> SimWork:
        return self._one("reduce", tensors, tensors, _op(opts), opts.rootRank if opts is not None else 0)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> SimWork:
        return self._one("broadcast", tensors, tensors, root=opts.rootRank if opts is not None else 0)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> SimWork:
        return self._one("all-gather", inputs, outputs[0])

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> SimWork:
        calls = [
            Call("all-gather", (given,), tuple(lists[place] for lists in outputs)) for place, given in enumerate(inputs)
        ]
        return self.run(calls, [each for lists in outputs for each in lists])

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> SimWork:
        return self._one("all-gather", [given], [output])

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimWork:
        calls = [Call("all-gather", (given,), (out,)) for out, given in zip(outputs, inputs, strict=True)]
        return self.run(calls, outputs)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> SimWork:
        return self._one("reduce-scatter", inputs[0], outputs, _op(opts))

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> SimWork:
        return self._one("reduce-scatter", [given], [output], _op(opts))

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimWork:
        calls = [
            Call("reduce-scatter", (given,), (out,), _op(opts)) for out, given in zip(outputs, inputs, strict=True)
        ]
        return self.run(calls, outputs)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> SimWork:
        return self._one("gather", inputs, outputs[0] if outputs else [], root=opts.rootRank)

    def gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> SimWork:
        parts = list(output.chunk(self.size())) if opts.rootRank == self.rank() else []
        return self._one("gather", [given], parts, root=opts.rootRank)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> SimWork:
        return self._one("scatter", inputs[0] if inputs else [], outputs, root=opts.rootRank)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> SimWork:
        return self._one("all-to-all", inputs, outputs)

    def all_to_all_single(
        self, output: Tensor, given: Tensor, out_rows: list[int] | None, in_rows: list[int] | None, opts: Any = None
    ) -> SimWork:
        for each in (given, output):
            _contiguous(each, "all-to-all")
        return self._one("all-to-all", [given], [output], splits=(tuple(in_rows or ()), tuple(out_rows or ())))

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> SimWork:
        return self._one("barrier", [], [])

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> SimWork:
        _contiguous(tensors[0], "a send")
        network = self._rank.cluster.network
        return self._message(lambda: network.send(self._members, self._rank, tensors[0], to, tag), [])

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> SimWork:
        _contiguous(tensors[0], "a receive")
        network = self._rank.cluster.network
        return self._message(lambda: network.receive(self._members, self._rank, tensors[0], source, tag), tensors)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> SimWork:
        _contiguous(tensors[0], "a receive")
        network = self._rank.cluster.network
        return self._message(lambda: network.receive(self._members, self._rank, tensors[0], None, tag), tensors)

    def _message(self, post: Any, result: list[Tensor]) -> SimWork:
        if self._rank.cluster.pauses:
            self._rank.pause(f"coming to a message of {self._members.label}")
        return SimWork(self._rank, [post()], result)


def _op(opts: Any) -> str:
    return operator_name(opts.reduceOp) if opts is not None else "SUM"


def _contiguous(tensor: Tensor, what: str) -> None:
    """RuntimeError where it is not: gloo refuses it at these calls."""
    if not tensor.is_contiguous():
        raise RuntimeError(
            f"sim: {what} has a tensor of shape {list(tensor.shape)} and strides {list(tensor.stride())}; allowed:"
            " contiguous"
        )


def _created(options: Any, backend_options: Any) -> SimGroup:
    """torch's creator, extended form: the default group names no ranks, and has them all."""
    ranks = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    timeout = options.timeout.total_seconds() if options.timeout is not None else FOREVER
    return SimGroup(options.group_rank, Members(str(options.group_id), ranks, timeout))


def register() -> None:
    """Tells torch.distributed of the backend; once a process."""
    if BACKEND.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(BACKEND, _created, extended_api=True, devices=["cpu"])
