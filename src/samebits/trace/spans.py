"""Spans and events: what happened, from when to when, inside of what, with its numbers.

While nobody records, `span` returns one shared object that does nothing. A span of work on a GPU is timed there, by two
events of its stream, and told when the recording ends: nothing waits for the GPU before. Each call of an operator is a
span of the granularity "kernel"."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import Tensor

from samebits.ops.registering import observe

GRANULARITIES: Final = ("run", "step", "block", "kernel", "transfer")
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
    """Where spans and events go. Told from one thread at a time."""

    def span(self, span: Span) -> None: ...

    def event(self, event: Event) -> None: ...

    def close(self) -> None: ...


class _Recording:
    """What goes on between the beginning and the end of a `recording`."""

    def __init__(self, sinks: tuple[Sink, ...]) -> None:
        self.sinks = sinks
        self.lock = threading.Lock()
        # One call gives each thread a number of its own.
        self.numbers = itertools.count(1)
        self.stacks = threading.local()
        self.waiting: list[tuple[_Open, int]] = []
        """Ended on the host; the GPU may be behind."""

    def stack(self) -> list[int]:
        try:
            found: list[int] = self.stacks.open
        except AttributeError:
            found = self.stacks.open = []
        return found

    def tell(self, span: Span) -> None:
        with self.lock:
            for sink in self.sinks:
                sink.span(span)

    def finish(self) -> None:
        if self.waiting:
            torch.cuda.synchronize()
        for opened, ended in self.waiting:
            self.tell(opened.span(ended))
        for sink in self.sinks:
            sink.close()


_recording: _Recording | None = None


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
    observe(_kernel)
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
        stack = now.stack()
        found = Event(name=name, time=time.perf_counter_ns(), parent=stack[-1] if stack else 0, facts=facts)
        with now.lock:
            for sink in now.sinks:
                sink.event(found)


def _kernel(name: str, run: Callable[..., Any], arguments: tuple[Any, ...], flops: Callable[..., int] | None) -> Any:
    """One call of an operator, with the bytes of its arguments and results, each tensor once."""
    now = _recording
    if now is None:
        return run(*arguments)
    given = _tensors(arguments)
    facts: dict[str, Any] = {}
    with _Open(now, name, "kernel", bool(given) and given[0].is_cuda, facts) as opened:
        result = run(*arguments)
        # What is told of the call takes no time of it.
        opened.stop()
        facts["shapes"] = " ".join([_words(each.shape) for each in given])
        touched = given + _tensors(result if type(result) is tuple else (result,))
        facts["bytes"] = sum({each.data_ptr(): each.nbytes for each in touched}.values())
        if flops is not None:
            facts["flops"] = flops(*arguments)
    return result


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    """Those of an operator's arguments or results, of which some are lists."""
    found: list[Tensor] = []
    for each in values:
        if isinstance(each, Tensor):
            found.append(each)
        elif type(each) in (list, tuple):
            found += _tensors(each)
    return found


@lru_cache(maxsize=4096)
def _words(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _mark() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class _Open:
    """A span on its way."""

    __slots__ = (
        "_began",
        "_ended",
        "_facts",
        "_granularity",
        "_marks",
        "_name",
        "_number",
        "_parent",
        "_recording",
        "_stack",
        "_thread",
    )

    def __init__(self, recording: _Recording, name: str, granularity: str, on_gpu: bool, facts: dict[str, Any]) -> None:
        self._recording, self._name, self._granularity, self._facts = recording, name, granularity, facts
        self._marks: Any = [_mark(), _mark()] if on_gpu else None
        self._ended = 0

    def add(self, **facts: Any) -> None:
        """Numbers that are known only now."""
        self._facts.update(facts)

    def __enter__(self) -> _Open:
        self._stack = stack = self._recording.stack()
        # Asked here: a span of the GPU's is told by whichever thread ends the recording.
        self._thread = threading.get_ident()
        self._parent, self._number = stack[-1] if stack else 0, next(self._recording.numbers)
        stack.append(self._number)
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
        ended = self._ended
        self._stack.pop()
        if kind is not None:
            self._facts["error"] = kind.__name__
        if self._marks:
            self._recording.waiting.append((self, ended))
        else:
            self._recording.tell(self.span(ended))

    def span(self, ended: int) -> Span:
        device = round(1e6 * self._marks[0].elapsed_time(self._marks[1])) if self._marks else None
        place = self._number, self._parent, self._thread
        return Span(self._name, self._granularity, *place, self._began, ended, device, self._facts)
