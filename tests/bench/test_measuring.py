"""Cases of every operator are made from a model's configuration, their bits are looked at, and both sides are timed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from samebits.bench.cases import Case, Function, Planned, Setting
from samebits.bench.measuring import DIFFERS, HOLDS, UNJUDGED, Line, measured, summaries
from samebits.bench.planning import DEFAULTS, PLANNERS, Sizes, planned
from samebits.bench.plot import svg
from samebits.bench.shapes import MODELS, read_model, weights
from samebits.model.model import Model
from samebits.model.presets import PRESETS

SETTING = Setting(torch.device("cpu"), torch.float32)
SIZES = Sizes(rows=(1, 5), tokens=(16,), decoded=((2, 40),), at_once=32)
TINY = {"tiny": PRESETS["tiny"]}


def lines_of(cases: Sequence[Planned]) -> list[Line]:
    return list(measured(cases, SETTING, 1e-4, 2))


@pytest.mark.parametrize("operator", PLANNERS)
def test_every_operator_is_measured(operator: str) -> None:
    lines = lines_of(planned([operator], TINY, SIZES))
    assert lines and {each.operator for each in lines} == {operator}
    for line in lines:
        assert line.bits == HOLDS, line
        assert line.best == "torch" and line.ratio is not None and line.ratio > 0 and line.speed
        assert line.ratio == line.seconds["torch"] / line.seconds["samebits"]
        assert line.call_ratio is None and line.document()["ratio"] == line.ratio


@pytest.mark.parametrize("name", ["tiny", "small"])
def test_weights_are_those_of_the_model(name: str) -> None:
    """Against a model that is built from the same configuration."""
    config = PRESETS[name]
    held = {key: tuple(value.shape) for key, value in Model.new(config, 1).state_dict().items()}

    def joined(*parts: str) -> tuple[int, int]:
        found = [shape for part in parts for key, shape in held.items() if f"layers.0.{part}.weight" in key]
        assert len(found) == len(parts), (parts, list(held)[:12])
        return sum(rows for rows, _ in found), found[0][1]

    attention = [f"self_attn.{each}_proj" for each in "qkv"]
    wanted = {
        "qkv": joined(*attention),
        "out": joined("self_attn.o_proj"),
        "gate_up": joined("mlp.gate_proj", "mlp.up_proj"),
        "down": joined("mlp.down_proj"),
        "lm_head": (config.vocab_size, config.hidden_size),
    }
    assert {each.name: (each.n, each.k) for each in weights(config)} == wanted


def faulty(x: torch.Tensor) -> torch.Tensor:
    """Planted: a row's last bit depends on how many rows there are."""
    return x * (1.0 + 2**-23 * (len(x) > 1))


def case_of(ours: Function, theirs: Function | None) -> Planned:
    def make(setting: Setting) -> Case:
        x = setting.random(4, 8)
        calls = {} if theirs is None else {"other": [partial(theirs, x)]}
        alone = partial(ours, x[:1])
        whole = partial(ours, x)
        return Case(ours=[whole], theirs=calls, parts=lambda: (alone(), whole()[:1]), work=1.0, unit="GB/s")

    return Planned("planted", "none", "4x8", 4, make)


def refusing(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no kernel for these sizes\nand more words")


def test_nothing_is_timed_where_bits_differ() -> None:
    (line,) = lines_of([case_of(faulty, torch.clone)])
    assert line.bits == DIFFERS and "nothing is timed" in line.detail
    assert line.seconds == {} and line.ratio is None


@pytest.mark.parametrize("theirs", [None, refusing])
def test_without_an_alternative_nothing_is_judged(theirs: Function | None) -> None:
    (line,) = lines_of([case_of(torch.clone, theirs)])
    assert line.bits == UNJUDGED and line.ratio is None
    assert ("other: no kernel for these sizes" in line.detail) == (theirs is refusing)


def test_ours_that_cannot_run_is_not_judged() -> None:
    (line,) = lines_of([case_of(refusing, torch.clone)])
    assert line.bits == UNJUDGED and line.detail == "no kernel for these sizes"


def made(operator: str, size: int, ratio: float, **calls: float) -> Line:
    return Line(
        operator,
        "m",
        f"{size} rows",
        size,
        HOLDS,
        seconds={"samebits": 1.0, "a": ratio, "b": 9 * ratio},
        call_seconds=calls,
    )


def test_summaries_are_geometric_and_name_the_lowest() -> None:
    lines = [
        made("x", 1, 0.5),
        made("x", 2, 2.0),
        made("y", 1, 3.0, samebits=1.0, a=0.25),
        Line("z", "m", "", 1, UNJUDGED),
    ]
    x, y = summaries(lines)
    assert (x.operator, x.cases, x.lowest, x.where, x.call_mean) == ("x", 2, 0.5, "m 1 rows", None)
    assert math.isclose(x.mean, 1.0) and math.isclose(y.mean, 3.0) and y.call_mean == 0.25


def test_the_best_alternative_counts() -> None:
    line = made("x", 1, 0.5)
    assert line.best == "a" and line.ratio == 0.5


def test_the_plot_is_a_picture_of_every_ratio() -> None:
    lines = [made("a < b", 1, 0.5), made("a < b", 4096, 100.0), made("y", 3, 0.01), Line("z", "m", "", 1, UNJUDGED)]
    root = ElementTree.fromstring(svg(lines, 'all & "more"'))
    told = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert told == ["m 1 rows: 0.50 of a", "m 4096 rows: 100.00 of a", "m 3 rows: 0.01 of a"]
    assert ElementTree.fromstring(svg([], "nothing")) is not None


def test_models_by_name_and_by_file(tmp_path: Path) -> None:
    for device, usual in DEFAULTS.items():
        assert set(usual.models) <= MODELS.keys(), device
    (tmp_path / "config.json").write_text(json.dumps(PRESETS["tiny"].to_huggingface()))
    for source in (tmp_path, tmp_path / "config.json"):
        name, config = read_model(str(source))
        assert name == tmp_path.name and weights(config) == weights(PRESETS["tiny"])
    with pytest.raises(ValueError, match="allowed: llama-3-8b"):
        read_model(str(tmp_path / "absent"))
