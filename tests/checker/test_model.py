"""A whole model is judged, and the place where two runs part is named; planted faults are found where they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from samebits.checker.model import PROMISES, check_model, judge_model
from samebits.checker.model_loading import find_model
from samebits.cli import main
from samebits.invariant.transformers import register
from samebits.records.report import Finding, Verdict

LENGTH = 20
SIZES = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


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


def saved(folder: Path, family: str, **others: object) -> str:
    """A folder with a tiny model of any family, as a user has it: no word about attention."""
    torch.manual_seed(5)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES, **others)).save_pretrained(folder)
    return str(folder)


def verdicts(model: str, stock: bool = False) -> dict[str, tuple[Verdict, str]]:
    report = check_model(model, stock=stock)
    return {finding.promise: (finding.verdict, finding.detail) for finding in report.findings}


def test_an_encoder_has_no_cache_to_be_judged_by(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It looks at later tokens: a prompt in pieces is another input, whatever its kernels do."""
    bert = saved(tmp_path / "bert", "bert")
    found = verdicts(bert)
    for promise in ("repeat", "batch", "padding"):
        assert found[promise][0] is Verdict.HOLDS, found[promise]
    for promise in ("chunk", "cache"):
        words = f"BertLMHeadModel looks at later tokens: {promise} has no meaning for it"
        assert found[promise] == (Verdict.COULD_NOT_BE_JUDGED, words)
    code, out, _ = run(capsys, "check", "--model", bert, "--promise", "cache")
    assert code == 3 and "has no meaning for it" in out and "does not hold" not in out
    decoder = verdicts(saved(tmp_path / "decoder", "bert", is_decoder=True))
    assert {verdict for verdict, _ in decoder.values()} == {Verdict.HOLDS}, decoder


def test_a_model_that_keeps_nothing_in_its_cache_is_not_judged_by_it(tmp_path: Path) -> None:
    model = saved(tmp_path / "rwkv", "rwkv", attention_hidden_size=64)
    found = verdicts(model)
    assert found["batch"][0] is Verdict.HOLDS
    for promise in ("chunk", "cache"):
        verdict, words = found[promise]
        assert verdict is Verdict.COULD_NOT_BE_JUDGED and "keeps no keys and values in the cache it is given" in words
    verdict, words = found["padding"]
    assert verdict is Verdict.COULD_NOT_BE_JUDGED and "RwkvForCausalLM takes no position_ids" in words


def test_a_cache_that_forgets_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a model that looks at nothing later and keeps its keys is judged, by however much it is off."""
    model = tiny()
    attention = model.model.layers[0].self_attn
    forward = attention.forward

    def forgetting(*given: object, past_key_values: object = None, **named: object) -> object:
        outcome = forward(*given, past_key_values=past_key_values, **named)
        if past_key_values is not None:
            past_key_values.layers[0].values.mul_(1 + 2.0**-20)  # type: ignore[attr-defined]
        return outcome

    monkeypatch.setattr(attention, "forward", forgetting)
    found = judged(model, promises=("batch", "chunk", "cache"))
    assert [finding.verdict for finding in found.values()] == [
        Verdict.HOLDS,
        Verdict.DOES_NOT_HOLD,
        Verdict.DOES_NOT_HOLD,
    ]


def test_a_model_that_counts_positions_by_itself_is_told_them_on_both_sides(tmp_path: Path) -> None:
    """Roberta's positions begin behind its padding token's number: padded ones that begin at 0 are another input."""
    found = verdicts(saved(tmp_path / "roberta", "roberta", type_vocab_size=1))
    assert found["padding"][0] is Verdict.HOLDS, found["padding"]


@pytest.mark.parametrize("family", ["bloom", "gptj"])
def test_a_model_with_attention_of_its_own_is_loaded_with_it(family: str, tmp_path: Path) -> None:
    found = verdicts(saved(tmp_path / family, family, n_layer=2, n_head=4, rotary_dim=8, n_positions=64))
    assert {verdict for verdict, _ in found.values()} == {Verdict.HOLDS}, found


def test_a_fault_in_padding_on_the_right_is_one_without_position_ids_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding on the left is another input there; on the right it must change nothing. Planted: it does."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("rwkv", **SIZES, attention_hidden_size=64)).eval()
    found = judged(model, promises=("padding",))["padding"]
    assert found.verdict is Verdict.COULD_NOT_BE_JUDGED
    model.rwkv.blocks[1].feed_forward.value = DependsOnTheBatch(model.rwkv.blocks[1].feed_forward.value)
    found = judged(model, promises=("padding",))["padding"]
    assert found.verdict is Verdict.DOES_NOT_HOLD and "padded on the right" in found.detail


def test_a_form_that_raises_leaves_its_promise_unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()

    class One(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] > 1:
                raise RuntimeError("one sequence at a time")
            return x

    model.model.norm = One()
    found = judged(model)
    assert found["repeat"].verdict is found["cache"].verdict is Verdict.HOLDS
    assert found["batch"].verdict is Verdict.COULD_NOT_BE_JUDGED
    assert found["batch"].detail == "row 0 of 2: raised RuntimeError: one sequence at a time"


def test_what_is_no_causal_language_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    AutoConfig.for_model("t5").save_pretrained(tmp_path / "t5")
    code, _, err = run(capsys, "check", "--model", str(tmp_path / "t5"))
    assert code == 2 and "model_type='t5' is no causal language model that transformers knows" in err


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
