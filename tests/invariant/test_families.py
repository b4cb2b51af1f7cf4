"""Default transformers models, no word about attention: ten families here, all of them in tests/long."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from tests.invariant.families import FAMILIES, KEPT, REFUSED, judge, verdict

from samebits.invariant import escapes, refused

QUICK = ("llama", "gpt2", "opt", "qwen3_moe", "deepseek_v3", "bloom", "bert", "t5", "gpt_oss", "llama4_text")


@pytest.mark.parametrize("name", QUICK)
def test_a_default_model_keeps_its_bits(name: str) -> None:
    """Alone, batched, padded on both sides, in chunks, decoded; logits, input gradients and all weight gradients."""
    assert verdict(judge(name)) == KEPT


def test_in_bfloat16_too() -> None:
    assert verdict(judge("llama", torch.bfloat16)) == KEPT


def test_without_the_mode_they_do_not() -> None:
    """The negative control."""
    assert verdict(judge("llama", around=nullcontext)).startswith("WRONG")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_kept_is_refused_with_a_reason(name: str) -> None:
    assert REFUSED[name] in verdict(judge(name))


@pytest.mark.parametrize("installed", ["5.17.0", "5.18.0", "6.0.0.dev0"])
def test_a_model_that_looked_ahead_is_refused_in_the_versions_that_did(
    installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found on a machine with transformers 5.17: alone and padded, doge was two functions."""
    monkeypatch.setattr(refused, "version", lambda _: installed)
    monkeypatch.setattr(escapes, "reason_of_model", refused.reason_of_model.__wrapped__)
    assert ("looks at later tokens" in verdict(judge("doge"))) == (installed == "5.17.0")


def test_there_are_more_than_seventy() -> None:
    assert len(FAMILIES) > 70 and set(QUICK) <= set(FAMILIES)
