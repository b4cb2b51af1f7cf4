"""SmolLM2-135M on longer real text: the promises of tests/invariant/test_smollm2.py, over pages instead of lines."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from tests.invariant.conftest import in_parts, padded

from samebits.checker.model import check_model
from samebits.checker.model_loading import find_model, load_model
from samebits.invariant import invariant_mode
from samebits.numerics.bits import same_bits
from samebits.records.report import Verdict


def test_perplexity_and_forms_over_pages() -> None:
    from transformers import AutoTokenizer

    path = find_model("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    ids = torch.tensor(tokenizer(Path(argparse.__file__).read_text()[:24000]).input_ids)
    texts = [ids[row * 160 : row * 160 + 160 - 7 * (row % 5)] for row in range(16)]
    model, found = load_model("smollm2"), {}
    for batch in (1, 4, 16):
        losses = []
        with invariant_mode(), torch.no_grad():
            for start in range(0, 16, batch):
                rows, mask, positions, places = padded(texts[start : start + batch], "left" if batch == 4 else "right")
                logits = model(input_ids=rows, attention_mask=mask, position_ids=positions, use_cache=False).logits
                for row, place in enumerate(places):
                    chosen = torch.log_softmax(logits[row, place][:-1], -1).gather(-1, rows[row, place][1:, None])
                    losses.append(-chosen[:, 0])
        found[batch] = (math.fsum(torch.cat(losses).tolist()) / sum(map(len, losses))).hex()
    assert len(set(found.values())) == 1, found
    with invariant_mode(), torch.no_grad():
        whole = model(input_ids=texts[0][None]).logits[0]
        assert same_bits(in_parts(model, texts[0], (100, 1, 1, 58)), whole)
        assert same_bits(in_parts(model, texts[0][:80], (1,) * 80), whole[:80])


def test_the_command_holds_on_every_promise() -> None:
    report = check_model("smollm2")
    assert report.verdict is Verdict.HOLDS and len(report.findings) == 5
