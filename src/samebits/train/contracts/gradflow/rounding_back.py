"""What rounding does to gradients, found in float64: sums of the pass back are off by their bounds, too.

Knows torch's float64 graph, no kernel of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from samebits.contracts.orders import sum_error
from samebits.model.contracts.drawn_rounding import Drawn

Gradients = tuple[Tensor, ...]
SOFTMAX = "SoftmaxBackward0"


@dataclass(slots=True)
class DrawnThereAndBack(Drawn):
    """Each result of the pass there is off by its bound, and each gradient that a product or a softmax hands on."""

    subtracted: Tensor | None = None
    """How far the number may be off that a softmax will subtract from the gradients of a row's weights."""

    def sum(self, value: Tensor, magnitude: Tensor, terms: int) -> Tensor:
        product = _product(value.grad_fn)
        left, right = product._saved_self.detach().abs(), product._saved_mat2.detach().abs()

        def off(given: Gradients, arrived: Gradients) -> Gradients:
            flowing = arrived[0].abs()
            of_left = flowing @ right.mT * sum_error("chain-1", flowing.shape[-1])
            of_right = left.mT @ flowing * sum_error("chain-1", flowing.shape[-2])
            self.subtracted = (left * of_left).sum(-1, keepdim=True)
            return self._off(given[0], of_left), self._off(given[1], of_right)

        product.register_hook(off)
        return Drawn.sum(self, value, magnitude, terms)

    def elements(self, value: Tensor, magnitude: Tensor, roundings: int) -> Tensor:
        node: Any = value.grad_fn
        if node.name() == SOFTMAX:
            node.register_hook(lambda given, arrived: (self._past_softmax(given[0], value.detach()),))
        return Drawn.elements(self, value, magnitude, roundings)

    def _past_softmax(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """weight * (dweight - sum of weight * dweight): attention takes the sum from its output, where it is rounded by
        itself. Of a weight near 1 the difference may be nothing but that."""
        assert self.subtracted is not None
        return self._off(gradient, weight * self.subtracted)


def _product(node: Any) -> Any:
    """The matrix product that a result comes from, behind its scale and its views."""
    while not hasattr(node, "_saved_mat2"):
        node = node.next_functions[0][0]
    return node
