"""Two runs beside each other: equal ones are equal, one flipped bit is named by step, block, operation and element."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.small_run import small
from torch import Tensor
from typer.testing import CliRunner

from samebits.cli import app
from samebits.cli.commands.diff import PROMISES
from samebits.ops.adamw import AdamW
from samebits.parity import run_diff
from samebits.parity.run_diff import compare
from samebits.train import events, lanes
from samebits.train.configuration import OptimizerSection
from samebits.train.observing import FINGERPRINTS
from samebits.train.running import run
from samebits.train.trainer import OURS, Parts
from samebits.train.trainer import made as optimizer_made
from samebits.train.watch import BreachError

KEPT = ("monitoring.fingerprint_steps=1",)


def flipping(weight: str, element: tuple[int, ...], step: int, *others: tuple[int, ...]) -> Parts:
    """Planted: at one step one bit of one element of one gradient is another; of more elements, where more are said."""
    calls = [0]

    def backward(*given: Any) -> lanes.Backward:
        calls[0] += 1
        found = lanes.backward(*given)
        if calls[0] == step:
            for each in (element, *others):
                found.gradients[weight].view(torch.int32)[each] ^= 1 << 3
        return found

    return replace(OURS, backward=backward)


def made(folder: Path, *settings: str, parts: Parts = OURS) -> Path:
    run(small(*KEPT, *settings), folder, parts=parts)
    return folder


def test_one_bit_of_one_gradient_at_step_seven_is_named(tmp_path: Path) -> None:
    weight, element = "model.layers.1.mlp.gate_proj.weight", (17, 30)
    one, other = made(tmp_path / "a"), made(tmp_path / "b", parts=flipping(weight, element, 7))
    found = compare(one, other)
    assert found.difference is not None and found.difference.place is not None
    place = found.difference.place
    assert (found.difference.step, found.promise, found.fingerprints) == (7, "repeat", 10)
    assert (place.weight, place.block, place.operation) == (weight, "layers.1.mlp", "gradient of gate_proj")
    assert (place.element, place.elements, place.flipped_bits, place.weights_differing) == (element, 1, "0x8", 1)
    told = CliRunner().invoke(app, ["diff", str(one), str(other)])
    assert told.exit_code == 1
    assert "they part at step 7" in told.output and f"{weight}[17, 30], bits 0x8 flipped" in told.output
    for line in (
        f"{one} | {other}\n",
        "before it: the same bits",
        "its two patterns differ in bit 3 (bit 0 is the last of the fraction)",
        "weights whose gradient differs: 1\n",
        "promise broken: repeat (run to run, same process or not)\n",
        "every setting that decides bits is the same; so is what is known of the machine\n",
    ):
        assert line in told.output, line
    document = json.loads(CliRunner().invoke(app, ["diff", str(one), str(other), "--json"]).stdout)
    assert (document["schema"], document["difference"]["step"]) == ("samebits.diff/1", 7)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([(31, 10)], "[17, 30], bits 0x8 flipped, at most 4 elements differ"),
        ([(17, 10)], "[17, 10], at most 2 elements differ"),
        ([(31, 10), (40, 30)], "[17, 10], the first row and the first column that differ, at most 6 elements differ"),
    ],
)
def test_of_several_elements_none_is_named_that_is_equal(
    others: list[tuple[int, int]], said: str, tmp_path: Path
) -> None:
    weight, short = "model.layers.1.mlp.gate_proj.weight", ("training.max_steps=2", "optimizer.min_lr_ratio=0")
    one = made(tmp_path / "a", *short)
    other = made(tmp_path / "b", *short, parts=flipping(weight, (17, 30), 2, *others))
    assert f"{weight}{said}" in CliRunner().invoke(app, ["diff", str(one), str(other)]).output


def test_the_promise_that_the_surroundings_free_is_named(tmp_path: Path) -> None:
    """In README's words; and two runs that say nothing of their gradients are told so."""
    short = ("training.max_steps=2", "optimizer.min_lr_ratio=0")
    cut = ("training.micro_batch_size=4", "training.gradient_accumulation_steps=2")
    one = made(tmp_path / "a", *short)
    other = made(tmp_path / "b", *short, *cut, parts=flipping("model.norm.weight", (3,), 2))
    told = CliRunner().invoke(app, ["diff", str(one), str(other)]).output
    assert "promise broken: micro (however a global batch is cut into micro-batches)" in told
    assert "every setting that decides bits is the same; other: micro_batch_size" in told
    run(small(*short), tmp_path / "bare")
    told = CliRunner().invoke(app, ["diff", str(one), str(tmp_path / "bare")])
    assert told.exit_code == 0 and "gradients: not compared; needed: fingerprints" in told.output


def test_promises_have_the_words_of_the_first_page() -> None:
    first = (Path(__file__).parents[2] / "README.md").read_text()
    assert set(PROMISES) == {"repeat", *run_diff.PROMISES.values()}
    for name, words in PROMISES.items():
        assert f"| `{name}` | {words} |" in first, name


def test_runs_cut_otherwise_are_the_same(tmp_path: Path) -> None:
    one = made(tmp_path / "a")
    other = made(tmp_path / "b", "training.micro_batch_size=4", "training.gradient_accumulation_steps=2")
    found = compare(one, other)
    assert found.difference is None and found.environment == {"micro_batch_size": (2, 4)} and not found.settings
    told = CliRunner().invoke(app, ["diff", str(one), str(other)])
    assert told.exit_code == 0 and "the same bits: 10 steps; gradients compared at 10 of them" in told.output


def test_a_setting_that_decides_bits_breaks_no_promise(tmp_path: Path) -> None:
    found = compare(made(tmp_path / "a"), made(tmp_path / "b", "training.seed=43"))
    assert found.difference is not None and found.difference.step == 1
    assert found.settings["training.seed"] == (42, 43) and found.promise == ""


def test_without_fingerprints_the_step_is_named(tmp_path: Path) -> None:
    run(small(), tmp_path / "a")
    run(small(), tmp_path / "b", parts=flipping("model.norm.weight", (3,), 4))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.difference is not None and found.difference.step >= 4
    assert found.difference.part != "update" and not found.difference.gradients_compared


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no events\.jsonl; allowed: the folder of a training run"):
        compare(tmp_path, tmp_path)


UPDATED = "model.layers.0.self_attn.v_proj.weight"
SHORT = ("training.max_steps=4", "optimizer.min_lr_ratio=0", "training.save_steps=1")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("runs") / "sound", *SHORT)


class Forgetting(AdamW):
    """Planted: from the third update on one weight stays as it is."""

    def step(self, closure: Any = None) -> Any:
        kept = self.weight.clone()
        super().step(closure)
        if self.state[self.weight]["step"] >= 3:
            self.weight.data.copy_(kept)


def forgetting(weights: dict[str, Tensor], section: OptimizerSection) -> AdamW:
    optimizer = Forgetting(optimizer_made(weights, section).param_groups)
    optimizer.weight = weights[UPDATED]
    return optimizer


def by_each(gradients: list[Tensor], norm: Tensor, max_norm: float) -> None:
    """Planted: as if the gradient were longer than it is, by less than the trainer's own check allows."""
    for each in gradients:
        each.mul_(max_norm / (float(norm) * (1 + 2e-7)))


def after(step: int, change: Any) -> Parts:
    """A backward pass that is given other examples, or gives other gradients, from a step on."""
    calls = [0]

    def backward(model: Any, examples: Any, cut: Any) -> lanes.Backward:
        calls[0] += 1
        return lanes.backward(model, change(examples) if calls[0] >= step else examples, cut)

    return replace(OURS, backward=backward)


def test_an_update_that_parts_is_named_as_one(sound: Path, tmp_path: Path) -> None:
    """Before, the step behind it was named, and the last norm's gradient, which only came first on the way back."""
    found = compare(sound, made(tmp_path / "b", *SHORT, parts=replace(OURS, optimizer=forgetting))).difference
    assert found is not None and (found.step, found.part) == (3, "update")
    assert found.place is not None and found.place.weight == UPDATED and found.place.weights_differing == 1
    told = CliRunner().invoke(app, ["diff", str(sound), str(tmp_path / "b")]).output
    assert "they part at step 3: its update" in told and "block layers.0.self_attn, update of v_proj" in told
    assert "gradients before clipping: the same bits" in told


def test_a_forward_pass_that_parts_is_blamed_on_no_gradient(sound: Path, tmp_path: Path) -> None:
    def shifted(examples: list[lanes.Example]) -> list[lanes.Example]:
        return [(inputs, np.where(targets < 0, targets, inputs)) for inputs, targets in examples]

    found = compare(sound, made(tmp_path / "b", *SHORT, parts=after(3, shifted))).difference
    assert found is not None and (found.step, found.part, found.weights_before) == (3, "forward", True)
    told = CliRunner().invoke(app, ["diff", str(sound), str(tmp_path / "b")]).output
    assert "equal, by the checkpoints of step 2" in told and "gradient of" not in told


def test_a_clipping_that_parts_is_named_though_all_gradients_are_equal(sound: Path, tmp_path: Path) -> None:
    found = compare(sound, made(tmp_path / "b", *SHORT, parts=replace(OURS, clip=by_each))).difference
    assert found is not None and (found.step, found.part) == (1, "clipping")
    assert found.gradients_compared and found.place is None


def test_a_setting_that_changed_when_a_run_was_resumed_breaks_no_promise(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    shutil.copytree(sound, folder)
    for step in (3, 4):
        shutil.rmtree(folder / f"step-{step:08d}")
    changed = small(*KEPT, *SHORT, "optimizer.weight_decay=0.5")
    run(changed, folder, resume=True, allow_changes=["optimizer.weight_decay"])
    found = compare(sound, folder)
    assert found.difference is not None and found.difference.step == 3 and found.promise == ""
    assert found.settings == {"optimizer.weight_decay": (0.1, 0.5)}


def test_a_breach_is_where_a_run_parts_from_one_that_went_on(sound: Path, tmp_path: Path) -> None:
    def unlearnable(model: Any, examples: Any, cut: Any) -> lanes.Backward:
        found = lanes.backward(model, examples, cut)
        return replace(found, gradients={**found.gradients, UPDATED: torch.zeros_like(found.gradients[UPDATED])})

    with pytest.raises(BreachError):
        made(tmp_path / "b", *SHORT, parts=replace(OURS, backward=unlearnable))
    found = compare(sound, tmp_path / "b").difference
    assert found is not None and (found.step, found.part) == (1, "breach")
    assert found.place is not None and found.place.weight == UPDATED


def rewritten(sound: Path, folder: Path, change: Any) -> Path:
    """The log of a run, each event of it changed."""
    folder.mkdir()
    log = [json.loads(line) for line in (sound / events.NAME).read_text().splitlines()]
    (folder / events.NAME).write_text("".join(f"{json.dumps(change(each))}\n" for each in log if change(each)))
    return folder


def test_zeros_of_two_signs_differ(sound: Path, tmp_path: Path) -> None:
    def with_loss(loss: float) -> Any:
        return lambda each: {**each, "loss": loss} if each["event"] == "step" and each["step"] == 2 else each

    folders = [rewritten(sound, tmp_path / str(loss), with_loss(loss)) for loss in (0.0, -0.0)]
    found = compare(*folders).difference
    assert found is not None and found.step == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda each: None if each["event"] == "start" else each, "has a step before any start"),
        (lambda each: {key: value for key, value in each.items() if key != "norm_after"}, "KeyError: 'norm_after'"),
    ],
)
def test_a_log_that_is_none_is_refused_by_name(sound: Path, tmp_path: Path, change: Any, words: str) -> None:
    folder = rewritten(sound, tmp_path / "b", change)
    with pytest.raises(ValueError, match=rf"b/events\.jsonl: .*{words}"):
        compare(sound, folder)


def test_runs_of_two_models_part_by_their_settings(sound: Path, tmp_path: Path) -> None:
    found = compare(sound, made(tmp_path / "b", *SHORT, "model.overrides.intermediate_size=96"))
    assert found.difference is not None and not found.difference.gradients_compared
    assert found.settings == {"model.overrides.intermediate_size": (80, 96)}


def test_a_fingerprint_that_a_kill_cut_short_costs_no_other(sound: Path, tmp_path: Path) -> None:
    """Before, the next line was glued to it, and no fingerprint of the run could be read any more."""
    folder = tmp_path / "b"
    shutil.copytree(sound, folder)
    for step in (3, 4):
        shutil.rmtree(folder / f"step-{step:08d}")
    lines = (folder / FINGERPRINTS).read_bytes().splitlines(keepends=True)
    (folder / FINGERPRINTS).write_bytes(b"".join(lines[:2]) + lines[2][:100])
    run(small(*KEPT, *SHORT), folder, resume=True)
    found = compare(sound, folder)
    assert found.difference is None and found.fingerprints == 4


def test_what_a_log_says_moves_no_cursor_and_begins_no_line(sound: Path, tmp_path: Path) -> None:
    """Planted: a setting with an escape, a line's end and a verdict behind it."""
    other = shutil.copytree(sound, tmp_path / "b")
    first, *rest = (other / events.NAME).read_text().splitlines()
    start = json.loads(first)
    start["settings"]["training.seed"] = "\x1b[31m7\nthe same bits"
    (other / events.NAME).write_text("\n".join([json.dumps(start), *rest]) + "\n")
    told = CliRunner().invoke(app, ["diff", str(sound), str(other)]).output
    assert r"training.seed: 42 | \x1b[31m7\nthe same bits (decides bits)" in told and "\x1b" not in told


def test_fingerprints_of_other_weights_are_not_counted_as_compared(sound: Path, tmp_path: Path) -> None:
    """Planted: one run kept those of another model; before, its gradients were said to be compared."""
    other = shutil.copytree(sound, tmp_path / "b")
    lines = [json.loads(line) for line in (other / FINGERPRINTS).read_text().splitlines()]
    renamed = [each | {"gradients": {f"{name}.x": one for name, one in each["gradients"].items()}} for each in lines]
    (other / FINGERPRINTS).write_text("".join(f"{json.dumps(each)}\n" for each in renamed))
    assert (compare(sound, sound).fingerprints, compare(sound, other).fingerprints) == (4, 0)


def test_a_log_with_other_values_is_refused_in_a_line(sound: Path, tmp_path: Path) -> None:
    other = shutil.copytree(sound, tmp_path / "b")
    log = [json.loads(line) for line in (other / events.NAME).read_text().splitlines()]
    for kind, changed in (
        ("start", {"environment": None}),
        ("start", {"settings": [1]}),
        ("checkpoint", {"digest": 3}),
    ):
        lines = [each | changed if each["event"] == kind else each for each in log]
        (other / events.NAME).write_text("".join(f"{json.dumps(each)}\n" for each in lines))
        with pytest.raises(
            ValueError, match=r"events\.jsonl: cannot be read: .*; allowed: lines as samebits wrote them"
        ):
            compare(sound, other)
