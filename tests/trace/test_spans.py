"""Spans and events: nothing while nobody records, nested as they ran, in every sink."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from tests.infer.load import SMALL

from samebits import ops, trace
from samebits.model import Model
from samebits.trace.modules import modules_as_spans
from samebits.trace.spans import span
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
