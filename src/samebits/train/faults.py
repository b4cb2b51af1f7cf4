"""The ten planted faults of the training algebra: each replaces `check`, `from_mapping` or an algebra function.

Knows no test. Every one of them was, or could have been, a real run gone wrong without a word."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from samebits.train import algebra
from samebits.train.algebra import Architecture, Plan
from samebits.train.plan_rules import Rate, Refusal, check, from_mapping


def reach_not_compared(plan: Plan) -> list[Refusal]:
    """M1 (check): whether the epochs reach max_steps is not asked."""
    return [refusal for refusal in check(plan) if refusal.obligation != "CFG-OB1"]


def ceiling_for_floor(sequences: int, micro_batch: int, accumulation: int, ranks: int) -> int:
    """M2 (steps_per_epoch): a last, short update is counted."""
    return -(-sequences // (micro_batch * accumulation * ranks))


def ranks_left_out(sequences: int, micro_batch: int, accumulation: int, ranks: int) -> int:
    """M2 (steps_per_epoch), its other form: every rank is taken to see all data."""
    return sequences // (micro_batch * accumulation)


def floor_for_ceiling(max_steps: int, per_epoch: int) -> int:
    """M3 (least_epochs)."""
    return max_steps // per_epoch


def warmup_against_max_steps(plan: Plan) -> list[Refusal]:
    """M4 (check): warm-up is held against the steps asked for, not those made."""
    if plan.max_steps is None or 10 * plan.warmup_steps > plan.max_steps:
        return check(plan)
    return [refusal for refusal in check(plan) if refusal.obligation not in ("CFG-OB2", "CFG-OB3")]


def horizon_is_max_steps(max_steps: int) -> Rate:
    """M5 (learning_rate): the cosine ends at max_steps, where the run may never come."""

    def rate(step: int, *, lr: float, warmup_steps: int, steps: int, min_lr_ratio: float) -> float:
        return algebra.learning_rate(step, lr=lr, warmup_steps=warmup_steps, steps=max_steps, min_lr_ratio=min_lr_ratio)

    return rate


def no_decay(step: int, *, lr: float, warmup_steps: int, steps: int, min_lr_ratio: float) -> float:
    """M6 (learning_rate): the peak is kept."""
    return lr * min(step, warmup_steps) / warmup_steps


def accumulation_ignored(micro_batch: int, accumulation: int, ranks: int, length: int) -> int:
    """M7 (tokens_per_step)."""
    return micro_batch * ranks * length


def typed_in(architecture: Architecture) -> int:
    """M8 (parameters): the number in the model's name."""
    return 350_000_000


def unread_keys_ignored(values: Mapping[str, Any]) -> Plan:
    """M9 (from_mapping): what nothing reads is left out without a word."""
    known = {field.name for field in fields(Plan)}
    return from_mapping({name: value for name, value in values.items() if name in known})


def divisibility_not_checked(plan: Plan) -> list[Refusal]:
    """M10 (check): head counts are taken as they are, as though they fitted."""
    heads = math.gcd(plan.architecture.num_attention_heads, plan.architecture.hidden_size)
    fitted = replace(
        plan.architecture,
        num_attention_heads=heads,
        num_key_value_heads=math.gcd(plan.architecture.num_key_value_heads, heads),
    )
    return check(replace(plan, architecture=fitted))
