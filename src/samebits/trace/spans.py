"""Spans and events: what happened, from when to when, inside of what, with its numbers.

While nobody records, `span` returns one shared object that does nothing. Each call of an operator is a span of the
granularity "kernel". What happens around it is in C (recorder.c), since two percent of a step are a few microseconds a
kernel; what is told of it is found here, once for all calls of its kind. A span of work on a GPU is timed there, by two
events of its stream, and told when the recording ends: nothing waits for the GPU before."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from samebits.ops.registering import observe
from samebits.trace.building import recorder
from samebits.trace.lines import words

GRANULARITIES: Final = ("run", "step", "block", "kernel", "transfer")
# Spans that wait to be told: a step of a small model.
ROOM: Final = 1024
_NOTHING: Final[AbstractContextManager[Any]] = nullcontext()


class Span(NamedTuple):
    """Something that took time. Times are nanoseconds of one clock, which tells no time of day."""

    name: str
    granularity: str
    number: int
    """Counted from 1 within a recording, in the order in which spans begin."""
    parent: int
    """The span around it in the same thread; 0: none."""
    thread: int
    began: int
    ended: int
    device: int | None = None
    """Nanoseconds on the GPU, where it ran there."""
    facts: Mapping[str, Any] = MappingProxyType({})

    @property
    def nanoseconds(self) -> int:
        """On the GPU where it ran there, else on the host."""
        return self.ended - self.began if self.device is None else self.device


class Event(NamedTuple):
    """Something that was at one moment."""

    name: str
    time: int
    parent: int
    facts: Mapping[str, Any] = MappingProxyType({})


class Sink(Protocol):
    """Where spans and events go, in the order in which they ended or were. Told from one thread at a time, in batches:
    at an event, where the outermost span of a thread ends, and where many wait."""

    def span(self, span: Span) -> None: ...

    def event(self, event: Event) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Lines(Protocol):
    """What a sink has beside that which takes a batch as text: a JSON object a line, each ended."""

    def lines(self, lines: bytes) -> None: ...


class _Recording:
    """What goes on between the beginning and the end of a `recording`."""

    def __init__(self, sinks: tuple[Sink, ...]) -> None:
        self.sinks = sinks
        self.lock = threading.Lock()
        self.recorder = recorder().Recorder(_on_gpu, _kind, _failed, self.tell, ROOM)
        self.written = [sink for sink in sinks if isinstance(sink, Lines)]
        self.told = [sink for sink in sinks if not isinstance(sink, Lines)]
        self.waiting: list[tuple[_Open, int]] = []
        """Ended on the host; the GPU may be behind."""

    def tell(self) -> None:
        """Tell what was kept until now."""
        with self.lock:
            self._tell()

    def _tell(self) -> None:
        spans, lines = self.recorder.take(Span if self.told else None, words if self.written else None)
        for sink in self.told:
            for each in spans:
                sink.span(each)
        for sink in self.written:
            sink.lines(lines)

    def event(self, event: Event) -> None:
        with self.lock:
            self._tell()
            for sink in self.sinks:
                sink.event(event)

    def finish(self) -> None:
        if self.waiting:
            torch.cuda.synchronize()
        self.tell()
        for opened, ended in self.waiting:
            for sink in self.sinks:
                sink.span(opened.span(ended))
        self.recorder.close()
        for sink in self.sinks:
            sink.close()


_recording: _Recording | None = None


def _forked() -> None:
    """What a process had not told yet when it was forked is told by itself, and not by its child."""
    if _recording is not None:
        _recording.lock = threading.Lock()
        _recording.recorder.forget()


os.register_at_fork(after_in_child=_forked)


def active() -> bool:
    """Whether somebody records."""
    return _recording is not None


@contextmanager
def recording(*sinks: Sink) -> Iterator[None]:
    """Within the block every span and event is told to these sinks, which are closed at its end."""
    global _recording
    if _recording is not None:
        raise ValueError("trace: a recording is under way; allowed: one at a time, with several sinks")
    _recording = now = _Recording(sinks)
    observe(now.recorder.around)
    try:
        yield
    finally:
        observe(None)
        _recording = None
        now.finish()


def span(name: str, granularity: str = "block", *, on_gpu: bool = False, **facts: Any) -> AbstractContextManager[Any]:
    """A context manager around something that takes time; within it the facts may be added to by `.add(...)`."""
    if _recording is None:
        return _NOTHING
    if granularity not in GRANULARITIES:
        raise ValueError(f"trace: granularity is {granularity!r}; allowed: {', '.join(GRANULARITIES)}")
    return _Open(_recording, name, granularity, on_gpu, facts)


def event(name: str, **facts: Any) -> None:
    """Tell of something that is now."""
    now = _recording
    if now is not None:
        now.event(Event(name=name, time=time.perf_counter_ns(), parent=now.recorder.inside(), facts=facts))


def _on_gpu(name: str, run: Callable[..., Any], arguments: tuple[Any, ...], flops: Callable[..., int] | None) -> Any:
    """One call of an operator whose tensors are on a GPU."""
    now = _recording
    if now is None:
        return run(*arguments)
    facts: dict[str, Any] = {}
    with _Open(now, name, "kernel", True, facts) as opened:
        result = run(*arguments)
        # What is told of the call takes no time of it.
        opened.stop()
        facts.update(_facts(arguments, result, flops))
    return result


def _kind(name: str, arguments: tuple[Any, ...], result: Any, flops: Callable[..., int] | None) -> Any:
    """What all calls of this operator with such arguments are: flops and sizes follow from the shapes."""
    return recorder().Kind(name, "kernel", MappingProxyType(_facts(arguments, result, flops)))


def _failed(name: str, error: type[BaseException]) -> Any:
    return recorder().Kind(name, "kernel", {"error": error.__name__})


def _facts(arguments: tuple[Any, ...], result: Any, flops: Callable[..., int] | None) -> dict[str, Any]:
    """Of a call: the shapes of its tensors, the bytes of these and of its results, each tensor once."""
    given = _tensors(arguments)
    touched = given + _tensors(result if type(result) is tuple else (result,))
    facts: dict[str, Any] = {
        "shapes": " ".join(["x".join(map(str, each.shape)) for each in given]),
        "bytes": sum({each.data_ptr(): each.nbytes for each in touched}.values()),
    }
    if flops is not None:
        facts["flops"] = flops(*arguments)
    return facts


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    """Those of an operator's arguments or results, of which some are lists."""
    found: list[Tensor] = []
    for each in values:
        if isinstance(each, Tensor):
            found.append(each)
        elif type(each) in (list, tuple):
            found += _tensors(each)
    return found


def _mark() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class _Open:
    """A span on its way."""

    __slots__ = ("_began", "_ended", "_facts", "_granularity", "_marks", "_name", "_place", "_recording", "_stack")

    def __init__(self, recording: _Recording, name: str, granularity: str, on_gpu: bool, facts: dict[str, Any]) -> None:
        self._recording, self._name, self._granularity, self._facts = recording, name, granularity, facts
        self._marks: Any = [_mark(), _mark()] if on_gpu else None
        self._ended = 0

    def add(self, **facts: Any) -> None:
        """Numbers that are known only now."""
        self._facts.update(facts)

    def __enter__(self) -> _Open:
        # The thread is asked for here: a span of the GPU's is told by whichever thread ends the recording.
        self._stack, *self._place = self._recording.recorder.open()
        if self._marks:
            self._marks[0].record()
        self._began = time.perf_counter_ns()
        return self

    def stop(self) -> None:
        """What follows within the block is no part of the span."""
        self._ended = time.perf_counter_ns()
        if self._marks:
            self._marks[1].record()

    def __exit__(self, kind: Any, *_: object) -> None:
        if not self._ended:
            self.stop()
        self._stack.close(self._place[0])
        if kind is not None:
            self._facts["error"] = kind.__name__
        if self._marks:
            self._recording.waiting.append((self, self._ended))
            return
        found = recorder().Kind(self._name, self._granularity, self._facts)
        self._recording.recorder.keep(found, *self._place, self._began, self._ended)
        if not self._place[1]:
            self._recording.tell()

    def span(self, ended: int) -> Span:
        device = round(1e6 * self._marks[0].elapsed_time(self._marks[1])) if self._marks else None
        number, parent, thread = self._place
        return Span(self._name, self._granularity, number, parent, thread, self._began, ended, device, self._facts)
