"""The rule of streams: what is read before its writer has ended is found; what is ordered, by whatever means, is not.

The rule and the list are real; the streams are numbers. What torch itself tells of events and waits on a GPU is fired
by hand here, through torch's own registries."""

from __future__ import annotations

import pytest
import torch
import torch.cuda._gpu_trace as gpu_trace

from samebits import ops
from samebits.trace.stream_recording import recorded_streams
from samebits.trace.streams import Done, EventAwaited, EventRecorded, HostRead, HostWait, Launch, races


def launch(stream: int, kernel: str, reads: set[int], writes: set[int]) -> Launch:
    return Launch(
        stream=stream, kernel=kernel, reads=frozenset(reads), writes=frozenset(writes), where=f"{kernel}.py:1"
    )


WRITES = launch(7, "backward", set(), {100})
READ = HostRead(stream=0, memory=100, where="clip.py:9")


def test_a_read_through_another_stream_needs_a_wait() -> None:
    (found,) = races([WRITES, READ])
    assert (found.granularity, found.place, found.contract) == ("transfer", "clip.py:9", "C-STREAMSYNC-001")
    assert "the host reads what kernel backward writes on stream 7, for which nobody waited" in found.message


@pytest.mark.parametrize(
    "between",
    [
        [HostWait(stream=7)],
        [HostWait(stream=None)],
        [EventRecorded(event=1, stream=7), EventAwaited(event=1, stream=None)],
        [EventRecorded(event=1, stream=7), EventAwaited(event=1, stream=0)],
        [
            EventRecorded(event=1, stream=7),
            EventAwaited(event=1, stream=3),
            EventRecorded(event=2, stream=3),
            EventAwaited(event=2, stream=0),
        ],
    ],
    ids=["stream", "device", "event by the host", "event by the stream", "over a third stream"],
)
def test_every_way_to_wait_orders_a_read(between: list[Done]) -> None:
    assert races([WRITES, *between, READ]) == []


@pytest.mark.parametrize(
    "log",
    [
        [HostWait(stream=7), WRITES, READ],
        [WRITES, HostWait(stream=3), READ],
        [EventRecorded(event=1, stream=7), WRITES, EventAwaited(event=1, stream=None), READ],
        [WRITES, HostWait(stream=7), WRITES, READ],
        [WRITES, EventAwaited(event=1, stream=None), READ],
    ],
    ids=["waited before", "for another stream", "event before the write", "written again", "event never recorded"],
)
def test_a_wait_that_does_not_cover_the_write_is_no_wait(log: list[Done]) -> None:
    assert len(races(log)) == 1


def test_kernels_race_with_kernels() -> None:
    """A reader and a second writer on another stream; a reader on the same one is behind its writer."""
    assert races([WRITES, launch(7, "norm", {100}, {200})]) == []
    (found,) = races([WRITES, launch(3, "norm", {100}, {200})])
    assert "kernel norm on stream 3 reads what kernel backward writes on stream 7" in found.message
    assert len(races([WRITES, launch(3, "clear", set(), {100})])) == 1
    # New work is given by a host that has waited already.
    assert races([WRITES, HostWait(stream=7), launch(3, "norm", {100}, {200})]) == []


def test_what_a_program_did_is_on_the_list() -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    with recorded_streams(stream_of={"kernel": 7, "read": 0}.__getitem__, device="cpu") as log:
        total = ops.matmul(a, b)
        gpu_trace.StreamSynchronizationCallbacks.fire_callbacks(7)
        float(total[0, 0])
    product = next(each for each in log if isinstance(each, Launch) and each.kernel == "gemm")
    memory = {each.untyped_storage().data_ptr() for each in (a, b)}
    assert product.reads == memory and product.writes == {total.untyped_storage().data_ptr()}
    assert isinstance(log[-1], HostRead) and log[-1].where.startswith("test_streams.py:")
    assert HostWait(stream=7) in log and races(log) == []
    assert len(races([each for each in log if not isinstance(each, HostWait)])) == 1


def test_events_of_torch_are_on_the_list_and_nobody_listens_afterwards() -> None:
    with recorded_streams(stream_of=lambda _: 0, device="cpu") as log:
        gpu_trace.EventRecordCallbacks.fire_callbacks(5, 7)
        gpu_trace.EventWaitCallbacks.fire_callbacks(5, 3)
        gpu_trace.EventSynchronizationCallbacks.fire_callbacks(5)
        gpu_trace.DeviceSynchronizationCallbacks.fire_callbacks()
    assert log == [
        EventRecorded(event=5, stream=7),
        EventAwaited(event=5, stream=3),
        EventAwaited(event=5, stream=None),
        HostWait(stream=None),
    ]
    gpu_trace.DeviceSynchronizationCallbacks.fire_callbacks()
    assert len(log) == 4
