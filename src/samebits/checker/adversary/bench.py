"""Makes the calls that trials describe: loads data into a worker, calls what came before, and the call itself.

Knows how a function is called and nothing of what its answers should be."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from samebits.checker.adversary.calling import OUTPUT, array_of, tensor_of
from samebits.checker.adversary.frames import Array
from samebits.checker.adversary.likeness import Form
from samebits.checker.adversary.pool import Pool, cotangents, make_pool
from samebits.checker.adversary.processes import Stranger
from samebits.checker.adversary.sizes import Cost
from samebits.checker.adversary.trial import COTANGENT, Trial, arrangement
from samebits.checker.adversary.workers import CALL_SECONDS, Worker
from samebits.records.report import UnjudgedError

POOLS_KEPT = 6


class RaisedError(Exception):
    """The function raised, or returned what is no output; the text says which."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What one call gave: bits by name, and what was seen beside them."""

    results: dict[str, Array]
    index: np.ndarray
    seconds: float
    changed: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    """Arguments whose memory the output is."""
    overwritten: tuple[str, ...] = ()
    """Which result of an earlier call has other bits by now, and since when."""
    differentiable: bool = False
    own_backward: bool = False
    fingerprint: str = ""
    lines: tuple[int, ...] = ()


@dataclass(slots=True)
class Bench:
    """A function with its form, the worker that runs it, and the data made so far."""

    stranger: Stranger
    form: Form
    worker: Worker
    cost: Cost
    differentiable: bool = False
    own_backward: bool = False
    """Its gradients are computed by its own code, which then has to take what flows in however it is laid out."""
    signed_ids: bool = False
    """Whether negative numbers among ids are taken: rows to be ignored."""
    pools: dict[Trial, Pool] = field(default_factory=dict)
    shapes: dict[Trial, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """The output of one row, by problem: its shape and dtype."""
    calls: int = 0

    def pool(self, trial: Trial) -> Pool:
        """The rows of a trial's problem."""
        problem = trial.problem
        if problem not in self.pools:
            while len(self.pools) >= POOLS_KEPT:
                del self.pools[next(iter(self.pools))]
            made = make_pool(self.form.spec, problem)
            if not self.signed_ids:
                made = Pool(arguments={name: _taken(value) for name, value in made.arguments.items()}, kinds=made.kinds)
            self.pools[problem] = made
        return self.pools[problem]

    def call(self, trial: Trial, *, worker: Worker | None = None, watch: bool = False) -> Answer:
        """The trial's call, after whatever its history asks for. What the function raises is a RaisedError."""
        worker = worker or self.worker
        for before, nudge in _history(trial):
            self._one(before, worker, nudge=nudge)
        if trial.history == "numbers":
            with contextlib.suppress(RaisedError):  # a number that it does not take is its own business
                self._one(replace(trial, history="", between=False), worker, numbers=True)
        return self._one(trial, worker, watch=watch)

    def problem_refused(self, trial: Trial) -> bool:
        """Whether no call on a problem's data has answered yet."""
        return trial.problem not in self.shapes

    def gradients_of(self, trial: Trial) -> tuple[str, ...]:
        """Arguments whose gradients the trial's call gives."""
        wanted = tuple(name for name in trial.requires if name not in trial.omit)
        return wanted if self.differentiable and trial.mode == "plain" else ()

    def _one(
        self, trial: Trial, worker: Worker, *, watch: bool = False, nudge: bool = False, numbers: bool = False
    ) -> Answer:
        pool, backward = self.pool(trial), bool(self.gradients_of(trial))
        key = str(trial.problem)
        if backward and trial.problem not in self.shapes:
            self._one(replace(trial.plain(), requires=()), worker)  # tells the shape that gradients flow into
        self._load(trial, pool, key, backward, worker)
        index = arrangement(trial, pool.kinds)
        order = [name for name in self.form.order if name not in trial.omit]
        header: dict[str, Any] = {
            "do": "call",
            "pool": key,
            "order": order,
            "rows": list(self.form.spec.row_arguments),
            "axes": list(trial.axes),
            "layouts": dict(trial.layouts),
            "reuse": trial.reuse,
            "between": trial.between,
            "requires": [each for each in trial.requires if each not in trial.omit],
            "backward": backward,
            "silent": trial.silent,
            "keywords": dict(self.form.keywords),
            "scalars": dict(self.form.scalars),
            "mode": trial.mode,
            "threads": trial.threads,
            "watch": watch,
            "poison": trial.poison,
            "nudge": nudge,
            "numbers": numbers,
        }
        try:
            said, results = worker.ask(header, {"index": Array("int64", index.astype(np.uint64))}, CALL_SECONDS)
        except UnjudgedError as reason:
            raise UnjudgedError(f"{reason}; the call: {trial}") from reason
        self.calls += 1
        if "raised" in said:
            raise RaisedError(said["raised"])
        self.cost.learn(trial.sizes, said["seconds"])
        output = results[OUTPUT]
        if output.bits.ndim < 1 or output.bits.shape[0] != trial.count:
            raise RaisedError(
                f"returned shape {list(output.bits.shape)} for {trial.count} rows; the first axis must be the rows"
            )
        self.shapes[trial.problem] = (output.bits.shape[1:], output.dtype)
        return Answer(
            results=results,
            index=index,
            seconds=said["seconds"],
            changed=tuple(said["changed"]),
            shares=tuple(said["shares"]),
            overwritten=tuple(said["overwritten"]),
            differentiable=said["differentiable"],
            own_backward=said["own_backward"],
            fingerprint=said.get("fingerprint", ""),
            lines=tuple(said.get("lines", ())),
        )

    def _load(self, trial: Trial, pool: Pool, key: str, backward: bool, worker: Worker) -> None:
        with_gradient = f"{key} cotangent"
        if key not in worker.loaded:
            arrays = {name: array_of(value) for name, value in pool.arguments.items()}
            worker.ask({"do": "load", "pool": key, "most": POOLS_KEPT}, arrays, CALL_SECONDS)
            kept = [each for each in worker.order if each != key][-(POOLS_KEPT - 1) :]
            worker.order = [*kept, key]
            worker.loaded = {each for each in worker.loaded if each.removesuffix(" cotangent") in kept} | {key}
        if backward and with_gradient not in worker.loaded:
            shape, dtype = self.shapes[trial.problem]
            cotangent = cotangents(trial, pool, shape, getattr(torch, dtype))
            worker.ask({"do": "load", "pool": key, "most": POOLS_KEPT}, {COTANGENT: array_of(cotangent)}, CALL_SECONDS)
            worker.loaded.add(with_gradient)

    def elements(self, sizes: tuple[int, ...]) -> int:
        """Numbers that must be made for a problem of these sizes."""
        return math.prod(sizes[1:]) * (4 if len(sizes) > 3 else 1)

    def raw(self, *tensors: torch.Tensor, order: Sequence[str]) -> torch.Tensor:
        """The function on these very tensors, whose names are in `order`, for who asks for orders."""
        required = [name for name in self.form.order if name not in self.form.optional]
        if len(tensors) < len(required):  # a probe knows nothing of a bias that someone's function insists on
            tensors = (*tensors, torch.zeros(tensors[1].shape[0], dtype=tensors[0].dtype))
        taken = [name for name in order if name in self.form.order][: len(tensors)]
        given = dict(zip(taken, tensors, strict=True))
        names = [name for name in self.form.order if name in given]
        arrays = {name: array_of(given[name]) for name in names}
        header = {
            "do": "raw",
            "order": names,
            "keywords": dict(self.form.keywords),
            "scalars": dict(self.form.scalars),
            "numbers": False,
        }
        said, results = self.worker.ask(header, arrays, CALL_SECONDS)
        self.calls += 1
        if "raised" in said:
            raise RaisedError(said["raised"])
        return tensor_of(results[OUTPUT])


def _history(trial: Trial) -> list[tuple[Trial, bool]]:
    """What is called just before, and whether its last number differs."""
    plain = replace(trial, history="", between=False, poison=False, fresh=False)
    if trial.history == "same":
        return [(plain, False)]
    if trial.history == "rows":
        return [(replace(plain, pick="s77"), False)]
    if trial.history == "shared":
        return [(replace(plain, seed=trial.seed + 1), False)]
    if trial.history == "almost":
        return [(plain, True)]
    if trial.history == "larger":
        return [(replace(plain, sizes=(2 * trial.count + 3, *trial.sizes[1:])), False)]
    if trial.history == "fewer":
        return [(replace(plain, sizes=(1, *trial.sizes[1:]), pick="=1"), False)]
    return []


def _taken(value: torch.Tensor) -> torch.Tensor:
    """Ids without the negative ones that mark rows to be ignored."""
    return value if value.is_floating_point() or not bool((value < 0).any()) else value.clamp(min=0)
