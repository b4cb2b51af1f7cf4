"""TensorBoard and OpenTelemetry for real: a run that is recorded into them is read back by their own readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.train.small_run import small, steps_of

from samebits import trace
from samebits.trace.adapters import OpenTelemetry, TensorBoard
from samebits.trace.spans import Event, Span
from samebits.train.running import run

QUICK = ("training.max_steps=3", "training.gradient_accumulation_steps=1", "data.max_length=16")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, trace.Memory, tuple[Any, ...]]:
    """Three steps of a run into both at once, and into memory beside them."""
    folder, memory, exporter = tmp_path_factory.mktemp("recorded"), trace.Memory(), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    sinks = (memory, TensorBoard(folder / "board"), OpenTelemetry(provider.get_tracer("test")))
    with trace.recording(*sinks):
        run(small(*QUICK), folder / "run")
    return folder, memory, exporter.get_finished_spans()


def test_tensorboard_has_every_number_of_every_step(recorded: tuple[Path, trace.Memory, Any]) -> None:
    board = EventAccumulator(str(recorded[0] / "board"))
    board.Reload()
    steps = steps_of(recorded[0] / "run")
    assert len(steps) == 3
    for name in ("loss", "norm", "norm_after", "rate", "tokens", "tokens_per_second"):
        found = [(each.step, each.value) for each in board.Scalars(f"step/{name}")]
        # It keeps float32.
        assert found == [(each["step"], pytest.approx(each[name], rel=1e-6)) for each in steps]


def test_opentelemetry_has_every_span_inside_of_its_parent(recorded: tuple[Path, trace.Memory, Any]) -> None:
    _, memory, exported = recorded
    assert len(exported) == len(memory.spans) + sum(not each.parent for each in memory.events)
    ours = {each.number: each for each in memory.spans}
    wanted = sorted((each.name, ours[each.parent].name if each.parent else None) for each in memory.spans)
    names = {each.context.span_id: each.name for each in exported}
    theirs = [(each.name, None if each.parent is None else names[each.parent.span_id]) for each in exported]
    assert sorted((each for each in theirs if each[0] != "step"), key=str) == sorted(wanted, key=str)
    for each in exported:
        if each.name == "gemm":
            assert each.attributes["granularity"] == "kernel" and each.attributes["flops"] > 0
    durations = sorted(each.end_time - each.start_time for each in exported if each.name != "step")
    assert durations == sorted(each.nanoseconds for each in memory.spans)


def span(number: int, parent: int, **facts: Any) -> Span:
    return Span(f"s{number}", "block", number, parent, 1, 10 * number, 10 * number + 5, None, facts)


def exported_of(tell: Any) -> dict[str, Any]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    sink = OpenTelemetry(provider.get_tracer("test"))
    tell(sink)
    sink.close()
    return {each.name: each for each in exporter.get_finished_spans()}


def test_events_are_at_their_span_and_what_is_not_known_is_left_out() -> None:
    def tell(sink: OpenTelemetry) -> None:
        sink.event(Event("seen", 12, 2, {"loss": 1.5, "mfu": None}))
        sink.span(span(2, 1, mfu=None, size=3))
        sink.span(span(1, 0))

    found = exported_of(tell)
    (seen,) = found["s2"].events
    assert (seen.name, dict(seen.attributes)) == ("seen", {"loss": 1.5})
    assert dict(found["s2"].attributes) == {"granularity": "block", "size": 3}
    assert found["s2"].parent.span_id == found["s1"].context.span_id


def test_what_is_inside_of_a_span_that_never_ends_is_told() -> None:
    """A recording that ends within a span: of what began before it nothing is known, the rest is not lost."""

    def tell(sink: OpenTelemetry) -> None:
        sink.event(Event("seen", 12, 7))
        sink.span(span(9, 8))
        sink.span(span(8, 7))

    found = exported_of(tell)
    assert set(found) == {"seen", "s8", "s9"} and found["s8"].parent is None
    assert found["s9"].parent.span_id == found["s8"].context.span_id


def test_facts_that_opentelemetry_does_not_know_are_told_as_text() -> None:
    def tell(sink: OpenTelemetry) -> None:
        sink.span(span(1, 0, shape=[2, None], inner={"a": 1}, yes=True))

    assert dict(exported_of(tell)["s1"].attributes) == {
        "granularity": "block",
        "shape": "[2, None]",
        "inner": "{'a': 1}",
        "yes": True,
    }


def test_tensorboard_takes_no_step_that_is_no_number(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.event(Event("step", 1, 0, {"step": "first", "loss": 1.0}))
    board.event(Event("step", 2, 0, {"step": 2, "loss": float("nan")}))
    board.close()
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [each.step for each in read.Scalars("step/loss")] == [2]
