"""The portable goldens hold on this machine, whatever it is; and the replay names what differs."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from samebits import native, ops
from samebits.cli import main
from samebits.native.launch_numbers import launching
from samebits.ops._cpu.elements import ElementKernels
from samebits.parity import portable
from samebits.parity.portable.bits import digest
from samebits.parity.portable.drawing import RECIPES, Draw
from samebits.parity.portable.operators import CASES

CPU = torch.device("cpu")
RECORDED = portable.read()


# All groups by the widest set; by the others those whose kernels differ most between sets (tests/long has the rest).
WIDEST = native.instruction_sets()[-1]
REPLAYED = [
    (group, isa)
    for isa in native.instruction_sets()
    for group in portable.GROUPS
    if isa == WIDEST or group.startswith("operators") or group == "functions float32"
]


@pytest.mark.parametrize(("group", "instruction_set"), REPLAYED)
def test_this_machine_gives_the_record(group: str, instruction_set: str) -> None:
    """digests(group) == goldens/portable.json, by every instruction set that can run here."""
    found = portable.compare(group, RECORDED[group], portable.digests_of(group, instruction_set=instruction_set))
    assert found.equal, f"{group} on {instruction_set}: {found.differing[:5]}"
    assert found.digest == found.recorded and found.results > 10


def test_every_operator_is_recorded() -> None:
    """A new operator joins `CASES`, or is said here to be part of another case."""
    within = {
        "AdamW": "adamw_",
        "DenseCache": "attention",
        "PagedCache": "attention",
        "RopeScaling": "rope",
        "add_rmsnorm": "rmsnorm",
        "attention_with_lse": "attention packed",
        "clip_grad_norm_": "grad_norm",
        "embedding_gradient_": "embedding",
        "grouped_matmul_accumulate_": "grouped_matmul",
        "linear_cross_entropy": "cross_entropy",
        "logprob_of_logits": "selected_logprob",
        "matmul_accumulate_": "matmul",
    }
    assert {within.get(name, name) for name in ops.__all__} <= set(CASES)
    cases = {name.split(":")[0] for name in RECORDED["operators float32"]}
    assert cases == set(CASES)


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_results_say_something(case: str) -> None:
    """On ordinary values every result is finite and not one number again and again."""
    for name, value in CASES[case](Draw(case, "normal", "float32", CPU)).items():
        assert bool(value.isfinite().all()), f"{case}: {name}"
        assert value.numel() == 1 or value.unique().numel() > value.numel() ** 0.5 / 2, f"{case}: {name}"


@pytest.mark.parametrize("format", ["float32", "bfloat16", "float16"])
def test_the_recipes_draw_what_they_say(format: str) -> None:
    drawn = {recipe: Draw("a case", recipe, format, CPU).tensor(64, 64) for recipe in RECIPES}
    smallest, bits = (
        torch.finfo(drawn["tiny"].dtype).smallest_normal,
        torch.int32 if format == "float32" else torch.int16,
    )
    subnormal = (drawn["tiny"].abs() < smallest) & (drawn["tiny"] != 0)
    assert float(subnormal.double().mean()) > 0.3
    zeros = drawn["zeros_signed"] == 0
    assert bool(
        (zeros & (drawn["zeros_signed"].view(bits) < 0)).any()
        and (zeros & (drawn["zeros_signed"].view(bits) == 0)).any()
    )
    assert float(drawn["wide"].abs().max() / drawn["wide"].abs().min()) > 2**20
    assert bool(drawn["normal"].isfinite().all())


def test_one_flipped_bit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the last bit of one element of one operator's output."""
    honest = ElementKernels.forward

    def flipped(self: ElementKernels, *inputs: torch.Tensor) -> torch.Tensor:
        y = honest(self, *inputs)
        if self.name == "swiglu":
            y.view(torch.int32).view(-1)[17] ^= 1
        return y

    monkeypatch.setattr(ElementKernels, "forward", flipped)
    found = portable.compare(
        "operators float32", RECORDED["operators float32"], portable.digests_of("operators float32")
    )
    assert not found.equal and found.digest != found.recorded
    assert set(found.differing) == {f"swiglu: y, {recipe}" for recipe in RECIPES}


def test_a_root_that_is_not_ours_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: a gradient norm one ulp higher, as torch's root on x86 gives it: training parts."""
    module = importlib.import_module("samebits.ops.grad_norm")
    honest = module.square_root

    def off(x: torch.Tensor, backend: str | None = None) -> torch.Tensor:
        root = honest(x, backend)
        return torch.nextafter(root, root.new_tensor(torch.inf))

    monkeypatch.setattr(module, "square_root", off)
    found = portable.compare("training float32", RECORDED["training float32"], portable.digests_of("training float32"))
    assert {"norm 01 to 05", "weights 05"} <= set(found.differing)


def test_digests_see_bits() -> None:
    """Signs of zero, shapes and dtypes count; which NaN it is does not."""
    zero, nan = torch.zeros(4), torch.full((4,), torch.nan)
    other_nan = torch.from_numpy(np.full(4, 0xFFC00001, np.uint32).view(np.float32))
    assert digest(zero) != digest(-zero) and digest(zero) != digest(zero.view(2, 2)) != digest(zero.int().view(2, 2))
    assert digest(zero) != digest(zero.bfloat16()) != digest(zero.half())
    assert digest(nan) == digest(other_nan) != digest(torch.full((4,), torch.inf))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        values = torch.tensor([1.0, 2.0, -0.0], dtype=dtype)
        assert digest(values.flip(0)) != digest(values) == digest(values.clone())


def test_recording_again_gives_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable, "GROUPS", ("functions float32", "tokens float32"))
    portable.record(tmp_path / "one.json")
    with launching(threads=1):
        portable.record(tmp_path / "two.json", instruction_set="baseline")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    document = json.loads((tmp_path / "one.json").read_text())
    assert document["groups"]["tokens float32"] == RECORDED["tokens float32"]
    assert list(document["groups"]["functions float32"]) == sorted(document["groups"]["functions float32"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "schema is None; allowed: 'samebits.portable/1'"),
        ('{"schema": "samebits.portable/1", "generator": "dice"}', "generator is 'dice'"),
        (f'{{"schema": "samebits.portable/1", "generator": "{portable.GENERATOR}", "groups": {{}}}}', "record it anew"),
    ],
)
def test_a_record_that_cannot_be_compared_with(text: str | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "portable.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(portable.UnreadableRecordError, match=message) as refused:
        portable.read(file)
    assert "\n" not in str(refused.value)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "samebits.cli", "check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300)


def test_the_command_without_a_gpu_judges_nothing() -> None:
    """Exit 3 and one line, in text and in JSON."""
    found = run("--portable", "--backend", "triton", "--json", CUDA_VISIBLE_DEVICES="")
    told = json.loads(found.stdout)
    assert found.returncode == 3 and told["verdict"] == "could not be judged" and "triton" in told["reason"]
    assert told["groups"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--portable", "--chain"), "--portable goes with --backend"),
        (("--record", "matmul"), "require --portable"),
        (("--portable", "--backend", "triton", "--record"), "takes no --record"),
        (("--portable", "--backend", "abacus"), "backend is 'abacus'; allowed: cpu, triton"),
        (("--portable", "--instruction-set", "abacus"), "cannot run on this CPU"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", *arguments])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and message in said and len(said.splitlines()) == 1


def test_replay_is_the_same_as_comparing_group_by_group() -> None:
    """What the command prints: every group of the backend, in order; on CUDA those of float32."""
    assert portable.groups_of("cpu") == portable.GROUPS
    assert portable.groups_of("triton") == (
        "functions float32",
        "operators float32",
        "training float32",
        "tokens float32",
    )
    first = next(portable.replay())
    assert first.group == portable.GROUPS[0] and first.equal
    assert list(inspect.signature(portable.replay).parameters) == ["backend", "instruction_set", "file"]
