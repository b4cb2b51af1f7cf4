"""The recorder in C: what it tells of calls, and that nothing that happens around it breaks or outlives anything."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import subprocess
import sysconfig
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samebits import ops, trace
from samebits.ops import registering
from samebits.trace import building, spans
from samebits.trace.modules import modules_as_spans
from samebits.trace.spans import Event, Span, span

ROOM = spans.ROOM


def called(name: str, run: Callable[..., Any], *arguments: Any) -> Any:
    """As an operator of that name would be, were it registered."""
    around = registering._around
    return run(*arguments) if around is None else around(name, run, arguments, None)


def rows(x: Tensor, count: int, scale: float) -> Tensor:
    return called("rows", lambda x, count, scale: x.new_ones(count, 2), x, count, scale)  # type: ignore[no-any-return]


def beside(given: list[Tensor], more: Tensor | None, step: int, how: str) -> None:
    called("beside", lambda *_: None, given, more, step, how)


def told_of(work: Callable[[], Any]) -> list[Span]:
    memory = trace.Memory()
    with trace.recording(memory):
        work()
    return memory.spans


def facts_of(*calls: Callable[[], Any]) -> list[tuple[str, int]]:
    return [
        (each.facts["shapes"], each.facts["bytes"]) for work in calls for each in told_of(work) if "bytes" in each.facts
    ]


def test_calls_of_one_kind_and_of_others_are_told_apart() -> None:
    """Each pair differs in one thing that the bytes depend on; a key without it would tell the first twice."""
    a, b, half = torch.ones(4, 4), torch.zeros(4, 4), torch.ones(4, 4, dtype=torch.bfloat16)
    assert facts_of(lambda: rows(a, 3, 1.0), lambda: rows(a, 5, 1.0)) == [("4x4", 64 + 24), ("4x4", 64 + 40)]
    assert facts_of(lambda: rows(half, 3, 1.0)) == [("4x4", 32 + 12)]
    assert facts_of(lambda: beside([a, b], None, 1, "x"), lambda: beside([a, a], None, 1, "x")) == [
        ("4x4 4x4", 128),
        ("4x4 4x4", 64),
    ]
    assert facts_of(lambda: beside([a, a.view(16)], None, 1, "x")) == [("4x4 16", 64)]
    assert facts_of(lambda: beside([a], b, 1, "x"), lambda: beside([a[:2]], None, 1, "x")) == [
        ("4x4 4x4", 128),
        ("2x4", 32),
    ]
    assert facts_of(lambda: beside([], None, 1, "x")) == [("", 0)]


def test_what_decides_no_size_makes_no_new_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer's step and rate differ every time. Where the result has a size, whole numbers may decide it."""
    asked: list[str] = []
    found = spans._kind
    monkeypatch.setattr(spans, "_kind", lambda name, *rest: (asked.append(name), found(name, *rest))[1])
    x = torch.ones(7, 3)
    told_of(lambda: [beside([x], None, step, "step") for step in range(5)])
    told_of(lambda: [rows(x, count, rate) for count in (1, 2) for rate in (0.1, 0.2)])
    assert asked == ["beside", "rows", "rows"]


def test_a_call_of_more_than_there_is_room_for_is_told_as_any() -> None:
    x = torch.ones(1)
    many = [x[:] for _ in range(3000)]
    assert facts_of(lambda: beside(many, None, 1, "x"), lambda: beside(many[:1], None, 2, "x" * 20_000)) == [
        (" ".join(["1"] * 3000), 4),
        ("1", 4),
    ]


def test_lines_are_those_of_the_spans(tmp_path: Path) -> None:
    """The text that C writes against that which Python writes of the same spans."""
    memory, path = trace.Memory(), tmp_path / "t.jsonl"
    with trace.recording(memory, trace.JsonLines(path)), span('a "name"\n\u00e4', "step", loss=float("nan"), none=None):
        ops.linear(torch.ones(2, 3), torch.ones(4, 3))
        with span("inner", deep={"a": [1]}):
            trace.event("seen")
    written = trace.JsonLines(tmp_path / "by_python.jsonl")
    first, *others = memory.spans
    written.span(first)
    written.event(memory.events[0])
    for each in others:
        written.span(each)
    written.close()
    assert path.read_text() == (tmp_path / "by_python.jsonl").read_text()
    assert [json.loads(line)["ended"] for line in path.read_text().splitlines() if '"span"' in line] == [
        each.ended for each in memory.spans
    ]


class Watching:
    """A sink that says how many spans it was told until now."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def span(self, span: Span) -> None:
        self.numbers.append(span.number)

    def event(self, event: Event) -> None:
        return

    def close(self) -> None:
        return


def test_many_spans_are_told_on_the_way_and_in_their_order() -> None:
    sink, x = Watching(), torch.ones(1)
    with trace.recording(sink), span("outer"):
        for _ in range(3 * ROOM):
            beside([x], None, 1, "x")
        assert 2 * ROOM <= len(sink.numbers) <= 3 * ROOM
    assert sink.numbers == [*range(2, 3 * ROOM + 2), 1]


def test_the_outermost_span_tells_what_was_inside() -> None:
    sink = Watching()
    with trace.recording(sink):
        with span("outer"), span("inner"):
            pass
        assert sink.numbers == [2, 1]


def test_nothing_that_was_recorded_is_kept_alive() -> None:
    module = nn.Linear(3, 3)
    x = torch.ones(2, 3)
    gone = [weakref.ref(each) for each in (module, x)]
    with trace.recording(trace.Memory()), modules_as_spans(samples=True), span("outer"):
        result = ops.linear(module(x), module.weight.detach())
        gone.append(weakref.ref(result))
        del module, x, result
        gc.collect()
        assert [each() for each in gone] == [None] * 3


def test_an_operator_that_fails_says_so_and_its_error_is_its_own() -> None:
    error = OverflowError("planted")

    def run(x: Tensor) -> None:
        raise error

    memory = trace.Memory()
    with trace.recording(memory), span("outer"):
        for _ in range(2):
            with pytest.raises(OverflowError, match="planted"):
                called("failing", run, torch.ones(1))
        beside([torch.ones(1)], None, 1, "x")
    assert [(each.name, each.facts.get("error"), each.parent) for each in memory.spans] == [
        ("failing", "OverflowError", 1),
        ("failing", "OverflowError", 1),
        ("beside", None, 1),
        ("outer", None, 0),
    ]


def test_a_kernel_under_way_when_a_recording_ends_is_left_alone() -> None:
    """Neither that recording is told of it, which has closed its sinks, nor the next, within which it ends."""
    inside, go_on = threading.Event(), threading.Event()

    def run(x: Tensor) -> Tensor:
        inside.set()
        go_on.wait(60)
        return x + 1

    found: list[Tensor] = []
    other = threading.Thread(target=lambda: found.append(called("slow", run, torch.ones(1))))
    first, second = trace.Memory(), trace.Memory()
    with trace.recording(first):
        other.start()
        inside.wait(60)
    with trace.recording(second):
        go_on.set()
        other.join()
        beside([torch.ones(1)], None, 1, "x")
    assert first.spans == [] and [each.name for each in second.spans] == ["beside"]
    assert [each.tolist() for each in found] == [[2.0]]


def test_many_threads_at_once() -> None:
    memory, start = trace.Memory(), threading.Barrier(4)

    def work() -> None:
        start.wait(60)
        for _ in range(ROOM):
            with span("mine"):
                beside([torch.ones(1)], None, 1, "x")

    with trace.recording(memory):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    around = {each.number: each for each in memory.spans}
    kernels = [each for each in memory.spans if each.granularity == "kernel"]
    assert len(around) == len(memory.spans) == 2 * len(kernels) == 8 * ROOM
    assert all(around[each.parent].thread == each.thread for each in kernels)
    assert all(around[each.parent].name == "mine" for each in kernels)


def test_a_generator_s_span_ends_alone() -> None:
    """It outlives the span that it began in; what is inside of another then says so."""

    def generator() -> Any:
        with span("generator"):
            yield

    memory, made = trace.Memory(), generator()
    with trace.recording(memory), span("outer"):
        with span("first"):
            next(made)
        with span("second"):
            next(made, None)
            with span("inner"):
                pass
    names = {each.number: each.name for each in memory.spans}
    assert {each.name: names.get(each.parent) for each in memory.spans} == {
        "outer": None,
        "first": "outer",
        "generator": "first",
        "second": "generator",
        "inner": "second",
    }


def test_modules_that_moved_have_the_names_of_where_they_are() -> None:
    """Names are kept for as long as a model is made of the same modules in the same places."""
    model = nn.Sequential(nn.Identity(), nn.Sequential(nn.ReLU()), nn.Identity())
    seen = []
    for _ in range(2):
        memory = trace.Memory()
        with trace.recording(memory), modules_as_spans():
            model(torch.ones(1))
            model(torch.ones(1))
        seen.append([(each.name, each.facts["kind"]) for each in memory.spans])
        model[1], model[2] = model[2], model[1]
    ends = ("Sequential", "Sequential")
    assert seen[0] == 2 * [("0", "Identity"), ("1.0", "ReLU"), ("1", "Sequential"), ("2", "Identity"), ends]
    assert seen[1] == 2 * [("0", "Identity"), ("1", "Identity"), ("2.0", "ReLU"), ("2", "Sequential"), ends]


class Interrupted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyboardInterrupt


class Surviving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.interrupted, self.after = Interrupted(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        with contextlib.suppress(KeyboardInterrupt):
            self.interrupted(x)
        return self.after(x)  # type: ignore[no-any-return]


def test_a_module_that_an_interrupt_cut_off_ends_with_the_call_around_it() -> None:
    memory = trace.Memory()
    with trace.recording(memory), modules_as_spans():
        Surviving()(torch.ones(1))
        nn.Identity()(torch.ones(1))
    assert [each.name for each in memory.spans] == ["after", "interrupted", "Surviving", "Identity"]
    assert [each.parent for each in memory.spans][-2:] == [0, 0]


def test_a_forked_process_does_not_tell_what_its_parent_tells(tmp_path: Path) -> None:
    path, x = tmp_path / "t.jsonl", torch.ones(1)
    sink = trace.JsonLines(path)
    with trace.recording(sink), span("outer"):
        beside([x], None, 1, "x")
        child = os.fork()
        if child == 0:
            trace.event("child")
            sink.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(each.get("span") or each["event"] for each in lines) == ["beside", "child", "outer"]


def test_a_sink_that_fails_is_heard() -> None:
    class Full(Watching):
        def span(self, span: Span) -> None:
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"), trace.recording(Full()), span("one"):
        pass
    assert not trace.active()


@pytest.mark.parametrize("compiler", [each for each in ("cc", "gcc", "clang") if shutil.which(each)])
def test_the_source_has_no_warning(compiler: str, tmp_path: Path) -> None:
    """With every compiler that is here."""
    (source,) = (each for each in building.SOURCES if each.suffix == ".c")
    headers = f"-isystem{sysconfig.get_paths()['include']}"
    command = [compiler, *building.OPTIONS, "-Werror", headers, str(source), "-o", str(tmp_path / "recorder.so")]
    subprocess.run(command, check=True)


def test_without_a_compiler_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RuntimeError, match="there is no compiler 'no-such-compiler'; CC names another"):
        building.built()
