"""Rotary position embedding on the CPU: its reference bit for bit, gradients, transformers' values, torch's checks."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from samebits import native
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.rope import LAYOUTS, RopeScaling, rope
from samebits.ops.rope.scaling import frequencies

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((1, 1, 2), (3, 2, 10), (7, 3, 34), (5, 9, 64), (2, 3, 2, 66))
RECIPES = ("normal", "wide", "cancelling", "subnormal", "infinite", "zeros_signed", "random_bits")
HALF_ULP = 2.0**-24

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
DEEPSEEK = {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False}
CONFIGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn with scales": DEEPSEEK,
}


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype)


def places(count: int) -> Tensor:
    return torch.arange(count) * 3001 % 32768


def outputs(x: Tensor, positions: Tensor, dy: Tensor, **options: Any) -> dict[str, Tensor]:
    """Everything the spec computes: output and gradient."""
    leaf = x.detach().requires_grad_()
    y = rope(leaf, positions, **options)
    (dx,) = torch.autograd.grad(y, leaf, dy)
    return {"y": y, "dx": dx}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, layout: str) -> None:
    """cpu == reference, bit for bit, forward and backward, with and without a factor on sine and cosine."""
    for recipe, shape in itertools.product(RECIPES, SHAPES):
        x, dy = tensor(recipe, shape, 1, dtype), tensor(recipe, shape, 2, dtype)
        for scaling in (None, RopeScaling.from_config(YARN)):
            given: dict[str, Any] = {"layout": layout, "scaling": scaling}
            ours = outputs(x, places(shape[-3]), dy, **given)
            reference = outputs(x, places(shape[-3]), dy, **given, backend="reference")
            for name in reference:
                difference = compare(ours[name], reference[name])
                assert difference is None, f"{recipe} {shape} {name}: {difference}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_threads_and_instruction_sets_do_not_matter(layout: str) -> None:
    """baseline == avx2 == avx512, for 1 to 9 threads, forward and backward."""
    x, dy = tensor("wide", (41, 5, 70), 1), tensor("wide", (41, 5, 70), 2)
    with launching(threads=1, instruction_set="baseline"):
        expected = outputs(x, places(41), dy, layout=layout)
    for instruction_set, threads in itertools.product(native.instruction_sets(), (1, 2, 3, 9)):
        with launching(threads=threads, instruction_set=instruction_set):
            for name, value in outputs(x, places(41), dy, layout=layout).items():
                assert compare(value, expected[name]) is None, (instruction_set, threads, name)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_values_are_those_of_transformers(name: str, theta: float) -> None:
    """Their frequencies are float32 throughout: the exponent's rounding grows with ln theta, and what is kept of a
    frequency has an absolute error of some half-ulps, which weighs `factor` times where little is kept."""
    parameters = CONFIGS[name]
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=16384,
        rope_parameters={**parameters, "rope_theta": theta},
    )
    scaling = RopeScaling.from_config(config.rope_parameters)
    x, positions = tensor("normal", (2, 300, 4, 64), 1), torch.arange(300)[None] * torch.tensor([[1], [53]])
    cosine, sine = LlamaRotaryEmbedding(config)(x, positions)
    theirs, _ = apply_rotary_pos_emb(x, x, cosine, sine, unsqueeze_dim=2)
    ours = rope(x, positions, theta, scaling=scaling)
    phase = positions[..., None, None] * torch.tensor(frequencies(64, theta, scaling))
    relative = (math.log(theta) + 8 + 8 * parameters.get("factor", 0.0)) * HALF_ULP
    pair = (x[..., :32].abs() + x[..., 32:].abs()) * 1.2  # no factor is above 1.2
    allowed = pair * (phase * relative + 8 * HALF_ULP)
    assert bool(((ours - theirs).abs() <= torch.cat([allowed, allowed], -1)).all())


@pytest.mark.parametrize("name", CONFIGS)
def test_frequencies_are_those_of_transformers(name: str) -> None:
    config = LlamaConfig(hidden_size=256, num_attention_heads=4, rope_parameters={**CONFIGS[name], "rope_theta": 1e4})
    theirs = LlamaRotaryEmbedding(config)
    scaling = RopeScaling.from_config(CONFIGS[name])
    ours = torch.tensor(frequencies(64, 1e4, scaling), dtype=torch.float64)
    torch.testing.assert_close(ours, theirs.inv_freq.double(), rtol=64 * HALF_ULP, atol=0.0)
    stretched = scaling is not None and scaling.kind == "yarn"
    assert (theirs.attention_scaling != 1.0) == stretched


def test_layouts_are_the_same_rotation() -> None:
    """Interleaved == half with the pairs put side by side, bit for bit."""
    x = tensor("normal", (5, 3, 64), 1)
    side_by_side = x.unflatten(-1, (2, 32)).transpose(-1, -2).flatten(-2)
    half, interleaved = rope(x, places(5)), rope(side_by_side, places(5), layout="interleaved")
    assert compare(interleaved, half.unflatten(-1, (2, 32)).transpose(-1, -2).flatten(-2)) is None
    assert compare(rope(x, torch.zeros(5, dtype=torch.int32)), x) is None


def test_shapes_and_strides_do_not_matter() -> None:
    x = tensor("normal", (2, 7, 3, 20), 1)
    expected = rope(x, places(7))
    assert compare(rope(x, places(7).int().expand(2, 7)), expected) is None
    assert compare(rope(x[1], places(7)), expected[1]) is None
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert compare(rope(turned, places(7)), expected) is None


def test_a_wrong_position_is_noticed() -> None:
    """Planted fault: every token one place further on."""
    x = tensor("normal", (5, 3, 64), 1)
    assert compare(rope(x, places(5) + 1), rope(x, places(5))) is not None


def test_torch_accepts_the_operator() -> None:
    x, turned = torch.randn(6, 3, 10, requires_grad=True), torch.randn(3, 6, 10, requires_grad=True).transpose(0, 1)
    scaling = RopeScaling(kind="linear", factor=2.0).text
    operator = torch.ops.samebits.rope.default
    for given, interleaved, opposite in ((x, False, True), (turned, True, False)):
        torch.library.opcheck(operator, (given, places(6), 1e4, scaling, interleaved, opposite, "cpu"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradcheck(layout: str) -> None:
    """The gradient formula, in float64 on the reference path; it is the opposite rotation, so it has one, too."""
    x = torch.randn(4, 2, 6, dtype=torch.float64, requires_grad=True)
    options: dict[str, Any] = {"layout": layout, "scaling": RopeScaling.from_config(YARN), "backend": "reference"}
    assert gradcheck(lambda given: rope(given, places(4), **options), (x,))
    assert torch.autograd.gradgradcheck(lambda given: rope(given, places(4), **options), (x,))


def test_compiled_equals_eager() -> None:
    scaling = RopeScaling.from_config(LLAMA3)
    compiled = torch.compile(lambda x, p: rope(x, p, 5e5, scaling=scaling) * 2, dynamic=True, fullgraph=True)
    for tokens in (2, 5, 64):
        x, dy = torch.randn(tokens, 3, 16, requires_grad=True), torch.randn(tokens, 3, 16)
        eager_out, compiled_out = rope(x, places(tokens), 5e5, scaling=scaling) * 2, compiled(x, places(tokens))
        assert compare(compiled_out, eager_out) is None
        (eager,), (found,) = (torch.autograd.grad(y, x, dy) for y in (eager_out, compiled_out))
        assert compare(found, eager) is None


def test_no_tokens() -> None:
    x = torch.zeros(0, 3, 8, requires_grad=True)
    y = rope(x, torch.zeros(0, dtype=torch.int64))
    y.sum().backward()
    assert y.shape == (0, 3, 8)
    assert x.grad is not None and x.grad.shape == (0, 3, 8)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_poisoned_token_stays_alone(layout: str) -> None:
    x, dy = tensor("normal", (4, 3, 36), 1), tensor("normal", (4, 3, 36), 2)
    poisoned = x.clone()
    poisoned[2] = torch.nan
    clean, found = (outputs(each, places(4), dy, layout=layout)["y"] for each in (x, poisoned))
    assert compare(found[[0, 1, 3]], clean[[0, 1, 3]]) is None
    assert bool(found[2].isnan().all())


X, P = torch.ones(2, 3, 4), torch.zeros(2, dtype=torch.int64)
BAD = {
    "odd size": (lambda: rope(X[..., :3], P), r"x has shape \(2, 3, 3\); allowed: \(..., tokens, heads, an even head"),
    "two axes": (lambda: rope(X[0], P), r"x has shape \(3, 4\); allowed"),
    "positions dtype": (lambda: rope(X, P.float()), "positions have dtype float32; allowed: int32, int64"),
    "positions shape": (lambda: rope(X, P[:1]), r"positions have shape \(1,\), x has \(2, 3, 4\); allowed: \(2,\)"),
    "negative": (lambda: rope(X, torch.tensor([1, -2])), "the position of token 1 is -2; allowed: 0 to 16777216"),
    "too far": (lambda: rope(X, torch.tensor([2**24 + 1, 0])), "the position of token 0 is 16777217; allowed: 0 to"),
    "theta": (lambda: rope(X, P, 1.0), "theta is 1.0; allowed: finite, above 1"),
    "layout": (lambda: rope(X, P, layout="gpt"), "layout is 'gpt'; allowed: half, interleaved"),
    "integers": (lambda: rope(X.int(), P), "x has dtype int32; allowed with backend='cpu'"),
    "wrong device": (
        lambda: rope(X, P, backend="triton"),
        "backend='triton' takes tensors on 'cuda', got one on 'cpu'",
    ),
    "dynamic": (
        lambda: RopeScaling.from_config({"type": "dynamic", "factor": 2.0}),
        "'dynamic' depends on the longest sequence of the batch",
    ),
    "unknown kind": (
        lambda: RopeScaling.from_config({"rope_type": "longrope", "factor": 2.0}),
        "scaling kind is 'longrope'; allowed: linear, llama3, yarn",
    ),
    "missing number": (lambda: RopeScaling.from_config({"rope_type": "linear"}), "lacks factor; allowed: factor"),
    "unknown number": (
        lambda: RopeScaling.from_config({**YARN, "mrope_section": [1, 2]}),
        "was given mrope_section too much",
    ),
    "part of a head": (
        lambda: RopeScaling.from_config({"rope_type": "default", "partial_rotary_factor": 0.5}),
        "was given partial_rotary_factor too much",
    ),
    "factor": (lambda: RopeScaling(kind="linear", factor=0.5), "scaling factor is 0.5; allowed: finite, at least 1"),
    "context": (
        lambda: RopeScaling(kind="yarn", factor=2.0),
        "original_max_position_embeddings is 0; allowed with 'yarn': at least 1",
    ),
    "crossed factors": (
        lambda: RopeScaling.from_config({**LLAMA3, "low_freq_factor": 8.0}),
        "low_freq_factor is 8.0, high_freq_factor is 4.0; allowed: finite, 0 < low_freq_factor < high_freq_factor",
    ),
    "attention factor": (
        lambda: RopeScaling.from_config({**YARN, "attention_factor": -1.0}),
        "attention_factor is -1.0; allowed: finite, above 0",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    call, text = BAD[case]
    with pytest.raises(ValueError, match=text) as caught:
        call()  # type: ignore[no-untyped-call]
    assert "\n" not in str(caught.value)
