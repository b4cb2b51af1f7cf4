"""Merging in float64, and numbers that a merge cannot answer for: infinite, NaN, too large for the result's dtype."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.post.small_models import models

from samebits.numerics.bits import same_bits
from samebits.post.merge_methods import BLOCK, Cosine, Threshold, Trim, magnitudes, threshold
from samebits.post.merge_recipe import recipe_of
from samebits.post.merging import merge

NAME = "model.layers.1.mlp.up_proj.weight"
WEIGHTS = (0.3, 0.9)


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Models whose weights need float64: none of them is a float32."""
    places = models(tmp_path_factory.mktemp("models"), torch.float64)
    for number, folder in enumerate(places.values()):
        weights = load_file(Path(folder) / "model.safetensors")
        generator = torch.Generator().manual_seed(number)
        for each in weights.values():
            each += 2.0**-40 * torch.randn(each.shape, generator=generator, dtype=torch.float64)
        save_file(weights, Path(folder) / "model.safetensors")
    return places


def recipe_for(method: str, at: dict[str, str], **more: Any) -> dict[str, Any]:
    base = {} if method == "linear" else {"base_model": at["a"]}
    if method == "slerp":
        return {"merge_method": method, "models": [{"model": at["b"]}], "parameters": {"t": 0.3}, **base, **more}
    density = {"density": 0.37} if method.startswith(("ties", "dare")) else {}
    listed = [
        {"model": at[name], "parameters": {"weight": weight, **density}}
        for name, weight in zip("bc", WEIGHTS, strict=True)
    ]
    return {"merge_method": method, "models": listed, **base, **more}


def merged(recipe: dict[str, Any], out: Path) -> dict[str, torch.Tensor]:
    merge(recipe_of(recipe, "recipe"), out)
    return load_file(out / "model.safetensors")


@pytest.mark.parametrize("normalize", [True, False])
def test_linear_in_float64_rounds_each_operation(normalize: bool, at: dict[str, str], tmp_path: Path) -> None:
    """It ended in a KeyError: the chain of the product has no float64."""
    recipe = recipe_for("linear", at, dtype="float64", parameters={"normalize": normalize})
    found = merged(recipe, tmp_path / "out")
    first, second = (load_file(Path(at[name]) / "model.safetensors") for name in "bc")
    for name, each in found.items():
        pairs = zip(first[name].reshape(-1).tolist(), second[name].reshape(-1).tolist(), strict=True)
        # Python's own float64: a product, a product, a sum, a quotient.
        plain = [(WEIGHTS[0] * one + WEIGHTS[1] * two) / ((0.3 + 0.9) if normalize else 1.0) for one, two in pairs]
        assert same_bits(each, torch.tensor(plain, dtype=torch.float64).reshape(each.shape)), name


def test_without_a_dtype_float64_models_stay_float64(at: dict[str, str], tmp_path: Path) -> None:
    for method in every_method():
        found = merged(recipe_for(method, at), tmp_path / method)
        assert {each.dtype for each in found.values()} == {torch.float64}, method
        assert all(bool(each.isfinite().all()) for each in found.values()), method


def every_method() -> list[str]:
    return ["linear", "slerp", "task_arithmetic", "ties", "dare_linear", "dare_ties"]


def kept_by_sorting(delta: torch.Tensor, keep: int) -> list[int]:
    """The plain rule: a stable sort of the float64 magnitudes."""
    values = delta.double().tolist()
    return sorted(sorted(range(len(values)), key=lambda place: (-abs(values[place]), place))[:keep])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("keep", [0, 1, 7, 500, 999, 1000])
def test_ties_ranks_magnitudes_in_their_own_format(dtype: torch.dtype, keep: int) -> None:
    """Magnitudes that only float64 tells apart, large and small ones, and equal ones among them."""
    generator = torch.Generator().manual_seed(keep)
    near = 1.0 + 2.0**-50 * torch.randint(0, 300, (600,), generator=generator).double()
    delta = torch.cat([near * torch.randn(600, generator=generator).sign(), torch.randn(400, generator=generator)])
    delta = delta.to(dtype)
    limit = threshold(
        lambda: [magnitudes(piece) for piece in torch.split(delta, 300)], keep, 64 if dtype == torch.float64 else 32
    )
    trim = Trim(limit)
    kept = torch.cat([trim(piece) for piece in torch.split(delta, 300)])
    assert kept.nonzero().reshape(-1).tolist() == kept_by_sorting(delta, keep)


def test_ranks_of_float32_are_seen_in_float64() -> None:
    """Planted: the magnitudes of float64 taken as float32 keep the first of what looks equal."""
    delta = torch.tensor([1.0, 1.0 + 2.0**-40, 1.0 + 2.0**-30], dtype=torch.float64)
    narrow = Trim(threshold(lambda: [magnitudes(delta.float())], 1))
    assert narrow(delta.float()).nonzero().tolist() == [[0]] and kept_by_sorting(delta, 1) == [2]


def test_ties_in_float64_keeps_the_largest_differences(at: dict[str, str], tmp_path: Path) -> None:
    recipe = recipe_for("ties", at, dtype="float64")
    found = merged(recipe, tmp_path / "out")
    base, *others = (load_file(Path(at[name]) / "model.safetensors") for name in "abc")
    for name, each in found.items():
        mixed, weight = torch.zeros_like(each), torch.zeros_like(each)
        deltas = [(other[name] - base[name]).reshape(-1) for other in others]
        thin = [torch.zeros_like(delta) for delta in deltas]
        for delta, kept in zip(deltas, thin, strict=True):
            places = kept_by_sorting(delta, max(1, int(0.37 * len(delta))))
            kept[places] = delta[places]
        weighted = [w * kept.reshape(each.shape) for w, kept in zip(WEIGHTS, thin, strict=True)]
        positive = weighted[0] + weighted[1] >= 0
        for w, one in zip(WEIGHTS, weighted, strict=True):
            agrees = torch.where(positive, one > 0, one < 0).double()
            mixed, weight = mixed + one * agrees, weight + w * agrees
        assert same_bits(each, base[name] + mixed / torch.where(weight == 0, 1.0, weight)), name
    # Nothing kept, and nothing known of a tensor without numbers.
    assert threshold(list, 0, 64) == Threshold(2**63 - 1, 0)


def spoiled(at: dict[str, str], out: Path, values: list[float]) -> dict[str, str]:
    """Model b with some of its numbers replaced."""
    out.mkdir()
    for file in Path(at["b"]).iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    weights = load_file(out / "model.safetensors")
    weights[NAME].view(-1)[5 : 5 + len(values)] = torch.tensor(values, dtype=torch.float64)
    save_file(weights, out / "model.safetensors")
    return {**at, "b": str(out)}


@pytest.mark.parametrize("method", every_method())
@pytest.mark.parametrize("values", [[math.nan], [math.inf], [math.inf, -math.inf]])
def test_a_model_with_numbers_that_are_not_finite_is_refused(
    method: str, values: list[float], at: dict[str, str], tmp_path: Path
) -> None:
    """NaN and infinities went into the result without a word; SLERP ended in the words of its arc cosine."""
    places = spoiled(at, tmp_path / "spoiled", values)
    with pytest.raises(
        ValueError, match=rf"{NAME} of .*spoiled has numbers that are not finite in float64; allowed: f"
    ):
        merge(recipe_of(recipe_for(method, places), "recipe"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("method", ["linear", "slerp", "task_arithmetic", "ties"])
@pytest.mark.parametrize("key", ["dtype", "out_dtype"])
def test_a_result_that_its_dtype_cannot_hold_is_refused(
    method: str, key: str, at: dict[str, str], tmp_path: Path
) -> None:
    """1e6 in float16 became infinite, and the command ended well."""
    places = spoiled(at, tmp_path / "spoiled", [1e6])
    said = f"{NAME} of .*spoiled" if key == "dtype" else f"the merged {NAME}"
    with pytest.raises(ValueError, match=rf"{said} has numbers that are not finite in float16; allowed: finite"):
        merge(recipe_of(recipe_for(method, places, **{key: "float16"}), "recipe"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert merged(recipe_for(method, places, **{key: "bfloat16"}), tmp_path / "wide")[NAME].abs().max() > 1e5


@pytest.mark.parametrize("values", [[1e200, 1e200], [1e154] * (BLOCK + 3)])
def test_a_norm_that_float64_cannot_hold_is_refused(values: list[float]) -> None:
    """A square that overflows, and a sum of squares that does; the cosine of it was taken for 0."""
    angle, huge = Cosine(), torch.tensor(values, dtype=torch.float64)
    angle.add(torch.ones_like(huge), huge)
    with pytest.raises(ValueError, match="slerp: the squares of a tensor add up to more than float64 holds; allowed"):
        angle.value()
