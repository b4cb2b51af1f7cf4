"""Pruning: exactly the share, by the published rule, nothing else touched."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.post.fresh_process import FULL, KILLED, KillAfter, in_a_process, on_a_full_disk
from tests.post.small_models import CONFIG

from samebits.model.batch import Batch
from samebits.model.huggingface import save_folder
from samebits.model.loading import Loaded, load
from samebits.model.model import Model
from samebits.model.tokenizer import Tokenizer
from samebits.numerics.bits import same_bits
from samebits.post.calibration import LENGTH, sequences_of, squares
from samebits.post.folder import hidden_folder
from samebits.post.pruning import Job, prune, thin
from samebits.post.sparsity import pruned, share_of

TEXT = " ".join(f"def f{number}(x): return x + {number}" for number in range(60))


def loaded_small() -> Loaded:
    return Loaded(model=Model.new(CONFIG, 4), tokenizer=Tokenizer.of_bytes())


@pytest.fixture(scope="module")
def small() -> Loaded:
    return loaded_small()


@pytest.fixture(scope="module")
def flowing(small: Loaded) -> dict[str, torch.Tensor]:
    return squares(small.model, sequences_of([TEXT], small.tokenizer, 2 * LENGTH), lambda _: None)


def published(weight: torch.Tensor, inputs: torch.Tensor, sparsity: float) -> torch.Tensor:
    """WANDA as it is written down: |W| times the norm of each input, the least of each row, by a stable sort."""
    metric = weight.double().abs() * inputs.double().norm(dim=0)
    order = torch.sort(metric, dim=-1, stable=True).indices[:, : int(weight.shape[1] * sparsity)]
    return torch.zeros(weight.shape, dtype=torch.bool).scatter_(1, order, True)


def test_the_mask_is_that_of_the_published_method(small: Loaded, flowing: dict[str, torch.Tensor]) -> None:
    """On a layer whose inputs are known: those that the first layer's norm gives for the calibration text."""
    name = "model.layers.0.self_attn.q_proj.weight"
    weights = small.model.weights
    inputs = []
    for sequence in sequences_of([TEXT], small.tokenizer, 2 * LENGTH):
        x = small.model.model.embed_tokens(Batch.of([sequence]).ids)
        inputs.append(small.model.model.layers[0].input_layernorm(x).detach())
    wanted = published(weights[name], torch.cat(inputs), 0.5)
    found = pruned(weights[name], sparsity=0.5, squares=flowing[name])
    assert torch.equal(found == 0, wanted) and int(wanted.sum()) == wanted.numel() // 2
    assert not torch.equal(pruned(weights[name], sparsity=0.5) == 0, wanted), "magnitude alone is another mask"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_falsify_albor_008_exactly_half_of_every_matrix_is_zero(
    dtype: str, small: Loaded, flowing: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """prune --sparsity 0.5 by WANDA: exactly 50 % zeros in every pruned matrix and every row; the rest untouched."""
    facts = prune(Job(source="small", loaded=small, squares=flowing, dtype=dtype), tmp_path / "out")
    found = load(str(tmp_path / "out"), dtype).model.weights
    matrices = 0
    for name, weight in found.items():
        before = small.model.weights[name].to(weight.dtype)
        if name.endswith("_proj.weight"):
            matrices += 1
            assert (weight == 0).sum(1).tolist() == [weight.shape[1] // 2] * len(weight), name
            assert same_bits(weight[weight != 0], before[weight != 0])
        else:
            assert same_bits(weight, before), name
    assert matrices == 7 * CONFIG.num_hidden_layers and 2 * facts["zeros"] == facts["pruned_weights"]
    assert facts["digest"] in (tmp_path / "out" / "README.md").read_text()


def test_a_threshold_prunes_more_where_scores_are_equal() -> None:
    """Planted fault: everything up to a threshold goes; equal scores make that more than half."""
    weight = torch.ones(4, 8)
    threshold = weight.abs().flatten().sort().values[16]
    assert int((weight.abs() <= threshold).sum()) == 32 and int((pruned(weight, sparsity=0.5) == 0).sum()) == 16


@pytest.mark.parametrize("sparsity", [0.0, 0.1, 0.333, 0.5, 0.9, 1.0])
def test_falsify_prune_001_the_share_of_each_group(sparsity: float) -> None:
    weight = torch.randn(9, 31, generator=torch.Generator().manual_seed(0))
    by_row = pruned(weight, sparsity=sparsity, squares=torch.rand(31, dtype=torch.float64) + 0.1)
    assert (by_row == 0).sum(1).tolist() == [int(sparsity * 31)] * 9
    assert int((pruned(weight, sparsity=sparsity) == 0).sum()) == int(sparsity * 9 * 31)


@pytest.mark.parametrize(
    ("sparsity", "count", "wanted"), [(0.29, 100, 29), (0.58, 50, 29), (0.7, 90, 63), (0.57, 300, 171), (1 / 3, 3, 1)]
)
def test_the_share_is_the_number_that_was_written(sparsity: float, count: int, wanted: int) -> None:
    """0.29 of 100 were 28: the float64 next to 0.29 is below it."""
    weight = torch.randn(3, count, generator=torch.Generator().manual_seed(count))
    by_row = pruned(weight, sparsity=sparsity, squares=torch.ones(count, dtype=torch.float64))
    assert (by_row == 0).sum(1).tolist() == [wanted] * 3
    assert int((pruned(weight[:1], sparsity=sparsity) == 0).sum()) == wanted


def test_every_share_in_hundredths_is_exact() -> None:
    """Planted beside it: the floor of the product in float64, which is one short for some."""
    cases = [(part, count) for part in range(101) for count in (1, 7, 31, 50, 100, 288, 576, 134515008)]
    assert all(share_of(count, part / 100) == part * count // 100 for part, count in cases)
    assert any(math.floor(part / 100 * count) != part * count // 100 for part, count in cases)
    assert share_of(2**40, math.nextafter(0.5, 0)) == 2**39 - 1 and share_of(5, math.nextafter(0.4, 0)) == 1


def test_falsify_prune_002_the_least_go_and_of_equals_the_first() -> None:
    weight = torch.tensor([[1.0, -3.0, 1.0, 2.0, -1.0, 5.0]])
    assert pruned(weight, sparsity=0.5).tolist() == [[0.0, -3.0, 0.0, 2.0, 0.0, 5.0]]
    assert pruned(weight, sparsity=0.34).tolist() == [[0.0, -3.0, 0.0, 2.0, -1.0, 5.0]]


def test_falsify_prune_004_of_equal_weights_the_quieter_input_goes() -> None:
    found = pruned(torch.tensor([[2.0, 2.0]]), sparsity=0.5, squares=torch.tensor([25.0, 1.0], dtype=torch.float64))
    assert found.tolist() == [[2.0, 0.0]]


@pytest.mark.parametrize("method", ["magnitude", "wanda"])
def test_two_of_every_four(method: str, small: Loaded, flowing: dict[str, torch.Tensor]) -> None:
    job = Job(source="small", loaded=small, method=method, pattern=True, squares=flowing)
    for name in (name for name in small.model.weights if job.thinned(name)):
        fours = thin(job, name).reshape(-1, 4)
        assert (fours == 0).sum(1).tolist() == [2] * len(fours)


def prune_small(out: Path, calls: int = 0) -> None:
    """The small model by magnitude; killed at the call of this number that tells of progress."""
    prune(Job(source="small", loaded=loaded_small(), method="magnitude"), out, tell=KillAfter(calls))


def test_killed_or_full_leaves_no_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prune_small(tmp_path / "whole")
    assert in_a_process(prune_small, out, 6) == KILLED and not out.exists() and hidden_folder(out).is_dir()
    assert in_a_process(on_a_full_disk, 20_000, ".out.part", prune_small, out) == FULL and not out.exists()
    prune_small(out)
    names = ("model.safetensors", "samebits.json", "README.md")
    assert all((out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names)


def test_the_command(small: Loaded, tmp_path: Path) -> None:
    save_folder(small.model, tmp_path / "model", small.tokenizer)
    (tmp_path / "text.txt").write_text(TEXT)
    words = [sys.executable, "-m", "samebits.cli", "prune", str(tmp_path / "model"), "--out", str(tmp_path / "out")]
    words += ["--calibration", str(tmp_path / "text.txt")]
    dry = subprocess.run([*words, "--dry-run"], capture_output=True, text=True, check=True).stdout
    assert "model.layers.0.mlp.up_proj.weight  [40, 16]  wanda 0.5" in dry and not (tmp_path / "out").exists()
    told = json.loads(subprocess.run([*words, "--json"], capture_output=True, text=True, check=True).stdout)
    assert 2 * told["zeros"] == told["pruned_weights"] and told["settings"]["calibration"]["tokens"] >= LENGTH
    again = subprocess.run(words, capture_output=True, text=True)
    assert again.returncode == 2 and "is there already; allowed: a new folder" in again.stderr


@pytest.mark.parametrize("option", [("--tokens", "1024"), ("--calibration", "text.txt")])
def test_calibration_without_wanda_is_refused(option: tuple[str, str], tmp_path: Path) -> None:
    """--tokens was taken and not used."""
    words = [sys.executable, "-m", "samebits.cli", "prune", "tiny@0", "--out", str(tmp_path / "out")]
    found = subprocess.run([*words, "--method", "magnitude", *option], capture_output=True, text=True)
    assert found.returncode == 2 and f"prune: {option[0]} requires --method wanda" in found.stderr


@pytest.mark.parametrize(
    "changed", [{"method": "random"}, {"sparsity": 1.5}, {"pattern": True, "sparsity": 0.3}, {"dtype": "int8"}]
)
def test_a_bad_job_is_refused(changed: dict[str, object], small: Loaded) -> None:
    with pytest.raises(ValueError, match=r"prune: .*allowed: "):
        Job(**{"source": "small", "loaded": small, **changed})  # type: ignore[arg-type]


def test_short_text_is_no_calibration(small: Loaded) -> None:
    with pytest.raises(ValueError, match="calibration: the text has 5 tokens; allowed: at least 512"):
        sequences_of(["hello"], small.tokenizer, 8192)


def test_what_flows_in_must_be_finite(small: Loaded) -> None:
    """Planted fault: one layer so large that sums of squares end in NaN. The first of each row by index went, as the
    least of equals, and the command said that it held."""
    model = loaded_small().model
    for name in ("gate_proj", "up_proj"):
        weight = model.weights[f"model.layers.0.mlp.{name}.weight"]
        model.weights[f"model.layers.0.mlp.{name}.weight"] = weight * 1e30
    with pytest.raises(
        ValueError, match=r"what flows into model\.layers\.[01]\..* is not finite; allowed: finite numb"
    ):
        squares(model, sequences_of([TEXT], small.tokenizer, LENGTH), lambda _: None)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.embed_tokens.weight"])
def test_a_number_that_the_dtype_cannot_hold_is_refused(name: str, tmp_path: Path) -> None:
    """Of weights that are not pruned too: they became infinite, and the command ended well."""
    loaded = loaded_small()
    loaded.model.weights[name] = loaded.model.weights[name] + 1e6
    job = Job(source="small", loaded=loaded, method="magnitude", dtype="float16")
    with pytest.raises(ValueError, match=rf"{name} has numbers that are not finite in float16; allowed: finite ones"):
        prune(job, tmp_path / "out")
    assert not (tmp_path / "out").exists()
