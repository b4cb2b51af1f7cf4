"""Training plans as rows of numbers, and which obligations the validator refuses each of them by.

Knows no arithmetic of plans; the validator is called as a run would call it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from samebits.train.algebra import Plan
from samebits.train.plan_rules import Refusal, check, check_counted, from_mapping

OF_PLAN = (
    "num_sequences",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "ranks",
    "max_length",
    "num_train_epochs",
    "max_steps",
    "warmup_steps",
    "lr",
    "min_lr_ratio",
    "max_repeats",
)
OF_MODEL = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "tie_word_embeddings",
)
# Then the updates that a run counted, and whether the file has a key that nothing reads.
COLUMNS = (*OF_PLAN, *OF_MODEL, "updates", "stray")
OBLIGATIONS = 11
REAL = ("lr", "min_lr_ratio")


def refused(
    plans: Tensor,
    *,
    judge: Callable[[Plan], list[Refusal]] = check,
    read: Callable[[Mapping[str, Any]], Plan] = from_mapping,
) -> Tensor:
    """(rows, 12) float64: 1 for each obligation CFG-OB1 to CFG-OB11 by which a plan is refused, else 0.

    The last column is the number of epochs that the refusal by CFG-OB1 asks for. max_steps 0 stands for none."""
    return torch.tensor([_row(row, judge, read) for row in plans.tolist()], dtype=torch.float64, device=plans.device)


def _row(
    row: list[float], judge: Callable[[Plan], list[Refusal]], read: Callable[[Mapping[str, Any]], Plan]
) -> list[float]:
    named = {name: value if name in REAL else int(value) for name, value in zip(COLUMNS, row, strict=True)}
    values: dict[str, Any] = {name: named[name] for name in OF_PLAN}
    values["max_steps"] = values["max_steps"] or None
    values["architecture"] = {name: named[name] for name in OF_MODEL} | {
        "tie_word_embeddings": bool(named["tie_word_embeddings"])
    }
    if named["stray"]:
        values["grad_accum"] = 1
    found = [0.0] * (OBLIGATIONS + 1)
    try:
        plan = read(values)
    except ValueError as error:
        found[_number(str(error))] = 1.0
        return found
    for refusal in [*judge(plan), *check_counted(plan, int(named["updates"]))]:
        found[_number(refusal.obligation)] = 1.0
        if refusal.obligation == "CFG-OB1":
            found[OBLIGATIONS] = float(re.findall(r"([0-9,]+) epochs needed", refusal.message)[0].replace(",", ""))
    return found


def _number(text: str) -> int:
    """The place of the obligation that a refusal names first."""
    named = re.match(r"CFG-OB([0-9]+)", text)
    if named is None:
        raise ValueError(f"a refusal names no obligation: {text}")
    return int(named[1]) - 1
