"""A whole model is judged, and the place where two runs part is named; planted faults are found where they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from samebits.checker.model import PROMISES, check_model, judge_model
from samebits.checker.model_loading import find_model
from samebits.cli import main
from samebits.invariant.transformers import register
from samebits.records.report import Finding, Verdict

LENGTH = 20


def tiny(attention: str = "samebits") -> nn.Module:
    register()
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=101,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=False,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config).eval()


def judged(model: nn.Module, stock: bool = False, promises: tuple[str, ...] = PROMISES) -> dict[str, Finding]:
    findings = judge_model(model, "tiny", stock=stock, length=LENGTH, promises=promises)
    return {finding.promise: finding for finding in findings}


def test_a_model_under_invariant_mode_holds() -> None:
    found = judged(tiny())
    assert [finding.verdict for finding in found.values()] == [Verdict.HOLDS] * len(PROMISES)
    assert found["batch"].cases > 60 and "padded on the left to 29" in found["padding"].detail


def test_a_stock_model_does_not_and_the_operation_is_named() -> None:
    found = judged(tiny("sdpa"), stock=True)
    assert found["repeat"].verdict is Verdict.HOLDS
    assert found["cache"].verdict is Verdict.DOES_NOT_HOLD
    assert "the runs part at model.layers.0." in found["cache"].detail and "(aten." in found["cache"].detail


class DependsOnTheBatch(nn.Module):
    """Planted fault: one ulp or so more in a larger batch."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y if x.shape[0] == 1 else torch.mul(y, 1 + 2.0**-20)


class DependsOnTheLength(nn.Module):
    """Planted fault: a call of one token is computed otherwise."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y if x.shape[1] > 1 else torch.neg(torch.neg(y) * (1 + 2.0**-20))


def test_a_module_that_depends_on_the_batch_is_named() -> None:
    model = tiny()
    model.model.layers[1].mlp.up_proj = DependsOnTheBatch(model.model.layers[1].mlp.up_proj)
    found = judged(model)
    for promise in ("batch", "padding"):
        assert found[promise].verdict is Verdict.DOES_NOT_HOLD
        assert "the runs part at model.layers.1.mlp.up_proj (aten.mul.Tensor, in one run only)" in found[promise].detail
    assert found["chunk"].verdict is found["cache"].verdict is Verdict.HOLDS


def test_a_module_that_depends_on_the_length_of_a_call_is_named() -> None:
    model = tiny()
    model.model.layers[0].self_attn.v_proj = DependsOnTheLength(model.model.layers[0].self_attn.v_proj)
    found = judged(model)
    assert found["batch"].verdict is Verdict.HOLDS
    assert found["cache"].verdict is Verdict.DOES_NOT_HOLD
    assert "the runs part at model.layers.0.self_attn.v_proj" in found["cache"].detail


def test_a_fault_in_a_modules_own_code_is_found_in_that_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes into the next module differs already: the module around it is named."""
    model = tiny()
    mlp_class = type(model.model.layers[0].mlp)

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        hidden = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(hidden if x.shape[0] == 1 else hidden + 1e-4)

    monkeypatch.setattr(mlp_class, "forward", forward)
    found = judged(model, promises=("batch",))
    assert "the runs part at model.layers.0.mlp (aten.add.Tensor, in one run only)" in found["batch"].detail


def test_an_operation_that_is_refused_leaves_the_model_unjudged() -> None:
    model = tiny()
    model.model.layers[0].mlp.act_fn = nn.Mish()
    found = judged(model, promises=("batch",))["batch"]
    assert found.verdict is Verdict.COULD_NOT_BE_JUDGED
    assert "aten.mish.default of float32[1, 20, 96] in LlamaForCausalLM.model.layers.0.mlp.act_fn" in found.detail


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "smolm2",
            "no model at 'smolm2'; allowed: a folder with config.json, a .gguf file, or a known name; did you mean",
        ),
        ("/nowhere/model.gguf", "no model at '/nowhere/model.gguf'"),
    ],
)
def test_a_model_that_is_not_there_is_one_line(source: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("?", r"\?")):
        find_model(source)


def test_a_promise_that_is_not_about_models_is_refused() -> None:
    with pytest.raises(ValueError, match="a model is not judged by 'tile'"):
        check_model("smollm2", promises=["tile"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny().save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def test_the_command_judges_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check", "--model", str(folder), "--promise", "batch", "--promise", "cache")
    assert code == 0 and out.splitlines()[-1] == "holds: 2"
    code, out, _ = run(capsys, "check", "--model", str(folder), "--stock", "--promise", "cache", "--json")
    document = json.loads(out)
    assert code == 1 and document["verdict"] == "does not hold"
    (finding,) = document["findings"]
    assert "the runs part at" in finding["detail"] and finding["reproduce"].endswith("--stock --promise cache")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("matmul", "--model", "smollm2"),
            "check: --model goes with --promise, --backend, --format, --stock and --json",
        ),
        (("matmul", "--stock"), "check: --stock requires --model"),
        (("--model", "nothing"), "no model at 'nothing'; allowed: a folder with config.json"),
        (("--model", "smollm2", "--format", "float32", "--format", "bfloat16"), "in one format at a time"),
        (("--model", "smollm2", "--format", "float8"), "format='float8' is unknown; allowed: float32"),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "check", *arguments)
    assert code == 2 and words in err and len(err.splitlines()) == 1
