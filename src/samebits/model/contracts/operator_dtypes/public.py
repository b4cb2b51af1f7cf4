"""The public functions of operators, each with small arguments that it takes in float32."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from samebits import ops
from samebits.checker.targets import OPERATORS, import_function, specs
from samebits.model.contracts.specs import fractions, numbers

Given = dict[str, Any]
ROWS, WIDTH, WORDS = 3, 16, 8


def functions(seed: int) -> dict[str, tuple[Callable[..., Any], Callable[[], Given]]]:
    """By name: the function, and what makes its arguments. A public function without arguments is an error."""
    found = _subjects(seed)
    for name in ops.__all__:
        function = getattr(ops, name)
        if inspect.isclass(function) or name in found:
            continue
        if name not in _MORE:
            raise ValueError(f"{name}: no contract has it as a subject, and no arguments are known; add them to _MORE")
        found[name] = (function, partial(_MORE[name], seed))
    return found


def _subjects(seed: int) -> dict[str, tuple[Callable[..., Any], Callable[[], Given]]]:
    """Operators that are themselves the subject of their contract, at its smallest shape."""
    found: dict[str, tuple[Callable[..., Any], Callable[[], Given]]] = {}
    for component in OPERATORS.components().values():
        contract = component.contract()
        for identifier, subject in contract.subjects.items():
            module, _, name = subject.object.partition(":")
            if module != component.package:
                continue
            spec = specs(component)[subject.spec]
            own = [
                contract.domains[each.domain] for each in contract.obligations.values() if each.subject == identifier
            ]
            shape = min((tuple(shape) for domain in own for shape in domain.shapes), key=prod)
            found[name] = (import_function(subject.object), partial(spec.make, shape, "normal", "float32", seed))
    return found


def _drawn(seed: int, *shape: int) -> Tensor:
    return numbers("normal", shape, seed, "float32")


def _ids(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy((fractions(shape, seed) * WORDS).astype("int64"))


def _parameters(seed: int) -> list[Tensor]:
    made = [_drawn(seed, WIDTH), _drawn(seed + 1, ROWS)]
    for each in made:
        each.grad = each.clone()
    return made


# What `samebits.ops` offers beside the subjects of contracts, with its arguments.
_MORE: dict[str, Callable[[int], Given]] = {
    "adamw_": lambda seed: {
        **{name: _drawn(seed + place, WIDTH) for place, name in enumerate(("param", "grad", "exp_avg"))},
        "exp_avg_sq": _drawn(seed, WIDTH).abs(),
        "step": 1,
        "lr": 1e-3,
    },
    "add_rmsnorm": lambda seed: {
        "x": _drawn(seed, ROWS, WIDTH),
        "residual": _drawn(seed + 1, ROWS, WIDTH),
        "weight": _drawn(seed + 2, WIDTH),
    },
    "attention_with_lse": lambda seed: {
        name: _drawn(seed + place, 1, ROWS, 2, WIDTH) for place, name in enumerate("qkv")
    },
    "clip_grad_norm_": lambda seed: {"parameters": _parameters(seed), "max_norm": 1.0},
    "distill_loss": lambda seed: {
        "student_logits": _drawn(seed, ROWS, WORDS),
        "teacher_logits": _drawn(seed + 1, ROWS, WORDS),
        "targets": _ids(seed, ROWS),
    },
    "embedding_gradient_": lambda seed: {
        "accumulator": _drawn(seed, WORDS, WIDTH),
        "ids": _ids(seed, ROWS),
        "dy": _drawn(seed + 1, ROWS, WIDTH),
    },
    "grad_norm": lambda seed: {"tensors": [_drawn(seed, WIDTH), _drawn(seed + 1, ROWS)]},
    "grouped_matmul_accumulate_": lambda seed: {
        "accumulator": _drawn(seed, WORDS, WIDTH, 4),
        "x": _drawn(seed + 1, ROWS, WIDTH),
        "dy": _drawn(seed + 2, ROWS, 4),
        "expert": _ids(seed, ROWS),
    },
    "linear_cross_entropy": lambda seed: {
        "hidden": _drawn(seed, ROWS, WIDTH),
        "weight": _drawn(seed + 1, WORDS, WIDTH),
        "targets": _ids(seed, ROWS),
    },
    "logprob_of_logits": lambda seed: {"logits": _drawn(seed, ROWS, WORDS), "ids": _ids(seed, ROWS)},
    "matmul_accumulate_": lambda seed: {
        "accumulator": _drawn(seed, ROWS, 4),
        "a": _drawn(seed + 1, ROWS, WIDTH),
        "b": _drawn(seed + 2, WIDTH, 4),
    },
    "sample": lambda seed: {
        "logits": _drawn(seed, ROWS, WORDS),
        "seed": seed,
        "requests": _ids(seed, ROWS),
        "positions": _ids(seed + 1, ROWS),
    },
}
