"""`samebits bench` on the GPU: operators and whole models on small sizes, bits equal, every side timed."""

from __future__ import annotations

import pytest
import torch
from tests.bench.test_end_to_end import Unsteady

from samebits.bench import decoding, end_to_end
from samebits.bench.cases import Setting
from samebits.bench.measuring import DIFFERS, HOLDS, UNJUDGED, Line, measured
from samebits.bench.planning import PLANNERS, Sizes, planned
from samebits.bench.shapes import MODELS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")

SIZES = Sizes(rows=(3, 64), tokens=(256,), decoded=((2, 512),), at_once=512)


@pytest.mark.parametrize("operator", PLANNERS)
def test_every_operator_is_measured(operator: str) -> None:
    cases = planned([operator], {"smollm2-135m": MODELS["smollm2-135m"]}, SIZES)
    for line in measured(cases, Setting(torch.device("cuda"), torch.bfloat16), 0.002, 2):
        assert line.bits == HOLDS, line
        assert line.ratio and line.call_ratio and line.best in line.seconds, line


def lines_of(name: str, model: str = "tiny", rows: int = 3, tokens: int = 64) -> list[Line]:
    cases = end_to_end.PLANNERS[name](model, MODELS[model], rows, tokens)
    return list(measured(cases, Setting(torch.device("cuda"), torch.bfloat16), 0.002, 2))


def test_an_update_beside_transformers_as_it_is_and_compiled() -> None:
    (line,) = lines_of("training")
    assert line.bits == HOLDS and line.detail == "", line
    assert set(line.seconds) == {"samebits", "transformers", "transformers compiled"} == set(line.peak_bytes)
    assert line.ratio and all(each > 0 for each in line.peak_bytes.values())


@pytest.mark.parametrize("rows", [1, 3])
def test_decoding_beside_compiled_transformers(rows: int) -> None:
    """More measurements than an answer has: both sides begin anew."""
    cases = end_to_end.PLANNERS["decode"]("tiny", MODELS["tiny"], rows, 64)
    (line,) = measured(cases, Setting(torch.device("cuda"), torch.bfloat16), 0.002, 8)
    assert line.bits == HOLDS and line.detail == "" and line.best == "transformers compiled", line
    assert line.ratio and line.of_bandwidth and 0 < line.of_bandwidth < 2


def test_a_model_of_transformers_inside_the_mode() -> None:
    for line in lines_of("invariant"):
        assert line.bits == HOLDS and line.detail == "" and line.ratio, line


def test_an_engine_whose_row_depends_on_its_batch_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "Engine", Unsteady)
    (line,) = lines_of("decode")
    assert line.bits == DIFFERS and line.seconds == {}


def test_what_does_not_fit_is_not_judged() -> None:
    (line,) = lines_of("training", "llama-3-8b", 1, 1024)
    assert line.bits == UNJUDGED and "bytes are needed on cuda; there are" in line.detail
