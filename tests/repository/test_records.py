"""Every record of a measurement names the script that makes it again, and where and when it was made."""

from __future__ import annotations

import json
import re
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.repository.documents import PROJECT
from tests.train.replayed_operations import cuda_graphs_on_the_cpu

from samebits.bench.cases import Setting
from samebits.model.config import ModelConfig
from samebits.train.triton_passes import CapturedPasses
from samebits.train.triton_sums import LaneSums

RESULTS = PROJECT / "benchmarks" / "results"
SHAPE = ModelConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    intermediate_size=24,
    max_position_embeddings=32,
)
RECORDS = sorted(RESULTS.glob("*.json"))


def faults_of(record: dict[str, Any], root: Path = PROJECT) -> list[str]:
    """What a record does not say about itself."""
    found = []
    script = str(record.get("script", ""))
    if not re.fullmatch(r"benchmarks/\w+\.py", script) or not (root / script).is_file():
        found.append(f"script is {script!r}; allowed: a file of benchmarks/")
    if not str(record.get("command", "")).startswith(f"python {script}"):
        found.append("command does not run the script")
    try:
        date.fromisoformat(str(record.get("date")))
    except ValueError:
        found.append(f"date is {record.get('date')!r}; allowed: 2026-01-31")
    if not record.get("machine"):
        found.append("machine is not said")
    if "torch" not in record and "torch" not in record.get("environment", {}):
        found.append("torch's version is not said")
    if record.get("commit") is None and "commit" not in record.get("note", ""):
        found.append("commit is not said, and no note says why")
    return found


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name)
def test_a_record_says_how_to_make_it_again(path: Path) -> None:
    assert faults_of(json.loads(path.read_text())) == []


@pytest.mark.parametrize("key", ["script", "command", "date", "machine", "torch", "note"])
def test_a_record_without_one_of_them_is_noticed(key: str) -> None:
    """Planted faults; without its note, a record that does not know its commit is one."""
    record = json.loads((RESULTS / "cpu.json").read_text())
    assert faults_of({name: value for name, value in record.items() if name != key})


def test_a_script_that_is_gone_is_noticed() -> None:
    """Planted fault."""
    record = json.loads((RESULTS / "cpu.json").read_text())
    assert faults_of(record | {"script": "benchmarks/gone.py", "command": "python benchmarks/gone.py"}) == [
        "script is 'benchmarks/gone.py'; allowed: a file of benchmarks/"
    ]


def test_scripts_write_what_is_asked_of_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    import provenance

    monkeypatch.setattr(sys, "argv", ["benchmarks/cpu.py", "--record"])
    said = provenance.provenance(str(PROJECT / "benchmarks" / "cpu.py"), provenance.processor())
    assert said["command"] == "python benchmarks/cpu.py --record"
    assert faults_of(said | {"torch": "2.11", "commit": said["commit"] or "none"}) == []
    for path in RECORDS:
        script = (PROJECT / json.loads(path.read_text())["script"]).read_text()
        assert "provenance(" in script or "from cpu import" in script, path.name


def test_training_is_summed_up_from_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script of h200_350m.json, on the losses that the record has."""
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    import gpu_training

    kept = json.loads((RESULTS / "h200_350m.json").read_text())
    step = {
        "event": "step",
        "tokens_per_second": 101509.2,
        "mfu": 0.4571,
        "norm": 2.0,
        "norm_after": 1.0,
        "without_gradient": 0,
    }
    log = [
        {
            "event": "start",
            "parameters": kept["parameters"],
            "tokens_per_step": kept["tokens_per_step"],
            "peak_flops": kept["peak_flops_measured"],
        },
        *(step | {"loss": loss} for loss in kept["losses"]),
        {"event": "end", "digest": kept["digest"]},
    ]
    log[1]["norm"] = kept["largest_norm"]
    found = gpu_training.summed_up(log)
    assert found == {name: kept[name] for name in found}
    with pytest.raises(ValueError, match="not enough values"):
        gpu_training.summed_up(log[:-1])


def test_without_a_gpu_training_is_not_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    import gpu_training

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_training.py", "--output", str(tmp_path / "record.json")])
    assert gpu_training.main() == 3 and not list(tmp_path.iterdir())
    assert capsys.readouterr().err == "gpu_training: there is no GPU; could not be judged\n"


def test_a_training_step_is_timed_where_graphs_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script on the CPU, on a model of a thousand weights, with graphs played back; planted: sums not cleared."""
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    import gpu_training_step as script

    cpu = torch.device("cpu")
    monkeypatch.setattr(script, "DEVICE", cpu)
    monkeypatch.setattr(script, "FULL", Setting(cpu, torch.float32))
    monkeypatch.setattr("samebits.train.trainer.captured", lambda *_: CapturedPasses())
    data = script.random_data(SHAPE, 2, 16)
    config = script.config_of(Setting(cpu, torch.bfloat16), "bfloat16", 2, 16)
    with cuda_graphs_on_the_cpu():
        found = script.ours(config, SHAPE, data, 2)
    assert isinstance(found, dict), found
    assert len(found["captured"]["all_milliseconds"]) == len(found["one by one"]["all_milliseconds"]) == 2
    assert 0 < found["captured"]["of_which_passes"] < found["captured"]["milliseconds"]
    monkeypatch.setattr(LaneSums, "clear", lambda self: None)
    with cuda_graphs_on_the_cpu():
        assert "StepRecord(step=2" in script.ours(config, SHAPE, data, 2)
    monkeypatch.setattr("samebits.train.trainer.captured", lambda *_: None)
    assert script.ours(config, SHAPE, data, 2) == "no pass was captured"


def test_without_a_gpu_no_training_step_is_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    import gpu_training_step as script

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_training_step.py", "--output", str(tmp_path / "record.json")])
    assert script.main() == 3 and not list(tmp_path.iterdir())
