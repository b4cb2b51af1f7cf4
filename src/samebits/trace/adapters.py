"""Spans and events for TensorBoard and OpenTelemetry, which are imported only by who asks for them."""

from __future__ import annotations

import time
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
            if step is not None and name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(f"{event.name}/{name}", value, step)

    def close(self) -> None:
        self._writer.close()


class OpenTelemetry:
    """Every span as one of the application's tracer; which exporter it has is the application's choice."""

    def __init__(self) -> None:
        require("trace.adapters.OpenTelemetry", "opentelemetry")
        from opentelemetry import trace

        self._tracer: Any = trace.get_tracer("samebits")
        # Its times are those of the day.
        self._offset = time.time_ns() - time.perf_counter_ns()

    def span(self, span: Span) -> None:
        self._tell(span.name, span.began, span.nanoseconds, {"granularity": span.granularity, **span.facts})

    def event(self, event: Event) -> None:
        self._tell(event.name, event.time, 0, {**event.facts})

    def _tell(self, name: str, began: int, nanoseconds: int, facts: dict[str, Any]) -> None:
        start = began + self._offset
        self._tracer.start_span(name, start_time=start, attributes=facts).end(end_time=start + nanoseconds)

    def close(self) -> None:
        return
