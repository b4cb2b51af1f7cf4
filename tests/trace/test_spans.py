"""Spans and events: nothing while nobody records, nested as they ran, in every sink."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from tests.infer.load import SMALL
from torch import Tensor, nn

from samebits import ops, trace
from samebits.model import Model
from samebits.trace.modules import modules_as_spans
from samebits.trace.spans import Event, Span, span
from samebits.trace.summary import summary


def test_nothing_is_made_while_nobody_records() -> None:
    assert span("one") is span("two", "kernel", size=3)
    assert not trace.active()


def test_spans_are_nested_as_they_ran() -> None:
    memory = trace.Memory()
    with trace.recording(memory), span("outer", "step"):
        trace.event("between", step=1)
        with span("inner") as opened:
            opened.add(size=3)
    inner, outer = memory.spans
    assert (inner.name, inner.parent, outer.parent) == ("inner", outer.number, 0)
    assert outer.began <= inner.began <= inner.ended <= outer.ended
    assert inner.facts == {"size": 3} and memory.events[0].parent == outer.number


def test_threads_have_spans_of_their_own() -> None:
    """A span of another thread is inside none of this one's."""
    memory = trace.Memory()

    def work() -> None:
        with span("theirs"):
            pass

    with trace.recording(memory), span("ours"):
        other = threading.Thread(target=work)
        other.start()
        other.join()
    assert {each.name: each.parent for each in memory.spans} == {"theirs": 0, "ours": 0}


def test_a_span_in_which_something_failed_says_so() -> None:
    memory = trace.Memory()
    with trace.recording(memory), pytest.raises(KeyError), span("one"):
        raise KeyError
    assert memory.spans[0].facts == {"error": "KeyError"}


def test_two_recordings_at_once_are_refused() -> None:
    with trace.recording(), pytest.raises(ValueError, match="a recording is under way"), trace.recording():
        pass
    with trace.recording(), pytest.raises(ValueError, match="granularity is 'loop'; allowed: run, step, block"):
        span("one", "loop")


def test_files_hold_what_memory_holds(tmp_path: Path) -> None:
    memory = trace.Memory()
    sinks = (memory, trace.JsonLines(tmp_path / "t.jsonl"), trace.ChromeTrace(tmp_path / "t.json"))
    with trace.recording(*sinks), span("one", "kernel", largest=float("inf")):
        trace.event("seen", loss=float("nan"))
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [each.get("span") or each.get("event") for each in lines] == ["seen", "one"]
    assert lines[0]["loss"] == "nan" and lines[1]["largest"] == "inf" and lines[1]["number"] == 1
    chrome = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [(each["name"], each["ph"]) for each in chrome] == [("seen", "i"), ("one", "X")]
    assert chrome[1]["dur"] == memory.spans[0].nanoseconds / 1e3


def test_kernels_and_blocks_of_a_model_are_spans_and_change_no_bit() -> None:
    model, ids = Model.new(SMALL, 1), torch.arange(10).reshape(2, 5)
    wanted = model(ids)
    memory = trace.Memory()
    with trace.recording(memory), modules_as_spans(samples=True):
        found = model(ids)
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))
    by_number = {each.number: each for each in memory.spans}
    kernels = [each for each in memory.spans if each.granularity == "kernel"]
    assert {"gemm", "attention", "swiglu", "rope", "embedding"} <= {each.name for each in kernels}
    inside = {by_number[each.parent].name for each in kernels if each.name == "gemm"}
    assert inside == {f"model.layers.{number}.{part}" for number in range(2) for part in ("self_attn", "mlp")} | {
        "lm_head"
    }
    blocks = [each for each in memory.spans if each.granularity == "block"]
    assert all(each.facts["not_finite"] == 0 for each in blocks if "not_finite" in each.facts)


def test_a_summary_adds_up() -> None:
    """Own times of all spans are the time of the outermost, and shares sum to 1."""
    memory = trace.Memory()
    x, weight = torch.randn(4, 16), torch.randn(8, 16)
    with trace.recording(memory), span("all", "step"), span("half"):
        ops.linear(x, weight)
    found = summary(memory.spans, memory.events)
    outermost = found.of("step")[0]
    assert sum(row.own_milliseconds for row in found.rows) == pytest.approx(outermost.milliseconds)
    assert sum(row.share for row in found.rows) == pytest.approx(1.0)
    gemm = found.of("kernel")[0]
    assert gemm.name == "gemm" and gemm.gigabytes_per_second is not None
    (kernel,) = [each for each in memory.spans if each.granularity == "kernel"]
    assert kernel.facts["flops"] == 2 * 4 * 16 * 8 and kernel.facts["bytes"] == 4 * (4 * 16 + 8 * 16 + 4 * 8)


class Slow(nn.Module):
    """Calls its inner module, when the other thread has begun as well."""

    def __init__(self, meeting: threading.Barrier) -> None:
        super().__init__()
        self.inner, self.meeting = nn.Identity(), meeting

    def forward(self, x: Tensor) -> Tensor:
        self.meeting.wait()
        found: Tensor = self.inner(x)
        self.meeting.wait()
        return found


def test_modules_in_two_threads_are_named_and_nested_each_by_itself() -> None:
    """Before, one list of open calls ended those of the other thread, and names were those of its module."""
    meeting, memory = threading.Barrier(2), trace.Memory()
    with trace.recording(memory), modules_as_spans():
        threads = [threading.Thread(target=Slow(meeting), args=(torch.ones(1),)) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    around = {each.number: each for each in memory.spans}
    inner = [each for each in memory.spans if each.name == "inner"]
    assert sorted(each.name for each in memory.spans) == ["Slow", "Slow", "inner", "inner"]
    assert all(around[each.parent].name == "Slow" and around[each.parent].thread == each.thread for each in inner)


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError


class Catching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.failing, self.after = Failing(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        try:
            self.failing(x)
        except KeyError:
            return self.after(x)  # type: ignore[no-any-return]
        raise AssertionError


def test_a_module_that_failed_says_so_and_those_around_it_do_not() -> None:
    memory = trace.Memory()
    with trace.recording(memory), modules_as_spans():
        Catching()(torch.ones(1))
    assert {each.name: each.facts.get("error") for each in memory.spans} == {
        "failing": "KeyError",
        "after": None,
        "Catching": None,
    }


def test_a_call_under_way_when_the_block_begins_is_left_alone() -> None:
    class Recorded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.block = modules_as_spans()
            self.block.__enter__()
            return x

    module, memory = Recorded(), trace.Memory()
    with trace.recording(memory):
        module(torch.ones(1))
        module.block.__exit__(None, None, None)
    assert memory.spans == []


def test_a_summary_leaves_out_what_outlives_the_span_around_it_and_facts_that_count_nothing() -> None:
    outer = Span("outer", "block", 1, 0, 1, 0, 10)
    inside = Span("inside", "block", 2, 1, 1, 8, 100, facts={"bytes": "many", "flops": None})
    found = summary([inside, outer], [Event("transfer", 1, 0), Event("transfer", 2, 0, {"kind": "wait", "bytes": 3})])
    own = {row.name: row.own_milliseconds for row in found.rows}
    assert own == {"outer": pytest.approx(8e-6), "inside": pytest.approx(92e-6)}
    assert found.transfers == {"wait": (1, 3)} and all(row.gigabytes_per_second is None for row in found.rows)
