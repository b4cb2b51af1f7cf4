"""Whole models: bits before times, planted faults that stop them, what does not fit, and all options of the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bench.test_bench_command import ran

from samebits.bench import decoding, end_to_end, invariance, measuring, memory, training
from samebits.bench.cases import EndToEnd, Planned, Setting
from samebits.bench.measuring import DIFFERS, HOLDS, UNJUDGED, Line, measured
from samebits.bench.shapes import read_model
from samebits.infer.engine import Engine
from samebits.infer.request import Completion, Request
from samebits.model.config import ModelConfig
from samebits.train.trainer import Trainer

SMALL = ModelConfig(
    vocab_size=272,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=80,
    max_position_embeddings=128,
)
SHAPES = {"llama": SMALL, "qwen3": replace(SMALL, use_qk_norm=True, tie_word_embeddings=False)}
CPU = Setting(torch.device("cpu"), torch.float32)
NAMES = tuple(end_to_end.PLANNERS)
QUICK = ("--rounds", "1", "--rows", "2", "--tokens", "16", "--device", "cpu")


def lines_of(
    name: str, shape: ModelConfig = SMALL, rows: int = 3, tokens: int = 24, setting: Setting = CPU
) -> list[Line]:
    return list(measured(end_to_end.PLANNERS[name]("small", shape, rows, tokens), setting, 0.01, 1))


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(SMALL.to_huggingface()))
    return str(tmp_path)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_both_sides_are_timed(name: str, shape: str, rows: int) -> None:
    """A single row is compared with itself in a batch of two."""
    lines = lines_of(name, SHAPES[shape], rows)
    assert len(lines) == (2 if name == "invariant" else 1)
    for line in lines:
        assert line.bits == HOLDS and line.detail == "", line
        assert line.best == "transformers" and line.ratio and line.speed and line.unit == "tokens/s"
        tokens = rows if name == "decode" else rows * 24
        assert line.speed == tokens / line.seconds["samebits"]
        assert line.peak_bytes == {} and line.of_bandwidth is None and line.call_ratio is None


def test_bfloat16() -> None:
    for name in NAMES:
        assert {each.bits for each in lines_of(name, setting=Setting(CPU.device, torch.bfloat16))} == {HOLDS}, name


class Unsteady(Engine):
    """Planted: a logprob's last bit depends on how many requests there are."""

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        factor = 1.0 + 2**-23 * (len(requests) > 1)
        return [
            replace(each, logprobs=tuple(value * factor for value in each.logprobs))
            for each in super().generate(requests)
        ]


class PassesMatter(Trainer):
    """Planted: an update depends on how many sequences a pass has."""

    def __init__(self, config: Any, *rest: Any) -> None:
        rate = config.optimizer.lr * (1 + 2**-20 * (config.training.micro_batch_size > 1))
        super().__init__(replace(config, optimizer=replace(config.optimizer, lr=rate)), *rest)


@contextmanager
def rows_matter() -> Any:
    """Planted: inside, a product depends on whether there are several rows."""
    linear = torch.nn.functional.linear

    def planted(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        return linear(x, *rest) * (1.0 + 2**-20 * (len(x) > 1))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.nn.functional, "linear", planted)
        yield


def never(*_: object) -> float:
    raise AssertionError("this must not be timed")


PLANTED = {
    "decode": (decoding, "Engine", Unsteady, "request 1 of 3, token 1: "),
    "training": (training, "Trainer", PassesMatter, "an update of 3 sequences makes weights sha256:"),
    "invariant": (invariance, "invariant_mode", rows_matter, "of a sequence alone against those in the batch: "),
}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_timed_where_bits_differ(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module, attribute, fault, told = PLANTED[name]
    monkeypatch.setattr(module, attribute, fault)
    monkeypatch.setattr(measuring, "peak_of", never)
    monkeypatch.setattr(module, "seconds_of", never)
    for line in lines_of(name):
        assert line.bits == DIFFERS and told in line.detail and line.detail.endswith("; nothing is timed"), line
        assert line.seconds == {} and line.ratio is None


def test_a_planted_fault_is_exit_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, config: str
) -> None:
    """An engine whose row depends on its batch."""
    monkeypatch.setattr(decoding, "Engine", Unsteady)
    monkeypatch.setattr(measuring, "peak_of", never)
    code, out, _ = ran(capsys, "decode", "--model", config, *QUICK)
    assert code == 1 and "does not hold" in out and "in the batch; nothing is timed\n" in out


def test_table_record_and_plot(capsys: pytest.CaptureFixture[str], config: str, tmp_path: Path) -> None:
    record, plot = tmp_path / "record.json", tmp_path / "ratios.svg"
    words = (*NAMES, "--model", config, *QUICK, "--record", str(record), "--plot", str(plot))
    code, out, _ = ran(capsys, *words)
    document = json.loads(record.read_text())
    assert code == 0 and [each["operator"] for each in document["cases"]] == [*NAMES, "invariant"]
    assert all(each["bits"] == "holds" and each["ratio"] > 0 for each in document["cases"])
    assert "batch 2, prompt 16" in out and "backward, 2 x 16 tokens" in out and "tokens/s" in out
    assert plot.read_text().count("<circle") == 1 + len(document["cases"])


def test_a_plan_with_operators(
    capsys: pytest.CaptureFixture[str], config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "measured", None)
    words = ("linear", "decode", "--model", config, *QUICK, "--rows", "5", "--dry-run")
    code, out, _ = ran(capsys, *words)
    assert code == 0 and "decode " in out and "batch 5, prompt 16" in out
    assert "12 cases on cpu, at least 1 s, without the 2 end to end" in out


def test_nothing_end_to_end_without_its_name(
    capsys: pytest.CaptureFixture[str], config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "measured", None)
    _, out, _ = ran(capsys, "--model", config, *QUICK, "--dry-run", "--json")
    found = json.loads(out)
    assert not [each for each in found["cases"] if each.split()[0] in NAMES]


def test_what_is_usual_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for usual in end_to_end.DEFAULTS.values():
        assert set(usual) == set(NAMES)
        assert end_to_end.planned(NAMES, usual, read_model, (), (), ())


@pytest.mark.parametrize("name", NAMES)
def test_what_does_not_fit_is_not_judged(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """By its bytes, on a machine that has few; by its positions; by its format."""
    with monkeypatch.context() as patched:
        patched.setattr(memory, "bytes_there", lambda _: 1000)
        for line in lines_of(name):
            assert line.bits == UNJUDGED and line.seconds == {}
            assert "bytes are needed on cpu; there are 1,000" in line.detail
    for line in lines_of(name, tokens=160):
        assert line.bits == UNJUDGED and "allowed: 128, its positions" in line.detail
    if name == "training":
        (line,) = lines_of(name, setting=Setting(CPU.device, torch.float16))
        assert line.bits == UNJUDGED and line.detail == "training in float16; allowed: float32, bfloat16"


@pytest.mark.parametrize("name", NAMES)
def test_eight_billion_weights_are_counted_before_they_are_made(name: str) -> None:
    _, shape = read_model("llama-3-8b")
    needed = {
        "training": lambda: training.bytes_needed(training.config_of(CPU, "float32", 1, 64), shape, CPU.device),
        "decode": lambda: decoding.bytes_needed(shape, torch.float32, 1, 64),
        "invariant": lambda: invariance.bytes_needed(shape, torch.float32, 1, 64),
    }[name]()
    assert needed > 60e9


def test_without_transformers_nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samebits.records.packages.find_spec", lambda _: None)
    (line,) = lines_of("decode")
    assert line.bits == UNJUDGED and "needs the package 'transformers'" in line.detail


def test_an_alternative_that_refuses_is_named() -> None:
    def refused() -> Any:
        raise RuntimeError("no kernel for these sizes\nand more words")

    def case(theirs: dict[str, Any]) -> Planned:
        made = EndToEnd(ours=lambda: lambda: 1.0, theirs=theirs, difference=lambda: None, tokens=4)
        return Planned("planted", "none", "4", 4, lambda _: made)

    alone, beside = measured(
        [case({"other": refused}), case({"other": refused, "slow": lambda: lambda: 2.0})], CPU, 0.01, 3
    )
    assert alone.bits == UNJUDGED and alone.detail == "no alternative runs here: other: no kernel for these sizes"
    assert beside.bits == HOLDS and beside.ratio == 2.0 and beside.speed == 4.0 and "other: no kernel" in beside.detail


def test_answers_begin_anew() -> None:
    """A measurement after the last step of all answers begins them again, on both sides."""
    made = end_to_end.PLANNERS["decode"]("small", SMALL, 2, 16)[0].make(CPU)
    assert isinstance(made, EndToEnd)
    for make in (made.ours, made.theirs["transformers"]):
        side = make()
        runs = (decoding.ANSWER - 1) // decoding.STEPS
        assert all(side() > 0 for _ in range(runs + 2))
