"""Weight gradients of a backward pass in a block: remembered, and gone on with by the next micro-batch's.

Knows which operations give them, by the table of `routed`; how a chain goes on is in `resuming`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import torch
from torch import Tensor
from torch.autograd import Variable

from samebits.invariant.harmless import tensors_in
from samebits.invariant.operations import Operation
from samebits.invariant.resuming import Chains
from samebits.invariant.routed import RESUMED
from samebits.invariant.sums import sums_over_rows

NOT_RESUMED: Final = (
    "invariant_mode: a gradient was added to .grad as a finished sum, because its order cannot go on, as for a weight"
    " that is used twice, or a sum of sums: how the batch is cut into micro-batches can show in its last bits"
)


class WeightGradients:
    """Those of one block."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._chains = Chains()
        self._backward = -1

    def gone_on(self, node: str, operation: Operation, args: tuple[Any, ...], kwargs: Any) -> Tensor | None:
        """What a chain that goes on gives, where a backward pass asks for this; None: nothing out of the ordinary."""
        accumulates = node.endswith("AccumulateGrad")
        if accumulates and operation.name == "detach":
            self._chains.forget(args[0])  # it becomes .grad as it is, and nothing goes on with it
        if operation.in_place:
            if accumulates and operation.name == "add_":
                if self._chains.go_on(args[0], args[1]):
                    return cast("Tensor", args[0])
                self._tell(f"{NOT_RESUMED} (here one of shape {list(args[0].shape)})")
            if isinstance(args[0], Tensor):
                self._chains.forget(args[0])
        if operation.name == "_to_copy" and _is_for_a_leaf():
            return self._chains.unrounded(args[0], kwargs.get("dtype"))
        return None

    def remember(self, name: str, result: Any, args: tuple[Any, ...]) -> None:
        """The weight gradients among an operation's results: a later micro-batch may go on with them."""
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self._backward = backward
            Variable._execution_engine.queue_callback(self._chains.sweep)  # at the end of this backward
        results = result if isinstance(result, tuple) else (result,)
        over_rows = name == "sum" and sums_over_rows(*args)
        for number, resume in RESUMED.get(name, {}).items():
            if results[number] is not None:
                goes_on = partial(_resumed, resume, args)
                self._chains.remember(results[number], tensors_in(args), goes_on, crosses_rows=over_rows)


def _resumed(resume: Callable[..., None], args: tuple[Any, ...], accumulator: Tensor) -> None:
    resume(accumulator, *args)


def _is_for_a_leaf() -> bool:
    """Whether what the running backward function returns goes to `.grad` and nowhere else."""
    following = [each for each, _ in torch._C._current_autograd_node().next_functions if each is not None]
    return len(following) == 1 and following[0].name().endswith("AccumulateGrad")
