"""A thousand steps of the tiny preset, twice and cut differently: finite, falling, one hash at every checkpoint."""

from __future__ import annotations

from pathlib import Path

from tests.train.small_run import TINY, average, rises, small, steps_of

from samebits.train import checkpoint, watch
from samebits.train.running import run

STEPS = 1000
LONG = (*TINY, f"training.max_steps={STEPS}", "optimizer.warmup_steps=100", "training.save_steps=100")


def test_a_thousand_steps(tmp_path: Path) -> None:
    """FALSIFY-ALBOR-001, 002 and 003 and FALSIFY-STABLE-001, at the lengths that they name."""
    # Sixteen sequences an update: of four, the average wanders by five per cent with the texts that come.
    cuts = {"whole": (16, 1), "apart": (4, 4)}
    for name, (micro_batch, accumulation) in cuts.items():
        cut = (f"training.micro_batch_size={micro_batch}", f"training.gradient_accumulation_steps={accumulation}")
        run(small(*LONG, *cut), tmp_path / name)
    one, other = (
        {step: checkpoint.read(tmp_path / name, step).digest for step in checkpoint.committed(tmp_path / name)}
        for name in cuts
    )
    assert one == other and set(one) == set(range(100, STEPS + 1, 100))
    steps = steps_of(tmp_path / "whole")
    losses = [event["loss"] for event in steps]
    assert len(losses) == STEPS and not rises(losses, after=100)
    assert average(losses, 100)[-1] < 0.6 * losses[0]
    error = watch.norm_error(tuple(each.shape) for each in checkpoint.read(tmp_path / "whole").weights.values())
    assert max(event["norm_after"] for event in steps) <= 1 + error
