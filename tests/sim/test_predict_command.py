"""`samebits sim predict` and `sim validate` as users call them: tables, documents, traces, pictures, exit codes."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as Xml
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from samebits.cli import main
from samebits.sim import validate
from samebits.sim.step_clock import COMPUTE, NETWORK, Event
from samebits.sim.timeline import CATEGORIES, OTHER, category, chrome_trace
from samebits.sim.timeline_picture import COLOURS, MEANINGS

TINY = ["sim", "predict", "350m_short", "--gpus", "8"]


def called(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """(exit code, stdout, stderr)."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


Called = Any


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Called:
    return lambda *words: called(list(words), monkeypatch, capsys)


def test_a_table_of_promises_and_layouts(call: Called) -> None:
    code, out, _ = call(*TINY)
    assert code == 0
    rows = [line.split() for line in out.splitlines()[2:6]]
    assert [row[1].rstrip(",") for row in rows] == ["none", "data", "tensor", "data"]
    assert "a model's word, not a measurement" in out


@pytest.mark.parametrize("option", ["--trace", "--picture"])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_predicted(
    option: str, call: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def predicted(*_: Any) -> None:
        raise AssertionError("it was predicted first")

    monkeypatch.setattr("samebits.sim.predict.predict_all", predicted)
    for path in (tmp_path, tmp_path / "absent" / "file"):
        code, out, err = call(*TINY, option, str(path))
        assert (code, out) == (2, "")
        assert err == f"samebits: sim predict: {option} is {path}; allowed: a file in a folder that is there\n"
    assert "it was predicted first" in call(*TINY, option, str(tmp_path / "file"))[2]


def test_a_document_with_json(call: Called) -> None:
    code, out, _ = call(*TINY, "--layout", "dp4xtp2", "--json")
    found = json.loads(out)
    assert code == 0 and found["schema"] == "samebits.sim_predict/1" and found["weights"] == 398_508_032 + 1024
    assert [each["promises"] for each in found["predictions"]] == [[], ["data"], ["tensor"], ["data", "tensor"]]
    assert {each["layout"] for each in found["predictions"]} == {"dp4xtp2"}
    assert found["predictions"][3]["seconds"] > found["predictions"][0]["seconds"]
    assert found["predictions"][3]["bytes"]["row-parallel output"] > 0


def test_what_is_refused_is_exit_1_and_says_why(call: Called) -> None:
    code, out, _ = call("sim", "predict", "350m_short", "--gpus", "128")
    assert code == 1
    assert "copies for 8 lanes; allowed: a divisor of the number of lanes" in out
    code, out, _ = call("sim", "predict", "350m_short", "--gpus", "128", "--json")
    refused = [each for each in json.loads(out)["predictions"] if "refused" in each]
    assert code == 1 and refused and refused[0]["promises"] == ["data"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--preset", "b200-node"], "preset is 'b200-node'; allowed: a100-node, h100-node, h200-node"),
        (["--layout", "8x4"], "layout is '8x4'; allowed: dpNxtpM, dpN or tpM, like dp8xtp4"),
        (["--layout", "dp2xtp2"], "layout dp2xtp2 is not for 8 GPUs"),
        (["--batch", "12"], "batch is 12; allowed: a multiple of the 8 lanes"),
        (["--measured", "1e9"], "allowed on a H100 80GB: "),
        (["--gpus", "0"], "Invalid value for '--gpus'"),
    ],
)
def test_wrong_words_are_exit_2_and_one_line(call: Called, words: list[str], told: str) -> None:
    code, out, err = call(*TINY, *words)
    assert code == 2 and told in err and out == "" and err.count("\n") == 1


def test_a_measured_gpu_is_met(call: Called) -> None:
    """On one GPU the prediction is what was measured; a slower GPU makes slower steps."""
    rates = []
    for rate in ("50000", "90000"):
        _, out, _ = call("sim", "predict", "350m_short", "--gpus", "1", "--measured", rate, "--json")
        rates.append(json.loads(out)["predictions"][0]["tokens_per_second"])
    assert rates == pytest.approx([50000, 90000], rel=1e-3)


def test_the_trace_is_one_that_viewers_load(call: Called, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    assert call(*TINY, "--layout", "dp4xtp2", "--trace", str(file))[0] == 0
    events = json.loads(file.read_text())["traceEvents"]
    named = {(each["pid"], each.get("tid")): each["args"]["name"] for each in events if each["ph"] == "M"}
    spans = [each for each in events if each["ph"] == "X"]
    assert {each["pid"] for each in spans} == {0, 1} and all(each["dur"] > 0 <= each["ts"] for each in spans)
    assert {named[each["pid"], each["tid"]] for each in spans} >= {"rank 0: kernels", "rank 1: messages"}
    for thread in {(each["pid"], each["tid"]) for each in spans}:
        own = sorted((each["ts"], each["ts"] + each["dur"]) for each in spans if (each["pid"], each["tid"]) == thread)
        if "kernels" not in named[thread]:
            assert all(start >= stop - 1e-6 for (_, stop), (start, _) in pairwise(own))


def test_the_picture_stands_by_itself_and_draws_every_kind(call: Called, tmp_path: Path) -> None:
    file = tmp_path / "step.svg"
    assert call(*TINY, "--layout", "dp4xtp2", "--picture", str(file))[0] == 0
    text = file.read_text()
    picture = Xml.fromstring(text)
    width, height = float(picture.get("width", 0)), float(picture.get("height", 0))
    assert not re.search(r"href|url\(|@import|<script|<image", text)
    for bar in picture.iter("{http://www.w3.org/2000/svg}rect"):
        x, y, wide = float(bar.get("x", 0)), float(bar.get("y", 0)), float(bar.get("width", 0))
        assert 0 <= x <= x + wide <= width + 1 and 0 <= y <= height
    words = " ".join(each.text or "" for each in picture.iter("{http://www.w3.org/2000/svg}text"))
    assert "No promise kept" in words and "Promises kept: data and tensor" in words and "predicted" in words
    fills = {bar.get("fill") for bar in picture.iter("{http://www.w3.org/2000/svg}rect")}
    assert fills >= {COLOURS[kind] for kind in ("forward", "backward", "head", "sums", "gradients", "weights")}


def test_nothing_is_written_where_nothing_can_be_drawn(call: Called, tmp_path: Path) -> None:
    file = tmp_path / "step.svg"
    code, _, err = call("sim", "predict", "350m_short", "--gpus", "1024", "--picture", str(file))
    assert code == 2 and "nothing to draw" in err and not file.exists()


def test_every_event_has_a_colour_and_a_meaning() -> None:
    assert set(COLOURS) == set(MEANINGS) == {kind for _, kind in CATEGORIES} | {OTHER}
    assert (
        category("14 micro-batches alike") == OTHER and category("o 3") == "forward" and category("up' 1") == "backward"
    )
    event = Event(1, NETWORK, "reduce-scatter", 1e-3, 3e-3)
    span = chrome_trace({"a": [Event(0, COMPUTE, "head", 0.0, 1e-3), event]})["traceEvents"][-1]
    assert (span["ts"], span["dur"], span["tid"], span["cat"]) == (1000.0, 2000.0, 5, "gradients")


def test_validate_prints_both_errors_apart(call: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here with the quick sources; all of them are predicted by tests/sim/test_validate.py."""
    quick = [*validate._collectives(), *validate._seed_system()]
    monkeypatch.setattr(validate, "comparisons", lambda: quick)
    code, out, _ = call("sim", "validate", "--cases")
    header, *lines = out.splitlines()
    assert code == 0
    assert header.split() == ["source", "calibrated", "error", "held", "out", "mean", "geometric", "largest"]
    assert any(line.startswith("all ") for line in lines) and "ASTRA-sim" in out and "our own trainer" in out
    assert sum(line.endswith("held out") for line in lines) == sum(len(each.of(calibrated=False)) for each in quick)
    code, out, _ = call("sim", "validate", "--json")
    found = json.loads(out)
    assert code == 0 and found["held_out"]["geometric_mean"] < 0.097 < found["bar"]
    cases = found["calibrated"]["cases"] + found["held_out"]["cases"]
    assert cases == sum(len(each["cases"]) for each in found["sources"])


def test_validate_is_exit_1_where_a_source_is_beyond_the_bar(call: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a source that is off by half."""
    off = validate.Comparison("off", (validate.Case("a", 1.0, 1.5, False),))
    monkeypatch.setattr(validate, "comparisons", lambda: [off])
    assert call("sim", "validate")[0] == 1
