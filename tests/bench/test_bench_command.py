"""`samebits bench`: its table, document, record and picture; what it refuses, before anything is measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from samebits.bench import measuring
from samebits.bench.provenance import source_digest
from samebits.cli import main
from samebits.model.presets import PRESETS

QUICK = ("--seconds", "0.001", "--rounds", "1", "--rows", "2", "--tokens", "8", "--device", "cpu")


def ran(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(("bench", *words))
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(PRESETS["tiny"].to_huggingface()))
    return str(tmp_path)


def test_table_record_and_plot(capsys: pytest.CaptureFixture[str], config: str, tmp_path: Path) -> None:
    record, plot = tmp_path / "record.json", tmp_path / "ratios.svg"
    words = ("linear", "swiglu", "--model", config, *QUICK, "--record", str(record), "--plot", str(plot))
    code, out, _ = ran(capsys, *words)
    assert code == 0
    assert "linear: geometric mean" in out and "over 5 cases" in out and "above 1: samebits is faster" in out
    document = json.loads(record.read_text())
    assert document["schema"] == "samebits.bench/1" and len(document["cases"]) == 6
    assert all(each["bits"] == "holds" and each["ratio"] > 0 for each in document["cases"])
    assert plot.read_text().startswith("<svg")
    assert document["sources"] == source_digest() and document["torch"] and document["python"]


def test_a_changed_source_is_another_digest(tmp_path: Path) -> None:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "a.py").write_text("x = 1\n")
    seen = {source_digest(tmp_path)}
    for name, text in (("ops/a.py", "x = 2\n"), ("ops/b.cpp", ""), ("ops/b.h", ""), ("contract.yaml", "level: 3\n")):
        (tmp_path / name).write_text(text)
        seen.add(source_digest(tmp_path))
    assert len(seen) == 5
    (tmp_path / "ops" / "a.pyc").write_bytes(b"compiled")
    assert source_digest(tmp_path) in seen


def test_one_document(capsys: pytest.CaptureFixture[str], config: str) -> None:
    code, out, _ = ran(capsys, "rmsnorm", "--model", config, *QUICK, "--json")
    document = json.loads(out)
    assert code == 0 and [each["operator"] for each in document["cases"]] == ["rmsnorm"]


def test_a_plan_measures_nothing(
    capsys: pytest.CaptureFixture[str], config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "measured", None)
    code, out, _ = ran(capsys, "--model", config, *QUICK, "--dry-run")
    assert code == 0 and "linear-dw" in out and "cases on cpu, at least" in out


@pytest.mark.parametrize(("bits", "code"), [("does not hold", 1), ("could not be judged", 3)])
def test_bits_decide_the_exit_code(
    capsys: pytest.CaptureFixture[str], config: str, monkeypatch: pytest.MonkeyPatch, bits: str, code: int
) -> None:
    """Planted: a case whose bits differ, or that cannot run."""
    line = measuring.Line("linear", "m", "1x1", 1, bits, detail="why")
    monkeypatch.setattr(measuring, "measured", lambda cases, *_: iter([line] * len(cases)))
    found, out, _ = ran(capsys, "linear", "--model", config, *QUICK)
    assert found == code and bits in out and "why" in out


def test_what_was_measured_outlives_an_interruption(
    capsys: pytest.CaptureFixture[str], config: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object) -> Iterator[measuring.Line]:
        yield measuring.Line("linear", "m", "1x1", 1, "holds", seconds={"samebits": 1.0, "torch": 2.0}, speed=1.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "measured", interrupted)
    code, out, _ = ran(capsys, "linear", "--model", config, *QUICK, "--record", str(tmp_path / "record.json"))
    document = json.loads((tmp_path / "record.json").read_text())
    assert code == 130 and "interrupted: 1 of 5 cases were measured" in out
    assert document["planned"] == 5 and [each["ratio"] for each in document["cases"]] == [2.0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nothing",), "no operator 'nothing'; allowed: linear, "),
        (("--model", "absent"), "no model 'absent'; allowed: llama-3-8b"),
        (("--dtype", "int4"), "--dtype is 'int4'; allowed: float32, bfloat16, float16"),
        (("--device", "tpu"), "--device is 'tpu'; allowed: cpu, cuda"),
        (("--record", "absent/x.json"), "absent/x.json: no such folder"),
        (("--rows", "0"), "--rows"),
        (("--all-sizes", "--device", "cpu"), "--all-sizes on cpu: these are sizes of a GPU; allowed here: --rows"),
    ],
)
def test_what_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
) -> None:
    monkeypatch.setattr(measuring, "measured", None)
    code, out, err = ran(capsys, *words)
    assert code == 2 and out == "" and told in err and len(err.strip().splitlines()) == 1
