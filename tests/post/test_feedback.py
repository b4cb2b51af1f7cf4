"""Rounding with feedback: the published algorithm's codes, exact moments, tokens that count as they are looked at."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.post.small_models import CONFIG
from torch import Tensor

from samebits.cli import main
from samebits.model.huggingface import save_folder
from samebits.model.loading import Loaded, load
from samebits.model.model import Model
from samebits.model.tokenizer import Tokenizer
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import same_bits
from samebits.post.calibration import recorded, sequences_of, squares, texts_of
from samebits.post.feedback import DAMPING, Feedback, feedback_of, round_with_feedback
from samebits.post.grouped import FORMATS, Format, Grouped, packed_format, search
from samebits.post.moments import ATTENTION_BITS, looked_at, products, second_moments
from samebits.post.quantizing import Job, quantize

SHAPE = replace(CONFIG, hidden_size=128, head_dim=64, intermediate_size=256, num_hidden_layers=2)
EVERY = [*FORMATS.values(), packed_format(32), packed_format(64)]


def drawn(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def moments() -> Tensor:
    """Of 128 channels that follow each other, one of them large."""
    x = drawn(512, 128) @ drawn(128, 128, seed=1)
    x[:, 5] *= 50
    return products(x, None)


def rounded(weight: Tensor, format: Format, feedback: Feedback) -> Grouped:
    return round_with_feedback(weight, search(weight, format, feedback.importance), feedback)


def error(found: Grouped, weight: Tensor, moments: Tensor) -> float:
    """Of the output, squared, over all tokens."""
    gap = (found.numbers() - weight).double()
    return float(((gap @ moments) * gap).sum())


def published(weight: Tensor, moments: Tensor, like: Grouped) -> np.ndarray:
    """Frantar et al. 2023: by the Cholesky factor of the inverse, in float64, with the scales that are given."""
    order = np.argsort(-moments.diagonal().numpy(), kind="stable")
    h = moments.numpy()[np.ix_(order, order)]
    h = h + np.eye(len(h)) * DAMPING * np.diag(h).mean()
    upper = np.linalg.cholesky(np.linalg.inv(h)).T
    w, codes = weight.double().numpy()[:, order], np.zeros(weight.shape)
    place = order // like.format.group
    scale = like.scale.double().numpy()[:, place]
    minimum = np.zeros_like(scale) if like.minimum is None else like.minimum.double().numpy()[:, place]
    for k in range(w.shape[1]):
        code = np.clip(np.rint((w[:, k] - minimum[:, k]) / scale[:, k]), like.format.least, like.format.most)
        lost = (w[:, k] - code * scale[:, k] - minimum[:, k]) / upper[k, k]
        w[:, k:] -= lost[:, None] * upper[k, k:]
        codes[:, order[k]] = code
    return codes


@pytest.mark.parametrize("format", EVERY, ids=lambda each: each.name)
def test_the_codes_are_the_published_algorithms(format: Format, moments: Tensor) -> None:
    weight = drawn(96, 128, seed=2)
    found = rounded(weight, format, Feedback.of(moments))
    wanted = published(weight, moments, found)
    # Halves that float32 and float64 see differently are all that may part.
    assert (found.codes.reshape(96, -1).numpy() == wanted).mean() > 0.999


@pytest.mark.parametrize("format", EVERY, ids=lambda each: each.name)
def test_the_output_is_nearer_than_by_the_search(format: Format, moments: Tensor) -> None:
    """Planted: with nothing handed on it is not."""
    weight, feedback = drawn(96, 128, seed=2), Feedback.of(moments)
    searched = error(search(weight, format, feedback.importance), weight, moments)
    alone = replace(feedback, handed_on=torch.zeros_like(feedback.handed_on))
    assert error(rounded(weight, format, feedback), weight, moments) < 0.7 * searched
    assert error(rounded(weight, format, alone), weight, moments) > 0.7 * searched


def test_rows_and_threads_decide_no_bit(moments: Tensor) -> None:
    weight = drawn(40, 128, seed=3)
    found = rounded(weight, FORMATS["q4_0"], Feedback.of(moments))
    some = rounded(weight[7:9], FORMATS["q4_0"], Feedback.of(moments))
    assert torch.equal(found.codes[7:9], some.codes)
    with launching(threads=1):
        again = rounded(weight, FORMATS["q4_0"], Feedback.of(moments))
    assert torch.equal(found.codes, again.codes) and same_bits(found.scale, again.scale)


def test_where_nothing_flows_nothing_is_handed_on() -> None:
    feedback = Feedback.of(torch.zeros(64, 64, dtype=torch.float64))
    assert not feedback.handed_on.any() and torch.equal(feedback.order, torch.arange(64))
    zeros = rounded(torch.zeros(2, 64), FORMATS["q4_1"], feedback)
    assert not zeros.numbers().any()


def test_moments_are_exact_and_have_no_order() -> None:
    """Against fractions: rounded to 18 bits of a channel's largest, every sum is exact. Planted: one token less."""
    x, looked = drawn(33, 5) * torch.tensor([1.0, 1e-20, 1e15, 0.0, 3.0]), torch.arange(33).double()
    found = products(x, looked)
    units = [2.0 ** (np.frexp(largest)[1] - 18) for largest in x.abs().amax(0).double().tolist()]
    whole = [
        [Fraction(round(value / unit)) * Fraction(unit) for value, unit in zip(row, units, strict=True)]
        for row in x.double().tolist()
    ]
    for i in range(5):
        for j in range(5):
            wanted = sum(int(often) * row[i] * row[j] for often, row in zip(looked.tolist(), whole, strict=True))
            assert Fraction(float(found[i, j])) == wanted
    turned = torch.randperm(33, generator=torch.Generator().manual_seed(1))
    assert same_bits(products(x[turned], looked[turned]), found)
    assert not same_bits(products(x[:-1], looked[:-1]), found)


def test_a_token_counts_as_it_is_looked_at() -> None:
    """All queries look at key 2 if they see it; the first two see only what is before."""
    q, k = torch.zeros(6, 4, 8), torch.zeros(6, 2, 8)
    q[..., 0], k[2, :, 0] = 100.0, 100.0
    unit = 2**ATTENTION_BITS
    assert looked_at(q, k).tolist() == [1.5 * unit, 0.5 * unit, 4.0 * unit, 0, 0, 0]
    even = looked_at(torch.zeros(4, 2, 8), torch.zeros(4, 1, 8))
    shares = [1 + 1 / 2 + 1 / 3 + 1 / 4, 1 / 2 + 1 / 3 + 1 / 4, 1 / 3 + 1 / 4, 1 / 4]
    assert even.tolist() == [round(each * unit) for each in shares]


@pytest.fixture(scope="module")
def small() -> Loaded:
    return Loaded(model=Model.new(SHAPE, 4), tokenizer=Tokenizer.of_bytes())


def texts() -> str:
    return "the quick brown fox jumps over the lazy dog. " * 40


def test_moments_of_a_model(small: Loaded) -> None:
    """Who reads one input shares its moments; their diagonal is what the search weighs by, but for keys and values."""
    sequences = sequences_of([texts()], small.tokenizer, 1024)
    found = second_moments(small.model, sequences, lambda _: None, leaving_out=("down_proj.weight",))
    plain = squares(small.model, sequences, lambda _: None)
    assert {name for name in plain if name not in found} == {name for name in plain if "down_proj" in name}
    layer = "model.layers.1"
    assert found[f"{layer}.mlp.gate_proj.weight"] is found[f"{layer}.mlp.up_proj.weight"]
    assert found[f"{layer}.self_attn.k_proj.weight"] is found[f"{layer}.self_attn.v_proj.weight"]
    for name, each in found.items():
        close = torch.allclose(each.diagonal(), plain[name], rtol=1e-4)
        assert close != name.endswith(("k_proj.weight", "v_proj.weight")), name


def test_what_is_not_finite_is_refused(small: Loaded) -> None:
    weights = dict(small.model.weights)
    weights["model.layers.1.input_layernorm.weight"] = torch.full((SHAPE.hidden_size,), float("inf"))
    sequences = sequences_of([texts()], small.tokenizer, 512)
    with pytest.raises(ValueError, match=r"what flows into model\.layers\.1\.self_attn\.q_proj\.weight is not finite"):
        feedback_of(replace(small.model, weights=weights), sequences, lambda _: None)


def test_the_command(small: Loaded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It writes what the function does, and says what it was calibrated on."""
    save_folder(small.model, tmp_path / "model", small.tokenizer)
    text = tmp_path / "text.txt"
    text.write_text(texts())
    words = ["quantize", str(tmp_path / "model"), "--out", str(tmp_path / "out"), "--method", "gptq", "--json"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--format", "q4_0", "--calibration", str(text), "--tokens", "1024"])
    assert not ended.value.code
    told = json.loads(capsys.readouterr().out)
    loaded = load(str(tmp_path / "model"))
    sequences = sequences_of(texts_of([text]), loaded.tokenizer, 1024)
    job = Job(
        source=str(tmp_path / "model"),
        loaded=loaded,
        output="q4_0",
        method="gptq",
        importance=squares(loaded.model, sequences, lambda _: None),
        feedback=feedback_of(loaded.model, sequences, lambda _: None),
        calibration=recorded(sequences),
    )
    again = quantize(job, tmp_path / "again")
    assert again == {key: told[key] for key in ("command", "settings", "digest", "sources")}
    assert again["digest"] != quantize(replace(job, method="search", feedback=None), tmp_path / "searched")["digest"]
