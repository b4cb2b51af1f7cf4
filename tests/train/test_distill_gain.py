"""FALSIFY-ALBOR-005 by runs in folders: a student with a teacher beats the same without one, on text that neither saw.

The teacher is trained here; `tests/long/test_distillation.py` has SmolLM2 for one. The contract distill_gain asks the
same of runs in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.train.distill_gain import held_out_loss

from samebits.train.configuration import DataSection
from samebits.train.configuration_file import read_text
from samebits.train.contracts.distill_gain.reference import p_of_smaller, upper_tail
from samebits.train.data import documents, load
from samebits.train.distill_configuration import read_text as read_distillation
from samebits.train.distill_running import distill, prepare
from samebits.train.exporting import export
from samebits.train.running import run

SEEDS = range(5)
HELD_OUT = 60
TEXT = """
model:
  preset: tiny
  overrides: {{vocab_size: 272, hidden_size: 48, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1,
              head_dim: 16, intermediate_size: 96}}
data: {{source: text, paths: [{folder}/{of}], max_length: 32}}
optimizer: {{lr: 1e-2, warmup_steps: 3, min_lr_ratio: 0.1, beta2: 0.95}}
training: {{seed: 1, micro_batch_size: 8, num_train_epochs: 4, max_steps: 100, save_steps: 1000, waive: [CFG-OB7]}}
monitoring: {{peak_flops: 1e12}}
"""
# Little text, seen several times: what a teacher knows of more text is worth most here.
STUDENT = ("model.overrides.hidden_size=32", "model.overrides.intermediate_size=64", "training.max_steps=32")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources of the standard library: many for the teacher, a part of one for the student, others to judge by."""
    folder, parts = tmp_path_factory.mktemp("texts"), {"teacher": (0, 12), "student": (12, 13), "held": (20, 26)}
    section = DataSection(max_length=32, source="stdlib")
    sources = [text for text, _ in zip(documents(section), range(26), strict=False)]
    for name, (first, last) in parts.items():
        (folder / name).mkdir()
        for number, source in enumerate(sources[first:last]):
            (folder / name / f"{number}.txt").write_text(source[:4000])
    config = read_text(TEXT.format(folder=folder, of="teacher"))
    run(config, folder / "run")
    export(config, folder / "run", folder / "model")
    return folder


def losses(texts: Path, out: Path, seed: int) -> tuple[float, float]:
    """(without, with a teacher)."""
    held = load(DataSection(max_length=32, source="text", paths=[str(texts / "held")]))
    given, text = (*STUDENT, f"training.seed={seed}"), TEXT.format(folder=texts, of="student")
    plain = read_text(text, given)
    run(plain, out / f"plain-{seed}")
    named = f"teacher_model_name_or_path: {texts / 'model'}, temperature: 1.0, alpha: 0.9"
    taught = read_distillation(f"{text}distillation: {{{named}}}\n", given)
    distill(prepare(taught), out / f"taught-{seed}")
    found = [
        held_out_loss(config, out / f"{name}-{seed}", held, HELD_OUT)
        for name, config in (("plain", plain), ("taught", taught))
    ]
    return found[0], found[1]


def test_a_teacher_helps(texts: Path, tmp_path: Path) -> None:
    without, taught = zip(*(losses(texts, tmp_path, seed) for seed in SEEDS), strict=True)
    assert p_of_smaller(without, taught) < 0.05, (without, taught)


def test_the_judge_can_say_no() -> None:
    """Planted: no difference at all, the wrong sign, and noise as large as the gain."""
    assert p_of_smaller([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 1.0
    assert p_of_smaller([1.0, 2.0, 3.0], [0.5, 1.5, 2.5]) == 1.0
    assert p_of_smaller([1.0, 2.0, 3.0], [1.5, 2.4, 3.6]) > 0.95
    assert p_of_smaller([1.0, 2.0, 3.0], [0.5, 2.4, 2.6]) > 0.05
    # Tables of Student's t, one-sided.
    for freedom, t in ((4, 2.132), (5, 2.015), (9, 1.833)):
        assert abs(upper_tail(t, freedom) - 0.05) < 1e-4 and abs(upper_tail(-t, freedom) - 0.95) < 1e-4
