"""Whether a plan may run: every obligation CFG-OB1 to CFG-OB11 that it breaks is refused in one line.

Knows no device. Works on the quantities of `algebra` alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from itertools import pairwise
from typing import Any, Final

from samebits.train.algebra import Architecture, Plan, Run, learning_rate, least_epochs, repeats

# CFG-OB6: the least tokens of an update, for models of at least so many parameters.
LARGE_MODEL: Final = 100_000_000
LEAST_TOKENS_PER_STEP: Final = 65_536
# CFG-OB7.
TOKENS_PER_PARAMETER: Final = 10
# CFG-OB5: the last rate over the peak may be this, or the declared floor if that is more.
LAST_RATE: Final = 0.05

Rate = Callable[..., float]


@dataclass(frozen=True, slots=True)
class Refusal:
    """One broken obligation."""

    obligation: str
    message: str
    about: str = ""
    """The setting that is out of its range, where it is one alone."""
    allowed: int = 1
    """The nearest value that this setting may have."""

    def __str__(self) -> str:
        return f"{self.obligation}: {self.message}"


def from_mapping(values: Mapping[str, Any]) -> Plan:
    """The plan that a config file holds. A key that nothing reads is refused (CFG-OB10), and so is a missing one."""
    _closed("plan", values, Plan)
    architecture = values["architecture"]
    if not isinstance(architecture, Mapping):
        raise ValueError(f"plan: architecture is {architecture!r}; allowed: a mapping")
    _closed("architecture", architecture, Architecture)
    return Plan(**{**values, "architecture": Architecture(**architecture)})


def _closed(where: str, values: Mapping[str, Any], kind: type[Plan] | type[Architecture]) -> None:
    allowed = {field.name: field.default is MISSING for field in fields(kind)}
    for name in values:
        if name not in allowed:
            raise ValueError(f"CFG-OB10: {where} has key {name!r}, which nothing reads; allowed: {', '.join(allowed)}")
    for name, needed in allowed.items():
        if needed and name not in values:
            raise ValueError(f"{where}: key {name!r} is missing; needed: {', '.join(n for n in allowed if allowed[n])}")


def check(plan: Plan, *, rate: Rate = learning_rate) -> list[Refusal]:
    """The obligations that the plan breaks, in order; empty where it may run.

    `rate` is the learning rate that the run will use."""
    refusals = _architecture(plan.architecture) + _positive(plan)
    if refusals:
        return refusals
    run = Run.of(plan)
    if run.per_epoch < 1:
        batch = plan.micro_batch_size * plan.gradient_accumulation_steps * plan.ranks
        return [
            Refusal("CFG-OB8", f"{plan.num_sequences} sequences make no step of {batch}; allowed: at least {batch}")
        ]
    return _steps(plan, run) + _rates(plan, run, rate) + _tokens(plan, run)


def _architecture(a: Architecture) -> list[Refusal]:
    """CFG-OB11."""
    sizes = {name: value for name, value in asdict(a).items() if type(value) is int}
    if small := [f"{name} is {value}" for name, value in sizes.items() if value < 1]:
        return [Refusal("CFG-OB11", f"{small[0]}; allowed: at least 1")]
    refusals = []
    if a.head_dim is None and a.hidden_size % a.num_attention_heads:
        refusals.append(
            Refusal(
                "CFG-OB11",
                f"num_attention_heads is {a.num_attention_heads}, which must divide hidden_size {a.hidden_size}",
            )
        )
    elif (size := a.head_dim or a.hidden_size // a.num_attention_heads) % 2:
        refusals.append(Refusal("CFG-OB11", f"head size is {size}; allowed: an even number"))
    if a.num_attention_heads % a.num_key_value_heads:
        message = (
            f"num_key_value_heads is {a.num_key_value_heads}, which must divide num_attention_heads"
            f" {a.num_attention_heads}"
        )
        refusals.append(Refusal("CFG-OB11", message))
    return refusals


def _positive(plan: Plan) -> list[Refusal]:
    """Counts below one have no meaning; they are named by the obligation that would divide by them."""
    of = {
        "num_sequences": "CFG-OB8",
        "micro_batch_size": "CFG-OB8",
        "gradient_accumulation_steps": "CFG-OB8",
        "ranks": "CFG-OB8",
        "max_length": "CFG-OB6",
        "num_train_epochs": "CFG-OB1",
        "warmup_steps": "CFG-OB2",
        "max_repeats": "CFG-OB7",
    }
    counts = {name: getattr(plan, name) for name in of} | (
        {"max_steps": plan.max_steps} if plan.max_steps is not None else {}
    )
    return [
        Refusal(of.get(name, "CFG-OB1"), f"{name} is {value}; allowed: at least 1", about=name)
        for name, value in counts.items()
        if value < 1
    ]


def _steps(plan: Plan, run: Run) -> list[Refusal]:
    refusals = []
    if plan.max_steps is not None and run.reach < plan.max_steps:
        needed = least_epochs(plan.max_steps, run.per_epoch)
        message = f"{run.per_epoch:,} steps an epoch, {plan.max_steps:,} asked, {needed:,} epochs needed"
        refusals.append(
            Refusal("CFG-OB1", f"{message}; epochs is {plan.num_train_epochs}, which reaches {run.reach:,}")
        )
    if plan.warmup_steps >= run.steps:
        message = f"warmup_steps is {plan.warmup_steps}, the run makes {run.steps} steps; allowed: less than its steps"
        refusals.append(Refusal("CFG-OB2", message))
    if plan.warmup_steps > longest_warmup(run.steps):
        allowed = "at most a tenth" if run.steps >= 10 else "of fewer than ten steps, at most"
        message = (
            f"warmup_steps is {plan.warmup_steps} of {run.steps} steps; allowed: {allowed}, {longest_warmup(run.steps)}"
        )
        refusals.append(Refusal("CFG-OB3", message))
    return refusals


def longest_warmup(steps: int) -> int:
    """CFG-OB3: a tenth of the steps. A warm-up of one step is none, the first update is at the peak: always allowed."""
    return max(1, steps // 10)


def _rates(plan: Plan, run: Run, rate: Rate) -> list[Refusal]:
    """CFG-OB4 and CFG-OB5, on the rates of the updates that will really be made."""
    numbers = {"lr": plan.lr, "warmup_steps": plan.warmup_steps, "steps": run.steps, "min_lr_ratio": plan.min_lr_ratio}
    if plan.warmup_steps >= run.steps:
        last = rate(run.steps, **numbers)
        message = f"the rate ends at {last:.6g} on its way up to {plan.lr:.6g}; allowed: warm-up and decay"
        return [Refusal("CFG-OB4", message)]
    refusals, peak, floor = [], plan.lr, plan.lr * plan.min_lr_ratio
    last, at_top = rate(run.steps, **numbers), rate(plan.warmup_steps, **numbers)
    before = rate(plan.warmup_steps - 1, **numbers) if plan.warmup_steps > 1 else 0.0
    after = [rate(step, **numbers) for step in _samples(plan.warmup_steps, run.steps)]
    falling = all(later <= earlier for earlier, later in pairwise(after))
    if not (_near(at_top, peak) and before < peak and falling and _near(last, floor)):
        message = f"the rate is {at_top:.6g} after warm-up and {last:.6g} at the end; allowed: {peak:.6g}, falling to"
        refusals.append(Refusal("CFG-OB4", f"{message} {floor:.6g}"))
    allowed = max(plan.min_lr_ratio, LAST_RATE) * peak
    if last > allowed and not _near(last, allowed):
        message = f"the last update uses {last:.6g}, {last / peak:.3f} of the peak; allowed: at most {allowed:.6g}"
        refusals.append(Refusal("CFG-OB5", message))
    return refusals


def _samples(first: int, last: int, count: int = 64) -> list[int]:
    """Steps first .. last, `count` of them at most, both ends among them."""
    return sorted({first + (last - first) * place // (count - 1) for place in range(count)})


def _near(value: float, wanted: float) -> bool:
    """Within two units in the last place."""
    return abs(value - wanted) <= 2 * math.ulp(wanted)


def _tokens(plan: Plan, run: Run) -> list[Refusal]:
    refusals = []
    # Rules for weights that begin as noise: those that were trained before need no more tokens than their task has.
    if not plan.pretrained and run.parameters >= LARGE_MODEL and run.per_step < LEAST_TOKENS_PER_STEP:
        message = (
            f"{run.per_step} tokens a step for {run.parameters} parameters; allowed: at least {LEAST_TOKENS_PER_STEP}"
        )
        refusals.append(Refusal("CFG-OB6", message))
    needed = TOKENS_PER_PARAMETER * run.parameters
    if not plan.pretrained and run.tokens < needed:
        message = f"{run.tokens} tokens for {run.parameters} parameters; allowed: at least {needed}"
        refusals.append(Refusal("CFG-OB7", message))
    seen = repeats(run.steps, run.per_epoch)
    if seen > plan.max_repeats:
        message = (
            f"the data is seen {float(seen):.2f} times, max_repeats is {plan.max_repeats}; allowed: no more than that"
        )
        refusals.append(Refusal("CFG-OB7", message, about="max_repeats", allowed=math.ceil(seen)))
    return refusals


def check_counted(plan: Plan, updates: int) -> list[Refusal]:
    """CFG-OB9, after a run: it made as many updates as its plan says."""
    steps = Run.of(plan).steps
    if updates == steps:
        return []
    return [Refusal("CFG-OB9", f"the run made {updates} updates; allowed: the {steps} of its plan")]
