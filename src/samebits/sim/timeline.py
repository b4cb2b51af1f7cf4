"""A timeline as Chrome trace events, which Perfetto and chrome://tracing show: a process a variant, a thread a stream.

Knows nothing of how time was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from samebits.sim.step_clock import COMPUTE, MESSAGES, NETWORK, Event

STREAMS: Final = (COMPUTE, MESSAGES, NETWORK)
MICROSECONDS: Final = 1e6
CATEGORIES: Final = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("head", "head"),
    ("optimizer", "update"),
    ("tree of", "update"),
    ("gather weights", "weights"),
    ("weights to", "weights"),
    ("reduce-scatter", "gradients"),
    ("gradients to", "gradients"),
    ("all-reduce", "sums"),
    ("chain", "sums"),
    ("embedding", "sums"),
    ("vocabulary", "sums"),
    ("o ", "forward"),
    ("down ", "forward"),
    ("up' ", "backward"),
    ("qkv' ", "backward"),
)
OTHER: Final = "alike"


def category(name: str) -> str:
    """What an event is, by the beginning of its name."""
    return next((kind for start, kind in CATEGORIES if name.startswith(start)), OTHER)


def chrome_trace(variants: Mapping[str, Sequence[Event]]) -> dict[str, Any]:
    """The document that such viewers load."""
    found: list[dict[str, Any]] = []
    for process, (title, events) in enumerate(variants.items()):
        found.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": title}})
        for place in sorted({event.place for event in events}):
            for number, stream in enumerate(STREAMS):
                thread = {"name": f"rank {place}: {stream}"}
                found.append(
                    {"ph": "M", "pid": process, "tid": _thread(place, number), "name": "thread_name", "args": thread}
                )
        found += [
            {
                "ph": "X",
                "pid": process,
                "tid": _thread(event.place, STREAMS.index(event.stream)),
                "name": event.name,
                "cat": category(event.name),
                "ts": event.start * MICROSECONDS,
                "dur": (event.stop - event.start) * MICROSECONDS,
            }
            for event in events
        ]
    return {"traceEvents": found, "displayTimeUnit": "ms"}


def _thread(place: int, stream: int) -> int:
    return place * len(STREAMS) + stream
