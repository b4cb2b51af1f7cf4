"""Merging: equal to what mergekit makes of the same recipes, whatever shards, threads, pieces and kills there were."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.post.fresh_process import FULL, KILLED, KillAfter, in_a_process, on_a_full_disk
from tests.post.small_models import models, recipes

from samebits.model.loading import load
from samebits.numerics.bits import numpy_bits, same_bits
from samebits.post import merging, source
from samebits.post.folder import hidden_folder
from samebits.post.merge_methods import BLOCK, Cosine, Drop, Trim, kept, magnitudes, slerp, slerp_factors, threshold
from samebits.post.merge_plan import opened_models, plan_merge
from samebits.post.merge_recipe import METHODS, recipe_of, value_of
from samebits.post.merging import merge
from samebits.post.source import Source

RECORDED = Path(__file__).parent / "mergekit"
FORMATS = {"bfloat16": torch.bfloat16, "float32": torch.float32}
NAMES = sorted(recipes(dict.fromkeys("abcd", "")))


@pytest.fixture(scope="module", params=FORMATS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, models(folder, FORMATS[request.param])


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return models(tmp_path_factory.mktemp("models"))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    with Source(folder) as opened:
        return {name: opened.whole(name) for name in opened.entries}


def merged(recipe: dict[str, Any], out: Path, **options: Any) -> dict[str, torch.Tensor]:
    merge(recipe_of(recipe, "recipe"), out, **options)
    return weights_of(out)


def ulps(left: torch.Tensor, right: torch.Tensor) -> np.ndarray:
    """Numbers of their format between two tensors."""

    def place(x: torch.Tensor) -> np.ndarray:
        bits = numpy_bits(x)
        sign = 1 << (8 * bits.itemsize - 1)
        wide = bits.astype(np.int64)
        return np.where(wide & sign, -(wide & (sign - 1)), wide)

    return np.abs(place(left) - place(right))


@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_those_of_mergekit(name: str, made: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    """merge(recipe) == mergekit 0.1.5, as recorded: bit for bit, and SLERP, whose angle mergekit takes in float32, to 1
    ulp of bfloat16. Among magnitudes that are equal TIES keeps the first, mergekit any: there, and only there, they may
    part, and mergekit's number is that of another choice."""
    kind, places = made
    recipe = {**recipes(places)[name], "dtype": kind}
    found, wanted = merged(recipe, tmp_path / "out"), load_file(RECORDED / f"{name}_{kind}.safetensors")
    assert found.keys() == wanted.keys()
    for tensor in wanted:
        assert found[tensor].dtype == wanted[tensor].dtype and found[tensor].shape == wanted[tensor].shape
        if name.startswith("slerp"):
            assert ulps(found[tensor].bfloat16(), wanted[tensor].bfloat16()).max() <= 1, tensor
        elif name.startswith("ties") and kind == "bfloat16":
            assert chosen_among_equals(recipe, tensor, found[tensor], wanted[tensor]).all(), tensor
        else:
            assert same_bits(found[tensor], wanted[tensor]), tensor


def chosen_among_equals(recipe: dict[str, Any], name: str, found: torch.Tensor, wanted: torch.Tensor) -> Any:
    """For each number whether the two are equal; or both are what TIES may come to, some model's difference having just
    the magnitude down to which is kept, so that the rule leaves open whether it is."""
    with ExitStack() as stack:
        models = opened_models(recipe_of(recipe, "recipe"), stack)
        step = next(each for each in plan_merge(recipe_of(recipe, "recipe"), models).steps if each.name == name)
        inputs = [models[model].whole(key) for model, key in step.inputs]
    base, named = inputs.pop(step.base_input), [each for number, each in enumerate(step.each) if number != step.base]
    arguments = [each["density"] for each in named], [each["weight"] for each in named], step.shared["normalize"]
    allowed = numpy_bits(found) == numpy_bits(wanted)
    possible = [plain_ties(base, inputs, *arguments, equals=each) for each in product((False, True), repeat=2)]
    for one, two in product(possible, repeat=2):
        allowed |= (numpy_bits(one) == numpy_bits(found)) & (numpy_bits(two) == numpy_bits(wanted))
    return allowed


@pytest.mark.parametrize("fault", ["an ulp", "the least are kept"])
def test_what_is_not_chosen_among_equals_is_seen(fault: str, at: dict[str, str], tmp_path: Path) -> None:
    """Planted: a number one ulp off, where no magnitude is at the threshold; the other half kept."""
    recipe = {**recipes(at)["ties_plain"], "dtype": "bfloat16"}
    name, found = "model.layers.1.mlp.up_proj.weight", merged(recipe, tmp_path / "out")
    a, b, c = (weights_of(Path(at[each]))[name] for each in "abc")
    if fault == "an ulp":
        bad = (found[name].view(torch.int16) + 1).view(torch.bfloat16)
    else:
        bad = (b - a + c - a) - (found[name] - a) + a
    assert chosen_among_equals(recipe, name, found[name], found[name]).all()
    assert chosen_among_equals(recipe, name, found[name], bad).mean() < 0.5


def plain_ties(
    base: torch.Tensor,
    others: list[torch.Tensor],
    densities: list[float],
    weights: list[float],
    normalize: bool = True,
    equals: tuple[bool, ...] | None = None,
) -> torch.Tensor:
    """The rule as it is written down, with a sort that keeps the order of equals; or, of each model, with all or none
    of the numbers at the magnitude down to which is kept."""
    deltas = []
    for number, (other, density) in enumerate(zip(others, densities, strict=True)):
        delta = (other - base).flatten()
        sizes, order = torch.sort(delta.abs().float(), descending=True, stable=True)
        keep = delta.numel() if density >= 1 else max(1, int(density * delta.numel()))
        mask = torch.zeros_like(delta)
        mask[order[:keep]] = 1
        if equals is not None and density < 1:
            mask[delta.abs().float() == sizes[keep - 1]] = float(equals[number])
        deltas.append((delta * mask).reshape(base.shape))
    factors = torch.tensor(weights, dtype=base.dtype)
    stacked = torch.stack(deltas) * factors.reshape(-1, *[1] * base.dim())
    majority = torch.where(stacked.float().sum(0).to(base.dtype) >= 0, 1.0, -1.0).to(base.dtype)
    mask = (stacked.sign() == majority).to(base.dtype)
    total = (stacked * mask).float().sum(0).to(base.dtype)
    divisor = (factors.reshape(-1, *[1] * base.dim()) * mask).float().sum(0).to(base.dtype)
    return base + (total / torch.where(divisor == 0, torch.ones_like(divisor), divisor) if normalize else total)


def test_falsify_merge_006_ties_is_the_plain_rule(made: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    kind, places = made
    recipe = {**recipes(places)["ties_plain"], "dtype": kind, "parameters": {"normalize": True}}
    found = merged(recipe, tmp_path / "out")
    a, b, c = (weights_of(Path(places[name])) for name in "abc")
    for name in a:
        assert same_bits(found[name], plain_ties(a[name], [b[name], c[name]], [0.5, 0.5], [0.5, 0.5])), name


@pytest.mark.parametrize("method", METHODS)
def test_neither_shards_pieces_nor_threads_decide_a_bit(
    method: str, at: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """digest(one file, small pieces, 1 thread) == digest(shards in, shards out, other pieces, 3 threads)."""
    recipe = every_method(method, at)
    merge(recipe_of(recipe, "recipe"), tmp_path / "once", seed=5)
    sharded = {name: str(tmp_path / f"sharded_{name}") for name in "abcd"}
    for name, folder in sharded.items():
        one = {"models": [{"model": at[name], "parameters": {"weight": 1}}], "merge_method": "linear"}
        merge(recipe_of(one, "copy"), Path(folder), shard_bytes=3000)
    assert len(list(Path(sharded["a"]).glob("*.safetensors"))) > 3
    monkeypatch.setattr(merging, "pieces", lambda count: source.pieces(count, 2**15 * 3))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    merge(recipe_of(every_method(method, sharded), "recipe"), tmp_path / "again", seed=5, shard_bytes=5000)
    digests = [json.loads((tmp_path / name / "samebits.json").read_text())["digest"] for name in ("once", "again")]
    assert digests[0] == digests[1]


def every_method(method: str, at: dict[str, str]) -> dict[str, Any]:
    others = ("b",) if method == "slerp" else ("b", "c")
    own = {"linear": {"weight": 0.4}, "slerp": {}, "task_arithmetic": {"weight": 0.3}}
    parameters = own.get(method, {"weight": 0.3, "density": 0.6})
    first = {"model": at["a"], "parameters": parameters if method == "linear" else {}}
    return {
        "models": [first, *({"model": at[name], "parameters": parameters} for name in others)],
        "merge_method": method,
        **({} if method == "linear" else {"base_model": at["a"]}),
        **({"parameters": {"t": 0.3}} if method == "slerp" else {}),
    }


def test_falsify_albor_007_slerp_keeps_the_norm() -> None:
    """10,000 pairs of unit vectors at angles from 0.3 to pi - 0.3: the norm is 1, and the straight mean's is not."""
    draw = np.random.default_rng(7)
    worst = straight = 0.0
    for _ in range(10_000):
        size = int(draw.integers(2, 40))
        first, other = draw.normal(size=(2, size))
        first /= np.sqrt(first @ first)
        other -= (other @ first) * first
        other /= np.sqrt(other @ other)
        angle = draw.uniform(0.3, math.pi - 0.3)
        second = math.cos(angle) * first + math.sin(angle) * other
        second /= np.sqrt(second @ second)
        one, two = (torch.from_numpy(each) for each in (first, second))
        t = float(draw.uniform())
        cosine = Cosine()
        cosine.add(one, two)
        found = slerp(one, two, slerp_factors(cosine.value(), t)).numpy()
        worst = max(worst, abs(math.sqrt(found @ found) - 1))
        mean = (1 - t) * first + t * second
        straight = max(straight, abs(math.sqrt(mean @ mean) - 1))
    # Each factor is good to an ulp of float64 over the sine, which is at least sin(0.3).
    assert worst < 16 * 2.0**-53 / math.sin(0.3) < 1e-9 < straight


def declared_sum(terms: list[float], by_halves: bool) -> float:
    """Blocks of BLOCK, zeros behind the last, each by its tree, number by number; the blocks added exactly."""
    sums = []
    for start in range(0, len(terms), BLOCK):
        block = terms[start : start + BLOCK]
        block += [0.0] * (BLOCK - len(block))
        while (half := len(block) // 2) >= 1:
            step, away = (1, half) if by_halves else (2, 1)
            block = [block[step * at] + block[step * at + away] for at in range(half)]
        sums.append(block[0] + 0.0)
    return math.fsum(sums)


def declared_cosine(first: torch.Tensor, second: torch.Tensor, by_halves: bool) -> float:
    one, two = first.double().tolist(), second.double().tolist()
    terms = ([a * b for a, b in zip(x, y, strict=True)] for x, y in ((one, one), (two, two), (one, two)))
    lengths = [declared_sum(each, by_halves) for each in terms]
    return lengths[2] / math.sqrt(lengths[0]) / math.sqrt(lengths[1])


@pytest.mark.parametrize("count", [1, 3, 1000, BLOCK, BLOCK + 7])
def test_the_cosine_is_that_of_the_declared_tree(count: int) -> None:
    """Term i and term i + half, number by number; planted: neighbours first, which is another tree."""
    first, second = (torch.randn(count, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    angle = Cosine()
    angle.add(first, second)
    assert angle.value() == declared_cosine(first, second, by_halves=True)
    assert count != 1000 or angle.value() != declared_cosine(first, second, by_halves=False)


@pytest.mark.parametrize("t", [0.0, 1.0])
def test_falsify_merge_002_the_ends_are_the_models(t: float, at: dict[str, str], tmp_path: Path) -> None:
    recipe = {**every_method("slerp", at), "parameters": {"t": t}}
    found, wanted = merged(recipe, tmp_path / "out"), weights_of(Path(at["b" if t else "a"]))
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_opposite_tensors_are_refused() -> None:
    tensor = torch.arange(1.0, 9.0)
    cosine = Cosine()
    cosine.add(tensor, -tensor)
    with pytest.raises(
        ValueError, match=r"slerp: the cosine between the tensors is -(1\.0|0\.9{12}\d*); allowed: at least -0\.9999"
    ):
        slerp_factors(cosine.value(), 0.5)


@pytest.mark.parametrize("density", [0.0, 0.001, 0.3, 0.5, 0.999])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_falsify_merge_004_exactly_the_share_is_kept(density: float, dtype: torch.dtype) -> None:
    """Many equal magnitudes, cut into pieces: as many as asked for, the largest, the first among equals."""
    delta = ((torch.arange(5000) * 7919 % 5000) - 2500).to(dtype) / 16
    delta = torch.where(delta == 0, torch.ones_like(delta), delta)
    keep = kept(density, len(delta))
    limit = threshold(lambda: [magnitudes(piece) for piece in torch.split(delta, 700)], keep)
    trim = Trim(limit)
    found = torch.cat([trim(piece) for piece in torch.split(delta, 700)])
    order = torch.sort(delta.abs().float(), descending=True, stable=True).indices
    assert int((found != 0).sum()) == keep
    assert {*torch.nonzero(found).flatten().tolist()} == {*order[:keep].tolist()}
    assert torch.equal(found[found != 0], delta[found != 0])


def test_falsify_merge_003_the_mean_of_many_drops_is_the_tensor() -> None:
    """Within six standard errors; without the quotient it is not."""
    delta = torch.linspace(-1, 1, 301)
    draws, density = 2000, 0.3
    total, bare = torch.zeros(301, dtype=torch.float64), torch.zeros(301, dtype=torch.float64)
    for seed in range(draws):
        total += Drop(seed, "1 w", density, True)(delta).double()
        bare += Drop(seed, "1 w", density, False)(delta).double()
    error = delta.abs().double() * math.sqrt((1 - density) / density / draws)
    assert bool(((total / draws - delta.double()).abs() <= 6 * error + 1e-9).all())
    assert bool(((bare / draws - delta.double()).abs() > 6 * error).any())


def test_drops_differ_by_model_and_tensor_and_seed() -> None:
    delta = torch.ones(1000)
    masks = [Drop(seed, name, 0.5, True)(delta) for seed, name in ((0, "1 w"), (0, "2 w"), (0, "1 v"), (1, "1 w"))]
    assert len({mask.numpy().tobytes() for mask in masks}) == 4


def test_memory_stays_under_two_hundred_megabytes(tmp_path: Path) -> None:
    """Two models with an embedding of 56 MB each: what a merge adds to the interpreter is a few pieces."""
    code = """
import json, resource, sys, torch
from pathlib import Path
from tests.post.small_models import CONFIG
from samebits.model.huggingface import save_folder
from samebits.model.model import Model
from samebits.post.merge_recipe import recipe_of
from samebits.post.merging import merge
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
recipe = json.loads(sys.argv[1])
small = [{**each, "model": sys.argv[3]} for each in recipe["models"][:1]]
merge(recipe_of({**recipe, "models": small}, "small"), Path(sys.argv[2] + ".small"))
before = peak()
merge(recipe_of(recipe, "recipe"), Path(sys.argv[2]))
print(peak() - before)
"""
    from dataclasses import replace

    from tests.post.small_models import CONFIG

    from samebits.model.huggingface import save_folder
    from samebits.model.model import Model

    large = replace(CONFIG, vocab_size=49152, hidden_size=576, num_hidden_layers=1)
    for seed in (0, 1):
        save_folder(Model.new(large, seed).to(dtype=torch.bfloat16), tmp_path / str(seed))
    save_folder(Model.new(CONFIG, 0), tmp_path / "small")
    inputs = [{"model": str(tmp_path / str(seed)), "parameters": {"weight": 0.5}} for seed in (0, 1)]
    recipe = {"models": inputs, "merge_method": "linear"}
    words = [sys.executable, "-c", code, json.dumps(recipe), str(tmp_path / "out"), str(tmp_path / "small")]
    ended = subprocess.run(words, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert int(ended.stdout) < 60_000, f"{ended.stdout} KB"


WORDS = [sys.executable, "-m", "samebits.cli", "merge"]


def merge_recipe(recipe: dict[str, Any], out: Path, calls: int = 0) -> None:
    """Killed at the call of this number that tells of progress."""
    merge(recipe_of(recipe, "recipe"), out, tell=KillAfter(calls))


def test_the_command_killed_and_full_goes_on(at: dict[str, str], tmp_path: Path) -> None:
    """Killed between two tensors, then out of space: no folder; the last run has the bits of an undisturbed one."""
    recipe, out = every_method("ties", at), tmp_path / "out"
    merge_recipe(recipe, tmp_path / "whole")
    assert in_a_process(merge_recipe, recipe, out, 10) == KILLED and not out.exists() and hidden_folder(out).is_dir()
    assert in_a_process(on_a_full_disk, 20_000, ".out.part", merge_recipe, recipe, out) == FULL and not out.exists()
    document = tmp_path / "recipe.json"
    document.write_text(json.dumps(recipe))
    ended = subprocess.run([*WORDS, str(document), "--out", str(out), "--json"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    whole = json.loads((tmp_path / "whole" / "samebits.json").read_text())
    assert json.loads(ended.stdout)["digest"] == whole["digest"] in (out / "README.md").read_text()
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert load(str(out), "bfloat16").model.config.num_hidden_layers == 3


def test_a_dry_run_writes_nothing(at: dict[str, str], tmp_path: Path) -> None:
    document = tmp_path / "recipe.yaml"
    document.write_text(json.dumps(recipes(at)["slerp"]))
    words = [*WORDS, str(document), "--out", str(tmp_path / "out"), "--dry-run"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "slerp of" in shown and "model.layers.2.mlp.up_proj.weight  BF16 [40, 16]  t 0.7" in shown
    assert sorted(tmp_path.iterdir()) == [document]


@pytest.fixture
def spoiled(at: dict[str, str], tmp_path: Path) -> Iterator[Path]:
    """A copy of model b, to be spoiled."""
    shutil.copytree(at["b"], tmp_path / "spoiled")
    yield tmp_path / "spoiled"


def bad_recipes(at: dict[str, str]) -> dict[str, tuple[dict[str, Any], str]]:
    good = every_method("ties", at)
    weight = {"weight": 0.5}
    return {
        "method": ({**good, "merge_method": "tie"}, "merge_method is 'tie'; did you mean 'ties'"),
        "key": ({**good, "modles": []}, "unknown key 'modles'"),
        "parameter": ({**good, "parameters": {"gamma": 1}}, "unknown key 'gamma'; allowed: weight"),
        "density": ({**good, "parameters": {"density": 1.5}}, "density: is 1.5; allowed: 0 to 1"),
        "nan": ({**good, "parameters": {"lambda": math.nan}}, "lambda: is nan; allowed: a finite number"),
        "both": ({**good, "slices": []}, "has both models and slices"),
        "base": ({**good, "base_model": None}, "ties needs a base_model"),
        "twice": ({**good, "models": [good["models"][0]] * 2}, "each once"),
        "slerp of three": (
            {**good, "merge_method": "slerp", "models": [{"model": at[n]} for n in "abc"]},
            "1 to 2 models",
        ),
        "no weight": ({**good, "models": [{"model": at["b"]}]}, "ties needs weight for model.embed_tokens.weight of"),
        "no folder": (
            {**good, "models": [{"model": "/nowhere", "parameters": weight}]},
            "/nowhere: has no config.json",
        ),
        "dtype": ({**good, "dtype": "int8"}, "dtype is 'int8'; allowed: float32"),
        "union": ({**good, "tokenizer_source": "union"}, "tokenizer_source is union"),
        "stranger": ({**good, "tokenizer_source": "/x"}, "tokenizer_source is '/x'; allowed: base"),
        "range": (
            {
                "slices": [{"sources": [{"model": at["a"], "layer_range": [1, 9], "parameters": weight}]}],
                "merge_method": "linear",
            },
            "layers 1 to 9 of 3",
        ),
        "zero": (
            {
                "models": [{"model": at["a"], "parameters": {"weight": w}} for w in (1,)]
                + [{"model": at["b"], "parameters": {"weight": -1}}],
                "merge_method": "linear",
            },
            "add up to 0",
        ),
        "empty list": ({**good, "parameters": {"lambda": []}}, "allowed: numbers, or conditions, at least one"),
    }


@pytest.mark.parametrize("fault", bad_recipes(dict.fromkeys("abcd", "")))
def test_a_bad_recipe_is_refused(fault: str, at: dict[str, str], tmp_path: Path) -> None:
    recipe, message = bad_recipes(at)[fault]
    with pytest.raises(ValueError) as error:
        merge(recipe_of(recipe, "recipe.yaml"), tmp_path / "out")
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fault", ["shape", "missing", "more"])
def test_falsify_merge_005_unlike_models_are_refused(
    fault: str, spoiled: Path, at: dict[str, str], tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    weights = load_file(spoiled / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    if fault == "shape":
        weights[name] = weights[name].T.contiguous()
    elif fault == "missing":
        del weights[name]
    else:
        weights["model.layers.1.mlp.up_proj.bias"] = torch.zeros(40)
    save_file(weights, spoiled / "model.safetensors")
    recipe = every_method("linear", {**at, "b": str(spoiled)})
    with pytest.raises(ValueError, match=r"up_proj\.(weight|bias).*allowed: the same"):
        merge(recipe_of(recipe, "recipe"), tmp_path / "out")


def test_other_tokenizers_are_refused_where_one_is_chosen(spoiled: Path, at: dict[str, str], tmp_path: Path) -> None:
    words = json.loads((spoiled / "tokenizer.json").read_text())
    words["model"]["vocab"] = dict(
        zip(words["model"]["vocab"], reversed(words["model"]["vocab"].values()), strict=True)
    )
    (spoiled / "tokenizer.json").write_text(json.dumps(words))
    recipe = {**every_method("ties", {**at, "b": str(spoiled)}), "tokenizer_source": "base"}
    with pytest.raises(ValueError, match="numbers its tokens otherwise"):
        merge(recipe_of(recipe, "recipe"), tmp_path / "out")


def test_values_between_layers() -> None:
    """A list is a line through its points; of conditions the first that fits counts."""
    conditions = [{"filter": "mlp", "value": [0.0, 1.0, 3.0]}, {"filter": "*", "value": 7.0}]
    assert [value_of(conditions, "x.mlp.y", at) for at in (0.0, 0.25, 0.5, 0.75, 1.0)] == [0.0, 0.5, 1.0, 2.0, 3.0]
    assert value_of(conditions, "x.attn", 0.5) == 7.0
    assert value_of({"filter": "mlp", "value": 2.0}, "x.attn", 0.0) is None
