"""Planted faults of the validator: those of the training floor, each put in its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from torch import Tensor

from samebits.train import algebra, faults, plan_rules
from samebits.train.algebra import Plan
from samebits.train.contracts.training_config import refused
from samebits.train.plan_rules import Refusal


@contextmanager
def _in_place_of(module: ModuleType, name: str, other: Any) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, other)
    try:
        yield
    finally:
        setattr(module, name, original)


def reach_not_compared(plans: Tensor) -> Tensor:
    """Whether the epochs reach the steps asked for is not asked."""
    return refused(plans, judge=faults.reach_not_compared)


def ceiling_for_floor(plans: Tensor) -> Tensor:
    """A last, short update is counted."""
    with _in_place_of(algebra, "steps_per_epoch", faults.ceiling_for_floor):
        return refused(plans)


def ranks_left_out(plans: Tensor) -> Tensor:
    """Every rank is taken to see all data."""
    with _in_place_of(algebra, "steps_per_epoch", faults.ranks_left_out):
        return refused(plans)


def floor_for_ceiling(plans: Tensor) -> Tensor:
    """The least number of epochs is rounded down."""
    with _in_place_of(plan_rules, "least_epochs", faults.floor_for_ceiling):
        return refused(plans)


def warmup_against_max_steps(plans: Tensor) -> Tensor:
    """The warm-up is held against the steps asked for."""
    return refused(plans, judge=faults.warmup_against_max_steps)


def _judged_to_max_steps(given: Plan) -> list[Refusal]:
    if given.max_steps is None or given.max_steps <= given.warmup_steps:
        return plan_rules.check(given)
    return plan_rules.check(given, rate=faults.horizon_is_max_steps(given.max_steps))


def horizon_is_max_steps(plans: Tensor) -> Tensor:
    """The cosine ends at the steps asked for."""
    return refused(plans, judge=_judged_to_max_steps)


def no_decay(plans: Tensor) -> Tensor:
    """The peak is kept after the warm-up."""
    return refused(plans, judge=lambda given: plan_rules.check(given, rate=faults.no_decay))


def accumulation_ignored(plans: Tensor) -> Tensor:
    """Tokens of a step are counted without accumulation."""
    with _in_place_of(algebra, "tokens_per_step", faults.accumulation_ignored):
        return refused(plans)


def typed_in(plans: Tensor) -> Tensor:
    """The number of weights is typed in."""
    with _in_place_of(algebra, "parameters", faults.typed_in):
        return refused(plans)


def unread_keys_ignored(plans: Tensor) -> Tensor:
    """A key that nothing reads is left out without a word."""
    return refused(plans, read=faults.unread_keys_ignored)


def divisibility_not_checked(plans: Tensor) -> Tensor:
    """Head counts are taken as though they fitted."""
    return refused(plans, judge=faults.divisibility_not_checked)
