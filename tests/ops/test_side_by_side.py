"""Launches that wait and then run side by side: each is made once, after what it reads and before what follows it.

Streams are stood in for: a stream knows what is behind it. On a GPU tests/gpu/test_captured_passes.py compares bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from samebits.ops._triton import side_by_side
from samebits.ops._triton.side_by_side import SideBySide, waits

DEVICE = torch.device("cuda", 0)
AT_ONCE = 100
NARROW, SUMS = 20, 4


class Stream:
    """What was launched on it, or on streams that it waited for."""

    made = 0

    def __init__(self, _: Any = None) -> None:
        Stream.made += 1
        self.cuda_stream = Stream.made
        self.behind: set[str] = set()

    def wait_stream(self, other: Stream) -> None:
        self.behind |= other.behind


class Device:
    """The current stream, and every launch with what was behind its stream."""

    def __init__(self) -> None:
        self.current = Stream()
        self.launches: list[tuple[str, Stream, frozenset[str]]] = []

    def launch(self, name: str) -> None:
        self.launches.append((name, self.current, frozenset(self.current.behind)))
        self.current.behind.add(name)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    found = Device()
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: found.current)
    monkeypatch.setattr(torch.cuda, "stream", found.stream)
    monkeypatch.setattr(side_by_side, "multiprocessors", lambda _: AT_ONCE)
    return found


def chain(device: Device, name: str, programs: int = 16, result: int | None = None) -> None:
    """As ops/_triton/columns.py launches: what it reads was made just before."""
    device.launch(f"operands of {name}")
    place = hash(name) if result is None else result
    if not waits(DEVICE, lambda: device.launch(name), programs, place):
        device.launch(name)


def pass_of(device: Device) -> None:
    """Narrow chains, of which some write to the same sums, and wide ones between them."""
    with SideBySide(DEVICE).launched():
        for number in range(NARROW):
            chain(device, f"narrow {number}", result=number % SUMS)
            if number % 4 == 0:
                chain(device, f"wide {number}", 64)


def wrong(device: Device) -> list[str]:
    """What a GPU might do otherwise than one stream, or not at all."""
    behind = {name: before for name, _, before in device.launches}
    found = []
    for number in range(NARROW):
        name, before = f"narrow {number}", {f"narrow {each}" for each in range(number % SUMS, number, SUMS)}
        found += [f"{name} before {each}" for each in {f"operands of {name}", *before} - behind.get(name, frozenset())]
        if [each for each, _, _ in device.launches].count(name) != 1 or name not in device.current.behind:
            found.append(f"{name}: not launched once, or not waited for")
    return found


def test_each_is_launched_once_in_order_of_its_sums_and_waited_for(device: Device) -> None:
    pass_of(device)
    assert wrong(device) == []


def test_many_are_beside_each_other(device: Device) -> None:
    """As many as fit on the device: six of 16 programs on 100 multiprocessors, each on a stream of its own."""
    with SideBySide(DEVICE).launched():
        for number in range(12):
            chain(device, f"narrow {number}")
    launched = [(name, stream, behind) for name, stream, behind in device.launches if name.startswith("narrow")]
    assert len({id(stream) for _, stream, _ in launched}) == 6
    for place, (_, _, behind) in enumerate(launched):
        assert {each for each in behind if each.startswith("narrow")} == {
            f"narrow {each}" for each in range(place // 6 * 6)
        }


def test_wide_ones_and_those_of_other_streams_do_not_wait(device: Device) -> None:
    other = Stream()
    with SideBySide(DEVICE).launched():
        chain(device, "wide", 51)
        with device.stream(other):
            chain(device, "elsewhere")
        assert [name for name, _, _ in device.launches if not name.startswith("operands")] == ["wide", "elsewhere"]
    assert side_by_side._waiting == {}


def test_outside_of_a_block_nothing_waits(device: Device) -> None:
    chain(device, "narrow 0")
    assert [name for name, _, _ in device.launches] == ["operands of narrow 0", "narrow 0"]


def test_after_an_error_nothing_is_launched_and_nothing_is_kept(device: Device) -> None:
    beside = SideBySide(DEVICE)
    with pytest.raises(ArithmeticError), beside.launched():
        chain(device, "narrow 0")
        raise ArithmeticError
    assert [name for name, _, _ in device.launches] == ["operands of narrow 0"]
    assert (beside._starts, beside._programs, side_by_side._waiting) == ([], 0, {})


def test_two_blocks_of_one_stream_are_refused(device: Device) -> None:
    with (
        pytest.raises(RuntimeError, match="allowed: one block at a time"),
        SideBySide(DEVICE).launched(),
        SideBySide(DEVICE).launched(),
    ):
        pass
    assert side_by_side._waiting == {}


@pytest.mark.parametrize("fault", ["not waited for", "not after its operands", "sums in another order", "left out"])
def test_faults_are_noticed(device: Device, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Planted."""
    take, wait = SideBySide.take, Stream.wait_stream

    def deaf(self: Stream, other: Stream) -> None:
        if (self is device.current) != (fault == "not waited for"):
            wait(self, other)

    if fault == "sums in another order":
        monkeypatch.setattr(SideBySide, "take", lambda self, start, programs, _: take(self, start, programs, id(start)))
    elif fault == "left out":
        monkeypatch.setattr(SideBySide, "_flush", SideBySide._forget)
    else:
        monkeypatch.setattr(Stream, "wait_stream", deaf)
    pass_of(device)
    assert wrong(device)
