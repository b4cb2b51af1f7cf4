"""A run's page: whole in one file, with its alarms and where its time went; a folder without a run is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.train.small_run import small
from typer.testing import CliRunner

from samebits import trace
from samebits.cli import app, run_evidence
from samebits.cli.run_page import render
from samebits.contracts.store import Store
from samebits.records.shipped import shipped
from samebits.trace.modules import modules_as_spans
from samebits.train.running import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("run")
    with trace.recording(trace.JsonLines(made / "trace.jsonl")), modules_as_spans():
        run(small(), made)
    # A busy machine is no finding about this run: it alarms when steps take long.
    log = made / "events.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if '"throughput drop"' not in line))
    return made


def test_the_page_holds_the_run(folder: Path) -> None:
    told = CliRunner().invoke(app, ["report", "write", str(folder)])
    assert told.exit_code == 0, told.output
    page = (folder / "report.html").read_text()
    log = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert log[-1]["digest"] in page and "no alarm" in page and page.count("<polyline") == 4
    assert "gemm_accumulate_" in page and "layers.1.self_attn" in page and "micro_batch_size" in page
    assert len(page) < 2_000_000


def test_the_page_says_what_the_run_rests_on(folder: Path) -> None:
    """Orders drawn, every promise by operator and backend, the graph of contracts: of receipts as they are."""
    page = render(folder, with_evidence=True)
    assert "<b>chain-1</b>" in page and "<b>lanes-256</b>" in page and "chain-16" not in page, "a float32 run on a CPU"
    assert (
        'title="rmsnorm, batch, triton: holds">triton ' in page and 'title="attention, cache, cpu: holds">cpu ' in page
    )
    assert 'data-name="training_loop"' in page and 'data-name="checkpoint"' in page and 'data-name="gelu"' not in page
    behind = yaml.safe_load((shipped("receipts") / "behind.yaml").read_text())
    unjudged = set(re.findall(r"<title>(\w+): could not be judged", page))
    assert unjudged <= behind.keys() and page.count(">stale<") <= len(unjudged)
    assert "What it rests on" not in render(folder)


def test_without_receipts_nothing_holds_on_the_page(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a store without a receipt."""
    monkeypatch.setattr(run_evidence, "store_of", lambda _: Store(tmp_path))
    page = render(folder, with_evidence=True)
    assert 'title="rmsnorm, batch, cpu: could not be judged">cpu 0<' in page and ": holds" not in page


def test_the_page_needs_no_network(folder: Path) -> None:
    page = render(folder)
    assert "http://" not in page and "https://" not in page and "<script" not in page and "@import" not in page


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("events.jsonl", text) for text in ('{"event": "start", "st\n', "\n", "[]\n", '{"step": 1}\n', "\xff\n")),
        *(("trace.jsonl", text) for text in ('{"span": "gem\n', "\n", '{"span": "gemm"}\n', "\xff\n")),
    ],
)
def test_a_broken_log_is_named(folder: Path, name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes((folder / "events.jsonl").read_bytes())
    (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=f"{tmp_path}/{name}: cannot be read: .*; allowed: a JSON object a line"):
        render(tmp_path)


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("start", {"parameters": None}),
        ("start", {"settings": [1]}),
        ("start", {"environment": None}),
        ("step", {"loss": 10**400}),
        ("checkpoint", {"event": "alarm"}),
    ],
)
def test_an_event_with_other_values_is_refused_in_a_line(
    folder: Path, kind: str, changed: dict[str, Any], tmp_path: Path
) -> None:
    """What ended the page with an internal error before."""
    log = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    log = [each | changed if each["event"] == kind else each for each in log]
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in log))
    with pytest.raises(ValueError, match=f"{tmp_path}/events.jsonl: cannot be read: "):
        render(tmp_path)


def test_a_log_that_a_kill_cut_short_is_shown_as_far_as_it_goes(folder: Path, tmp_path: Path) -> None:
    for name in ("events.jsonl", "trace.jsonl"):
        (tmp_path / name).write_text((folder / name).read_text()[:-9])
    assert "gemm_accumulate_" in render(tmp_path)


def test_an_alarm_is_on_the_page(folder: Path, tmp_path: Path) -> None:
    alarm = {"event": "alarm", "time": 0.0, "kind": "dead gradient", "granularity": "block", "brick": "layers.1.mlp"}
    lines = (
        (folder / "events.jsonl").read_text() + json.dumps(alarm | {"step": 7, "value": 0.0, "allowed": "<b>"}) + "\n"
    )
    (tmp_path / "events.jsonl").write_text(lines)
    page = render(tmp_path)
    assert "1 alarm" in page and "dead gradient" in page and "layers.1.mlp" in page and 'class="alarm"' in page
    assert "<b>" not in page and "&lt;b&gt;" in page


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no events\.jsonl; allowed: the folder of a training run"):
        render(tmp_path)


def test_names_in_a_recording_are_text_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    """Names of a script's spans are its own: cut at any length they break no entity, and none of them is markup."""
    (tmp_path / "events.jsonl").write_bytes((folder / "events.jsonl").read_bytes())
    odd = [f"{'a' * place}<&>\"'&<&&" for place in range(9)]
    granularities = ["step", *["block"] * len(odd), '"><script src=//elsewhere>']
    spans = [
        {"span": name, "granularity": granularity, "number": number, "parent": min(number - 1, 1), "thread": 1}
        | {"began": max(0, number - 2) * 900, "ended": (number - 1) * 900 if number > 1 else 10_000}
        for number, (name, granularity) in enumerate(zip(["step 1", *odd, "last"], granularities, strict=True), 1)
    ]
    (tmp_path / "trace.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in spans))
    page = render(tmp_path)
    assert "<script" not in page and "last" in page
    assert re.findall(r"&(?!amp;|lt;|gt;|quot;|#\w+;)", page.partition("<body>")[2]) == []


def test_a_page_is_written_over_no_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    (tmp_path / "events.jsonl").write_bytes((folder / "events.jsonl").read_bytes())
    told = CliRunner().invoke(app, ["report", "write", str(tmp_path), "--no-evidence"])
    assert told.exit_code != 0 and "is a folder; allowed: a plain file" in str(told.exception)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["events.jsonl", "report.html"]


def test_numbers_that_are_none_in_a_recording_are_refused_in_a_line(folder: Path, tmp_path: Path) -> None:
    """Planted, one at a time: what ended the page with an internal error before."""
    (tmp_path / "events.jsonl").write_bytes((folder / "events.jsonl").read_bytes())
    sound = {"span": "gemm", "granularity": "step", "number": 1, "parent": 0, "thread": 1, "began": 0, "ended": 5}
    wrong = [("number", "1"), ("began", None), ("ended", 10**400), ("ended", 0.5), ("span", None), ("granularity", [])]
    for name, value in [*wrong, ("device", "x")]:
        (tmp_path / "trace.jsonl").write_text(f"{json.dumps(sound | {name: value})}\n")
        with pytest.raises(ValueError, match=rf"trace\.jsonl: cannot be read: ValueError: {name} is .*, and no"):
            render(tmp_path)
    (tmp_path / "trace.jsonl").write_text(f"{json.dumps(sound | {'bytes': 'many', 'flops': None})}\n")
    assert "gemm" in render(tmp_path)


def test_a_long_run_keeps_its_page_light(folder: Path, tmp_path: Path) -> None:
    """Twenty thousand steps with an alarm at every fourth, a checkpoint at every fifth, and 100,000 recorded spans."""
    log = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    start, step, kept = (
        next(each for each in log if each["event"] == kind) for kind in ("start", "step", "checkpoint")
    )
    alarm = {"event": "alarm", "time": 0, "kind": "not finite", "granularity": "block", "brick": "b" * 60}
    lines = [start]
    for number in range(1, 20_001):
        lines.append(step | {"step": number})
        lines += [kept | {"step": number}] * (number % 5 == 0)
        lines += [alarm | {"step": number, "value": "nan", "allowed": "finite"}] * (number % 4 == 0)
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    span = '{"span": "kernel_%d", "granularity": "kernel", "number": %d, "parent": 0, "thread": 1'
    span += ', "began": %d, "ended": %d}\n'
    (tmp_path / "trace.jsonl").write_text("".join(span % (each, each, each, each + 1) for each in range(1, 100_001)))
    page = render(tmp_path)
    assert len(page.encode()) < 2_000_000
    assert "5000 alarms" in page and "4900 later alarms are in" in page and "3900 earlier ones are in" in page
    assert "step 20000</td>" in page and "step 15000</td>" not in page


def test_half_a_surrogate_is_shown_as_its_code(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes((folder / "events.jsonl").read_bytes())
    span = {"span": "\ud800x", "granularity": "step", "number": 1, "parent": 0, "thread": 1, "began": 0, "ended": 5}
    (tmp_path / "trace.jsonl").write_text(f"{json.dumps(span)}\n")
    told = CliRunner().invoke(app, ["report", "write", str(tmp_path), "--no-evidence"])
    assert told.exit_code == 0 and r"\ud800x" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "report.html.part").exists()


def changed(folder: Path, to: Path, steps: int, **numbers: dict[int, object]) -> str:
    """The page of a run of so many steps, some numbers of which are others."""
    log = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    step = next(each for each in log if each["event"] == "step")
    made = [
        step | {"step": number} | {name: given[number] for name, given in numbers.items() if number in given}
        for number in range(1, steps + 1)
    ]
    kept = [each for each in log if each["event"] == "start"]
    (to / "events.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in [*kept, *made]))
    return render(to)


def test_a_long_curve_loses_no_spike(folder: Path, tmp_path: Path) -> None:
    """A step of 20,000, up or down, is on the page, as its scale says; once a curve took every 33rd step."""
    page = changed(folder, tmp_path, 20_000, loss={1234: 77.5, 15_001: -3.25}, norm={20_000: 9000.0})
    assert "<span>77.5</span><span>-3.25</span>" in page and "<span>9,000</span>" in page
    loss, norm, *_ = re.findall(r'<polyline points="([^"]*)"', page)
    heights = [float(point.split(",")[1]) for point in loss.split()]
    assert min(heights) == 5 and max(heights) == 145 and len(heights) <= 700
    assert norm.split()[-1] == "595.0,5.0"


def test_a_number_that_is_not_finite_breaks_the_curve(folder: Path, tmp_path: Path) -> None:
    """The log says it in words; once the curve went on as if nothing had been."""
    page = changed(folder, tmp_path, 20, loss={8: "nan", 20: "inf"})
    assert "not finite at 2 steps, first at step 8" in page and "at the end inf" in page
    assert page.count("<polyline") == 5
    page = changed(folder, tmp_path, 2, loss={1: "nan", 2: "nan"})
    assert "not finite at 2 steps" in page and "nothing to draw" in page and "at the end nan" in page


def test_a_single_step_is_a_dot(folder: Path, tmp_path: Path) -> None:
    page = changed(folder, tmp_path, 1)
    assert page.count('<polyline points="5.0,5.0 5.0,5.0"/>') == 4


def test_what_was_waived_is_on_top_of_the_page(folder: Path, tmp_path: Path) -> None:
    log = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for waived in (["CFG-OB3", "CFG-OB7"], []):
        changed = [each | {"waived": waived} if each["event"] == "start" else each for each in log]
        (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in changed))
        top = render(tmp_path).partition("<h2>")[0]
        assert re.findall(r"waived: ([\w-]+)", top) == waived


def test_a_table_has_no_empty_column_and_says_what_it_leaves_out(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes((folder / "events.jsonl").read_bytes())
    span = {"granularity": "block", "parent": 0, "thread": 1, "began": 0}
    spans = [span | {"span": f"block_{number}", "number": number, "ended": number * 1000} for number in range(1, 31)]
    (tmp_path / "trace.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in spans))
    page = render(tmp_path)
    assert "10 shorter ones are in the recording" in page and "GB/s" not in page and "Kernels" not in page
    (tmp_path / "trace.jsonl").write_text("".join(f"{json.dumps(each | {'bytes': 9})}\n" for each in spans))
    assert "GB/s" in render(tmp_path) and "GFLOP/s" not in render(tmp_path)
