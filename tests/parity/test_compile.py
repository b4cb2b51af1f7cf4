"""A model made of our operators and compiled by torch gives the bits of eager, forward and backward, at any size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from samebits import ops
from samebits.numerics.bits import compare

WIDTH, HEADS, KEY_HEADS, HEAD, INNER, VOCABULARY = 48, 4, 2, 16, 80, 300


class Layer(nn.Module):
    """One layer and a head, written with nothing else."""

    def __init__(self) -> None:
        super().__init__()
        shapes = {
            "before": (WIDTH,),
            "query": (HEADS * HEAD, WIDTH),
            "key": (KEY_HEADS * HEAD, WIDTH),
            "value": (KEY_HEADS * HEAD, WIDTH),
            "out": (WIDTH, HEADS * HEAD),
            "between": (WIDTH,),
            "gate": (INNER, WIDTH),
            "up": (INNER, WIDTH),
            "down": (WIDTH, INNER),
            "table": (VOCABULARY, WIDTH),
        }
        self.weights = nn.ParameterDict(
            {name: nn.Parameter(torch.randn(shape) * 0.3) for name, shape in shapes.items()}
        )

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        w, (batch, tokens) = self.weights, ids.shape
        positions = torch.arange(tokens).expand(batch, tokens)
        x = ops.embedding(ids, w["table"])
        normed = ops.rmsnorm(x, w["before"])
        q, k, v = (ops.linear(normed, w[name]).reshape(batch, tokens, -1, HEAD) for name in ("query", "key", "value"))
        attended = ops.attention(ops.rope(q, positions), ops.rope(k, positions), v)
        x = x + ops.linear(attended.reshape(batch, tokens, -1), w["out"])
        normed = ops.rmsnorm(x, w["between"])
        x = x + ops.linear(ops.swiglu(ops.linear(normed, w["gate"]), ops.linear(normed, w["up"])), w["down"])
        return ops.selected_logprob(x, w["table"], targets)


def results(model: nn.Module, run: nn.Module, ids: Tensor, targets: Tensor) -> list[Tensor]:
    logprobs = run(ids, targets)
    return [logprobs.detach(), *torch.autograd.grad(logprobs.sum(), list(model.parameters()))]


def test_compiled_is_eager_bit_for_bit() -> None:
    torch.manual_seed(0)
    model = Layer()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for batch, tokens in ((2, 9), (3, 70), (5, 33)):
        ids, targets = (torch.randint(VOCABULARY, (batch, tokens)) for _ in range(2))
        eager, other = results(model, model, ids, targets), results(model, compiled, ids, targets)
        for number, (left, right) in enumerate(zip(eager, other, strict=True)):
            difference = compare(left, right)
            assert difference is None, f"{batch}x{tokens}, result {number}: {difference}"
