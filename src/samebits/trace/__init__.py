"""What a program did, as spans and events with their numbers: kernels, blocks, transfers. Nothing while nobody records.

with trace.recording(trace.JsonLines("trace.jsonl")):
    model(batch)
"""

from samebits.trace.sinks import ChromeTrace, JsonLines, Memory
from samebits.trace.spans import GRANULARITIES, Event, Sink, Span, active, event, recording, span

__all__ = [
    "GRANULARITIES",
    "ChromeTrace",
    "Event",
    "JsonLines",
    "Memory",
    "Sink",
    "Span",
    "active",
    "event",
    "recording",
    "span",
]
