"""Which captured step an engine takes: what the one for Hopper needs, and how either is asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.infer.load import SMALL as SMALLER

from samebits.infer import Engine, Request, chosen_step
from samebits.infer.chosen_step import VARIABLE, lacks
from samebits.infer.hopper_step.choices import by_rows
from samebits.model import Model
from samebits.nn.strategy import Operators
from samebits.parity.stock import STOCK

SMALL = replace(SMALLER, head_dim=64)
PAGE = 16
ALLOWED = "allowed: 'plain', 'hopper', or nothing"


def model_of(dtype: torch.dtype = torch.bfloat16) -> Model:
    return Model.new(SMALL, 3).to(dtype=dtype).for_inference()


def test_an_engine_without_a_gpu_does_not_import_triton() -> None:
    """Nor when it decodes: the plain step is chosen by asking where the model is."""
    code = (
        "import sys; from samebits.infer import Engine, Request; from samebits.model import Model, ModelConfig;"
        f"from samebits.infer.chosen_step import lacks; model = Model.new({SMALL!r}, 3).for_inference();"
        "made = Engine(model, pages=8); made.generate([Request(prompt=(1, 2), max_tokens=3)]);"
        "print(made.decode_step, lacks(model, 16), 'triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "plain a CUDA GPU and the model is on cpu False\n", done.stderr


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As if models were on such a GPU, with a Triton that is late enough."""
    monkeypatch.setattr(Model, "device", property(lambda _: torch.device("cuda")))
    monkeypatch.setattr(chosen_step, "missing", lambda _: None)
    monkeypatch.setattr(chosen_step, "version", lambda _: "3.6.0+git1")
    return monkeypatch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norms", [False, True])
def test_a_model_that_lacks_nothing_gets_it(hopper: pytest.MonkeyPatch, dtype: torch.dtype, norms: bool) -> None:
    model = Model.new(replace(SMALL, use_qk_norm=norms), 3).to(dtype=dtype).for_inference()
    assert lacks(model, PAGE) is None
    assert chosen_step.chosen_step(model, PAGE) == chosen_step.chosen_step(model, PAGE, "hopper") == "hopper"
    assert chosen_step.chosen_step(model, PAGE, "plain") == "plain"


def other_operators(model: Model) -> Model:
    return replace(model, operators=Operators(swiglu=STOCK.swiglu))


def another_weight(model: Model) -> Model:
    """What is joined still has the old one."""
    name = "model.layers.1.mlp.up_proj.weight"
    model.weights[name] = model.weights[name].clone()
    return model


def one_wide_weight(model: Model) -> Model:
    model.weights["model.norm.weight"] = model.weights["model.norm.weight"].float()
    return model


def narrow_heads(model: Model) -> Model:
    return Model.new(replace(SMALL, head_dim=32), 3).to(dtype=torch.bfloat16).for_inference()


def many_query_heads(model: Model) -> Model:
    sizes = {"num_attention_heads": 65, "num_key_value_heads": 1}
    return Model.new(replace(SMALL, **sizes), 3).to(dtype=torch.bfloat16).for_inference()


LACKING: dict[str, tuple[Callable[[Model], Model], str]] = {
    "operators of others": (other_operators, "samebits' operators on whole weights"),
    "apart weights": (lambda model: replace(model, joined={}), "a model made by for_inference()"),
    "a weight in the place of another": (another_weight, "a model made by for_inference()"),
    "a wide weight": (one_wide_weight, "all weights in bfloat16 or in float16 and they have torch.bfloat16, torch.flo"),
    "narrow heads": (narrow_heads, "heads of 64 or 128 and they have 32"),
    "many query heads": (many_query_heads, "at most 64 query heads for a key head and there are 65"),
    "float32": (lambda model: model_of(torch.float32), "all weights in bfloat16 or in float16 and they have torch.fl"),
}


@pytest.mark.parametrize("words", LACKING)
def test_what_a_model_lacks_is_said(hopper: pytest.MonkeyPatch, words: str) -> None:
    changed, told = LACKING[words]
    model = changed(model_of())
    assert str(lacks(model, PAGE)).startswith(told)
    assert chosen_step.chosen_step(model, PAGE) == ("none" if "operators" in words else "plain")
    with pytest.raises(ValueError, match=r"engine: decode_step 'hopper' needs .*; usable here: 'plain'"):
        chosen_step.chosen_step(model, PAGE, "hopper")


@pytest.mark.parametrize(("page", "fits"), [(8, True), (24, False), (32, True), (40, False), (64, True), (192, True)])
def test_pages_are_parts_of_blocks_or_made_of_them(hopper: pytest.MonkeyPatch, page: int, fits: bool) -> None:
    told = f"pages of 8, 16, 32 tokens or of a multiple of 64 and they have {page}"
    assert lacks(model_of(), page) == (None if fits else told)


def test_what_a_machine_lacks_is_said(hopper: pytest.MonkeyPatch) -> None:
    model = model_of()
    hopper.setattr(chosen_step, "version", lambda _: "3.5.1")
    assert lacks(model, PAGE) == "Triton 3.6 or later and 3.5.1 is installed"
    hopper.setattr(chosen_step, "missing", lambda _: "compute capability 9.0 and this GPU has 10.0")
    assert lacks(model, PAGE) == "compute capability 9.0 and this GPU has 10.0"
    hopper.setattr(Model, "device", property(lambda _: torch.device("cpu")))
    assert lacks(model, PAGE) == "a CUDA GPU and the model is on cpu"


def test_it_can_be_forced_and_an_engine_says_which_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    assert Engine(model, pages=8).decode_step == "plain"
    assert Engine(other_operators(model), pages=8).decode_step == "none"
    with pytest.raises(ValueError, match="'hopper' needs a CUDA GPU and the model is on cpu"):
        Engine(model, pages=8, decode_step="hopper")
    with pytest.raises(ValueError, match=f"engine: decode_step, or {VARIABLE}, is 'fast'; {ALLOWED}"):
        Engine(model, pages=8, decode_step="fast")
    monkeypatch.setenv(VARIABLE, "hopper")
    with pytest.raises(ValueError, match="'hopper' needs a CUDA GPU"):
        Engine(model, pages=8)
    # An argument says it for one engine, whatever the process was told.
    assert Engine(model, pages=8, decode_step="plain").decode_step == "plain"


def test_weights_that_are_put_in_later_are_looked_at_again(hopper: pytest.MonkeyPatch) -> None:
    """Steps of the old ones are forgotten, and the next ones may have to be plain."""
    hopper.setattr(chosen_step, "capturing", lambda _: None)
    model = model_of()
    cache: Any = SimpleNamespace(page_size=PAGE)
    made = chosen_step.DecodeSteps(model, [cache], 64, None)
    assert made.kind == "hopper"
    made.use(another_weight(model))
    assert made.kind == "plain"


def test_a_step_that_is_refused_changes_nothing() -> None:
    model = model_of()
    made = Engine(model, pages=8, decode_step="plain")
    asked = [Request(prompt=(1, 2, 3), max_tokens=5)]
    wanted = made.generate(asked)
    made._decode_steps._asked = "hopper"
    with pytest.raises(ValueError, match="'hopper' needs"):
        made.use(model_of())
    assert made.model is model and made.generate(asked)[0].tokens == wanted[0].tokens


@pytest.mark.parametrize(("rows", "few"), [(1, True), (16, True), (17, False), (256, False)])
def test_few_rows_have_a_choice_of_their_own(rows: int, few: bool) -> None:
    assert by_rows(rows).overlapped == few
