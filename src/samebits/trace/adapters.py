"""Spans and events for TensorBoard and OpenTelemetry, which are imported only by who asks for them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samebits.records.packages import require
from samebits.trace.spans import Event, Span


class TensorBoard:
    """Every number of a `step` event as a scalar, by its step."""

    def __init__(self, folder: str | Path) -> None:
        require("trace.adapters.TensorBoard", "tensorboard")
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def span(self, span: Span) -> None:
        return

    def event(self, event: Event) -> None:
        step = event.facts.get("step")
        for name, value in event.facts.items():
            if type(step) is int and name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(f"{event.name}/{name}", value, step)

    def close(self) -> None:
        self._writer.close()


class OpenTelemetry:
    """Every span as one of a tracer, inside of its parent, and every event at the span that it happened in.

    `tracer`: the application's own unless given; which exporter it has is the application's choice. A span is told when
    it ends, after those inside of it, and OpenTelemetry wants the outer one first: what is inside of a span waits for
    the outermost to end."""

    def __init__(self, tracer: Any = None) -> None:
        require("trace.adapters.OpenTelemetry", "opentelemetry")
        from opentelemetry.trace import get_tracer, set_span_in_context

        self._tracer: Any = get_tracer("samebits") if tracer is None else tracer
        self._inside: Any = set_span_in_context
        # Its times are those of the day.
        self._offset = time.time_ns() - time.perf_counter_ns()
        self._waiting: dict[int, list[Span | Event]] = defaultdict(list)

    def span(self, span: Span) -> None:
        if span.parent:
            self._waiting[span.parent].append(span)
        else:
            self._tell(span, None)

    def event(self, event: Event) -> None:
        if event.parent:
            self._waiting[event.parent].append(event)
        else:
            start = event.time + self._offset
            self._tracer.start_span(event.name, start_time=start, attributes=_known(event.facts)).end(end_time=start)

    def _tell(self, span: Span, context: Any) -> None:
        start = span.began + self._offset
        facts = {"granularity": span.granularity, **_known(span.facts)}
        told = self._tracer.start_span(span.name, context=context, start_time=start, attributes=facts)
        within = self._inside(told, context)
        for each in self._waiting.pop(span.number, []):
            if isinstance(each, Span):
                self._tell(each, within)
            else:
                told.add_event(each.name, _known(each.facts), timestamp=each.time + self._offset)
        told.end(end_time=start + span.nanoseconds)

    def close(self) -> None:
        """What is inside of a span that never ended is told by itself."""
        while self._waiting:
            number = min(self._waiting)
            for each in self._waiting.pop(number):
                if isinstance(each, Span):
                    self._tell(each, None)
                else:
                    self.event(each._replace(parent=0))


def _known(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Without numbers that are not known: an attribute has a value. What is no number and no text is told as text;
    OpenTelemetry would drop it with a warning."""
    return {
        name: value if isinstance(value, str | int | float) else str(value)
        for name, value in facts.items()
        if value is not None
    }
